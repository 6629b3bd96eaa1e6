"""`python -m invariants`: judge a recorded run, list what is judged, record a ledger."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from engine.ci import Files, Outcome, ci_options
from engine.front_door import Amount, FrontDoor
from invariants.areas import RULES
from invariants.document import invariants_page
from invariants.export import export
from invariants.folder import JUDGE_LIMIT_S, judge_folder
from invariants.mutants import PLANS, REGISTRY
from invariants.plans import PLAN_INVARIANTS
from invariants.render import cases, print_report, print_verdict


@click.group(cls=FrontDoor)
def main() -> None:
    """What must never happen, and the mutants that prove that each rule can fail."""


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, and nothing else.")
@click.option(
    "--judge-seconds",
    type=Amount(min=0),
    default=JUDGE_LIMIT_S,
    show_default=True,
    help="What is not decided by then is unknown.",
)
@ci_options
def check(run: Path, as_json: bool, judge_seconds: float, ci: Files) -> None:
    """Judge the recorded run in folder RUN again.

    \b
        nox -s check -- results/runs/20261201-101530-mixed
        nox -s check -- results/runs/20261201-101530-mixed --json

    Exit status: 0 held, 1 violated, 2 no such run, 4 unknown.
    """
    report = judge_folder(run, limit_s=judge_seconds)
    if as_json:
        ledger = {"transactions": report.transactions, "changes": report.changes}
        verdict = {"verdict": report.verdict, "invariants": report.invariants(), "ledger": ledger}
        click.echo(msgspec.json.format(msgspec.json.encode(verdict)).decode())
    else:
        console = Console(highlight=False)
        print_report(console, report)
        print_verdict(console, report.verdict, report.reason)
    ci.write(
        Outcome(
            title="check",
            word=report.verdict,
            reason=report.reason,
            cases=cases(report),
            facts={"run": run.name, "transactions": f"{report.transactions:,}"},
            reproduce=f"nox -s check -- {run}",
        )
    )
    sys.exit(report.exit_code)


main.add_command(export)


@main.command("list")
@click.option("--markdown", is_flag=True, help="The page docs/invariants.md on standard output.")
def list_(markdown: bool) -> None:
    """The invariants with their statements, and the mutants.

    \b
        python -m invariants list
        python -m invariants list --markdown > docs/invariants.md

    Exit status: 0.
    """
    if markdown:
        click.echo(invariants_page(), nl=False)
        return
    console = Console()
    invariants = Table("invariant", "statement", box=box.SIMPLE_HEAD)
    for rule in RULES:
        invariants.add_row(rule.name, rule.statement)
    for name, statement in PLAN_INVARIANTS.items():
        invariants.add_row(name, statement)
    console.print(invariants)
    mutants = Table("mutant", "what is broken", "caught by", box=box.SIMPLE_HEAD)
    for mutant in (*REGISTRY.values(), *PLANS.values()):
        mutants.add_row(mutant.name, mutant.summary, ", ".join(mutant.caught_by))
    console.print(mutants)


@main.command()
def record() -> None:
    """Record a ledger, for a program: configuration and orders come on standard input, a JSON object a line.

    \b
        echo '{"dsn": "postgresql://...", "folder": "/tmp/run"}' | python -m invariants record

    `invariants/ledger/recorder.py` says what may follow. Exit status: 0 recorded, 2 wrong usage, 3 no ledger to be had.
    """
    from invariants.ledger import recorder  # psycopg is not needed to judge

    sys.exit(recorder.main())


if __name__ == "__main__":
    main()
