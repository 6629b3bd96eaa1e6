"""A system of somebody else's, from outside: `stress --subject`, `explore --subject`, and what is said to a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.postgres import Server, provision
from stress.__main__ import stress as front_door
from stress.display import Display
from stress.schedules.lab import open_lab
from stress.schedules.search import Exhaustive
from stress.schedules.worker import Task, Worker
from stress.subjects import own_run
from stress.subjects.asked import checked_own
from stress.subjects.peers import PEERS, pins_of, words_of
from stress.subjects.timing import timed

ROOT = Path(__file__).resolve().parents[2]
BLOG = str(ROOT / "examples" / "blog_queue" / "blog_queue.py")
OWN = str(ROOT / "tests" / "fixtures" / "own_systems.py")


def stress(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "stress",
            "run",
            "--no-report",
            "--faults",
            "none",
            "--seconds",
            "2",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.slow("8 s")
def test_a_queue_of_a_blog_post_is_raced_and_judged_in_every_view(tmp_path: Path, pg_spec: str) -> None:
    done = stress("--subject", f"{BLOG}:BlogQueue", "--pg", pg_spec, "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    held = {name for name, found in verdict["invariants"].items() if found["verdict"] == "held"}
    assert {
        "nothing-lost",
        "run-again-for-cause",
        "claim-within-limit",
        "ends-once",
        "ended-by-its-holder",
    } <= held
    assert f"--subject {BLOG}:BlogQueue" in verdict["reproduce"]
    [folder] = tmp_path.iterdir()
    again = subprocess.run(
        [sys.executable, "-m", "invariants", "check", str(folder), "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["invariants"] == verdict["invariants"]


@pytest.mark.slow("8 s")
@pytest.mark.parametrize(
    ("kind", "expected"), [("BlogQueue", {"ends-once", "claim-within-limit"}), ("FencedQueue", set())]
)
def test_schedules_show_what_is_wrong_with_it_and_that_the_fence_mends_it(
    server: Server, kind: str, expected: set[str]
) -> None:
    words = f"{BLOG}:{kind}"
    violated: set[str] = set()
    with open_lab(server, subject=words) as lab:
        worker = Worker(lab, None, "", subject=words, shrinking_s=0.5)
        for race, planner in (("reclaimed-complete", "hashed"), ("claim-claim", "nested")):
            task = Task(race, planner, 0, Exhaustive(), 12)
            while not task.over:
                found = worker.turn(task)
                assert found.unknown is None
                if found.schedule is not None:
                    assert found.confirmed
                    violated |= set(found.schedule.violated)
                    break
    assert violated == expected


@pytest.mark.slow("6 s")
def test_a_worker_that_is_a_program_says_what_it_did_in_a_file(tmp_path: Path, pg_spec: str) -> None:
    done = stress(
        "--subject", f"{OWN}:Commanded", "--nodes", "2", "--pg", pg_spec, "--out", str(tmp_path), "--json"
    )
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["invariants"]["nothing-lost"]["checked"] > 0
    assert verdict["invariants"]["ends-once"]["verdict"] == "not_exercised"


@pytest.mark.slow("6 s")
def test_a_system_that_never_runs_a_job_has_lost_it(
    tmp_path: Path, pg_spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_run, "STUCK_S", 1.0)
    config = checked_own(
        pg=[pg_spec], seconds=1, nodes=1, seed=1, faults="none", scenario=None, subject=f"{OWN}:Accepts",
        mutant=None, python=None,
    )  # fmt: skip
    monkeypatch.setattr(own_run, "DEFAULT_LEASE_S", 0.1)
    judged = own_run.run_own(config, None, tmp_path, Display(quiet=True))
    assert judged.exit_code == 1
    assert judged.verdict.invariants["nothing-lost"]["violated"] > 0


@pytest.mark.slow("6 s")
def test_a_worker_that_ends_at_once_is_unknown_and_its_last_words_are_told(
    tmp_path: Path, pg_spec: str
) -> None:
    done = stress(
        "--subject", f"{OWN}:Leaves", "--nodes", "1", "--pg", pg_spec, "--out", str(tmp_path), "--json"
    )
    assert done.returncode == 4
    assert "has nothing to say" in json.loads(done.stdout)["reason"]


@pytest.mark.slow("4 s")
def test_a_set_up_that_raises_is_told_in_a_sentence(tmp_path: Path, pg_spec: str) -> None:
    done = stress("--subject", f"{OWN}:Refuses", "--pg", pg_spec, "--out", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: Refuses.set_up raised RuntimeError: there is no such extension"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--subject", "nowhere.py:Queue"], "there is no file nowhere.py"),
        (["--subject", f"{OWN}:Absent"], "there is no class 'Absent'"),
        (["--subject", f"{OWN}:Lacks"], "Lacks lacks work"),
        (["--subject", f"{OWN}:Job"], "is no subject"),
        (["--subject", OWN], "names no class"),
        (["--subject", "no.such.module:Queue"], "cannot be imported"),
        (["--subject", "referense"], "there is no subject 'referense'"),
        (["--subject", f"{BLOG}:BlogQueue", "--mutant", "x"], "--mutant is for the reference engine"),
        (["--subject", f"{BLOG}:BlogQueue", "--faults", "poison"], "the fault 'poison'"),
        (["--subject", f"{BLOG}:BlogQueue", "--python", "/no/such/python"], "there is no interpreter"),
        (["--python", "python3"], "--python is for a system of your own"),
    ],
)
def test_a_wrong_argument_is_told_in_one_sentence(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(front_door, ["run", "--no-report", "--seconds", "2", *arguments])
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_only_a_queue_of_statements_can_be_explored() -> None:
    done = CliRunner().invoke(front_door, ["explore", "--subject", f"{OWN}:Accepts"])
    assert done.exit_code == 2
    assert "cannot be explored" in done.output


@pytest.mark.slow("5 s")
def test_a_system_is_timed_until_it_has_no_job_left(pg_spec: str) -> None:
    with provision(pg_spec) as fresh:
        figures = timed(fresh, f"{BLOG}:FencedQueue", None, jobs=150, processes=2, timeout_s=60)
    assert (figures.jobs, figures.processes) == (150, 2)
    assert figures.steady_per_s > 0
    assert 0 < figures.whole_s < 60


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_has_a_class_and_exact_pins(name: str) -> None:
    file, _, kind = words_of(name).rpartition(":")
    assert f"class {kind}(System):" in Path(file).read_text("utf-8")
    pins = pins_of(name).read_text("utf-8").splitlines()
    assert pins
    assert all("==" in pin for pin in pins)
