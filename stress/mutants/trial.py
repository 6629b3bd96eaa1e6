"""Puts one ablated text on trial: the instruments in turn, the cheapest first, until one notices.

    load        the server refuses the statement, or the schema
    refusals    the schema takes what it must refuse (`refusals`)
    situations  a statement answers, leaves, waits for or holds what it should not (`stress.situations`)
    plans       a statement's plan has another shape
    script      a script for a mutant of the same statement breaks an invariant
    kept        a plan that a session keeps from when there was next to nothing has another shape
    model       a machine's model foresees another answer or another row
    explore     a race that sends the statement breaks an invariant

What is kept from one trial to the next has the sound schema: databases, sessions, a lab, the plans. A text that changes
the schema gets a database of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo

from engine.postgres import Server, fresh_database
from engine.schema import migrate
from engine.statements import AREAS, Catalogue
from invariants.mutants import REGISTRY, Mutant
from models.fuzz import MACHINES, Profile, bind, fuzz, fuzz_bound
from models.sessions import Sessions
from results.plans.arguments import CASES
from stress.mutants.ablation import Variant
from stress.mutants.concerns import machines_of, statements_of
from stress.mutants.instruments import Bench, Budget, by_plans, captured, departures
from stress.mutants.refusals import first_taken
from stress.schedules.controller import Run, Uncontrolled
from stress.schedules.lab import Lab
from stress.schedules.race import Race
from stress.schedules.races import ALL
from stress.schedules.search import Diverged, Exhaustive
from stress.schedules.worker import Task, Worker
from stress.scripts import taking
from stress.situations import by_statement
from stress.situations.site import Site

Stage = Literal["load", "refusals", "situations", "plans", "script", "kept", "model", "explore"]
Outcome = Literal["caught", "survived", "unknown"]

FUZZ: Final = Profile(seconds=60, round_examples=50, example_steps=30)
SEED: Final = 1
# What is tried is counted, so that it is the same on a slow machine; the seconds end only what hangs.
ROUNDS: Final = 4
HANGS_S: Final = 240.0
# Schedules of a race.
SCHEDULES: Final = 60


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one variant. `stage` and `by`: who noticed, and what; `tried`: by stage, how much was tried.
    `digest` is the variant's, which tells whether an earlier trial was of the same text."""

    variant: str
    digest: str = ""
    outcome: Outcome
    stage: Stage | None = None
    by: str = ""
    seconds: float = 0.0
    tried: dict[str, int] = {}
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Patience:
    """For one variant: rounds of each of its machines, and schedules of each of its races."""

    rounds: int = ROUNDS
    schedules: int = SCHEDULES


@dataclass
class Ground:
    """A server and what is kept on it."""

    server: Server
    stack: ExitStack
    patience: Patience = field(default_factory=Patience)
    _sound: set[tuple[Stage, str]] = field(default_factory=set)

    def is_known(self, stage: Stage, item: str, variant: Variant) -> bool:
        """Whether that machine, race or script has met the sound engine here, and the variant is nothing else."""
        if variant.kind != "nothing":
            return False
        known = (stage, item) in self._sound
        self._sound.add((stage, item))
        return known

    @cached_property
    def bench(self) -> Bench:
        """For the instruments that the matrix uses too."""
        return Bench(self.server, self.stack, Budget())

    @cached_property
    def migrated(self) -> psycopg.Connection[Any]:
        """A session in a database with the whole schema and nothing in it."""
        dsn = self.stack.enter_context(fresh_database(self.server))
        connection = self.stack.enter_context(psycopg.connect(dsn, autocommit=True))
        for area in AREAS:
            migrate(connection, area)
        return connection

    @cached_property
    def site(self) -> Site:
        """For situations."""
        return Site(self.stack.enter_context(fresh_database(self.server)), self.stack)

    @cached_property
    def sessions(self) -> Sessions:
        """Of the machines that can share them."""
        dsn = self.stack.enter_context(fresh_database(self.server))
        return self.stack.enter_context(Sessions.opened(dsn, MACHINES["picker"][1]))

    @cached_property
    def lab(self) -> Lab:
        """For races. Between two of them the stream of the log may be silent for long."""
        dsn = self.stack.enter_context(fresh_database(self.server))
        return Lab(make_conninfo(dsn, options="-c wal_sender_timeout=0"), self.stack, None)

    @cached_property
    def senders(self) -> dict[str, tuple[str, ...]]:
        """By statement, the written races that send it in their first schedule of the sound engine."""
        self.lab.become(None)
        found: dict[str, list[str]] = {}
        for name, race in ALL.items():
            for statement in sent(self.lab, race):
                found.setdefault(statement, []).append(name)
        return {statement: tuple(names) for statement, names in found.items()}

    def forget(self) -> None:
        """All anew that a statement without its guard may have left in disorder."""
        for name in ("site", "sessions", "lab"):
            self.__dict__.pop(name, None)


