"""What the known bad forms cost beside the engine's own, on the data of the engine's design (plans.md): measured anew.

Each question is a statement in two forms, good and bad, asked of one database in a session without settings of its own,
as a planner comes. Buffers and rows are those of EXPLAIN (ANALYZE); milliseconds are a client's, the median of several
runs, all rolled back. The same is asked again while sessions claim, commit and insert.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
import msgspec
import psycopg
from psycopg import sql

from engine.errors import InfrastructureError
from engine.front_door import NEW_FILE
from engine.postgres import Server, fresh_database, provision, signals_stop
from engine.statements import Catalogue, Statement
from invariants.mutants import PLANS
from results.plans import sample
from results.plans.arguments import BY_LABEL
from results.plans.capture import Session, execution, preparation, prepare
from results.plans.folder import Mode
from results.plans.load import Load
from results.plans.profiles import PROFILES, Profile
from results.plans.tree import walk
from results.runs import runs_folder, write_json

RUNS: Final = 5
# Batches that the load does before anything is measured beside it.
WARM: Final = 8
# A claim that loses a race for a key against the load is asked again.
RACES: Final = 10
# How many rows execute: of the bad forms, only the guard as NOT EXISTS reads them all.
EXECUTING: Final = (2_000, 5)


class Measured(msgspec.Struct, frozen=True):
    """One form: shared buffers, rows that its busiest node handled, milliseconds."""

    buffers: int
    rows: float
    ms: float


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One question, answered twice. `churn`: while the load ran."""

    name: str
    mutant: str
    executing: int
    churn: bool
    good: Measured
    bad: Measured

    @property
    def times(self) -> tuple[float, float, float]:
        """Bad over good: buffers, rows, milliseconds."""
        return (
            self.bad.buffers / max(1, self.good.buffers),
            self.bad.rows / max(1.0, self.good.rows),
            self.bad.ms / max(0.001, self.good.ms),
        )


@dataclass(frozen=True, slots=True)
class Question:
    """`only`: the number of executing rows that it is asked with; None for each."""

    name: str
    mutant: str
    label: str
    only: int | None = EXECUTING[0]
    mode: Mode = "custom"


QUESTIONS: Final = (
    Question("claim: queue = ANY, against equality", "claim-queue-any", "picker/claim"),
    Question("claim: NOT EXISTS guard, against lateral", "claim-not-exists", "picker/claim", only=None),
    # Its limit is a parameter, as a collector's is: what a session that keeps its plan knows of it is nothing.
    Question("GC: by subquery, against by ids", "gc-in-subquery", "maintenance/gc_delete", mode="generic"),
)


@click.command("figures")
@click.option(
    "--pg", default="embedded", show_default=True, help="embedded, 13 to 18, system:N, container:N, dsn:..."
)
@click.option(
    "--profile",
    "name",
    type=click.Choice(list(PROFILES)),
    default="large",
    show_default=True,
    help="How many rows: ten thousand, a hundred thousand, a million.",
)
@click.option("--out", type=NEW_FILE, help="Default: results/runs/figures.json.")
def figures_command(pg: str, name: str, out: Path | None) -> None:
    """Measure what the known bad forms of claim and collector cost, quiet and under churn. Minutes, on a million rows.

    \b
        nox -s figures
        nox -s figures -- --profile small --pg 15

    Exit status: 0 measured, 2 wrong usage, 3 no Postgres.
    """
    profile = PROFILES[name]
    own = pg.startswith(("dsn:", "postgres"))
    try:
        with signals_stop(), provision(pg, settings=None if own else {"autovacuum": "off"}) as server:
            figures = [figure for executing in EXECUTING for figure in measured(server, profile, executing)]
            version = server.version_text
    except psycopg.OperationalError as error:
        raise InfrastructureError(f"the server failed: {str(error).strip().splitlines()[0]}") from error
    place = out or runs_folder() / "figures.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, {"version": version, "profile": profile, "figures": figures})
    click.echo(f"PostgreSQL {version}, {profile.name}, batches of {profile.batch}")
    click.echo(table(figures))
    sys.exit(0)


def measured(server: Server, profile: Profile, executing: int) -> Iterator[Figure]:
    """The figures with so many executing rows, or as many as the profile has room for."""
    count = min(executing, profile.executing)
    busy = msgspec.structs.replace(profile, executing=count, expired=count // 2)
    wanted = [question for question in QUESTIONS if question.only in (None, executing)]
    with fresh_database(server) as dsn:
        prepare(dsn, busy)
        yield from (_figure(dsn, busy, question, churn=False) for question in wanted)
        with Load(dsn, batch=busy.batch) as load:
            load.wait(WARM)
            yield from [_figure(dsn, busy, question, churn=True) for question in wanted]


def table(figures: Sequence[Figure]) -> str:
    """Good, bad and how many times as much, a line for each, as Markdown."""
    lines = [
        "| form | executing | churn | buffers | times | rows | times | ms | times |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in figures:
        cells = [each.name, f"{each.executing:,}", "yes" if each.churn else "no"]
        for good, bad, times, digits in zip(
            msgspec.structs.astuple(each.good),
            msgspec.structs.astuple(each.bad),
            each.times,
            (0, 0, 1),
            strict=True,
        ):
            cells += [f"{good:,.{digits}f} → {bad:,.{digits}f}", f"{times:,.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(dsn: str, profile: Profile, question: Question, *, churn: bool) -> Figure:
    case, sound = BY_LABEL[question.label], Catalogue.load()
    broken = PLANS[question.mutant].apply(sound)
    with closing(Session(dsn, repetitions=1, settings="")) as session:
        there = sample.read(session.connection, profile.rows, profile.batch)
        arguments = tuple(case.make(there))
        good, bad = (
            _measure(session, each[case.statement], arguments, question.mode) for each in (sound, broken)
        )
    return Figure(
        name=question.name,
        mutant=question.mutant,
        executing=profile.executing,
        churn=churn,
        good=good,
        bad=bad,
    )


def _measure(session: Session, statement: Statement, arguments: tuple[Any, ...], mode: Mode) -> Measured:
    captured = session.capture(statement, arguments, statement.name, "")
    for _ in range(RACES):
        if not captured.error:
            break
        captured = session.capture(statement, arguments, statement.name, "")
    if captured.error:
        raise InfrastructureError(f"{statement.name}: {captured.error}")
    plan = captured.plans[mode].plan
    connection = session.connection
    connection.execute(preparation("timed", statement).encode())
    line = execution("timed", statement.encode(arguments))
    session.set("plan_cache_mode", f"force_{mode}_plan")
    took: list[float] = []
    for _ in range(RUNS + RACES):
        if len(took) < RUNS and (ms := _timed(connection, line)) is not None:
            took.append(ms)
    connection.execute("DEALLOCATE timed")
    if not took:
        raise InfrastructureError(f"{statement.name}: every run lost a race")
    return Measured(plan.buffers, max(node.handled for node in walk(plan)), round(median(took), 3))


def _timed(connection: psycopg.Connection[Any], line: sql.Composed) -> float | None:
    """Milliseconds of one run; None where it lost a race."""
    try:
        with connection.transaction(force_rollback=True):
            began = time.perf_counter()
            connection.execute(line)
            return (time.perf_counter() - began) * 1000
    except psycopg.errors.UniqueViolation:
        return None
