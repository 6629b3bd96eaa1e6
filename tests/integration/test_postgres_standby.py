"""A standby takes the place of its primary: at its address, with all that was acknowledged, and with the ledger."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from engine.errors import InfrastructureError
from engine.operation import perform
from engine.picker import Job, Picker
from engine.postgres import Server, provision
from engine.postgres.standby import Standby
from engine.schema import migrate
from invariants.ledger.frames import NAME, read_transactions
from invariants.ledger.process import RecorderProcess


def insert(server: Server) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        perform(connection, Picker().insert(Job(fsm="f", step="s")))


def rows(server: Server) -> int:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM gen_durable").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow("20 s")
def test_two_standbys_in_turn_take_over_with_all_that_was_acknowledged_and_the_ledger_goes_on(
    tmp_path: Path,
) -> None:
    with provision(profile="durable") as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            migrate(connection)
        with RecorderProcess(server.dsn, tmp_path, "ledger", failover=True) as recorder:
            insert(server)
            for taken in (1, 2):
                standby = Standby(server)
                try:
                    standby.build()
                    insert(server)
                    standby.take_over()
                finally:
                    standby.remove()
                assert rows(server) == 2 * taken
                insert(server)
            ended = recorder.stop()
    assert ended["complete"], ended["reason"]
    assert ended["differences"] == 0
    inserted = [t for t in read_transactions(tmp_path / NAME) if t.changes[0].relation.name == "gen_durable"]
    assert len(inserted) == 5


@pytest.mark.slow("10 s")
def test_a_standby_that_is_dismissed_leaves_a_primary_that_waits_for_nobody(tmp_path: Path) -> None:
    with provision(profile="durable") as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            migrate(connection)
        standby = Standby(server)
        try:
            standby.build()
            standby.dismiss()
        finally:
            standby.remove()
        began = time.monotonic()
        insert(server)
        assert time.monotonic() - began < 5
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1 FROM pg_replication_slots").fetchone() is None


def test_a_server_that_the_harness_did_not_start_gets_no_standby(server: Server) -> None:
    with pytest.raises(InfrastructureError, match="the harness started"):
        Standby(replace(server, control=None))
