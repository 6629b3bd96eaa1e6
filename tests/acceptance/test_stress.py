"""`python -m stress run` from outside: exit status, standard output, files, and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import sql

from engine.postgres import conninfo, provision
from invariants.areas import AREAS, RECONCILING, RULES
from invariants.picker import ALWAYS_EXERCISED
from results.runs import read_verdict
from stress.scenarios import SCENARIOS
from stress.scenarios.thundering_herd import PRELOADED
from tests.integration.test_postgres_dsn import dump

EXERCISED = ALWAYS_EXERCISED | set(SCENARIOS["mixed"].exercises) | {rule.name for rule in RECONCILING}
SEEN = {rule.name for rule in AREAS["picker"].seen}
DROPPED = ("--scenario", "pokes-dropped", "--seconds", "6", "--nodes", "3", "--faults", "none")
DEADLINE_S = 60.0


def stress(*arguments: str, timeout_s: float = 110, **popen: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-m", "stress", "run", "--no-report", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        **popen,
    )


def runs_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.slow("25 s")
def test_a_sound_engine_is_held_under_kills_and_pauses(tmp_path: Path, pg_spec: str) -> None:
    done = stress(
        "--seconds",
        "8",
        "--faults",
        "kill,pause",
        "--seed",
        "7",
        "--report",
        "--json",
        "--out",
        str(tmp_path),
        "--pg",
        pg_spec,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    [folder] = runs_in(tmp_path)
    assert json.loads((folder / "verdict.json").read_text()) == verdict
    assert '<p class="verdict held">held</p>' in (folder / "report.html").read_text()
    assert {name: found["verdict"] for name, found in verdict["invariants"].items()} == {
        rule.name: "held" if rule.name in EXERCISED | SEEN else "not_exercised" for rule in RULES
    }
    assert {fault["fault"] for fault in verdict["faults"]} == {"kill", "pause"}
    assert all(fault["lasted_ms"] > 0 for fault in verdict["faults"])
    assert verdict["ledger"]["transactions"] > 1_000
    assert min(verdict["invariants"][name]["checked"] for name in EXERCISED) > 3
    assert {"insert", "claim", "flush", "step"} <= set(verdict["latency_ms"])
    happened = {name for name, found in verdict["exercised"].items() if found["finding"] == "exercised"}
    assert happened >= {
        "denials", "throttles", "gates_saturated", "joins", "inline_chains", "reconciles", "bucket_sweeps",
        "gc_deletes", "pokes",
    }  # fmt: skip
    assert "--seed 7" in verdict["reproduce"]
    # Judged again from its files, it is the same.
    again = subprocess.run(
        [sys.executable, "-m", "invariants", "check", str(folder), "--json"], capture_output=True, text=True
    )
    assert again.returncode == 0
    assert json.loads(again.stdout)["invariants"] == verdict["invariants"]


@pytest.mark.slow("25 s")
def test_a_run_says_what_each_fault_did_and_what_became_of_it(tmp_path: Path) -> None:
    faults = ("terminate", "partition", "crash")
    done = stress(
        *("--scenario", "children", "--seconds", "8", "--seed", "3", "--json", "--out", str(tmp_path)),
        *("--faults", ",".join(faults)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    did: dict[str, set[str]] = {name: set() for name in faults}
    for fault in verdict["faults"]:
        did[fault["fault"]] |= {what for what, count in fault["did"].items() if count > 0}
    assert "sessions ended" in did["terminate"]
    assert "answers to COMMIT lost" in did["partition"]
    assert did["crash"] == {"crashes"}
    assert verdict["effects"]["flushes unknown"] > 0
    for fault in verdict["faults"]:
        recovery = fault["recovery"]
        assert (recovery["throughput_ms"] is None) == (recovery["not_seen"] is not None)
    assert verdict["losses"] == []
    assert verdict["postgres"]["settings"]["fsync"] == "on"


@pytest.mark.slow("25 s each")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("mutant", "scenario", "faults", "invariant"),
    [
        ("outcome-unguarded", "mixed", "kill,pause", "single-owner"),
        ("guard-only-no-arbiter", "mixed", "kill,pause", "k1-exclusion"),
        ("insert-many-unordered", "batches", "none", "no-deadlock"),
    ],
)
def test_a_mutant_is_violated_and_the_invariant_named_with_its_transactions(
    mutant: str, scenario: str, faults: str, invariant: str, tmp_path: Path
) -> None:
    done = stress(
        *("--mutant", mutant, "--scenario", scenario, "--faults", faults, "--seconds", "60"),
        *("--until-violated", "--out", str(tmp_path)),
        env={**os.environ, "COLUMNS": "160"},
        timeout_s=220,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    verdict = read_verdict(folder)
    assert verdict.mutant == mutant
    assert verdict.invariants[invariant]["verdict"] == "violated"
    assert f"{invariant}:" in done.stdout
    if invariant != "no-deadlock":  # whose evidence is the server's log: a deadlock commits nothing
        transactions = verdict.invariants[invariant]["violations"][0]["transactions"]
        numbers = [transaction["number"] for transaction in transactions]
        assert len(numbers) >= 2
        assert numbers == sorted(numbers)
        assert all(str(transaction["xid"]) in done.stdout for transaction in transactions)


@pytest.mark.slow("20 s")
def test_an_engine_whose_pokes_are_dropped_does_all_its_work(tmp_path: Path) -> None:
    done = stress(*DROPPED, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    verdict = read_verdict(folder)
    assert verdict.invariants["poke-is-a-hint"]["verdict"] == "held"
    assert verdict.invariants["poke-is-a-hint"]["checked"] > 100
    assert "pokes dropped" in done.stdout


@pytest.mark.slow("25 s")
def test_a_node_that_works_only_when_poked_is_caught_where_pokes_are_dropped(tmp_path: Path) -> None:
    done = stress(*DROPPED, "--mutant", "poked-only", "--out", str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    assert read_verdict(folder).invariants["poke-is-a-hint"]["verdict"] == "violated"


@pytest.mark.slow("30 s")
def test_a_deploy_is_over_before_its_load_is_and_changes_the_limits_under_it(tmp_path: Path) -> None:
    done = stress(
        *("--scenario", "deploy", "--seconds", "4", "--nodes", "2", "--faults", "none", "--seed", "5"),
        *("--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    verdict = read_verdict(folder)
    assert verdict.exercised["nodes_rolled"]["count"] == 4
    assert verdict.exercised["limits_changed"]["finding"] == "exercised"


@pytest.mark.slow("20 s")
def test_a_herd_makes_its_schema_at_once_and_works_off_what_has_waited_for_it(tmp_path: Path) -> None:
    done = stress(
        *(
            "--scenario",
            "thundering-herd",
            "--seconds",
            "2",
            "--nodes",
            "3",
            "--faults",
            "none",
            "--seed",
            "5",
        ),
        *("--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    assert read_verdict(folder).waits_ms["the backlog"]["ended"]["count"] == PRELOADED


@pytest.mark.slow("30 s")
def test_a_soak_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    soak = (
        "--profile",
        "soak",
        "--scenario",
        "hot-key",
        "--faults",
        "none",
        "--nodes",
        "2",
        "--seconds",
        "1",
    )
    status, output, family = interrupted_run(tmp_path, signal.SIGINT, "round 0", *soak, "--minutes", "60")
    assert status == 4, output
    assert gone(family)
    [folder] = runs_in(tmp_path)
    assert f"go on: nox -s stress -- --resume {folder}" in output
    done = stress("--resume", str(folder), "--minutes", "0.01", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert (verdict["verdict"], verdict["complete"]) == ("held", True)
    assert verdict["rounds"]["held"] >= 1
    assert verdict["memory_mb"]["harness"]["most"] > 0
    assert set(verdict["tables_mb"]) == {"first", "last", "most"}
    assert sorted(path.name for path in (folder / "rounds" / "0000").iterdir()) == [
        "run.json",
        "verdict.json",
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--scenario", "mixd"], 2, "there is no scenario 'mixd'; did you mean 'mixed'?"),
        (["--mutant", "nonesuch"], 2, "there is no mutant 'nonesuch'; choose from: "),
        (["--faults", "kill,flood"], 2, "there is no fault 'flood'; choose from: cancel, crash, failover"),
        (["--subject", "other"], 2, "there is no subject 'other'; choose from: absurd"),
        (["--pg", "12"], 2, '"12" names no supported Postgres'),
        (["--nodes", "0"], 2, "--nodes must be 1 to 64, not 0"),
        (["--seconds", "nan"], 2, "--seconds must be 1 to 86400, not nan"),
        (["--seconds", "soon"], 2, "'soon' is not a valid float"),
        (["--minutes", "3"], 2, "--minutes is for --profile soak"),
        (["--profile", "soak", "--minutes", "0"], 2, "--minutes must be above 0 and at most 10080, not 0"),
        (["--profile", "soak", "--pg", "16", "--pg", "17"], 2, "a soak runs on one server: give --pg once"),
        (["--resume", "nowhere"], 2, "nowhere holds no soak that could go on"),
        (["--pg", "dsn:postgresql://u:s3cret@127.0.0.1:1/x"], 3, "127.0.0.1"),
    ],
)
def test_wrong_arguments_end_with_one_sentence(
    arguments: list[str], status: int, words: str, tmp_path: Path
) -> None:
    done = stress(*arguments, "--out", str(tmp_path))
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert "s3cret" not in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())


@pytest.fixture
def run_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the servers of this test alone live; short, for their sockets, and open to the server's account."""
    folder = Path(tempfile.mkdtemp(prefix="pgr", dir="/tmp"))
    folder.chmod(0o755)
    monkeypatch.setenv("PGREFEREE_RUN_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def left_in(run_dir: Path) -> list[str]:
    """What servers have left there."""
    return [path.name for path in run_dir.glob("*/*") if path.name != ".lock"]


def interrupted_run(
    out: Path, number: signal.Signals, after: str, *arguments: str
) -> tuple[int, str, set[int]]:
    """Start a run, signal it when its output says `after`; its status, output, and the pids of all its children."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stress", "run", *(arguments or ("--seconds", "60")), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    family: set[int] = set()
    for line in process.stdout:
        lines.append(line)
        if line.startswith(after):
            family = {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
            process.send_signal(number)
            break
    lines.extend(process.stdout)
    return process.wait(DEADLINE_S), "".join(lines), family


def gone(pids: set[int]) -> bool:
    """Wait until none of the processes is left."""
    deadline = time.monotonic() + DEADLINE_S
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        if time.monotonic() > deadline:
            raise AssertionError(f"still there: {left}")
        time.sleep(0.05)
    return True


@pytest.mark.slow("15 s each")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", ["PostgreSQL", "load"])
def test_an_interrupted_run_leaves_its_record_and_nothing_else(
    number: signal.Signals, after: str, tmp_path: Path, run_dir: Path
) -> None:
    status, output, family = interrupted_run(tmp_path, number, after)
    assert status == 4, output
    assert family
    assert gone(family)
    [folder] = runs_in(tmp_path)
    verdict = read_verdict(folder)
    assert (verdict.verdict, verdict.reason) == ("unknown", "interrupted")
    assert after == "PostgreSQL" or verdict.ledger["transactions"] > 0
    said = {found.get("reason", "") for found in verdict.invariants.values()}
    assert after == "PostgreSQL" or "the ledger ends before the run does: the run was interrupted" in said
    assert not [reason for reason in said if "parent" in reason]
    assert "verdict: unknown: interrupted" in output
    assert left_in(run_dir) == []


@pytest.mark.slow("15 s")
def test_the_children_of_a_killed_harness_go_with_it(tmp_path: Path, run_dir: Path) -> None:
    _, _, family = interrupted_run(tmp_path, signal.SIGKILL, "load")
    ours = {pid for pid in family if _is_harness_process(pid)}
    assert gone(ours)
    # The server itself is for the next start to reap.
    assert left_in(run_dir) != []
    with provision():
        assert gone(family)
    assert left_in(run_dir) == []


def _is_harness_process(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return "-m" in psutil.Process(pid).cmdline()
    return False


@contextlib.contextmanager
def started(*arguments: str, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A run under load. It is killed where the block does not see it to its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stress", "run", "--faults", "none", "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        next(line for line in process.stdout if line.startswith("load"))
        yield process
    finally:
        process.kill()
        process.communicate()


def is_unknown(process: subprocess.Popen[str], out: Path, reason: str) -> bool:
    """Whether it ends so, for that reason and with no rule that says otherwise, long before its load would have."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 4, output
    assert "verdict: unknown: " in output
    [folder] = runs_in(out)
    verdict = read_verdict(folder)
    assert verdict.verdict == "unknown"
    assert reason in (verdict.reason or ""), verdict.reason
    assert verdict.ledger["transactions"] > 0
    assert "Traceback" not in output
    return "held" not in {verdict.invariants[name]["verdict"] for name in ("single-owner", "no-lost-job")}


@pytest.mark.slow("15 s")
def test_a_run_whose_ledger_slot_was_dropped_is_unknown(tmp_path: Path) -> None:
    with provision() as theirs:
        assert theirs.admin_dsn is not None
        with (
            started(
                "--seconds", "600", "--nodes", "2", "--pg", f"dsn:{theirs.admin_dsn}", out=tmp_path
            ) as run,
            psycopg.connect(theirs.admin_dsn, autocommit=True) as connection,
        ):
            deadline = time.monotonic() + DEADLINE_S
            while drop_slots(connection) == 0:
                assert time.monotonic() < deadline
            assert is_unknown(run, tmp_path, "the ledger was lost: ")


def drop_slots(connection: psycopg.Connection[Any]) -> int:
    """How many could be dropped: a reader that was cut off may be back before."""
    connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    try:
        return connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        ).rowcount
    except psycopg.errors.ObjectInUse:
        return 0