def sent(lab: Lab, race: Race) -> set[str]:
    """The statements that a race's sessions send in its first schedule."""
    run = Run()
    try:
        lab.run(race, "generic", Exhaustive(), into=run)
    except (Uncontrolled, Diverged):
        run.complete = False
    lab.judged([(race, run)])
    return {step.statement for step in run.steps}


def try_variant(ground: Ground, variant: Variant, stages: Sequence[Stage]) -> Trial:
    """One variant, by these stages until one notices."""
    began = time.monotonic()
    tried: dict[str, int] = {}
    doubts: list[str] = []
    for stage in stages:
        for seen in STAGES[stage](ground, variant):
            if isinstance(seen, Doubt):
                doubts.append(f"{stage}: {seen.why}")
            elif isinstance(seen, str):
                return Trial(
                    variant=variant.name, digest=variant.digest, outcome="caught", stage=stage, by=seen, tried=tried,
                    seconds=time.monotonic() - began, doubts=tuple(doubts),
                )  # fmt: skip
            else:
                tried[stage] = tried.get(stage, 0) + seen
    return Trial(
        variant=variant.name,
        digest=variant.digest,
        outcome="unknown" if doubts else "survived",
        tried=tried,
        seconds=time.monotonic() - began,
        doubts=tuple(doubts),
    )


@dataclass(frozen=True, slots=True)
class Doubt:
    """What could not be tried."""

    why: str


# What a stage yields: how much it has tried, a doubt, or, in a word, what it noticed.
Look = Iterator[int | str | Doubt]


def _load(ground: Ground, variant: Variant) -> Look:
    """Alter the schema, and prepare every statement that may have changed, in a transaction that is undone."""
    connection, mutant = ground.migrated, variant.mutant
    catalogue = mutant.apply(Catalogue.load())
    try:
        with connection.transaction(force_rollback=True):
            for text in mutant.alterations():
                connection.execute(text.encode())
            for name in mutant.statements or (catalogue if mutant.schema else ()):
                statement = catalogue[name]
                types = f" ({', '.join(statement.types)})" if statement.types else ""
                connection.execute(f"PREPARE tried{types} AS {statement.text}".encode())
                connection.execute("DEALLOCATE tried")
    except psycopg.Error as error:
        yield f"{type(error).__name__}: {str(error).splitlines()[0]}"
    yield 1


def _refusals(ground: Ground, variant: Variant) -> Look:
    """Whether the altered schema still refuses all that it must."""
    if not variant.mutant.schema:
        return
    taken = first_taken(ground.migrated, variant.mutant.schema)
    if taken is not None:
        yield taken
    yield 1


def _situations(ground: Ground, variant: Variant) -> Look:
    mutant = variant.mutant
    if mutant.schema:
        return
    catalogue, table = mutant.apply(Catalogue.load()), by_statement()
    for name in sorted(statements_of(mutant)):
        for situation in table.get(name, ()):
            seen = ground.site.departure(situation, catalogue, mutant.alterations())
            if seen is not None:
                yield seen[:300]
            yield 1


