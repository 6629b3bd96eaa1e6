"""The shape of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Literal

from engine.limiter import Limit
from engine.machine import Machine
from engine.picker import Job
from engine.policy import QueuePolicy
from stress.subjects.picker import PICKER
from stress.subjects.subject import Subject


@dataclass(frozen=True, slots=True)
class Planned:
    """A job and the terminal outcome its machine prescribes: status `done` or `failed`, and the result. `needs`: the
    dedup keys of the signals without which it cannot end. `kind`: the name under which the run counts how long such
    jobs wait; where it is empty, that of their queue."""

    job: Job
    status: str
    result: Any
    needs: tuple[str, ...] = ()
    kind: str = ""

    def described(self) -> dict[str, Any]:
        """What the history records of it."""
        job = self.job
        eligible_at = job.eligible_at
        return {
            "kind": self.kind or job.queue,
            "eligible_at": None if eligible_at is None else round(eligible_at.timestamp() * 1000),
            "fsm": job.fsm,
            "queue": job.queue,
            "priority": job.priority,
            "concurrency_key": job.concurrency_key,
            "correlation_key": job.correlation_key,
            "scope": list(job.correlation_scope) if job.correlation_key is not None else [],
            "expect": {"status": self.status, "result": self.result, "needs": list(self.needs)},
        }


@dataclass(frozen=True, slots=True)
class Insert:
    """A client inserts one job."""

    planned: Planned


@dataclass(frozen=True, slots=True)
class InsertMany:
    """A client inserts a batch in one call."""

    planned: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """One delivery. `by_key`: to the identity that the job occupies, else to its id. With a dedup key it is sent
    `copies` times, and again for as long as nobody knows whether it arrived; without one it is sent once. `pause_ms`:
    how long the client waits before."""

    name: str
    payload: Any
    dedup: str | None
    by_key: bool
    copies: int = 1
    pause_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Converse:
    """A client inserts one job and then sends it signals, in this order."""

    planned: Planned
    sends: tuple[Send, ...]


Operation = Insert | InsertMany | Converse
# `some`: every other node has pokes on, and the clients poke. `dropped`: all have, and no notification gets through.
Pokes = Literal["none", "some", "dropped"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named load.

    `next_operation(random, window)` is one client's next act; `window` counts quarter seconds and is the same for all
    clients at one time, so that clients of one moment can pick from the same identities. `clients` is the number of
    Locust users, `pause_ms` the mean of their pauses, `max_backlog` the number of runnable rows above which they wait.
    `exercises` names the invariants that the load makes something subject to, beyond those of every run: one that
    nothing was subject to makes the run unknown. `limits`: the gates and rate limits of its nodes; `releases`: those
    that nodes have after the first, the second, … rolling restart of a run. `max_in_queue`: a client that finds as many
    runnable rows in one of these queues leaves out what it would insert there, so that what limits let through slowly
    can be drained. `retention_ms`: how long its nodes keep what has ended; None: longer than any run. `knobs`: fields
    of its nodes' `NodePolicy`. `preload(random)`: what is in the tables before a node is there. `herd`: nodes migrate
    the schema when they boot, wait for each other, and begin at one moment, each with the limits in another order.
    `idle_s`: how long the nodes run before there is any load, to see what that costs.
    """

    name: str
    summary: str
    machines: tuple[type[Machine], ...]
    queues: tuple[QueuePolicy, ...]
    next_operation: Callable[[Random, int], Operation]
    clients: int
    pause_ms: float
    max_backlog: int
    exercises: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    max_in_queue: Mapping[str, int] = field(default_factory=dict)
    retention_ms: float | None = None
    pokes: Pokes = "none"
    releases: tuple[tuple[Limit, ...], ...] = ()
    knobs: Mapping[str, float] = field(default_factory=dict)
    preload: Callable[[Random], Sequence[InsertMany]] | None = None
    herd: bool = False
    idle_s: float = 0.0
    opening: Callable[[Random], tuple[Operation, ...]] = lambda _random: ()

    subject: ClassVar[Subject] = PICKER

    def limits_at(self, place: int, release: int = 0) -> tuple[Limit, ...]:
        """The limits of the node in that place, in the order in which it writes them down, after so many restarts."""
        limits = (self.limits, *self.releases)[release]
        turn = place % len(limits) if self.herd and limits else 0
        return (*limits[turn:], *limits[:turn])

    def pokes_at(self, place: int) -> bool:
        """Whether the node in that place announces work and listens."""
        return self.pokes == "dropped" or (self.pokes == "some" and place % 2 == 0)
