"""`python -m invariants export`: a run's history as files that other people's checkers read (docs/histories.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from engine.errors import UsageError
from invariants.folder import read_history
from invariants.history.checkers import Line, cas_register, executions, rw_register, to_edn, to_json
from invariants.history.export import write_elle_json
from invariants.witness import Witness

MODELS: Final = ("cas-register", "rw-register", "operations")
# A file's name may be so long.
_NAME: Final = 80


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Choice(MODELS),
    required=True,
    help="cas-register: a file per execution, for Knossos. rw-register: transactions over all executions, for Elle. "
    "operations: everything that was done, as JSON.",
)
@click.option(
    "--form", type=click.Choice(("edn", "json")), default="edn", help="Of the registers.  [default: edn]"
)
@click.option("--execution", help="Only this one, of cas-register.")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=100,
    help="So many executions, busiest first.  [default: 100]",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    help="The folder for the files.  [default: exported, in the run's own]",
)
def export(run: Path, model: str, form: str, execution: str | None, most: int, to: Path | None) -> None:
    """Write the history of the recorded run in folder RUN for other checkers.

    What came after a failover that may have lost something is left out, and so is a clock that is not common.

    \b
        python -m invariants export results/runs/20261201-101530-store --model rw-register
        python -m invariants export results/runs/20261201-101530-store --model cas-register --execution hot-3

    Exit status: 0 written, 2 no such run, or nothing in it that could be.
    """
    if execution is not None and model != "cas-register":
        raise UsageError(f"--execution goes with --model cas-register, not with {model}")
    witness = Witness(read_history(run)).before_losses
    if len(witness.machines) > 1:
        raise UsageError(f"{run} has histories of several machines: their operations have no common order")
    folder = run / "exported" if to is None else to
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = _write(witness, model, form, execution, most, folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {', '.join(path.name for path in written[:3])}{_more(written)} to {folder}", err=True)


def _more(written: list[Path]) -> str:
    return f" and {len(written) - 3} more" if len(written) > 3 else ""


def _write(
    witness: Witness, model: str, form: str, execution: str | None, most: int, folder: Path
) -> list[Path]:
    if model == "operations":
        path = folder / "operations.json"
        write_elle_json(witness.operations, path)
        return [path]
    known = executions(witness)
    if not known:
        raise UsageError(f"this run has no executions: --model {model} is for runs of the store")
    if model == "rw-register":
        return [_file(folder / f"rw-register.{form}", rw_register(witness), form)]
    if execution is not None and execution not in known:
        raise UsageError(f"nothing was done to an execution {execution!r}; the busiest is {known[0]!r}")
    names = known[:most] if execution is None else [execution]
    return [
        _file(folder / f"cas-register-{_plain(place, name)}.{form}", cas_register(witness, name), form)
        for place, name in enumerate(names)
    ]


def _plain(place: int, name: str) -> str:
    """A name that is a file's; one that is too long is told apart by its place."""
    quoted = quote(name, safe="")
    return quoted if len(quoted) <= _NAME else f"{quoted[:_NAME]}~{place}"


def _file(path: Path, lines: list[Line], form: str) -> Path:
    path.write_text(to_edn(lines) if form == "edn" else to_json(lines), encoding="utf-8")
    return path
