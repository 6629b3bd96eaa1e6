"""The shape of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from engine.limiter import Limit
from engine.machine import Machine
from engine.picker import Job
from engine.policy import QueuePolicy


@dataclass(frozen=True, slots=True)
class Planned:
    """A job and the terminal outcome its machine prescribes: status `done` or `failed`, and the result. `needs`: the
    dedup keys of the signals without which it cannot end."""

    job: Job
    status: str
    result: Any
    needs: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """What the history records of it."""
        job = self.job
        return {
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
    `copies` times, and again for as long as nobody knows whether it arrived; without one it is sent once."""

    name: str
    payload: Any
    dedup: str | None
    by_key: bool
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Converse:
    """A client inserts one job and then sends it signals, in this order."""

    planned: Planned
    sends: tuple[Send, ...]


Operation = Insert | InsertMany | Converse


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named load.

    `next_operation(random, window)` is one client's next act; `window` counts quarter seconds and is the same for all
    clients at one time, so that clients of one moment can pick from the same identities. `clients` is the number of
    Locust users, `pause_ms` the mean of their pauses, `max_backlog` the number of runnable rows above which they wait.
    `exercises` names the invariants that the load makes something subject to, beyond those of every run: one that
    nothing was subject to makes the run unknown. `limits`: the gates and rate limits of its nodes.
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
