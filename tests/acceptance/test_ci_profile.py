"""The parts of the ci profile make one verdict, one folder and one JUnit file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.ci import Files
from stress.ci_profile import ci_command, ci_request


@pytest.mark.parametrize(
    ("mutant", "status", "word"), [(None, 0, "held"), ("wake-filtered-in-where", 1, "violated")]
)
def test_what_the_sample_of_races_finds_is_the_verdict(
    mutant: str | None,
    status: int,
    word: str,
    tmp_path: Path,
    pg_spec: str,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    request = ci_request(pg=(pg_spec,), nodes=2, seed=1, faults="none", mutant=mutant)
    small = replace(request, runs=(), races=("lost-wakeup", "identity-twice"))
    files = Files(tmp_path / "races.xml", None)
    assert ci_command(small, tmp_path / "runs", as_json=True, quiet=True, reports=False, ci=files) == status
    [folder] = (tmp_path / "runs").iterdir()
    verdict = json.loads((folder / "verdict.json").read_bytes())
    assert json.loads(capfdbinary.readouterr().out) == verdict
    assert verdict["verdict"] == verdict["parts"]["explore"]["verdict"] == word
    assert (folder / verdict["parts"]["explore"]["folder"] / "verdict.json").exists()
    suites = ElementTree.parse(files.junit or "").getroot()
    assert (suites.attrib["tests"], suites.attrib["failures"]) == ("2", str(status))
