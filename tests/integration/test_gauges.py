"""What a run reads off its server: who waits for whom, dead rows, and the plans on its own tables."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from engine.schema import migrate
from engine.statements import Catalogue
from invariants.mutants import PLANS
from results.plans import generic
from results.plans.tree import shape, walk
from results.report.page import _waits
from stress.gauges import GAUGES, WAITS, Gauges, session

RELEASE = Catalogue.load()["picker/release"]
BLOCKED = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.fixture
def migrated(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        migrate(connection, "picker")
        connection.execute(
            "INSERT INTO gen_durable (fsm, step, queue) VALUES ('f', 's', 'q'), ('f', 's', 'q')"
        )
    return database


def test_a_session_that_waits_is_seen_with_its_holder_its_statement_and_both_transactions(
    migrated: str, tmp_path: Path
) -> None:
    touch = "UPDATE gen_durable SET attempt = attempt + 1"
    named = {
        name: make_conninfo(migrated, application_name=f"swarm@{name}#0-1")
        for name in ("node-1.1", "node-2.2")
    }
    gauges = Gauges(Catalogue.load().patched({RELEASE.name: touch}))
    with (
        psycopg.connect(named["node-1.1"]) as holder,
        psycopg.connect(named["node-2.2"], autocommit=True) as waiter,
        psycopg.connect(migrated, autocommit=True) as watching,
    ):
        gauges.look([watching])
        holder.execute(touch)
        xid = holder.execute("SELECT pg_current_xact_id()::text::bigint & 4294967295").fetchone()
        waiter.pgconn.send_query(touch.encode())
        deadline = time.monotonic() + 30
        while watching.execute(BLOCKED).fetchone() != (1,):
            assert time.monotonic() < deadline, "nobody waits"
        gauges.look([watching])
        holder.rollback()
        while waiter.pgconn.get_result() is not None:
            pass
        gauges.look([watching])
    gauges.write(tmp_path)
    [seen] = pl.read_parquet(tmp_path / WAITS).to_dicts()
    assert (seen["waiter"], seen["holder"], seen["statement"]) == ("node-2.2", "node-1.1", RELEASE.name)
    assert seen["lock"] == "transactionid"
    assert xid == (seen["holder_xid"],)
    assert seen["waiter_xid"] == seen["holder_xid"] + 1
    counted = pl.read_parquet(tmp_path / GAUGES)
    assert counted.filter(pl.col("name") == "waiting")["value"].to_list() == [0, 1, 0]
    assert "dead gen_durable" in counted["name"].to_list()
    [(wait, looks)] = _waits(pl.read_parquet(tmp_path / WAITS))
    assert (wait.waiter, wait.lock, looks) == ("node-2.2", "transactionid in picker/release", 1)


def test_sessions_are_known_by_the_processes_of_the_histories() -> None:
    assert session("swarm@node-2.3#0123456789abcdef-ff.1") == "node-2.3"
    assert session("client-1") == "client-1"


def test_a_run_keeps_the_plans_of_its_own_statements_on_its_own_tables(migrated: str, tmp_path: Path) -> None:
    sound = generic.generic(migrated, Catalogue.load())
    generic.write(tmp_path, sound)
    assert generic.read(tmp_path) == sound
    assert {"picker/claim", "picker/flush", "maintenance/reclaim"} <= sound.plans.keys()
    # There are no tables of the store here.
    assert not any(name.startswith("store/") for name in sound.plans)
    assert all(node.loops == 0 for plan in sound.plans.values() for node in walk(plan))
    broken = generic.generic(migrated, PLANS["claim-queue-any"].apply(Catalogue.load()))
    assert shape(broken.plans["picker/claim"]) != shape(sound.plans["picker/claim"])
    assert shape(broken.plans["picker/flush"]) == shape(sound.plans["picker/flush"])


def test_a_folder_without_plans_has_none(tmp_path: Path) -> None:
    assert generic.read(tmp_path) is None
