"""Verdicts for a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.ci import Case
from invariants.areas import AREAS
from invariants.verdict import Judgement, Loss, Report, Row, Violation, Witnessed

STYLES = {"held": "green", "violated": "bold red", "unknown": "yellow", "not_exercised": "dim"}
NOUNS = {
    "gen_durable": "row", "signals": "signal", "gen_durable_buckets": "shard", "executions": "execution",
    "outbox": "emit", "processed_events": "processed event", "timers": "timer", "spawns": "spawn", "trace": "step",
    "transport_messages": "message", "transport_groups": "group",
}  # fmt: skip
SHOWN = 3
MAX_VALUE = 60
PLAIN_WIDTH = 160


def print_report(console: Console, report: Report, shown: int = SHOWN) -> None:
    """The table of invariants, then the first `shown` violations of each that was violated."""
    for loss in report.losses:
        console.print(told_loss(loss), soft_wrap=True)
    console.print(invariants_table(report))
    for judgement in report.judgements:
        for violation in judgement.violations[:shown]:
            print_violation(console, judgement, violation)
        if judgement.violated > shown:
            console.print(f"… and {judgement.violated - shown:,} more violations of {judgement.invariant}\n")


def told_loss(loss: Loss) -> str:
    """What a failover lost, beside what it may, in a sentence or two."""
    bound_ms = "unknown" if loss.bound_ms is None else f"{loss.bound_ms:,.0f} ms"
    bounds = f"at most {loss.bound_bytes:,} bytes and {bound_ms} may be lost"
    if not loss.transactions:
        return f"failover at {loss.fork} lost nothing; {bounds}"
    acknowledged = ", ".join(f"{count:,} {name}" for name, count in loss.acknowledged.items()) or "none"
    unknown = f"; {loss.unknown:,} answers more are taken for unknown" if loss.unknown else ""
    return (
        f"failover at {loss.fork} lost {loss.transactions:,} commits: {loss.bytes:,} bytes of log, of the last "
        f"{loss.ms:,.0f} ms before the crash; {bounds}. Acknowledged and lost: {acknowledged}{unknown}"
    )


def print_exercises(console: Console, counts: Mapping[str, int]) -> None:
    """What bit during the load, and what did not, in one line; nothing where nothing was counted."""
    if not counts:
        return
    happened = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    missing = [name.replace("_", " ") for name, count in counts.items() if not count]
    line = "under load: " + (", ".join(happened) or "nothing")
    if missing:
        line += f"; not exercised: {', '.join(missing)}"
    console.print(line, soft_wrap=True)


def cases(report: Report) -> list[Case]:
    """Each invariant for CI, with the evidence of its first violations."""
    return [_case(each) for each in report.judgements]


def _case(judgement: Judgement) -> Case:
    def show(console: Console) -> None:
        for violation in judgement.violations[:SHOWN]:
            print_violation(console, judgement, violation)

    told = plain(show).removeprefix(f"{judgement.invariant}: ") if judgement.violations else judgement.reason
    return Case(
        name=judgement.invariant, verdict=judgement.verdict, checked=judgement.checked, told=told or ""
    )


def plain(show: Callable[[Console], object]) -> str:
    """What would be printed, without colours."""
    file = io.StringIO()
    show(Console(file=file, width=PLAIN_WIDTH, color_system=None, force_terminal=False, highlight=False))
    return "\n".join(line.rstrip() for line in file.getvalue().strip().splitlines())


def print_verdict(console: Console, verdict: str, reason: str | None) -> None:
    """The last word."""
    console.print(
        Text.assemble("verdict: ", (verdict, STYLES[verdict]), "" if reason is None else f": {reason}"),
        soft_wrap=True,
    )


def invariants_table(report: Report) -> Table:
    """Invariant, verdict, how often checked, and the reason where it is unknown."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("invariant", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("checked", justify="right")
    table.add_column("violations", justify="right")
    if any(j.reason for j in report.judgements):
        table.add_column("reason", overflow="fold")
    silent = _silent(report)
    for j in report.judgements:
        if j.invariant in silent:
            continue
        table.add_row(
            j.invariant,
            Text(j.verdict.replace("_", " "), STYLES[j.verdict]),
            f"{j.checked:,}",
            f"{j.violated:,}" if j.violated else "",
            *([Text(j.reason or "")] if len(table.columns) > 4 else []),
        )
    return table


def _silent(report: Report) -> set[str]:
    """The rules of areas that the run is not about, but for those that something was subject to."""
    exercised = {j.invariant for j in report.judgements if j.verdict != "not_exercised"}
    others = ((*area.rules, *area.seen) for name, area in AREAS.items() if name not in report.areas)
    return {rule.name for rules in others for rule in rules} - exercised


def print_violation(console: Console, judgement: Judgement, violation: Violation) -> None:
    """The prose, the offending transactions in commit order, and the operations that bear on it.

    Lines, not a table: what changed is as long as it is, and a narrow terminal must not chop it to pieces.
    """
    console.print(
        Text.assemble((judgement.invariant, STYLES["violated"]), ": ", violation.summary), soft_wrap=True
    )
    for transaction in violation.transactions:
        _print_transaction(console, transaction)
    for line in violation.operations:
        console.print(Text(f"    seen by {line}", "dim"), soft_wrap=True)
    console.print()


def _print_transaction(console: Console, transaction: Witnessed) -> None:
    clock = transaction.committed_at.partition(" ")[2].removesuffix("+00:00")
    console.print(
        Text.assemble(
            (f"  commit {transaction.number}", "bold"),
            (f"  {clock}  xid {transaction.xid}  lsn {transaction.lsn}  ", "dim"),
            (transaction.who or "by nobody known", "cyan"),
        ),
        soft_wrap=True,
    )
    for row in transaction.changes:
        console.print(Text(f"    {NOUNS.get(row.table, 'job')} {row.id}  {describe(row)}"), soft_wrap=True)


def describe(row: Row) -> str:
    """`status runnable → executing, locked_by ∅ → w1`; an inserted row without its empty columns."""
    if not row.before:
        return "inserted: " + ", ".join(
            f"{name} {_shown(value)}" for name, value in row.after.items() if value is not None
        )
    if not row.after:
        return "deleted: " + ", ".join(
            f"{name} {_shown(value)}" for name, value in row.before.items() if value is not None
        )
    changed = [
        f"{name} {_shown(row.before[name])} → {_shown(value)}"
        for name, value in row.after.items()
        if row.before[name] != value
    ]
    return ", ".join(changed) or "nothing that matters"


def _shown(value: str | None) -> str:
    if value is None:
        return "∅"
    return value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 1] + "…"
