"""The recorder on a real server: what it records is what happened, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg
import pytest

from engine.picker import Hold, Job
from engine.schema import migrate
from invariants.areas import RECONCILING, RULES
from invariants.evidence import RUN_FILE, Evidence, read_ledger_summary
from invariants.folder import judge_folder
from invariants.ledger.frames import NAME, read_transactions
from invariants.ledger.process import RecorderError, RecorderProcess
from invariants.ledger.reader import LedgerUnavailable
from invariants.picker import ALWAYS_EXERCISED
from stress.scripts.arena import DEADLINE_S, Arena, commit, of, verdicts
from stress.scripts.steps import job
from tests.fixtures.scripts import OpenArena

SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
CUT_STREAMS = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE state = 'streaming'"
PUBLICATIONS = "SELECT count(*) FROM pg_publication"


@pytest.fixture
def migrated(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        migrate(connection)
    return database


def count(dsn: str, query: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in time"


def test_two_sessions_at_work_are_judged_held(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    work(arena)
    report = arena.judge(at_rest=True)
    held = ALWAYS_EXERCISED | {"k1-exclusion", "identity-unique", "seen-single-owner"}
    held |= {rule.name for rule in RECONCILING}
    assert verdicts(report) == {rule.name: "held" if rule.name in held else "not_exercised" for rule in RULES}
    assert report.exit_code == 0
    summary = read_ledger_summary(arena.folder)
    assert (summary.complete, summary.differences, summary.generated) == (True, (), ())
    assert summary.compared == 36
    assert (summary.transactions, summary.changes) == (report.transactions, report.changes)
    assert count(arena.dsn, SLOTS) == count(arena.dsn, PUBLICATIONS) == 0


def work(arena: Arena) -> None:
    """Every operation, and every shape in which a claim ends; a state that is stored out of line among
    them."""
    one, two = arena.session("one"), arena.session("two")
    large = {"text": os.urandom(50_000).hex()}
    done, failed = {"status": "done", "result": 1}, {"status": "failed", "result": None}
    first = one.insert(job(concurrency_key="k", correlation_key="c", state=large), done) or 0
    assert two.insert(job(correlation_key="c")) is None
    second = one.insert(job(concurrency_key="k"), failed) or 0
    many = two.insert_many(
        [job(correlation_key=f"m{n % 20}", queue="many", priority=n % 3) for n in range(54)]
    )
    assert sum(row is not None for row in many) == 20
    scoped = [one.insert(job(queue="s", correlation_key="s", correlation_scope=("runnable",)))]
    one.claim("one.s", queue="s")
    scoped.append(two.insert(job(queue="s", correlation_key="s", correlation_scope=("runnable",))))
    two.release(Hold(scoped[0] or 0, "one.s"))
    more = [two.insert(job(queue="more")) or 0 for _ in range(12)]

    assert [row.id for row in one.claim("one.1").rows] == [first]
    assert two.claim("two.1").rows == ()
    one.heartbeat(Hold(first, "one.1"))
    one.flush(commit(first, "one.1", "next", step="ship"))
    two.claim("two.2", lease_ms=0)
    two.reap()
    one.claim("one.2")
    assert two.flush(commit(first, "two.2")).holds == ()
    one.flush(commit(first, "one.2", "retry", error="again"))
    assert [row.id for row in two.claim("two.3").rows] == [second]
    two.flush(commit(second, "two.3", "stop", error="boom"))
    assert [row.id for row in one.claim("one.3").rows] == [first]
    one.flush(commit(first, "one.3"))
    for queue, size in (("many", 20), ("s", 2), ("more", 12)):
        name = f"one.{queue}.all"
        rows = one.claim(name, queue=queue, batch=100).rows
        assert len(rows) == size
        one.flush(*(commit(row.id, name) for row in rows))
    assert len(more) == 12


def test_a_run_is_judged_again_by_the_command(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    work(arena)
    arena.judge(at_rest=True)
    command = [sys.executable, "-m", "invariants", "check", str(arena.folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "verdict: held" in run.stdout
    run = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    told = msgspec.json.decode(run.stdout)
    assert told["invariants"]["lifecycle"]["verdict"] == "held"
    evidence = msgspec.json.encode(Evidence(at_rest=False))
    (arena.folder / RUN_FILE).write_bytes(evidence)
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 4


@pytest.mark.parametrize("folder", ["absent", "empty"])
def test_a_folder_without_a_run_is_one_sentence(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "invariants", "check", str(tmp_path / folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("error: ")


def test_the_dsn_is_in_no_argument(migrated: str, tmp_path: Path) -> None:
    with RecorderProcess(migrated, tmp_path) as recorder:
        arguments = Path(f"/proc/{recorder.pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{recorder.pid}/environ").read_bytes()
        secret = psycopg.conninfo.conninfo_to_dict(migrated)["dbname"]
        assert isinstance(secret, str)
        assert secret.encode() not in arguments + environment


def test_a_recorder_whose_stream_is_cut_goes_on_without_a_gap_or_a_double(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    one = arena.session("one")
    for _ in range(3):
        for _ in range(20):
            one.insert(job())
        wait_until(lambda: arena.execute(CUT_STREAMS) == [(True,)], "a stream to cut")
    for _ in range(20):
        one.insert(job())
    report = arena.judge()
    assert report.transactions == 80
    assert [t.number for t in read_transactions(arena.folder / NAME)] == list(range(1, 81))
    assert read_ledger_summary(arena.folder).differences == ()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_recorder_writes_what_it_has_and_cleans_up(number: int, open_arena: OpenArena) -> None:
    arena = open_arena(None)
    one = arena.session("one")
    one.insert(job())
    wait_until(lambda: arena.recorder.progress["transactions"] == 1, "progress")
    os.kill(arena.recorder.pid, number)
    wait_until(
        lambda: count(arena.dsn, SLOTS) + count(arena.dsn, PUBLICATIONS) == 0, "slot and publication dropped"
    )
    arena.recorder.close()
    arena.close_sessions()
    summary = read_ledger_summary(arena.folder)
    assert not summary.complete
    assert "interrupted by SIG" in (summary.reason or "")
    report = judge_folder(arena.folder)
    assert report.transactions == 1
    assert report.verdict == "unknown"


def test_a_recorder_whose_parent_is_gone_cleans_up(migrated: str, tmp_path: Path) -> None:
    with RecorderProcess(migrated, tmp_path):
        assert count(migrated, SLOTS) == 1
    assert count(migrated, SLOTS) == count(migrated, PUBLICATIONS) == 0
    assert read_ledger_summary(tmp_path).reason == "the parent is gone"


def test_a_recording_that_is_abandoned_says_why(migrated: str, tmp_path: Path) -> None:
    recorder = RecorderProcess(migrated, tmp_path)
    recorder.abandon("the run was interrupted")
    assert count(migrated, SLOTS) == count(migrated, PUBLICATIONS) == 0
    assert read_ledger_summary(tmp_path).reason == "the run was interrupted"


def test_a_killed_recorder_leaves_a_ledger_that_is_judged_as_cut(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    one = arena.session("one")
    one.insert(job())
    wait_until(lambda: arena.recorder.progress["transactions"] == 1, "progress")
    os.kill(arena.recorder.pid, signal.SIGKILL)
    with pytest.raises(RecorderError):
        arena.recorder.stop()
    arena.close_sessions()
    report = judge_folder(arena.folder)
    assert of(report, "lifecycle").reason == (
        "the ledger ends before the run does: the recorder did not live to close its ledger"
    )


def test_a_ledger_that_misses_changes_is_not_trusted(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    one = arena.session("one")
    row = one.insert(job()) or 0
    arena.execute("ALTER PUBLICATION pgreferee_ledger SET (publish = 'insert')")
    one.claim("one.1")
    one.flush(commit(row, "one.1"))
    report = arena.judge(at_rest=True)
    assert of(report, "lifecycle").verdict == "unknown"
    assert "differs from the table at rest" in (of(report, "lifecycle").reason or "")


def test_a_database_without_a_table_has_no_ledger(database: str, tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="create the schema first"):
        RecorderProcess(database, tmp_path)


def test_an_unreachable_server_is_an_error_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(RecorderError) as caught:
        RecorderProcess(f"host={tmp_path} user=u password=hunter2 dbname=x", tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_recorded_run_is_not_recorded_over(migrated: str, tmp_path: Path) -> None:
    with RecorderProcess(migrated, tmp_path) as recorder:
        recorder.stop()
    with pytest.raises(LedgerUnavailable, match="exists"):
        RecorderProcess(migrated, tmp_path)


def test_progress_is_reported_while_the_load_runs(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    one = arena.session("one")
    one.insert_many([Job(fsm="f", step="s") for _ in range(100)])
    wait_until(lambda: arena.recorder.progress["changes"] == 100, "progress")
    wait_until(lambda: arena.recorder.progress["lag_bytes"] == 0, "no lag")
    assert arena.recorder.progress["violations"] == 0
    checked, violated = arena.recorder.progress["rules"]["lifecycle"]
    assert checked > 0
    assert violated == 0
