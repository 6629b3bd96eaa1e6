"""All runs on one page: what became of each, the rates of each scenario over time, and the committed plans."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markupsafe import Markup

from engine.errors import UsageError
from results.report import look, making
from results.report.charts import chart
from results.report.recorded import Recorded, read
from results.report.series import CURVES, Curve

NAME: Final = "index.html"
# The rate that says most about a run of the picker, and of the store.
RATES: Final = ("jobs_ended", "commits")
# Newest first.
MOST: Final = 500


@dataclass(frozen=True, slots=True)
class Listed:
    """A run in the list; `rate` is None where it has none of RATES."""

    run: Recorded
    rate: float | None


def write(folder: Path) -> Path:
    """The page of all runs below a folder, and the page of each that has none yet. Raises UsageError."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder of runs; `nox -s stress` makes one")
    listed, unreadable = _listed(folder)
    if not listed and not unreadable:
        raise UsageError(f"{folder} holds no run that has ended")
    for one in listed:
        if not (one.run.folder / look.NAME).exists():
            making.write(one.run.folder)
    html = look.rendered(
        "overview", listed=listed, unreadable=unreadable, trend=_trend(listed), folder=folder, page=look.NAME
    )
    return look.put(folder / NAME, html)


def _listed(folder: Path) -> tuple[list[Listed], list[str]]:
    """Newest first, and sentences about those that cannot be read."""
    found: list[Listed] = []
    unreadable: list[str] = []
    runs = sorted((each.parent for each in folder.glob("*/verdict.json")), reverse=True)
    for run in runs[:MOST]:
        try:
            one = read(run)
        except UsageError as error:
            unreadable.append(str(error))
            continue
        throughput = one.verdict.throughput
        found.append(Listed(one, next((throughput[name] for name in RATES if name in throughput), None)))
    return found, unreadable


def _trend(listed: list[Listed]) -> Markup | None:
    """Rates of the scenarios that were run most, from the oldest run to the newest; mutants are left out."""
    by_scenario: dict[str, list[float]] = defaultdict(list)
    for one in reversed(listed):
        if one.rate is not None and one.run.verdict.mutant is None:
            by_scenario[one.run.verdict.scenario].append(one.rate)
    most = sorted(by_scenario, key=lambda name: -len(by_scenario[name]))[:CURVES]
    curves = [
        Curve(name, tuple(float(n) for n in range(1, len(by_scenario[name]) + 1)), tuple(by_scenario[name]))
        for name in sorted(most)
        if len(by_scenario[name]) > 1
    ]
    if not curves:
        return None
    longest = max(len(curve.xs) for curve in curves)
    return Markup(chart("Trend", "per second", curves, (), end_s=float(longest), across="runs, oldest first"))
