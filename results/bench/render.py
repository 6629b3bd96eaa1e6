"""A bench as tables: for a terminal, and as Markdown for a document."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from results.bench.samples import Bench, Judged, Standing, judged, standings

HEADS = ("workload", "contender", "median", "spread", "of the floor", "of the best peer", "verdict")


def cells(each: Standing) -> tuple[str, ...]:
    """One line: median and spread with their unit, ratios as times."""
    unit = {"per_s": "/s", "p50_ms": " ms (p50)", "p99_ms": " ms (p99)", "cpu_us": " µs (cpu)"}.get(
        each.figure, f" {each.figure.replace('_', ' ')}"
    )
    return (
        each.workload,
        each.contender,
        f"{_number(each.median)}{unit}",
        f"{_number(each.least)} … {_number(each.most)}",
        _times(each.of_floor),
        _times(each.of_peer),
        each.verdict if each.verdict != "held" else f"held x {each.repetitions}",
    )


def table(bench: Bench) -> Table:
    """For a terminal."""
    made = Table(box=None, pad_edge=False)
    for place, head in enumerate(HEADS):
        made.add_column(head, justify="left" if place in (0, 1, 6) else "right")
    for each in standings(bench.samples):
        made.add_row(*cells(each))
    return made


def markdown(bench: Bench) -> str:
    """For a document."""
    lines = [HEADS, tuple("---" if place in (0, 1, 6) else "--:" for place in range(len(HEADS)))]
    lines += [cells(each) for each in standings(bench.samples)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goals(bench: Bench) -> list[str]:
    """One sentence for each goal that was measured."""
    return [_sentence(each) for each in judged(bench.samples)]


def setup(bench: Bench) -> str:
    """What the figures were measured on."""
    machine, postgres = bench.machine, bench.postgres
    return (
        f"PostgreSQL {postgres.get('version')} ({postgres.get('source')}), fsync {postgres.get('fsync')}, "
        f"synchronous_commit {postgres.get('synchronous_commit')}, on {machine.get('cores')} cores "
        f"({machine.get('processor')}), Python {machine.get('python')}"
    )


def faults(bench: Bench) -> Sequence[str]:
    """The samples that do not count, and why."""
    return [
        f"{each.workload}, {each.contender}, repetition {each.repetition}: {each.verdict}: {each.reason}"
        for each in bench.samples
        if each.verdict != "held"
    ]


def _sentence(each: Judged) -> str:
    goal = each.goal
    word = "met" if each.is_met else "MISSED"
    return (
        f"{word}: {goal.workload}, {goal.contender} against {goal.against}: "
        f"{each.ratio:.2f} x (at least {goal.at_least:g})"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} x"
