"""Verdicts for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from invariants.verdict import Judgement, Report, Row, Violation

STYLES = {"held": "green", "violated": "bold red", "unknown": "yellow"}
SHOWN = 3


def print_report(console: Console, report: Report, shown: int = SHOWN) -> None:
    """The table of invariants, then the first `shown` violations of each that was violated."""
    console.print(invariants_table(report))
    for judgement in report.judgements:
        for violation in judgement.violations[:shown]:
            console.print(render_violation(judgement, violation))
        if judgement.violated > shown:
            console.print(f"… and {judgement.violated - shown} more violations of {judgement.invariant}")
    console.print(Text.assemble("verdict: ", (report.verdict, STYLES[report.verdict])))


def invariants_table(report: Report) -> Table:
    """Invariant, verdict, how often checked, and the reason where it is unknown."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("invariant", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("checked", justify="right")
    table.add_column("violations", justify="right")
    table.add_column("reason", overflow="fold")
    for j in report.judgements:
        table.add_row(
            j.invariant,
            Text(j.verdict, STYLES[j.verdict]),
            f"{j.checked:,}",
            f"{j.violated:,}" if j.violated else "",
            Text(j.reason or ""),
        )
    return table


def render_violation(judgement: Judgement, violation: Violation) -> RenderableType:
    """The prose, the offending transactions in commit order, and the operations that bear on it."""
    parts: list[RenderableType] = [
        Text.assemble((judgement.invariant, STYLES["violated"]), ": ", violation.summary)
    ]
    if violation.transactions:
        table = Table(box=box.SIMPLE_HEAD)
        for heading in ("commit", "xid", "lsn", "committed at", "row", "what changed", "by"):
            table.add_column(heading, overflow="fold")
        for transaction in violation.transactions:
            for row in transaction.changes:
                table.add_row(
                    str(transaction.number), str(transaction.xid), transaction.lsn, transaction.committed_at,
                    str(row.id), Text(describe(row)), Text(transaction.who or "?"),
                )  # fmt: skip
        parts.append(table)
    parts.extend(Text(f"  {line}") for line in violation.operations)
    return Group(*parts)


def describe(row: Row) -> str:
    """`status runnable → executing, locked_by ∅ → w1`."""
    if not row.before:
        return "inserted: " + ", ".join(f"{name} {_shown(value)}" for name, value in row.after.items())
    if not row.after:
        return "deleted: " + ", ".join(f"{name} {_shown(value)}" for name, value in row.before.items())
    changed = [
        f"{name} {_shown(row.before[name])} → {_shown(value)}"
        for name, value in row.after.items()
        if row.before[name] != value
    ]
    return ", ".join(changed) or "nothing that matters"


def _shown(value: str | None) -> str:
    if value is None:
        return "∅"
    return value if len(value) <= 60 else value[:59] + "…"