def _model(ground: Ground, variant: Variant) -> Look:
    mutant = variant.mutant
    # An index that is not unique, as every one that has come here is, changes no answer.
    machines = () if variant.kind == "index" else machines_of(mutant)
    for machine in machines:
        if ground.is_known("model", machine, variant):
            continue
        rounds = ground.patience.rounds
        catalogue = mutant.apply(Catalogue.load())
        if machine in MACHINES and not mutant.alterations():
            bound = bind(machine, ground.sessions, catalogue)
            finding = fuzz_bound(
                machine, bound, seconds=HANGS_S, seed=SEED, profile=FUZZ, shrink_seconds=0.0, rounds=rounds
            )
        else:
            with fresh_database(ground.server) as dsn:
                finding = fuzz(
                    machine, dsn, seconds=HANGS_S, seed=SEED, profile=FUZZ, catalogue=catalogue,
                    schema=mutant.alterations(), shrink_seconds=0.0, rounds=rounds,
                )  # fmt: skip
        if finding.verdict == "violated":
            yield f"{machine}: {finding.reason}"[:300]
        if finding.verdict == "unknown":
            ground.forget()
            yield Doubt(f"{machine}: {finding.reason}"[:300])
        yield finding.steps


def _explore(ground: Ground, variant: Variant) -> Look:
    mutant = variant.mutant
    names = [name for name in races_of(ground, mutant) if not ground.is_known("explore", name, variant)]
    if not names:
        return
    with ExitStack() as stack:
        if mutant.alterations():
            lab = Lab(stack.enter_context(fresh_database(ground.server)), stack, mutant)
        else:
            lab = ground.lab
            lab.become(mutant)
        worker = Worker(lab, None, "")
        for name in names:
            found = worker.turn(Task(name, "generic", 0, Exhaustive(), ground.patience.schedules), HANGS_S)
            if found.schedule is not None and found.confirmed:
                yield f"{name}: {', '.join(found.schedule.violated)}"
            if found.unknown is not None:
                # Without a guard a race may leave what is under control; that says nothing yet.
                ground.forget()
                yield Doubt(f"{name}: {found.unknown}"[:300])
                return
            yield found.runs


def races_of(ground: Ground, mutant: Mutant) -> Sequence[str]:
    """The races that send what it changes; for a change of the schema, those of its tables' areas."""
    statements = statements_of(mutant)
    return tuple(dict.fromkeys(race for name in sorted(statements) for race in ground.senders.get(name, ())))


def _script(ground: Ground, variant: Variant) -> Look:
    for name in scripts_of(variant):
        if ground.is_known("script", name, variant):
            continue
        seen = ground.bench.script(variant.mutant, name)
        if seen.verdict == "violated":
            yield f"{name}: {', '.join(seen.violated) or '; '.join(seen.evidence)}"[:300]
        if seen.verdict == "unknown":
            yield Doubt(f"{name}: {'; '.join(seen.evidence)}"[:300])
        yield 1


def scripts_of(variant: Variant) -> list[str]:
    """Scripts of those mutants that change the same statements or functions."""
    mine = statements_of(variant.mutant)
    return [
        name
        for name, mutant in REGISTRY.items()
        if taking.has_script(name) and mine & statements_of(mutant) and not mutant.protocol
    ]


def _plans(ground: Ground, variant: Variant) -> Look:
    mutant = variant.mutant
    # Of an index, and of a function, what the plans were before.
    if variant.kind == "index" or mutant.functions:
        seen = by_plans(ground.bench, mutant, SEED)
        if seen.sight == "caught":
            yield "; ".join(seen.evidence)[:300]
        yield seen.steps
    if mutant.alterations():
        return
    dsn, sound = ground.bench.plans()
    cases = [case for case in CASES if case.statement in mutant.statements]
    for violation in departures(captured(dsn, cases, mutant.apply(Catalogue.load())), sound):
        yield str(violation)[:300]
    yield len(cases)


def _kept(ground: Ground, variant: Variant) -> Look:
    if variant.mutant.schema:
        return
    for violation in ground.bench.kept(variant.mutant):
        # Not its buffers: each is run once, and they hold what earlier runs have left behind.
        if violation.rule != "pages":
            yield str(violation)[:300]
    yield 1


STAGES: Final[dict[Stage, Callable[[Ground, Variant], Look]]] = {
    "load": _load,
    "refusals": _refusals,
    "situations": _situations,
    "plans": _plans,
    "script": _script,
    "kept": _kept,
    "model": _model,
    "explore": _explore,
}
# That draw nothing and take a few seconds. What is explained as redundant meets these alone: for the rest its reason
# stands.
QUICK: Final[tuple[Stage, ...]] = ("load", "refusals", "situations", "plans", "kept")