@pytest.mark.slow("10 s")
def test_a_run_whose_node_is_gone_and_never_comes_back_is_unknown(tmp_path: Path) -> None:
    with started("--seconds", "600", "--nodes", "2", out=tmp_path) as run:
        nodes = [
            child
            for child in psutil.Process(run.pid).children(recursive=True)
            if "stress.swarm.node_process" in child.cmdline()
        ]
        nodes[0].kill()
        assert is_unknown(run, tmp_path, "exited with status -9")


@pytest.mark.slow("15 s")
def test_a_run_whose_checker_has_no_time_is_unknown_and_held_when_it_has(tmp_path: Path) -> None:
    arguments = ("--scenario", "children", "--faults", "none", "--seconds", "2", "--nodes", "2")
    done = stress(*arguments, "--judge-seconds", "0", "--out", str(tmp_path))
    assert done.returncode == 4, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    verdict = read_verdict(folder)
    assert "the checker ran out of time at transaction 1 of the ledger" in (verdict.reason or "")
    found = {verdict.invariants[name]["verdict"] for name in ALWAYS_EXERCISED}
    assert found == {"unknown"}
    check = [sys.executable, "-m", "invariants", "check", str(folder)]
    assert subprocess.run([*check, "--judge-seconds", "0"], capture_output=True).returncode == 4
    assert subprocess.run(check, capture_output=True).returncode == 0


