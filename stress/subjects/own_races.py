"""Races of a queue that is a handful of statements (`stress/subjects/sql_queue.py`): what its sessions do, by steps.

    enqueue     what a client does
    claim       what a worker does first, for so many jobs
    complete    what it does last, for the first job that a claim brought
    requeue     what gives back jobs whose lease is over; `lapsed` says that every lease is

Where the requeue takes its lease as a parameter, a lease that is over is one of less than nothing. Where it does not,
no lease runs out in a schedule, and the races that need one are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, cast

from engine.errors import UsageError
from engine.operation import Operation, Row, call
from engine.statements import Statement
from stress.schedules.actions import Action, Prepared
from stress.schedules.gates import needs_call, with_gate
from stress.schedules.race import Race
from stress.subjects.loading import NoSubject, load
from stress.subjects.sql_queue import SqlQueue
from stress.subjects.system import Job

LAPSED_MS: Final = -1_000.0
LASTING_MS: Final = 600_000.0


@cache
def queue_of(words: str) -> SqlQueue:
    """The queue that the words after `--subject` name. Raises UsageError."""
    try:
        system = load(words)
    except NoSubject as error:
        raise UsageError(str(error)) from error
    if not isinstance(system, SqlQueue):
        raise UsageError(
            f"{words} cannot be explored: schedules are made of its statements, and only an SqlQueue says what they "
            "are (stress/subjects/sql_queue.py); nox -s stress runs it as it is"
        )
    if system.rows is None:
        raise UsageError(f"{words} cannot be explored: `rows` has to say where its jobs are kept")
    return system


@dataclass
class OwnWorld:
    """A run's memory: the queue with its gated statements, what each claim brought, and how many jobs were sent."""

    queue: SqlQueue
    statements: Mapping[str, Statement]
    relays: tuple[()] = ()
    rows: dict[str, int] = field(default_factory=dict)
    claims: dict[str, list[Row]] = field(default_factory=dict)
    sent: int = 0

    def copy(self) -> OwnWorld:
        """The same memory, to go on with by itself."""
        return OwnWorld(self.queue, self.statements, (), dict(self.rows), deepcopy(self.claims), self.sent)


def gated_statements(queue: SqlQueue) -> dict[str, Statement]:
    """Its statements, with a gate where no trigger comes before the first lock."""
    return {
        name: statement.with_text(with_gate(statement)) if needs_call(statement) else statement
        for name, statement in queue.statements.items()
    }


def _action(name: str, prepare: Callable[[OwnWorld, str], Prepared | None]) -> Action:
    return Action(name, lambda world, session: prepare(cast(Any, world), session))


def _asking(statement: Statement, *arguments: object) -> Operation[list[Row]]:
    rows: list[Row] = yield call(statement, *arguments)
    return rows


def enqueue() -> Action:
    """A job."""

    def prepare(world: OwnWorld, _: str) -> Prepared:
        world.sent += 1
        job = Job(name=f"job-0-{world.sent}")
        arguments = world.queue.enqueues_with(job)
        return Prepared(
            "enqueue", {"job": job.name}, _asking(world.statements["enqueue"], *arguments), lambda _: {}
        )

    return _action("enqueue", prepare)


def claim(label: str, limit: int = 1) -> Action:
    """So many jobs, known by that label from now on."""

    def prepare(world: OwnWorld, _: str) -> Prepared:
        def absorb(rows: list[Row]) -> None:
            world.claims[label] = rows

        operation = _asking(world.statements["claim"], *world.queue.claims_of(limit))
        value = {"claim": label, "limit": limit}
        return Prepared(
            "claim", value, operation, lambda rows: {"ids": [str(row[0]) for row in rows]}, absorb
        )

    return _action(f"claim {limit}", prepare)


