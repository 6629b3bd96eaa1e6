"""The page of a run: what `recorded` read, as `series` and `lanes` put it, in the template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import msgspec
import polars as pl
from markupsafe import Markup

from results.plans.tree import lines as tree_lines
from results.report import lanes, look, series
from results.report.charts import chart, strips
from results.report.recorded import Recorded
from results.report.series import Curve, Timeline
from results.runs import Verdict, host_said

# Of each invariant; the rest are counted.
VIOLATIONS: Final = 3
# Of the waits for locks, those that lasted longest; and what may lie between two looks at one of them.
WAITS: Final = 30
SAME_WAIT_US: Final = 600_000


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
    waits = [] if run.waits is None else _waits(run.waits)
    # Servers number their transactions each for itself.
    seen = [] if "others" in run.verdict.postgres else [each for each, _ in waits]
    found = [
        (invariant, violation)
        for invariant, told in run.verdict.invariants.items()
        for violation in told["violations"][:VIOLATIONS]
    ]
    violations = [
        lanes.shown(invariant, violation, seen)
        for invariant, violation in sorted(found, key=lambda entry: _offended_at(entry[1]))
    ]
    sketches = [] if line is None else _sketches(run, line)
    return look.rendered(
        "run",
        run=run,
        verdict=run.verdict,
        hosts=[host_said(host) for host in run.verdict.hosts],
        invariants=_by_severity(run.verdict),
        counted=_counted(run.verdict),
        violations=violations,
        figures=[sketch.figure(line) for sketch in sketches if line is not None and sketch.curves],
        never=[sketch.title.lower() for sketch in sketches if not sketch.curves],
        waits=sorted(waits, key=lambda wait: (-wait[1], wait[0].first_us))[:WAITS],
        plans={} if run.plans is None else {name: tree_lines(node) for name, node in run.plans.plans.items()},
        strips=Markup(strips("Faults", line.bands, end_s=line.end_s)) if line and line.bands else "",
    )


def _by_severity(verdict: Verdict) -> list[tuple[str, dict[str, Any]]]:
    """The worst first."""
    severity = ("violated", "unknown", "held", "not_exercised")
    return sorted(verdict.invariants.items(), key=lambda entry: severity.index(entry[1]["verdict"]))


def _counted(verdict: Verdict) -> dict[str, int]:
    words = [found["verdict"] for found in verdict.invariants.values()]
    return {word: words.count(word) for word in ("held", "violated", "unknown", "not_exercised")}


def _waits(frame: pl.DataFrame) -> list[tuple[lanes.Seen, int]]:
    """Each wait that was seen, with how many looks saw it: looks that follow each other are of one wait."""
    found: dict[tuple[object, ...], list[tuple[lanes.Seen, int]]] = {}
    columns = ("at_us", "waiter", "holder", "lock", "statement", "waiter_xid", "holder_xid")
    for at_us, *who in frame.select(columns).sort("at_us").iter_rows():
        waiter, holder, lock, statement, *xids = who
        told = found.setdefault(tuple(who), [])
        if told and at_us - told[-1][0].last_us <= SAME_WAIT_US:
            seen, looks = told.pop()
            told.append((msgspec.structs.replace(seen, last_us=at_us), looks + 1))
        else:
            in_ = f"{lock} in {statement}" if statement else lock
            told.append((lanes.Seen(waiter, holder, in_, at_us, at_us, *xids), 1))
    return [each for told in found.values() for each in told]


def _offended_at(violation: Mapping[str, Any]) -> float:
    """The commit at which it showed; one that is not about commits comes last."""
    transactions = violation["transactions"]
    return float(transactions[-1]["number"]) if transactions else inf


def _sketches(run: Recorded, line: Timeline) -> list[Sketch]:
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
            "claims",
            "Claims",
            "Claims that were answered, the jobs or messages that they took, and those that found nothing.",
            "per second",
            series.claims(line),
        ),
        Sketch(
            "stale",
            "Stale outcomes",
            "Outcomes, acknowledgements and commits that came too late, and were refused.",
            "per second",
            series.stale(line),
        ),
        Sketch(
            "contention",
            "Contention",
            "Races for a key, a counter or a row that were lost, and tried again.",
            "per second",
            series.contention(line),
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
    if run.gauges is not None:
        says = "Sessions that were seen waiting for a lock, four times a second."
        waiting = series.gauge(line, run.gauges, "waiting")
        sketches.append(Sketch("locks", "Waits for locks", says, "sessions", waiting))
        says = "Rows that are dead and not vacuumed yet, by the server's own count."
        sketches.append(Sketch("dead", "Dead rows", says, "rows", series.gauge(line, run.gauges, "dead ")))
    return sketches
