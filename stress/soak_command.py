"""`nox -s stress -- --profile soak`: its arguments, and what it prints."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from engine.ci import Files
from engine.errors import UsageError
from engine.postgres import parse_pg, signals_stop
from invariants.render import STYLES, print_verdict
from invariants.verdict import EXIT_CODES
from results.runs import create_run_folder, runs_folder
from stress.config import checked, default_scenario, meets
from stress.display import Display
from stress.outcomes import of_soak
from stress.scenarios import SCENARIOS
from stress.soak_folder import Request, SoakFolder, SoakVerdict

MAX_MINUTES = 7 * 24 * 60.0
DEFAULT_MINUTES = 10.0


def soak_command(
    *,
    pg: tuple[str, ...],
    minutes: float | None,
    seconds: float,
    nodes: int,
    seed: int | None,
    faults: str,
    scenario: str | None,
    subject: str,
    mutant: str | None,
    resume: Path | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    ci: Files,
) -> int:
    """Carry out a soak, or go on with the one in the folder `resume`; the exit status. Raises UsageError."""
    # Late, because it brings in all that a run needs, and a wrong argument should not wait for it.
    from stress.soak import possible_rounds, soak

    if resume is None:
        request = _request(
            pg=pg,
            minutes=DEFAULT_MINUTES if minutes is None else minutes,
            seconds=seconds,
            nodes=nodes,
            seed=random.SystemRandom().randrange(2**31) if seed is None else seed,
            faults=faults,
            scenario=scenario,
            subject=subject,
            mutant=mutant,
        )
        [where] = pg
        possible_rounds(request, where)
        folder = SoakFolder.create(create_run_folder(out or runs_folder(), "soak"), request)
    else:
        folder = SoakFolder(resume)
        request = folder.request()
        if minutes is not None:
            request = msgspec.structs.replace(request, minutes=_minutes(minutes))
        where = request.pg
        if request.pg == "dsn":
            if not (len(pg) == 1 and pg[0].startswith("dsn:")):
                raise UsageError(
                    f"the soak in {resume} ran on a server of yours: say which with --pg dsn:..."
                )
            [where] = pg
    display = Display(quiet=quiet, lines=False)
    display.say(f"soak {folder.path} · seed {request.seed}")
    with signals_stop():
        verdict = soak(request, where, folder, display)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    elif not quiet:
        print_soak(verdict, folder.path)
    ci.write(of_soak(verdict))
    return EXIT_CODES[verdict.verdict]


def _request(
    *,
    pg: tuple[str, ...],
    minutes: float,
    seconds: float,
    nodes: int,
    seed: int,
    faults: str,
    scenario: str | None,
    subject: str,
    mutant: str | None,
) -> Request:
    if len(pg) != 1:
        raise UsageError(f"a soak runs on one server: give --pg once, not {len(pg)} times")
    # The rest is for whoever checks a run.
    checked(
        pg=pg,
        seconds=seconds,
        nodes=nodes,
        seed=seed,
        faults=faults,
        scenario=default_scenario(mutant) if scenario is None else scenario,
        subject=subject,
        mutant=mutant,
    )
    source = parse_pg(pg[0])
    return Request(
        seed=seed,
        minutes=_minutes(minutes),
        seconds=seconds,
        nodes=nodes,
        pg="dsn" if source.kind == "dsn" else str(source),
        scenarios=tuple(name for name in SCENARIOS if mutant is None or meets(name, mutant))
        if scenario is None
        else (scenario,),
        faults=faults,
        subject=subject,
        mutant=mutant,
    )


def _minutes(minutes: float) -> float:
    if not 0 < minutes <= MAX_MINUTES:
        raise UsageError(f"--minutes must be above 0 and at most {MAX_MINUTES:.0f}, not {minutes:g}")
    return minutes


def print_soak(verdict: SoakVerdict, folder: Path) -> None:
    """On standard output: invariants, memory, tables, the verdict."""
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("invariant")
    table.add_column("verdict")
    for name, found in verdict.invariants.items():
        table.add_row(name, found.replace("_", " "), style=STYLES[found])
    console.print(table)
    memory = Table(box=box.SIMPLE_HEAD)
    for heading in ("memory, MB", "first", "last", "most"):
        memory.add_column(heading, justify="left" if heading.startswith("memory") else "right")
    for role, figures in verdict.memory_mb.items():
        memory.add_row(role, *(f"{figures[name]:,.1f}" for name in ("first", "last", "most")))
    console.print(memory)
    if verdict.tables_mb:
        size, dead = verdict.tables_mb, verdict.dead_rows
        console.print(
            f"tables and indexes between rounds: {size['first']:,.1f} MB at first, {size['last']:,.1f} at last, "
            f"{size['most']:,.1f} at most; dead rows {dead['first']:,}, {dead['last']:,}, {dead['most']:,}",
            soft_wrap=True,
        )
    rounds = ", ".join(f"{count} {word}" for word, count in sorted(verdict.rounds.items()))
    console.print(
        f"{verdict.took_minutes:g} minutes of rounds: {rounds or 'none'}; {verdict.transactions:,} transactions"
    )
    for finding in verdict.findings:
        console.print(finding, soft_wrap=True)
    print_verdict(console, verdict.verdict, verdict.reason)
    console.print(f"recorded in {folder}", soft_wrap=True)
    if not verdict.complete:
        console.print(f"go on: nox -s stress -- --resume {folder}", soft_wrap=True)
    console.print(f"again: {verdict.reproduce}", soft_wrap=True)
