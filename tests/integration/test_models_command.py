"""`python -m models`: the verdict on the screen and in the exit status, within the time given."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

# Starting and stopping a server of its own, on a busy machine.
START_AND_STOP_S = 60


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "models", *arguments], capture_output=True, text=True, timeout=180
    )


def test_a_sound_engine_holds_and_json_is_all_that_is_printed() -> None:
    done = run("--seconds", "3", "--seed", "7", "--machine", "picker", "--machine", "transport", "--json")

    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert (verdict["verdict"], verdict["seed"]) == ("held", 7)
    assert all(machine["examples"] > 0 for machine in verdict["machines"].values())
    assert 2.9 < sum(machine["seconds"] for machine in verdict["machines"].values()) < 6


def test_no_example_in_the_budget_is_unknown() -> None:
    done = run("--seconds", "0.0001")

    assert done.returncode == 4, done.stderr
    assert "no example was finished" in done.stdout


def test_quiet_says_nothing_of_what_holds() -> None:
    done = run("--seconds", "2", "--machine", "picker", "--machine", "limiter", "--quiet")

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--pg", "12"], 2),
        (["--profile", "never"], 2),
        (["--seconds", "0"], 2),
        (["--seconds", "nan"], 2),
        (["--seed", "-1"], 2),
        (["--machine", "none"], 2),
        (["--pg", "dsn:postgresql://someone:secret@127.0.0.1:1/nowhere"], 3),
    ],
)
def test_wrong_input_ends_with_one_sentence_and_without_the_password(
    arguments: list[str], status: int
) -> None:
    began = time.monotonic()
    done = run(*arguments)

    assert done.returncode == status
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert time.monotonic() - began < START_AND_STOP_S
