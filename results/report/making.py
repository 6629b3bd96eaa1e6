"""From a folder to its page, whatever it is."""

from __future__ import annotations

from pathlib import Path

import click

from engine.errors import UsageError
from results.report import explored, look
from results.report.kinds import kind_of


def write(folder: Path) -> Path:
    """Make the page of a run or an exploration in its folder; where it is. Raises UsageError where it is neither."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    kind = kind_of(folder)
    if kind == "exploration":
        return look.put(folder / look.NAME, explored.render(explored.read(folder), folder))
    if kind not in (None, "run"):
        raise UsageError(f"{folder} is a folder of {kind}: --all shows it beside the others")
    # Late, because it brings in the drawing of curves.
    from results.report import page
    from results.report.recorded import read

    return look.put(folder / look.NAME, page.render(read(folder)))


def tell(folder: Path) -> None:
    """The same for what has just been recorded: its verdict stands without a page, so a failure is a sentence."""
    try:
        write(folder)
    except (UsageError, OSError, ValueError, LookupError) as error:
        click.echo(f"no {look.NAME} was made: {type(error).__name__}: {error}", err=True)
