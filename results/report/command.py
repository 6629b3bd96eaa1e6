"""`python -m results report`: a run for people."""

from __future__ import annotations

from pathlib import Path

import click

from engine.errors import UsageError


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="One page about all results in results/runs, or in the folder given as RUN, and about the baselines.",
)
def report(runs: tuple[Path, ...], everything: bool) -> None:
    """Make report.html in the folder of each RUN, a run's or an exploration's: one page that needs nothing else.

    \b
        nox -s report -- results/runs/20261201-101530-mixed
        nox -s report -- --all                       results/runs/index.html, with the page of each run

    Exit status: 0 made, 2 no such run.
    """
    # Late, because it brings in the drawing, and a wrong argument should not wait for it.
    from results.report import making, overview
    from results.runs import runs_folder

    if everything:
        if len(runs) > 1:
            raise UsageError("--all takes one folder of runs, or none")
        click.echo(overview.write(runs[0] if runs else runs_folder()))
        return
    if not runs:
        raise UsageError("say which run: a folder below results/runs, or --all")
    for folder in runs:
        click.echo(making.write(folder))
