"""A comparison, and what a capture breaks, as text, as Markdown for a pull request, and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from engine.ci import Case, Outcome
from results.plans.comparing import Comparison, Difference
from results.plans.conditions import Under
from results.plans.hazards import hazards
from results.plans.tree import Node, line, lines
from results.plans.verdict import Judged, Verdict
from results.report import look

# Differences of one kind that are shown of one statement, and statements' trees in one page.
MOST: Final = 400
# Differences under one condition that are shown on a terminal.
MOST_UNDER: Final = 12


def text(comparison: Comparison) -> str:
    """Settings first, then the differences, the worst first, then the verdict."""
    lines = [f"A: {comparison.a}", f"B: {comparison.b}"]
    lines += [f"setting {name}: {was} → {now}" for name, was, now in comparison.settings]
    lines += [str(difference) for difference in comparison.differences[:MOST]]
    lines += _rest(comparison.differences)
    lines.append(f"{comparison.statements} statements; {_counted(comparison.differences)}")
    lines.append(f"verdict: {comparison.verdict}")
    return "\n".join(lines)


def markdown(comparison: Comparison) -> str:
    """For a comment: the verdict first, then what makes it, then a table of all."""
    lines = [f"### Plans: {comparison.verdict}", "", f"A: {comparison.a} · B: {comparison.b}", ""]
    if comparison.settings:
        lines += ["| setting | A | B |", "|---|---|---|"]
        lines += [f"| `{name}` | {_cell(was)} | {_cell(now)} |" for name, was, now in comparison.settings] + [
            ""
        ]
    if comparison.differences:
        lines += ["| statement | plan | severity | what | accepted |", "|---|---|---|---|---|"]
        lines += [
            f"| `{d.label}` | {d.mode} | {d.severity} | {_cell(d.message)} | {_cell(d.reason)} |"
            for d in comparison.differences[:MOST]
        ]
        lines += _rest(comparison.differences)
        lines.append("")
    lines.append(f"{comparison.statements} statements; {_counted(comparison.differences)}.")
    return "\n".join(lines) + "\n"


def compared(comparison: Comparison, reproduce: str) -> Outcome:
    """For CI: a case for each plan that differs."""
    plans: dict[str, list[Difference]] = {}
    for difference in comparison.differences:
        plans.setdefault(f"{difference.label} ({difference.mode})", []).append(difference)
    same = Case(name="the other plans", verdict="held", checked=comparison.statements)
    return Outcome(
        title="plans compared",
        word=comparison.verdict,
        cases=[same, *(_plan(name, found) for name, found in plans.items())],
        facts={"A": comparison.a, "B": comparison.b, "statements": str(comparison.statements)},
        reproduce=reproduce,
    )


def _plan(name: str, differences: Sequence[Difference]) -> Case:
    worse = any(difference.counts for difference in differences)
    told = "\n".join(map(str, differences[:MOST]))
    return Case(name=name, verdict="violated" if worse else "held", told=told)


def outcome(verdict: Verdict) -> Outcome:
    """For CI: a case for each invariant of plans."""
    return Outcome(
        title="plans",
        word=verdict.verdict,
        reason=verdict.reason,
        cases=[
            Case(
                name=each.invariant,
                verdict=each.verdict,
                checked=each.checked,
                told="\n".join(each.violations) or each.reason or "",
            )
            for each in verdict.invariants
        ],
        facts={"PostgreSQL": ", ".join(verdict.servers), "profile": verdict.profile},
        reproduce="nox -s plans",
    )


def html(comparison: Comparison) -> str:
    """One self-contained page, with the two trees of every statement that differs side by side."""
    shown: dict[tuple[str, str], list[Difference]] = {}
    for difference in comparison.differences[:MOST]:
        shown.setdefault((difference.label, difference.mode), []).append(difference)
    return look.rendered(
        "compared",
        comparison=comparison,
        shown=shown,
        counted=_counted(comparison.differences),
        rest=_rest(comparison.differences),
        side=_side,
    )


def page(title: str, captures: Sequence[Judged], verdict: Verdict) -> str:
    """One self-contained page of all that was captured: the verdict, and every statement's trees, by server."""
    return look.rendered(
        "captured",
        title=title,
        captures=[(each, [str(hazard) for hazard in hazards(each.capture)]) for each in captures],
        verdict=verdict,
        lines=lines,
    )


def under(major: int, changed: Under) -> str:
    """What a condition changed, the worst first; the record has the rest."""
    told = [each for each in changed.differences if each.severity not in ("estimate", "better")]
    statements = len({each.label for each in told})
    lines = [
        f"{major} under {changed.condition} ({changed.note}): {statements} statements, {_counted(changed.differences)}"
    ]
    lines += [f"  {each}" for each in told[:MOST_UNDER]]
    if len(told) > MOST_UNDER:
        lines.append(f"  and {len(told) - MOST_UNDER} more in differences.json")
    return "\n".join(lines)


def invariants(verdict: Verdict) -> Table:
    """Each invariant of plans, what became of it, and the reason where it is unknown."""
    styles = {"held": "green", "violated": "bold red", "unknown": "yellow", "not_exercised": "dim"}
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("invariant", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("checked", justify="right")
    table.add_column("violations", justify="right")
    for each in verdict.invariants:
        table.add_row(
            each.invariant,
            Text(each.verdict.replace("_", " "), styles[each.verdict]),
            f"{each.checked:,}",
            f"{each.violated:,}" if each.violated else "",
        )
    return table


def _side(node: Node | None) -> tuple[str, ...]:
    """A node's lines, what it looks for behind it; none where the other side has it alone."""
    if node is None:
        return ()
    return (line(node), *(f"{name}: {value}" for name, value in node.conditions.items()))


def _counted(differences: Sequence[Difference]) -> str:
    if not differences:
        return "no difference"
    counts: dict[str, int] = {}
    for difference in differences:
        counts[difference.severity] = counts.get(difference.severity, 0) + 1
    accepted = sum(1 for difference in differences if difference.reason)
    told = ", ".join(f"{count} {severity}" for severity, count in counts.items())
    return told + (f", {accepted} of them accepted" if accepted else "")


def _rest(differences: Sequence[Difference]) -> list[str]:
    return [f"and {len(differences) - MOST} more"] if len(differences) > MOST else []


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
