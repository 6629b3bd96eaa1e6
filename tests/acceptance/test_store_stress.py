"""`python -m stress run` for scenarios of the store: on one server, on two, and with a broken engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from invariants.areas import AREAS
from results.runs import read_verdict
from stress.scenarios import SCENARIOS
from tests.acceptance.test_stress import runs_in, stress

STATECHART = ("--scenario", "statechart", "--nodes", "3", "--seed", "7")
EXPECTED = {
    rule.name
    for area in SCENARIOS["statechart"].subject.areas
    for rule in AREAS[area].rules
    if AREAS[area].expects(rule.name, SCENARIOS["statechart"].exercises)
}


def judged_again(folder: Path) -> dict[str, Any]:
    """What `python -m invariants check` says of a folder."""
    again = subprocess.run(
        [sys.executable, "-m", "invariants", "check", str(folder), "--json"], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    found: dict[str, Any] = json.loads(again.stdout)
    return found


@pytest.mark.slow("30 s")
def test_statecharts_come_to_their_ends_under_kills_and_pauses(tmp_path: Path, pg_spec: str) -> None:
    done = stress(
        *STATECHART, "--seconds", "8", "--faults", "kill,pause", "--out", str(tmp_path), "--pg", pg_spec,
        env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    verdict = read_verdict(folder)
    assert {verdict.invariants[name]["verdict"] for name in EXPECTED} == {"held"}
    assert verdict.invariants["execution-ends"]["checked"] > 20
    assert min(verdict.throughput[name] for name in ("commits", "messages", "events_delivered")) > 1
    assert {"store.load", "store.commit", "transport.claim", "relay.deliver"} <= set(verdict.latency_ms)
    happened = {name for name, found in verdict.exercised.items() if found["finding"] == "exercised"}
    assert happened >= {"timers_fired", "forks_joined", "outbox_delivered", "spawns_made"}
    assert "denials" not in verdict.exercised
    assert "commits/s" in done.stdout
    ended = verdict.invariants["execution-ends"]["checked"]
    assert f"at rest: {verdict.invariants['outbox-no-loss']['checked']:,} of" in done.stdout
    assert f"{ended:,} of {ended:,} executions came to their end" in done.stdout
    assert "jobs inserted" not in done.stdout
    assert set(verdict.postgres) == {"version", "source", "settings"}
    assert judged_again(folder)["invariants"] == verdict.invariants


@pytest.mark.slow("45 s")
def test_statecharts_come_to_their_ends_on_two_servers(tmp_path: Path) -> None:
    done = stress(
        *STATECHART, "--seconds", "8", "--faults", "kill,pause", "--out", str(tmp_path),
        "--pg", "embedded", "--pg", "embedded",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    verdict = read_verdict(folder)
    assert {verdict.invariants[name]["verdict"] for name in EXPECTED} == {"held"}
    assert len(verdict.postgres["others"]) == 1
    assert (folder / "shard-0" / "ledger.pgoutput").stat().st_size > 10_000
    assert (folder / "shard-1" / "ledger.pgoutput").stat().st_size > 10_000
    assert not (folder / "ledger.pgoutput").exists()
    assert verdict.reproduce.endswith("--pg embedded --pg embedded")
    assert judged_again(folder)["invariants"] == verdict.invariants


@pytest.mark.slow("25 s each")
@pytest.mark.parametrize("servers", [1, 2])
def test_a_relay_that_acknowledges_before_it_delivers_is_caught(servers: int, tmp_path: Path) -> None:
    done = stress(
        *STATECHART, "--seconds", "5", "--mutant", "relay-acks-first", "--out", str(tmp_path),
        *["--pg", "embedded"] * servers,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    [folder] = runs_in(tmp_path)
    assert read_verdict(folder).invariants["outbox-no-loss"]["verdict"] == "violated"
    assert "outbox-no-loss:" in done.stdout
    assert servers == 1 or "outbox-no-loss: shard " in done.stdout


def test_a_scenario_of_the_picker_takes_one_server(tmp_path: Path) -> None:
    done = stress("--pg", "embedded", "--pg", "embedded", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "scenario 'mixed' runs on one server" in done.stderr
    assert "Traceback" not in done.stderr
    assert not runs_in(tmp_path)
