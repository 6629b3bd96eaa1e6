"""`python -m invariants`: judge a recorded run, list what is judged, record a ledger."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from engine.front_door import FrontDoor
from invariants.areas import RULES
from invariants.export import export
from invariants.folder import judge_folder
from invariants.mutants import REGISTRY
from invariants.render import print_report, print_verdict


@click.group(cls=FrontDoor)
def main() -> None:
    """What must never happen, and the mutants that prove that each rule can fail."""


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, and nothing else.")
def check(run: Path, as_json: bool) -> None:
    """Judge the recorded run in folder RUN again. Exit status: 0 held, 1 violated, 4 unknown."""
    report = judge_folder(run)
    if as_json:
        ledger = {"transactions": report.transactions, "changes": report.changes}
        verdict = {"verdict": report.verdict, "invariants": report.invariants(), "ledger": ledger}
        click.echo(msgspec.json.format(msgspec.json.encode(verdict)).decode())
    else:
        console = Console(highlight=False)
        print_report(console, report)
        print_verdict(console, report.verdict, report.reason)
    sys.exit(report.exit_code)


main.add_command(export)


@main.command("list")
def list_() -> None:
    """The invariants with their statements, and the mutants."""
    console = Console()
    invariants = Table("invariant", "statement", box=box.SIMPLE_HEAD)
    for rule in RULES:
        invariants.add_row(rule.name, rule.statement)
    console.print(invariants)
    mutants = Table("mutant", "what is broken", "caught by", box=box.SIMPLE_HEAD)
    for mutant in REGISTRY.values():
        mutants.add_row(mutant.name, mutant.summary, ", ".join(mutant.caught_by))
    console.print(mutants)


@main.command()
def record() -> None:
    """Record a ledger; configuration and orders come on standard input (`invariants/ledger/recorder.py`)."""
    from invariants.ledger import recorder  # psycopg is not needed to judge

    sys.exit(recorder.main())


if __name__ == "__main__":
    main()
