"""The page of a run: what `recorded` read, as `series` and `lanes` put it, in the template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from results.report import lanes, look, series
from results.report.charts import chart, strips
from results.report.recorded import Recorded
from results.report.series import Curve, Timeline
from results.runs import Verdict

# Of each invariant; the rest are counted.
VIOLATIONS: Final = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its heading and what it shows in a sentence."""

    id: str
    title: str
    says: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class Sketch:
    """A figure that is not drawn yet."""

    id: str
    title: str
    says: str
    unit: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False

    def figure(self, line: Timeline) -> Figure:
        """Drawn. A drawing is made here, and what stands in it was escaped when it was drawn."""
        svg = chart(
            self.title, self.unit, self.curves, line.bands, end_s=line.end_s, logarithmic=self.logarithmic
        )
        return Figure(self.id, self.title, self.says, Markup(svg))


def render(run: Recorded) -> str:
    """The whole page."""
    line = None if run.history is None else series.timeline(run.history)
    violations = [
        lanes.shown(invariant, violation)
        for invariant, found in run.verdict.invariants.items()
        for violation in found["violations"][:VIOLATIONS]
    ]
    return look.rendered(
        "run",
        run=run,
        verdict=run.verdict,
        invariants=_by_severity(run.verdict),
        counted=_counted(run.verdict),
        violations=violations,
        figures=[] if line is None else _figures(run, line),
        strips=Markup(strips("Faults", line.bands, end_s=line.end_s)) if line and line.bands else "",
    )


def _by_severity(verdict: Verdict) -> list[tuple[str, dict[str, Any]]]:
    """The worst first."""
    severity = ("violated", "unknown", "held", "not_exercised")
    return sorted(verdict.invariants.items(), key=lambda entry: severity.index(entry[1]["verdict"]))


def _counted(verdict: Verdict) -> dict[str, int]:
    words = [found["verdict"] for found in verdict.invariants.values()]
    return {word: words.count(word) for word in ("held", "violated", "unknown", "not_exercised")}


def _figures(run: Recorded, line: Timeline) -> list[Figure]:
    sketches = [
        Sketch("throughput", "Throughput", "Operations that ended well.", "per second", series.rates(line)),
        Sketch(
            "latency",
            "Latency",
            "What 99 of a hundred operations took at most.",
            "ms, p99",
            series.latencies(line, 0.99),
            logarithmic=True,
        ),
        Sketch(
            "typical",
            "Typical latency",
            "What half of the operations took at most.",
            "ms, p50",
            series.latencies(line, 0.5),
            logarithmic=True,
        ),
        Sketch(
            "trouble",
            "Trouble",
            "Operations that failed, or whose outcome their caller never learnt.",
            "per second",
            series.troubles(line),
        ),
    ]
    if run.depths is not None:
        says = "Jobs by status, and rows of other tables, without those that have ended."
        sketches.insert(1, Sketch("depth", "Depth", says, "rows", series.depths(run.depths)))
    return [sketch.figure(line) for sketch in sketches if sketch.curves]
