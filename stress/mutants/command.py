"""`python -m stress mutants` and `python -m stress ablate`."""

from __future__ import annotations

import difflib
import os
import random
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from engine.ci import Files, ci_options
from engine.errors import UsageError
from engine.front_door import NEW_FILE
from engine.postgres import parse_pg, signals_stop
from invariants.mutants import PLANS, REGISTRY
from invariants.verdict import EXIT_CODES
from results.runs import create_run_folder, ready, runs_folder
from stress.mutants.seen import FULL_SEEDS, INSTRUMENTS, Instrument

PLAIN_WIDTH = 160
# Mutants that a page names in its command.
FEW = 3


@click.command("mutants")
@click.option(
    "--only", "names", multiple=True, metavar="NAME", help="May be repeated. Prints the evidence too."
)
@click.option(
    "--full", is_flag=True, help=f"Every instrument's verdict on every mutant, over {FULL_SEEDS} seeds."
)
@click.option(
    "--control/--no-control",
    "with_control",
    default=None,
    help="The sound engine too; default: yes, but not with --only.",
)
@click.option("--instrument", "asked", multiple=True, type=click.Choice(INSTRUMENTS), help="Default: all.")
@click.option(
    "--resume",
    "earlier",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A verdict.json: go on with that run, with its seed; only what it left open, and --only, is asked.",
)
@click.option("--list", "list_", is_flag=True, help="List the mutants, and end.")
@click.option(
    "--workers",
    type=click.IntRange(1, 32),
    default=None,
    help="Processes with a server each; default: one a core, at most 4.",
)
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Of what is drawn; drawn by default.")
@click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres.")
@click.option(
    "--document",
    "page",
    type=NEW_FILE,
    default=None,
    help="Write the page there too: docs/mutants.md, and of --full docs/instruments.md.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the run's folder goes.")
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
@ci_options
@click.pass_context
def mutants_command(
    context: click.Context,
    names: tuple[str, ...],
    full: bool,
    with_control: bool | None,
    asked: tuple[Instrument, ...],
    earlier: Path | None,
    list_: bool,
    workers: int | None,
    seed: int | None,
    pg: str,
    page: Path | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    ci: Files,
) -> None:
    """Show every mutant to the instruments, from the cheapest to the dearest, until one catches it.

    \b
        nox -s mutants                                      all, and the sound engine under the same budgets
        nox -s mutants -- --only wake-filtered-in-where     one, with the evidence
        nox -s mutants -- --full                            every instrument's verdict, over three seeds
        nox -s mutants -- --full --resume verdict.json      what that run has not come to

    Exit status: 0 all caught and the sound engine held, 1 a mutant was caught by nothing or the sound engine accused,
    2 wrong usage, 3 no Postgres, 4 unknown.
    """
    all_ = REGISTRY | PLANS
    if list_:
        for name, mutant in all_.items():
            click.echo(f"{name:44} {mutant.summary}")
        context.exit(0)
    for name in names:
        if name not in all_:
            close = difflib.get_close_matches(name, list(all_), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "--list shows them"
            raise UsageError(f"there is no mutant {name!r}; {hint}")
    source = parse_pg(pg)
    # Late, because they bring in all that an instrument needs, and a wrong argument should not wait for it.
    from stress.mutants.asking import Request, ask_all
    from stress.mutants.matrix import Matrix
    from stress.mutants.report import compared, document, print_evidence, print_matrix, read, written
    from stress.outcomes import of_matrix

    known = None if earlier is None else read(earlier)
    only = (
        list(dict.fromkeys((*(known.only if known else ()), *names))) if known is None or known.only else []
    )
    full = full or (known is not None and known.full)
    if with_control is None:
        with_control = not only or (known is not None and bool(known.matrix.control))
    drawn = random.SystemRandom().randrange(2**31) if known is None else known.seed
    first = drawn if seed is None else seed
    workers = min(4, os.cpu_count() or 1) if workers is None else workers
    request = Request(
        names=only or list(all_),
        full=full,
        control=with_control,
        instruments=asked,
        seed=first,
        workers=workers,
        pg=pg,
        known=None if known is None else known.matrix,
        anew=frozenset(names),
    )
    folder = create_run_folder(out or runs_folder(), "mutants")
    more = [word for name in asked for word in ("--instrument", name)]
    more += [] if with_control == (not only) else ["--control" if with_control else "--no-control"]
    more += [] if pg == "embedded" else ["--pg", str(source)]
    command = _command(only, full, first, more)
    told = f"`{command}`"
    if len(only) > FEW:
        told = f"`{_command((), full, first)}`, of {len(only)} mutants (`--only`)"
    how = f"{told}, {workers} workers, {_machine()}."
    if known is not None:
        how += (
            " It went on with an earlier run (`--resume`), when the machine may have had more to do, or less."
        )
    about = {
        "seed": first, "full": full, "only": only, "workers": workers, "pg": pg, "machine": _machine(),
        "reproduce": command,
    }  # fmt: skip

    def keep(matrix: Matrix) -> dict[str, Any]:
        return written(matrix, folder, about, (compared if full else document)(matrix, how))

    with signals_stop():
        matrix = ask_all(request, quiet, keep)
    verdict = keep(matrix)
    if page is not None:
        page.write_text((folder / "matrix.md").read_text("utf-8"), encoding="utf-8")
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    elif not quiet:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        for name in names:
            print_evidence(console, matrix.rows[name])
        print_matrix(console, matrix)
        console.print(f"recorded in {folder}\nverdict: {matrix.verdict}", soft_wrap=True)
    facts = {"PostgreSQL": str(source), "seed": str(first), "machine": _machine()}
    ci.write(of_matrix(matrix, facts, command))
    context.exit(EXIT_CODES[matrix.verdict])


@click.command("ablate")
@click.option(
    "--where",
    "places",
    multiple=True,
    metavar="NAME",
    help="A statement, a function or a table; default: all.",
)
@click.option(
    "--again",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="An ablation.json: go on with that run; what it caught is not tried again, but for --where.",
)
@click.option(
    "--control",
    "with_control",
    is_flag=True,
    help="The statements as they are too, which nothing may notice.",
)
@click.option("--list", "list_", is_flag=True, help="List what would be taken out, and end.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    help="Of 50 examples, of each machine.",
)
@click.option(
    "--schedules",
    type=click.IntRange(1, 10_000),
    default=60,
    show_default=True,
    help="Of each race, at most.",
)
@click.option("--workers", type=click.IntRange(1, 32), default=None, help="Default: one a core, at most 4.")
@click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres.")
@click.option(
    "--document",
    "page",
    type=NEW_FILE,
    default=None,
    help="Write the page there too, such as docs/ablation.md.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the run's folder goes.")
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
@click.pass_context
def ablate_command(
    context: click.Context,
    places: tuple[str, ...],
    again: Path | None,
    with_control: bool,
    list_: bool,
    rounds: int,
    schedules: int,
    workers: int | None,
    pg: str,
    page: Path | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Take one thing out of the SQL at a time: a conjunct, a lock, an order, a constraint; and see who notices.

    \b
        nox -s ablate                               everything: some hundred variants
        nox -s ablate -- --where picker/claim       one statement

    Exit status: 0 everything was noticed or is explained in invariants/mutants/redundant.toml, 1 something was not,
    2 wrong usage, 3 no Postgres, 4 unknown.
    """
    # Late, as above.
    from stress.mutants.ablating import ablate, settled, told, variants_of, write
    from stress.mutants.ablation_page import document
    from stress.mutants.trial import Patience

    with signals_stop():
        variants = variants_of(pg, control=with_control)
    known = {variant.where for variant in variants}
    for place in places:
        if place not in known:
            raise UsageError(f"nothing can be taken out of {place!r}; --list shows where something can")
    if again is None:
        variants = [variant for variant in variants if not places or variant.where in places]
    earlier = {} if again is None else settled(variants, again, places)
    if list_:
        for variant in variants:
            click.echo(variant.name)
        context.exit(0)
    ready(out or runs_folder())
    folder = create_run_folder(out or runs_folder(), "ablate")
    with signals_stop():
        ablation = ablate(
            variants,
            Patience(rounds, schedules),
            workers=min(4, os.cpu_count() or 1) if workers is None else workers,
            pg=pg,
            folder=folder,
            quiet=quiet,
            known=earlier,
        )
    verdict = write(ablation, folder)
    if page is not None:
        page.write_text(document(ablation, again is not None), encoding="utf-8")
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    elif not quiet:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        for line in told(ablation):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"recorded in {folder}\nverdict: {ablation.verdict}", soft_wrap=True)
    context.exit(EXIT_CODES[ablation.verdict])


def _command(names: Sequence[str], full: bool, seed: int, more: Sequence[str] = ()) -> str:
    words = [*(word for name in names for word in ("--only", name)), *(["--full"] if full else []), *more]
    return shlex.join(["nox", "-s", "mutants", "--", *words, "--seed", str(seed)])


def _machine() -> str:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f"{os.cpu_count()} cores under a load of {load:.1f}"