def complete(label: str) -> Action:
    """The first job that the claim of that label brought; nothing where it brought none."""

    def prepare(world: OwnWorld, _: str) -> Prepared | None:
        rows = world.claims.get(label)
        if not rows:
            return None
        row = rows.pop(0)
        statement = world.statements["complete"]
        tells = "RETURNING" in statement.text.upper()

        def report(answer: list[Row]) -> dict[str, Any]:
            # A statement that does not say whether it did it leaves its worker in the belief that it did.
            return {"did": bool(answer) or not tells}

        operation = _asking(statement, *world.queue.completes_with(row))
        return Prepared("complete", {"claim": label, "id": str(row[0])}, operation, report)

    return _action("complete", prepare)


def requeue(*, lapsed: bool) -> Action:
    """What gives back jobs whose lease is over: of all, or of none."""

    def prepare(world: OwnWorld, _: str) -> Prepared:
        arguments = world.queue.requeues_with(LAPSED_MS if lapsed else LASTING_MS)
        return Prepared("requeue", {}, _asking(world.statements["requeue"], *arguments), lambda _: {})

    return _action("requeue" if lapsed else "requeue, no lease over", prepare)


CLAIMS: Final = ("claim-within-limit", "claimed-once")
ENDS: Final = ("ends-once", "ended-is-final")


def own_races(queue: SqlQueue) -> dict[str, Race]:
    """The races that its statements allow, by name."""
    lapses = bool(queue.statements["requeue"].types)
    # What is left is worked off at the end, so that nothing may be lost.
    swept = (requeue(lapsed=True),) if lapses else ()
    finish = (*swept, claim("last", 8), *(complete("last") for _ in range(4)))
    two, three = (enqueue(), enqueue()), (enqueue(), enqueue(), enqueue())
    races = [
        Race(
            name="claim-claim",
            summary="two workers claim one job each of two",
            setup=two,
            sessions={"one": (claim("a"), complete("a")), "two": (claim("b"), complete("b"))},
            finish=finish, invariants=(*CLAIMS, *ENDS), at_rest=True,
        ),
        Race(
            name="claim-batch",
            summary="two workers claim two jobs each of three",
            setup=three,
            sessions={"one": (claim("a", 2),), "two": (claim("b", 2),)},
            finish=(complete("a"), complete("a"), complete("b"), complete("b"), *finish), invariants=CLAIMS,
            at_rest=True,
        ),
        Race(
            name="enqueue-claim",
            summary="a client's job meets two workers that claim",
            setup=(enqueue(),),
            sessions={
                "client": (enqueue(),), "one": (claim("a"), complete("a")), "two": (claim("b"), complete("b")),
            },
            finish=finish, invariants=(*CLAIMS, *ENDS), at_rest=True, contends=False,
        ),
        Race(
            name="requeue-no-lease-over",
            summary="a requeue meets a claim and its completion, whose lease is not over",
            setup=(enqueue(), claim("a")),
            sessions={"worker": (complete("a"),), "sweeper": (requeue(lapsed=False),), "other": (claim("b"),)},
            finish=finish, invariants=ENDS, contends=False,
        ),
    ]  # fmt: skip
    if lapses:
        races += [
            Race(
                name="requeue-complete",
                summary="a job whose lease is over is given back while its worker completes it",
                setup=(enqueue(), claim("a")),
                sessions={"worker": (complete("a"),), "sweeper": (requeue(lapsed=True),)},
                finish=finish, invariants=ENDS, at_rest=True,
            ),
            Race(
                name="reclaimed-complete",
                summary="a worker whose lease is over completes a job that another has claimed meanwhile",
                setup=(enqueue(), claim("a")),
                sessions={
                    "sweeper": (requeue(lapsed=True),),
                    "holder": (claim("b"), complete("b")),
                    "former": (complete("a"),),
                },
                finish=finish, invariants=("ended-by-its-holder", *ENDS), at_rest=True,
            ),
            Race(
                name="requeue-claim",
                summary="two sweepers give back a job and two workers claim it",
                setup=(enqueue(), claim("a")),
                sessions={
                    "sweeper": (requeue(lapsed=True), claim("b")),
                    "other": (requeue(lapsed=True), claim("c")),
                },
                finish=finish, invariants=CLAIMS, at_rest=True,
            ),
        ]  # fmt: skip
    return {race.name: race for race in races}
