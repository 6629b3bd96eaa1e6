"""A bench, small: what is measured is proved from the write-ahead log, and a worker that cheats is not counted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from engine.errors import InfrastructureError
from engine.postgres import Server, fresh_database
from invariants.ledger.process import RecorderProcess
from stress.bench.commits import commits, writers
from stress.bench.contenders import Contender, engine, raw, swarmed
from stress.bench.cost import counted
from stress.bench.drain import COUNTED, counters, drain

JOBS = 40

# Ends what it has not taken: quicker than anybody who does the work.
CHEATS = """
import json, sys, psycopg
config = json.loads(sys.stdin.readline())
with psycopg.connect(config["dsn"], autocommit=True, application_name=config["name"]) as connection:
    connection.execute("UPDATE job SET status = 'ended'")
"""


def cheating() -> Contender:
    return replace(raw(10), command=(sys.executable, "-c", CHEATS))


@pytest.mark.parametrize("contender", [raw(10), engine()], ids=["raw", "engine"])
def test_a_drain_holds_with_two_processes(server: Server, tmp_path: Path, contender: Contender) -> None:
    sample = drain(server, replace(contender, jobs=JOBS), 2, 0, tmp_path)
    assert (sample.verdict, sample.reason) == ("held", None)
    assert sample.figures["per_s"] > 0


def test_a_drain_counts_what_a_job_writes(server: Server, tmp_path: Path) -> None:
    sample = drain(server, replace(engine(), jobs=JOBS), 1, 0, tmp_path, workload="cost", counts=True)
    assert (sample.verdict, sample.workload) == ("held", "cost")
    # Its claim and its end, and the rows that a node writes for itself, if any.
    assert 2 <= sample.figures["row_versions"] < 3
    assert sample.figures["wal_bytes"] > 200


@pytest.mark.parametrize("executing", [0, 5])
def test_whether_anything_is_left_is_read_from_indexes(
    server: Server, tmp_path: Path, executing: int
) -> None:
    contender = engine(executing=executing)
    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as session:
        place = contender.prepare(dsn, tmp_path)
        assert place.unfinished is not None
        session.execute("SET enable_seqscan TO off")
        plan = "\n".join(line for (line,) in session.execute(b"EXPLAIN " + place.unfinished))
        assert ("Index" in plan, "Seq Scan" in plan) == (True, False)
        assert session.execute(place.unfinished).fetchone() == (False,)
        contender.load(dsn, tmp_path, 1, 1)
        assert session.execute(place.unfinished).fetchone() == (True,)


def test_a_drain_is_over_where_only_others_execute(server: Server, tmp_path: Path) -> None:
    sample = drain(server, replace(engine(executing=5), jobs=JOBS), 1, 0, tmp_path, counts=True)
    assert (sample.verdict, sample.reason) == ("held", None)


def test_what_a_session_has_counted_is_not_asked_before_it_has_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stress.bench.drain.SETTLE_S", 0.0)
    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as watch:
        with psycopg.connect(dsn), pytest.raises(InfrastructureError, match=r"^1 sessions were not over"):
            counters(watch)
        monkeypatch.undo()
        assert set(counters(watch)) == set(COUNTED)


def test_a_batch_is_five_statements_in_five_round_trips(server: Server, tmp_path: Path) -> None:
    sample = counted(server, "plain", 10, {}, 0, tmp_path)
    assert (sample.verdict, sample.figures) == ("held", {"statements": 0.5, "round_trips": 0.5})


def test_a_drain_holds_while_it_is_recorded_and_judged(server: Server, tmp_path: Path) -> None:
    sample = drain(server, replace(swarmed()[1], jobs=JOBS), 1, 0, tmp_path)
    assert (sample.verdict, sample.reason) == ("held", None)


def test_a_drain_whose_recorder_gave_up_is_no_measurement_of_a_swarm(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = RecorderProcess.stop
    monkeypatch.setattr(
        RecorderProcess, "stop", lambda self: sound(self) | {"complete": False, "reason": "x"}
    )
    with fresh_database(server) as dsn:
        swarmed()[1].prepare(dsn, tmp_path)
        with pytest.raises(InfrastructureError, match="not complete: x"), swarmed()[1].beside(dsn, tmp_path):
            pass
        with pytest.raises(InfrastructureError, match="not recorded"), swarmed()[1].beside(dsn, tmp_path):
            kill_the_recorder()


def kill_the_recorder() -> None:
    [recorder] = [
        child for child in psutil.Process().children() if child.cmdline()[-2:] == ["invariants", "record"]
    ]
    recorder.kill()


def test_a_worker_that_ends_what_it_never_took_is_not_counted(server: Server, tmp_path: Path) -> None:
    sample = drain(server, replace(cheating(), jobs=JOBS), 1, 0, tmp_path)
    assert (sample.verdict, sample.reason) == ("violated", f"{JOBS} jobs were ended that nobody had taken")


def test_commits_hold(server: Server, tmp_path: Path) -> None:
    sample = commits(server, writers()[2], 1, 0, tmp_path)
    assert (sample.verdict, sample.contender) == ("held", "store")
    assert sample.figures["per_s"] > 0
