"""Your own system as a subject: what the harness asks of it, and what it claims. `docs/your-system.md` leads through.

A subject is a class, named `path/to/file.py:Class` or `module:Class`. Every process of a run makes one of its own. It
needs nothing of the harness but this module: a system that cannot be installed beside the harness runs in an
environment of its own (`--python`), where msgspec is all that the harness needs.

The harness has the jobs' work done by `Node.run`, which says when it begins and when it ends: that is the effect whose
doubling and overlapping are seen. It is written to a file of the process's own before and after (`invariants/history`),
on a clock that all processes share, so no fault of the server takes part in the evidence about it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from invariants.claims import Claims, Rows

__all__ = ["STATES", "Claims", "Job", "JobFailed", "Node", "Rows", "State", "System"]

State = Literal["waiting", "running", "done", "failed"]
STATES: Final = ("waiting", "running", "done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job to be enqueued. `key`: None where the system claims nothing about keys. `ms`: how long its work takes;
    `raises`: whether it raises the first time."""

    name: str
    key: str | None = None
    ms: float = 0.0
    raises: bool = False

    @property
    def payload(self) -> str:
        """What is to reach `Node.run`, as JSON text."""
        return json.dumps({"job": self.name, "key": self.key, "ms": self.ms, "raises": self.raises})


class Node(Protocol):
    """A worker process, as `System.work` sees it. `name` is another after every start; `stopping` is set when the
    worker is to finish what it has and return."""

    dsn: str
    name: str
    stopping: threading.Event

    def run(self, payload: str) -> None:
        """Do a job's work. From any thread. Raises JobFailed where the job is one that fails."""

    async def run_async(self, payload: str) -> None:
        """The same in an event loop."""

    def claimed(self, limit: int, jobs: Sequence[str]) -> None:
        """Say, where you like, that a claim was asked for `limit` jobs and got those."""


class JobFailed(Exception):
    """The work of a job raised, as it was told to."""


class System:
    """A system. `set_up`, `enqueue` and `work` (or `command`) are yours to write.

    `claims`: see there. `rows`: where jobs are kept, None where that cannot be said. `observe`: a query that answers,
    for every job that the system still knows, a text in which its name stands and its state, one of `STATES`; None
    where it cannot be asked. `jobs_per_s`: how many the clients send, all together. `left`: a query for how many
    jobs have not ended, where that is cheaper than counting in `observe`. `bench`: set by the benchmark, which
    times the system as it is fastest.
    """

    claims: Claims = Claims()
    rows: Rows | None = None
    observe: str | None = None
    jobs_per_s: float = 40.0
    left: str | None = None
    bench: bool = False

    def set_up(self, dsn: str) -> None:
        """Create the schema in an empty database."""
        raise NotImplementedError

    def connect(self, dsn: str) -> Any:
        """A client's session. Called again after `enqueue` has raised."""
        import psycopg

        return psycopg.connect(dsn, autocommit=True)

    def enqueue(self, session: Any, job: Job) -> None:
        """Accept a job: when this returns, the job is the system's. What it raises means that nobody knows."""
        raise NotImplementedError

    def enqueue_many(self, session: Any, jobs: Sequence[Job]) -> None:
        """Accept several, by the system's best way. For the benchmark."""
        for job in jobs:
            self.enqueue(session, job)

    def work(self, node: Node) -> None:
        """Run jobs through `node.run` until `node.stopping` is set. May be killed, frozen and cut off at any point."""
        raise NotImplementedError

    def command(self, node: Node) -> list[str] | None:  # noqa: ARG002
        """Instead of `work`, a command line that is started, and ended by SIGTERM. It finds the server in the variable
        PGREFEREE_DSN, and appends a line of JSON to the file PGREFEREE_EFFECTS before and after the work of each job:
        {"job": NAME, "event": "begin", "end" or "fail", "ns": CLOCK_MONOTONIC in nanoseconds}."""
        return None

    def tear_down(self, dsn: str) -> None:
        """Let go of what lies outside of the database, which is dropped."""