@pytest.mark.slow("20 s")
def test_a_run_on_a_users_server_leaves_every_other_database_alone_byte_by_byte(tmp_path: Path) -> None:
    with provision() as theirs:
        assert theirs.admin_dsn is not None
        assert theirs.tcp_dsn is not None
        with psycopg.connect(theirs.admin_dsn, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE ROLE maker LOGIN CREATEDB REPLICATION PASSWORD {}").format(
                    sql.Literal("s3cret")
                )
            )
            connection.execute("CREATE DATABASE shop")
        with psycopg.connect(conninfo.with_database(theirs.admin_dsn, "shop"), autocommit=True) as connection:
            connection.execute("CREATE TABLE gen_durable AS SELECT generate_series(1, 100) AS id")
        before = dump(theirs)
        params = {
            **conninfo.parse(theirs.tcp_dsn),
            "user": "maker",
            "password": "s3cret",
            "dbname": "postgres",
        }
        done = stress("--seconds", "3", "--pg", f"dsn:{conninfo.to_uri(params)}", "--out", str(tmp_path))
        assert done.returncode == 0, done.stdout + done.stderr
        assert dump(theirs) == before
        with psycopg.connect(theirs.admin_dsn) as connection:
            slots = connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone()
        assert slots == (0,)
    assert "s3cret" not in done.stdout + done.stderr
    written = (path for path in tmp_path.rglob("*") if path.is_file())
    assert not [path for path in written if b"s3cret" in path.read_bytes()]
