"""A page in a real browser, where one is installed. It has no network here; that a page points at nothing
outside of itself is read off it in tests/unit/test_report.py."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from results.report import making
from tests.unit.test_report import run_in

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow("5 s each")
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_page_is_drawn(tmp_path: Path, width: int) -> None:
    target = making.write(run_in(tmp_path / "run"))
    shot = tmp_path / "page.png"
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
            ),
            *("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2400"),
            *(f"--screenshot={shot}", target.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    png = shot.read_bytes()
    assert struct.unpack(">II", png[16:24]) == (width, 2400)
    # A blank page of that size would be a few kilobytes.
    assert len(png) > 40_000
