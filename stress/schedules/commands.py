"""`python -m stress explore` and `python -m stress replay`."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.console import Console

from engine.ci import Files, Outcome, ci_options
from engine.errors import InfrastructureError, UsageError
from engine.front_door import NEW_FILE, Amount
from engine.postgres import provision, signals_stop
from invariants.mutants import REGISTRY
from invariants.verdict import EXIT_CODES
from results.report import explored, look
from results.runs import VerdictWord, create_run_folder, ready, runs_folder, write_json
from stress.config import known

if TYPE_CHECKING:
    from models.fuzz import Finding, Profile
    from stress.schedules.explore import Exploration, Request
    from stress.schedules.record import Schedule
    from stress.schedules.replay import Replayed

FUZZ: Final = "python -m stress fuzz"
ALL_SCHEDULES, ALL_SECONDS = 20_000, 300.0
# Of a table that goes to a file or a pipe.
PLAIN_WIDTH = 120


@click.command("explore")
@click.option("--race", "names", multiple=True, metavar="NAME", help="May be repeated; default: every race.")
@click.option("--list", "list_", is_flag=True, help="List the races, and end.")
@click.option("--mutant", default=None, metavar="NAME", help="Break the engine on purpose.")
@click.option(
    "--subject",
    default=None,
    metavar="FILE:CLASS",
    help="A queue of your own statements: docs/your-system.md.",
)
@click.option(
    "--schedules",
    type=click.IntRange(min=1),
    default=ALL_SCHEDULES,
    show_default=True,
    help="How many are taken at most, over all races.",
)
@click.option(
    "--seconds",
    type=Amount(min=0.1, max=86_400.0),
    default=ALL_SECONDS,
    show_default=True,
    help="How long it may take; what was not begun by then is unknown.",
)
@click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=None, help="Of what is sampled; drawn by default."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1, max=32),
    default=None,
    help="Processes; default: three a core, for one race one.",
)
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the run's folder goes.")
@click.option(
    "--report/--no-report", "reports", default=True, help="Make the exploration's report.html; the default."
)
@ci_options
@click.pass_context
def explore_command(
    context: click.Context,
    names: tuple[str, ...],
    list_: bool,
    mutant: str | None,
    subject: str | None,
    schedules: int,
    seconds: float,
    pg: str,
    seed: int | None,
    workers: int | None,
    as_json: bool,
    quiet: bool,
    out: Path | None,
    reports: bool,
    ci: Files,
) -> None:
    """Take races of real sessions through their schedules, and judge every one.

    \b
        nox -s explore                                      every race
        nox -s explore -- --race lost-wakeup
        nox -s explore -- --race lost-wakeup --mutant wake-filtered-in-where
        nox -s explore -- --subject examples/blog_queue/blog_queue.py:BlogQueue

    Exit status: 0 held, 1 violated, 2 wrong usage, 3 no Postgres, 4 unknown.
    """
    from results.report.making import tell
    from stress.schedules.display import print_exploration
    from stress.schedules.explore import Request, default_workers
    from stress.schedules.race import FOREIGN_PLANNERS, PLANNERS
    from stress.schedules.worker import races_of

    if subject is not None and mutant is not None:
        raise UsageError("--mutant is for the reference engine: leave it out, or leave --subject out")
    there = races_of(subject)
    if list_:
        for race in there.values():
            click.echo(f"{race.name:40} {race.summary}")
        context.exit(0)
    for name in names:
        known("race", name, there)
    if mutant is not None:
        known("mutant", mutant, REGISTRY)
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    wanted = tuple(dict.fromkeys(names)) or tuple(there)
    request = Request(
        names=wanted,
        mutant=mutant,
        schedules=schedules,
        seconds=seconds,
        seed=seed,
        workers=default_workers(len(wanted)) if workers is None else workers,
        planners=tuple(PLANNERS if subject is None else FOREIGN_PLANNERS),
        subject=subject,
    )
    with signals_stop():
        done = carry_out(request, pg, out or runs_folder(), quiet=quiet)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(done.verdict) + b"\n")
    elif not quiet:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        print_exploration(console, done.exploration)
        console.print(f"recorded in {done.folder}", soft_wrap=True)
    if reports:
        tell(done.folder)
    ci.write(done.outcome)
    context.exit(EXIT_CODES[done.exploration.verdict])


@dataclass(frozen=True, slots=True)
class Done:
    """An exploration that is over, as it is recorded in `folder`; `outcome` for CI."""

    exploration: Exploration
    verdict: dict[str, Any]
    folder: Path
    outcome: Outcome


def carry_out(request: Request, pg: str, out: Path, *, quiet: bool) -> Done:
    """Explore on a server from `pg`, and record it in a new folder below `out`. Raises InfrastructureError."""
    from stress.outcomes import of_exploration
    from stress.schedules.display import ProgressDisplay
    from stress.schedules.explore import explore

    ready(out)
    with provision(pg) as server:
        if server.why_no_ledger is not None:
            raise InfrastructureError(f"schedules are judged on the ledger: {server.why_no_ledger}")
        with ProgressDisplay(quiet=quiet) as display:
            told = f"{server.version_text} ({server.source})"
            display.say(f"{told} · {len(request.names)} races · seed {request.seed}")
            exploration = explore(server, request, display.show)
        postgres = {"version": server.version_text, "source": server.source}
    folder = create_run_folder(out, "explore")
    verdict = _written(exploration, postgres, folder)
    return Done(exploration, verdict, folder, of_exploration(exploration, postgres, _command(request)))


def _written(exploration: Exploration, postgres: dict[str, str], folder: Path) -> dict[str, Any]:
    """The run's folder: the verdict, and every failing schedule in each of its forms."""
    from stress.schedules.export import pytest_file

    request = exploration.request
    races: dict[str, Any] = {}
    for name, tally in exploration.tallies.items():
        entry: dict[str, Any] = {
            "verdict": tally.verdict,
            "schedules": tally.runs,
            "left_out": tally.pruned,
            "orders": tally.orders,
            "whole": tally.exhausted,
            "sampled": tally.sampled,
            "blocked": tally.blocked,
            "checked": {rule: count for rule, count in sorted(tally.checked.items()) if count},
        }
        if tally.reason is not None and tally.verdict == "unknown":
            entry["reason"] = tally.reason
        failure = tally.failure
        if failure is not None and failure.schedule is not None:
            stem = name.replace(":", "-")
            write_json(folder / f"{stem}.json", failure.schedule)
            if request.subject is None:
                (folder / f"test_{stem.replace('-', '_').replace('+', '_')}.py").write_text(
                    pytest_file(failure.schedule), encoding="utf-8"
                )
            if failure.spec:
                (folder / f"{stem}.spec").write_text(failure.spec, encoding="utf-8")
            entry |= {
                "violated": failure.schedule.violated,
                "steps": failure.steps,
                "table": failure.rows,
                "why": failure.reasons,
                "found": failure.schedule.summaries,
                "planner": failure.schedule.planner,
                "drawn": failure.drawn,
                "schedule": f"{stem}.json",
            }
        races[name] = entry
    verdict = {
        "schema": 1,
        "verdict": exploration.verdict,
        "seed": request.seed,
        "mutant": request.mutant,
        "subject": request.subject,
        "postgres": postgres,
        "schedules": exploration.runs,
        "seconds": round(exploration.seconds, 3),
        "schedules_per_second": round(exploration.rate, 1),
        "races": races,
        "reproduce": _command(request),
    }
    write_json(folder / "verdict.json", verdict)
    return verdict


