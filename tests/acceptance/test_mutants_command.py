"""`python -m stress mutants` and `ablate` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 300


def stress(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stress", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S
    )


@pytest.mark.timeout(TIMEOUT_S)
def test_one_mutant_is_caught_with_its_evidence(pg_spec: str, tmp_path: Path) -> None:
    done = stress("mutants", "--only", "join-counts-a-batch-once", "--pg", pg_spec, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "join-exact" in done.stdout
    assert done.stdout.splitlines()[-1] == "verdict: held"
    [folder] = tmp_path.iterdir()
    verdict = json.loads((folder / "verdict.json").read_text("utf-8"))
    assert verdict["figures"]["caught"] == 1
    assert verdict["survivors"] == []


@pytest.mark.timeout(TIMEOUT_S)
def test_an_instrument_that_is_blind_to_a_mutant_lets_it_survive_and_exits_with_1(
    pg_spec: str, tmp_path: Path
) -> None:
    # What a single insert shows no race shows: shown to races alone it survives.
    words = ["--only", "json-double-encoded", "--instrument", "explore", "--json", "--pg", pg_spec]
    done = stress("mutants", *words, "--out", str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["survivors"] == ["json-double-encoded"]


NEWCOMER = """
from invariants.mutants import PLANS, Mutant, Patch
from stress.__main__ import stress

# Written otherwise, and the same: nothing can catch it.
same = Patch("WHERE g.id = $1::bigint", "WHERE $1::bigint = g.id")
PLANS["newcomer"] = Mutant(
    name="newcomer", summary="the same", caught_by=("index",), statements={"client/outcome": (same,)}
)

if __name__ == "__main__":
    stress()
"""


@pytest.mark.timeout(TIMEOUT_S)
def test_a_mutant_that_was_added_and_that_nothing_catches_fails_the_session(
    pg_spec: str, tmp_path: Path
) -> None:
    program = tmp_path / "newcomer.py"
    program.write_text(NEWCOMER, "utf-8")
    words = [
        "mutants",
        "--only",
        "newcomer",
        "--json",
        "--quiet",
        "--pg",
        pg_spec,
        "--out",
        str(tmp_path / "runs"),
    ]
    done = subprocess.run(
        [sys.executable, str(program), *words], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["survivors"] == ["newcomer"]


@pytest.mark.timeout(TIMEOUT_S)
def test_an_ablated_statement_is_noticed(pg_spec: str, tmp_path: Path) -> None:
    words = [
        "--where",
        "picker/flush_drop",
        "--workers",
        "1",
        "--json",
        "--pg",
        pg_spec,
        "--out",
        str(tmp_path),
    ]
    done = stress("ablate", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["figures"]["caught"] == found["figures"]["variants"] > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("mutants", "--only", "outcome-ungarded"), "did you mean 'outcome-unguarded'?"),
        (("mutants", "--workers", "0"), "Invalid value for '--workers'"),
        (("ablate", "--where", "picker/nothing"), "nothing can be taken out of 'picker/nothing'"),
    ],
)
def test_wrong_usage_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    done = stress(*words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
