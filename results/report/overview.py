"""All results on one page: what became of each run, rates over time, plans by version, mutants, and the baselines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from markupsafe import Markup

from engine.errors import UsageError
from results.plans.reference import baselines
from results.plans.verdict import INVARIANTS
from results.report import kinds, look, making
from results.report.charts import chart
from results.report.collection import INSTRUMENTS, Collection, collect, versions
from results.report.series import CURVES, Curve
from results.runs import Verdict

NAME: Final = "index.html"
# The rate that says most about a run of the picker, of the store, and of any other system.
RATES: Final = ("jobs_ended", "commits", "transactions")
# More are counted, not named.
MOST_FAULTS: Final = 4
_ASKED: Final = re.compile(r"--(seconds|faults) (\S+)")


@dataclass(frozen=True, slots=True)
class Trend:
    """Runs that can be held against each other: the same system, scenario, nodes and version, asked for the same faults
    and length. `rates`, oldest first, of the figure `name`; `ratio`: the last to the median of those before it."""

    what: str
    name: str
    rates: tuple[float, ...]

    @property
    def middle(self) -> float:
        """Their median."""
        return median(self.rates)

    @property
    def ratio(self) -> float | None:
        """None where there is nothing before it, or that is nought."""
        before = median(self.rates[:-1]) if len(self.rates) > 1 else 0.0
        return self.rates[-1] / before if before else None


def write(folder: Path) -> Path:
    """The page of all results below a folder, and the page of each that has none yet. Raises UsageError."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder of runs; `nox -s stress` makes one")
    found = collect(folder)
    if found.is_empty:
        raise UsageError(f"{folder} holds no run that has ended")
    for each, _ in (*found.runs, *found.explorations):
        if not (each / look.NAME).exists():
            try:
                making.write(each)
            except UsageError as error:
                found.unreadable.append(str(error))
    trends = trends_of([verdict for _, verdict in reversed(found.runs)])
    kept = baselines()
    html = look.rendered(
        "overview",
        found=found,
        folder=folder,
        page=look.NAME,
        counted=_counted(found),
        rate=rate,
        trends=trends,
        trend=_drawn(trends),
        invariants=tuple(INVARIANTS),
        versions=tuple(versions(kept)) if kept.is_dir() else (),
        instruments=INSTRUMENTS,
        races=_races(kept.parent / "races.json"),
    )
    return look.put(folder / NAME, html)


def rate(verdict: Verdict) -> tuple[str, float] | None:
    """The figure that says most of a run, and its name; None where it has none of RATES."""
    throughput = verdict.throughput
    return next(((name, throughput[name]) for name in RATES if name in throughput), None)


def trends_of(verdicts: Sequence[Verdict]) -> tuple[Trend, ...]:
    """`verdicts` from the oldest run to the newest; those with most runs first, and none with one alone. Mutants and
    runs that did not hold are left out: what is broken may well be faster."""
    groups: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(list)
    for verdict in verdicts:
        found = rate(verdict)
        if found is not None and verdict.mutant is None and verdict.verdict == "held":
            groups[_alike(verdict), found[0]].append(found[1])
    ordered = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return tuple(
        Trend(" · ".join((*what, _under(faults))), name, tuple(rates))
        for ((*what, faults), name), rates in ordered
        if len(rates) > 1
    )


def _alike(verdict: Verdict) -> tuple[str, ...]:
    """What two runs must have in common for their rates to be compared, the faults last: what was asked for stands in
    the command line, for what came of it is never the same twice."""
    asked = dict(_ASKED.findall(verdict.reproduce))
    return (
        verdict.scenario if verdict.subject == "reference" else f"{verdict.subject} {verdict.scenario}",
        f"{verdict.nodes} nodes",
        f"Postgres {verdict.postgres.get('version', '?')}",
        f"{asked.get('seconds', '?')} s",
        asked.get("faults", "none"),
    )


def _under(faults: str) -> str:
    names = faults.split(",")
    if len(names) > MOST_FAULTS:
        return f"under {len(names)} kinds of fault"
    return "no faults" if faults == "none" else f"under {', '.join(names)}"


def _counted(found: Collection) -> dict[str, int]:
    words = [verdict.verdict for _, verdict in found.runs]
    return {word: words.count(word) for word in ("held", "violated", "unknown")}


def _drawn(trends: Sequence[Trend]) -> Markup | None:
    """The groups that have most runs."""
    curves = [
        Curve(f"{number}", tuple(float(n) for n in range(1, len(one.rates) + 1)), one.rates)
        for number, one in enumerate(trends[:CURVES], 1)
    ]
    if not curves:
        return None
    longest = max(len(curve.xs) for curve in curves)
    return Markup(chart("Trend", "per second", curves, (), end_s=float(longest), across="runs, oldest first"))


def _races(path: Path) -> list[dict[str, object]]:
    """The committed record of which race catches which mutant; empty where there is none."""
    return list(kinds.read(path).get("catches", ())) if path.is_file() else []
