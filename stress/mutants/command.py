"""`python -m stress mutants`: show every mutant to the instruments, and the sound engine too."""

from __future__ import annotations

import difflib
import os
import random
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.errors import UsageError
from engine.postgres import Server, Stopped, signals_stop
from invariants.mutants import PLANS, REGISTRY, Mutant
from invariants.verdict import EXIT_CODES
from results.runs import create_run_folder, runs_folder
from stress.mutants.instruments import Bench, Budget, control, control_items, see
from stress.mutants.matrix import Matrix, Row, instruments_for
from stress.mutants.pool import Lost, Pool
from stress.mutants.report import document, print_evidence, print_matrix, written
from stress.mutants.seen import INSTRUMENTS, Instrument, Seen

FULL_SEEDS = 3
PLAIN_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Ask:
    """What a worker is to find out: of a mutant by these instruments, the first catch ending it unless `all_`; or, with
    `item`, of the sound engine."""

    mutant: str | None
    instruments: tuple[Instrument, ...]
    seeds: tuple[int, ...]
    item: str = ""
    all_: bool = False


def mutant_of(name: str) -> Mutant:
    """By its name, of either kind."""
    return REGISTRY.get(name) or PLANS[name]


def open_bench(server: Server, stack: ExitStack) -> Bench:
    """What a worker has."""
    return Bench(server, stack, Budget())


def work(bench: Bench, ask: Ask) -> list[Seen]:
    """Runs in a worker."""
    if ask.mutant is None:
        return [control(ask.instruments[0], bench, ask.item, ask.seeds[0])]
    seen: list[Seen] = []
    for instrument in ask.instruments:
        for seed in ask.seeds:
            try:
                seen.append(see(instrument, bench, mutant_of(ask.mutant), seed))
            except Exception as error:  # noqa: BLE001  # a crash is `unknown`, never `held`
                detail = f"{type(error).__name__}: {error}"
                seen.append(Seen(instrument=instrument, sight="unknown", seed=seed, detail=detail))
            if seen[-1].sight == "apart" or seen[-1].seed is None:
                break
        if seen[-1].sight == "caught" and not ask.all_:
            break
    return seen


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
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write the page there too, such as docs/mutants.md.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the run's folder goes.")
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
@click.pass_context
def mutants_command(
    context: click.Context,
    names: tuple[str, ...],
    full: bool,
    with_control: bool | None,
    asked: tuple[Instrument, ...],
    list_: bool,
    workers: int | None,
    seed: int | None,
    pg: str,
    page: Path | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show every mutant to the instruments, from the cheapest to the dearest, until one catches it.

    \b
        nox -s mutants                                      all, and the sound engine under the same budgets
        nox -s mutants -- --only wake-filtered-in-where     one, with the evidence
        nox -s mutants -- --full                            every instrument's verdict, over three seeds

    Exit status: 0 all caught and the sound engine held, 1 a mutant was caught by nothing or the sound engine accused,
    2 wrong usage, 3 no Postgres, 4 unknown.
    """
    known = [*REGISTRY, *PLANS]
    if list_:
        for name in known:
            click.echo(f"{name:44} {mutant_of(name).summary}")
        context.exit(0)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "--list shows them"
            raise UsageError(f"there is no mutant {name!r}; {hint}")
    chosen = list(dict.fromkeys(names)) or known
    first = random.SystemRandom().randrange(2**31) if seed is None else seed
    with_control = not names if with_control is None else with_control
    workers = min(4, os.cpu_count() or 1) if workers is None else workers
    asks = [*_asks(chosen, first, full, asked), *(_controls(first, asked) if with_control else ())]
    matrix = Matrix({name: Row(name, mutant_of(name).summary) for name in chosen})
    began = time.monotonic()
    with signals_stop():
        try:
            with Pool(min(workers, len(asks)), pg, open_bench, work) as pool, Bar(len(asks), quiet) as bar:
                for ask, answer in pool.answers(asks):
                    _take_in(matrix, ask, answer)
                    bar.step(ask.mutant or f"the sound engine: {ask.instruments[0]} {ask.item}")
        except (Stopped, KeyboardInterrupt):
            matrix.interrupted = True
    matrix.seconds = time.monotonic() - began
    how = f"`{_command(names, full, first)}`, {workers} workers, {_machine()}."
    folder = create_run_folder(out or runs_folder(), "mutants")
    about = {"seed": first, "full": full, "workers": workers, "pg": pg, "machine": _machine()}
    verdict = written(matrix, folder, {**about, "reproduce": _command(names, full, first)}, how)
    if page is not None:
        page.write_text(document(matrix, how), encoding="utf-8")
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    elif not quiet:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        if names:
            for row in matrix.rows.values():
                print_evidence(console, row)
        print_matrix(console, matrix)
        console.print(f"recorded in {folder}\nverdict: {matrix.verdict}", soft_wrap=True)
    context.exit(EXIT_CODES[matrix.verdict])


def _asks(names: list[str], seed: int, full: bool, asked: tuple[Instrument, ...]) -> Iterator[Ask]:
    seeds = tuple(range(seed, seed + FULL_SEEDS)) if full else (seed,)
    for name in names:
        instruments = tuple(asked or instruments_for(name in REGISTRY, full=full))
        if full:
            # One at a time, so that no task takes long.
            yield from (Ask(name, (instrument,), seeds, all_=True) for instrument in instruments)
        else:
            yield Ask(name, instruments, seeds)


def _controls(seed: int, asked: tuple[Instrument, ...]) -> Iterator[Ask]:
    # The longest first: they would be the last to end.
    for instrument, item in sorted(control_items(), key=lambda one: INSTRUMENTS.index(one[0]), reverse=True):
        if not asked or instrument in asked:
            yield Ask(None, (instrument,), (seed,), item)


def _take_in(matrix: Matrix, ask: Ask, answer: Any) -> None:
    if isinstance(answer, Lost | Exception):
        detail = answer.why if isinstance(answer, Lost) else f"{type(answer).__name__}: {answer}"
        answer = [Seen(instrument=ask.instruments[0], sight="unknown", detail=detail)]
    if ask.mutant is None:
        matrix.control[ask.instruments[0], ask.item] = answer[0]
    else:
        row = matrix.rows[ask.mutant]
        row.seen = sorted([*row.seen, *answer], key=lambda seen: INSTRUMENTS.index(seen.instrument))


def _command(names: tuple[str, ...], full: bool, seed: int) -> str:
    words = [*(word for name in names for word in ("--only", name)), *(["--full"] if full else [])]
    return shlex.join(["nox", "-s", "mutants", "--", *words, "--seed", str(seed)])


def _machine() -> str:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f"{os.cpu_count()} cores under a load of {load:.1f}"


class Bar:
    """A bar on a terminal, nothing elsewhere; on standard error."""

    def __init__(self, total: int, quiet: bool) -> None:
        console = Console(stderr=True, quiet=quiet)
        self._progress = Progress(
            BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=console, transient=True, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, what: str) -> None:
        """One more is done."""
        self._progress.update(self._task, advance=1, description=what)
