"""`python -m results bench FOLDER`: a recorded bench told again."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console

from engine.errors import UsageError
from results.bench import render
from results.bench.samples import Bench

FILE = "bench.json"


@click.command("bench")
@click.argument("place", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--markdown", is_flag=True, help="A table for a document.")
def bench_command(place: Path, markdown: bool) -> None:
    """Tell a bench that was recorded; `nox -s bench` measures one.

    \b
        python -m results bench results/runs/20261201-101530-bench
        python -m results bench results/runs/20261201-101530-bench --markdown

    Exit status: 0 told, 2 where there is none.
    """
    found = read(place)
    if markdown:
        click.echo(render.markdown(found))
    else:
        show(found)


def read(place: Path) -> Bench:
    """The bench in a folder, or in a file. Raises UsageError."""
    path = place / FILE if place.is_dir() else place
    try:
        return msgspec.json.decode(path.read_bytes(), type=Bench)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{place} holds no bench that can be read: give the folder of one") from error


def show(bench: Bench) -> None:
    """To standard output, as wide as it has to be."""
    console = Console(width=140, soft_wrap=True)
    console.print(render.setup(bench), highlight=False)
    console.print(render.table(bench))
    for line in (*render.goals(bench), *render.faults(bench)):
        console.print(line, highlight=False)
    console.print(f"verdict: {bench.verdict}", highlight=False)
