"""Every command of the tutorial, in its order, with the exit status and the race that it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import noxfile

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
INSTALL = "python3 -m pip install nox"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# nox without its environments: the module behind a session, with this Python.
NOX = """
nox() {{
  [ "$1" = -s ] || exit 99
  session=$2; shift 2; [ "$1" = -- ] && shift
  case "$session" in
{cases}
    *) exit 98;;
  esac
}}
"""
TIMEOUT_S = 170


def bash(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    cases = "\n".join(
        f'    {session}) {shlex.quote(sys.executable)} -m {module} "$@";;'
        for session, (module, _) in noxfile.FRONT_DOORS.items()
    )
    return subprocess.run(
        ["bash", "-c", f"{NOX.format(cases=cases)}\n{line}"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.slow("60 s")
@pytest.mark.timeout(400)
def test_the_tutorial_is_true(tmp_path: Path) -> None:
    done = None
    ran = 0
    for language, block in FENCE.findall(PAGE.read_text(encoding="utf-8")):
        if language == "text":
            assert done is not None
            shown = squeezed(done.stdout)
            assert [line for line in squeezed(block) if line not in shown] == []
            continue
        for line in block.splitlines():
            if line == INSTALL:
                continue
            command, _, comment = line.partition("  # ")
            status = int(comment.removeprefix("exit status ")) if comment else 0
            done = bash(command, tmp_path)
            assert done.returncode == status, f"{line}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 8
    [told] = (tmp_path / "results" / "runs" / "tutorial").glob("*-mixed-outcome-unguarded")
    assert "violated" in (told / "report.html").read_text(encoding="utf-8")