def _command(request: Request) -> str:
    words = [f"--race {name}" for name in request.names] if len(request.names) < 20 else []
    if request.mutant is not None:
        words.append(f"--mutant {request.mutant}")
    if request.subject is not None:
        words.append(f"--subject {request.subject}")
    words += [f"--schedules {request.schedules}", f"--seconds {request.seconds:g}", f"--seed {request.seed}"]
    return "nox -s explore -- " + " ".join(words)


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--mutant", default=None, metavar="NAME", help="Another than the schedule's; none for the engine."
)
@click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres.")
@click.option("--html", type=NEW_FILE, default=None, help="Draw it on a page there.")
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No table.")
@click.pass_context
def replay_command(
    context: click.Context,
    file: Path,
    mutant: str | None,
    pg: str,
    html: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Take the recorded schedule in FILE again, twice, and judge it.

    \b
        nox -s replay -- results/runs/20261201-101530-explore/lost-wakeup.json
        nox -s replay -- lost-wakeup.json --mutant none --html held.html       drawn, on the sound engine
        nox -s replay -- lost-wakeup.json --pg 15                              on another version

    Exit status: 0 held, 1 violated, 2 wrong usage, 3 no Postgres, 4 unknown.
    """
    from stress.schedules.display import print_schedule
    from stress.schedules.lab import open_lab
    from stress.schedules.record import read_schedule
    from stress.schedules.replay import race_of, replayed

    schedule = read_schedule(file)
    race_of(schedule)
    wanted = schedule.mutant if mutant is None else None if mutant == "none" else mutant
    if wanted is not None:
        known("mutant", wanted, REGISTRY)
    with (
        signals_stop(),
        provision(pg) as server,
        open_lab(server, None if wanted is None else REGISTRY[wanted], schedule.subject) as lab,
    ):
        began = time.monotonic()
        told = replayed(lab, schedule)
        seconds = time.monotonic() - began
        postgres = {"version": server.version_text, "source": server.source}
    verdict: VerdictWord = "unknown" if told.unknown is not None else "violated" if told.violated else "held"
    if html is not None:
        look.put(html, _page(schedule, told, verdict, wanted, postgres, seconds, file))
    if as_json:
        answer = {
            "schema": 1,
            "verdict": verdict,
            "race": schedule.race,
            "mutant": wanted,
            "violated": told.violated,
            "reason": told.unknown,
            "table": told.rows,
            "why": told.reasons,
        }
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    elif not quiet:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        print_schedule(console, told.sessions, told.rows, told.reasons, told.summaries)
        console.print(
            f"verdict: {verdict}" + ("" if told.unknown is None else f": {told.unknown}"), soft_wrap=True
        )
    context.exit(EXIT_CODES[verdict])


def _page(
    schedule: Schedule,
    told: Replayed,
    verdict: VerdictWord,
    mutant: str | None,
    postgres: dict[str, str],
    seconds: float,
    file: Path,
) -> str:
    """A replay as the exploration of one race that took one schedule twice."""
    race = explored.Race(
        verdict=verdict,
        schedules=2,
        left_out=0,
        orders=1,
        whole=0,
        sampled=0,
        blocked=2 if told.drawn.waits else 0,
        reason=told.unknown,
        violated=list(told.violated),
        steps=len(told.rows),
        why=told.reasons,
        found=list(told.summaries),
        planner=schedule.planner,
        drawn=told.drawn,
        schedule=file.name,
    )
    return explored.render(
        explored.Explored(
            verdict=verdict,
            seed=None,
            mutant=mutant,
            postgres=postgres,
            schedules=2,
            seconds=seconds,
            schedules_per_second=2 / seconds,
            races={schedule.race: race},
            reproduce=f"nox -s replay -- {file} --mutant {mutant or 'none'}",
        ),
        file.parent,
        beside=False,
    )


def fuzz_schedules(dsn: str, seconds: float, seed: int, profile: Profile) -> Finding:
    """Schedules beside the machines of the models."""
    from stress.schedules import fuzz

    return fuzz.fuzz_schedules(dsn, seconds=seconds, seed_=seed, profile=profile)


@click.command("fuzz", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def fuzz_command(arguments: tuple[str, ...]) -> None:
    """Hold the engine against the models, and try schedules, until the time is up."""
    # Late, for Hypothesis is slow to read.
    from models.commands import command

    command(FUZZ, {"schedules": fuzz_schedules})(list(arguments), prog_name=FUZZ)
