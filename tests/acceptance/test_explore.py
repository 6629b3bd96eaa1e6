"""`python -m stress explore` and `replay`, as a person starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

TIMEOUT_S = 100


def stress(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stress", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_a_race_of_the_sound_engine_is_searched_whole_and_held(tmp_path: Path) -> None:
    told = stress("explore", "--race", "lost-wakeup", "--json", "--quiet", "--out", str(tmp_path))
    assert told.returncode == 0, told.stderr
    verdict = msgspec.json.decode(told.stdout)
    race = verdict["races"]["lost-wakeup"]
    assert verdict["verdict"] == race["verdict"] == "held"
    # Four planners, and a session that dies.
    assert (race["whole"], race["sampled"], race["orders"]) == (5, 0, 56)
    assert verdict["schedules_per_second"] > 0


def test_a_failing_schedule_is_told_recorded_and_replayed(tmp_path: Path) -> None:
    junit = tmp_path / "races.xml"
    told = stress(
        *("explore", "--race", "lost-wakeup", "--mutant", "wake-filtered-in-where"),
        *("--out", str(tmp_path / "runs"), "--junit", str(junit), "--summary", str(tmp_path / "summary.md")),
    )
    assert told.returncode == 1, told.stderr
    assert "verdict: violated" in told.stdout
    assert "schedules in" in told.stdout
    [failure] = ElementTree.parse(junit).getroot().iter("failure")
    assert "which the step that parked it had not been handed" in (failure.text or "")
    assert "explore wake-filtered-in-where: **violated**" in (tmp_path / "summary.md").read_text()
    [folder] = (tmp_path / "runs").iterdir()
    recorded = folder / "lost-wakeup.json"
    assert (folder / "lost-wakeup.spec").exists()
    assert (folder / "test_lost_wakeup.py").exists()
    page = (folder / "report.html").read_text("utf-8")
    assert '<a href="lost-wakeup.spec">' in page
    assert "lost-wakeup.json" in page

    again = stress("replay", str(recorded), "--json")
    assert again.returncode == 1, again.stderr
    assert msgspec.json.decode(again.stdout)["violated"] == ["no-lost-wakeup"]
    drawn = tmp_path / "held.html"
    sound = stress("replay", str(recorded), "--mutant", "none", "--quiet", "--html", str(drawn))
    assert sound.returncode == 0, sound.stderr
    # The sound delivery goes on where the broken one saw nothing to wake.
    assert '<div class="event did"' in drawn.read_text("utf-8")
    # What lies elsewhere is not pointed at.
    assert "lost-wakeup.spec" not in drawn.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("explore", "--race", "lost-wakeups"), "did you mean 'lost-wakeup'?"),
        (("replay", "/nowhere.json"), "cannot be read"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(arguments: tuple[str, ...], sentence: str) -> None:
    told = stress(*arguments)
    assert told.returncode == 2
    assert sentence in told.stderr
    assert told.stdout == ""
