"""The last thing a run of somebody else's system prints."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from invariants.render import print_exercises, print_report, print_verdict
from stress.judgement import Judged
from stress.summary import faults_table

LATENCIES = ("enqueue", "run")


def print_summary(judged: Judged) -> None:
    """Print it on standard output."""
    console = Console(highlight=False)
    verdict = judged.verdict
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("latency, ms", "count", "p50", "p90", "p99", "max"):
        table.add_column(heading, justify="left" if heading.startswith("latency") else "right")
    for name in LATENCIES:
        if (figures := verdict.latency_ms.get(name)) is not None:
            quantiles = (f"{figures[key]:.2f}" for key in ("p50", "p90", "p99", "max"))
            table.add_row(name, f"{figures['count']:,.0f}", *quantiles)
    console.print(table)
    if verdict.faults:
        console.print(faults_table(verdict))
    print_exercises(console, judged.report.exercised)
    print_report(console, judged.report)
    print_verdict(console, verdict.verdict, verdict.reason)
    console.print(f"recorded in {judged.folder}", soft_wrap=True)
    console.print(f"again: {verdict.reproduce}", soft_wrap=True)
