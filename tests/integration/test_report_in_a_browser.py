"""Pages in a real browser, where one is installed: nothing fetched or missing, nothing cut off, all of it reachable.

`PGREFEREE_SCREENSHOTS=folder` keeps what the browser has drawn, each page whole.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.plans import render
from results.plans.comparing import compare
from results.plans.reference import named
from results.plans.verdict import Judged, judge
from results.report import look, making, overview
from tests.fixtures.browser import CHROMIUM, Browser
from tests.unit.test_report import exploration_in, run_in

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

KEEP = os.environ.get("PGREFEREE_SCREENSHOTS")
PAGES = ("held", "violated", "exploration", "capture", "comparison", "overview")
# Beside what scrolls by itself, nothing may reach beyond the window.
CUT_OFF = """
[...document.querySelectorAll("body *")].filter(each =>
  !each.closest(".scroll") && !each.closest(".skip") && each.getBoundingClientRect().right > innerWidth + 1
).map(each => each.outerHTML.slice(0, 100)).slice(0, 3)
"""
NAMELESS = """
[...document.querySelectorAll("a, summary, [tabindex]")].filter(each =>
  !(each.textContent.trim() || each.getAttribute("aria-label"))
).length
"""
SHOWN = "(each => each.className + ' ' + each.getBoundingClientRect().left)(document.activeElement)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    held = {
        "single-owner": {"verdict": "held", "checked": 3, "violated": 0, "violations": []},
        "no-spin": {"verdict": "not_exercised", "checked": 0, "violated": 0, "violations": []},
    }
    captured = [Judged(named("18"))]
    compared = folder / "compared.html"
    compared.write_text(render.html(compare(named("17"), named("18"))), encoding="utf-8")
    return {
        "held": making.write(run_in(folder / "1-held", verdict="held", invariants=held)),
        "violated": making.write(run_in(folder / "2-violated")),
        "exploration": making.write(exploration_in(folder / "3-explore")),
        "capture": look.put(folder / "captured.html", render.page("Plans", captured, judge(captured))),
        "comparison": compared,
        "overview": overview.write(folder),
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.slow("1 s each")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_drawn_whole_and_fetches_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    url = pages[name].as_uri()
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(url, width=width, dark=dark)
    assert [each for each in browser.requests if not each.startswith("data:")] == [url]
    assert browser.complaints == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(CUT_OFF) == []
    # The theme is the reader's, and what is drawn takes its colours.
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")
    shot = browser.screenshot(whole=KEEP is not None)
    keep(f"{name}-{width}-{'dark' if dark else 'light'}.png", shot)
    assert struct.unpack(">I", shot[16:20]) == (width,)
    # A blank one would be a few kilobytes.
    assert len(shot) > 20_000


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_reached_and_read_with_the_keyboard_alone(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name].as_uri())
    assert browser.ask(NAMELESS) == 0
    browser.press("Tab")
    # The first stop leads past the header, and is seen when one is there.
    kind, left = browser.ask(SHOWN).split()
    assert (kind, float(left) >= 0) == ("skip", True)
    browser.press("Enter")
    assert browser.ask("location.hash") == "#main"
    reached = browser.ask("document.querySelectorAll('a, summary, [tabindex=\"0\"]').length")
    assert browser.ask("document.querySelectorAll('[tabindex]:not([tabindex=\"0\"])').length") == 0
    assert reached >= 3


def test_what_is_folded_on_the_screen_is_printed(browser: Browser, pages: dict[str, Path]) -> None:
    seen = "document.querySelector('#plans pre').checkVisibility()"
    browser.open(pages["violated"].as_uri())
    assert browser.ask(seen) is False
    browser.open(pages["violated"].as_uri(), media="print", dark=True)
    assert browser.ask(seen) is True
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    printed = browser.pdf()
    keep("violated.pdf", printed)
    assert printed.startswith(b"%PDF")


def keep(name: str, drawn: bytes) -> None:
    if KEEP is not None:
        Path(KEEP).mkdir(parents=True, exist_ok=True)
        (Path(KEEP) / name).write_bytes(drawn)
