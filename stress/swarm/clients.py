"""Clients: Locust users that insert jobs as the scenario says, each on a connection of its own.

Every call goes to the history before it is sent. A failed call never ends a user: the failure is recorded, the
connection is made anew where it was lost, and the user goes on.
"""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

import gevent
import psycopg
import psycopg.waiting

from engine.operation import Operation, perform
from engine.picker import Delivery, Picker
from engine.pokes import Debounce, notify
from engine.sessions import connect, describe_error
from engine.statements import Catalogue
from invariants.history import Recorder
from stress.scenarios import Converse, Insert, InsertMany, Scenario, Send
from stress.swarm.configs import INSTANCE, ClientsConfig

WINDOW_S = 0.25
BACKLOG_CHECK_EVERY = 40
BACKLOG_PAUSE_S = 0.1
RECONNECT_PAUSE_S = 0.1
BACKLOG = "SELECT count(*) FROM (SELECT 1 FROM gen_durable WHERE status = 'runnable' LIMIT %s) AS backlog"
IN_QUEUE = """
SELECT count(*) FROM (SELECT 1 FROM gen_durable WHERE status = 'runnable' AND queue = %s LIMIT %s) AS waiting
"""
POKE_DEBOUNCE_MS = 20.0


T = TypeVar("T")


class Clients:
    """What the users of one worker process share."""

    def __init__(self, config: ClientsConfig, scenario: Scenario, picker: Picker, recorder: Recorder) -> None:
        assert psycopg.waiting.wait is not getattr(psycopg.waiting, "wait_c", None), (
            "psycopg would block gevent's loop"
        )
        self.config = config
        self.scenario = scenario
        self.picker = picker
        self.recorder = recorder
        self.full: frozenset[str] = frozenset()
        self._catalogue = Catalogue.load()
        self._debounce = Debounce(POKE_DEBOUNCE_MS)
        self._users = 0

    def next_random(self) -> Random:
        """The random source of the next user, derived from the run's seed."""
        self._users += 1
        return Random(f"clients/{self.config.seed}/{self.config.number}/{self._users}")

    def poke(self, queues: Iterable[str]) -> tuple[list[str], Operation[None]] | None:
        """The poke that new work on these queues deserves, and the queues in it; None for none."""
        due = [] if self.scenario.pokes == "none" else self._debounce.due(queues)
        return (due, notify(self._catalogue, INSTANCE, due)) if due else None


class ClientUser(locust.User):
    """One client. `shared` is set by the worker process before any user starts."""

    shared: Clients

    def on_start(self) -> None:
        """Draw the seed and connect."""
        self._random = self.shared.next_random()
        self._acts = 0
        self._connection = self._connect()

    def on_stop(self) -> None:
        """Hang up."""
        self._connection.close()

    def wait_time(self) -> float:
        """Seconds to the next act."""
        return self._random.expovariate(1000 / self.shared.scenario.pause_ms)

    @locust.task
    def act(self) -> None:
        """One operation of the scenario."""
        self._acts += 1
        if self._acts % BACKLOG_CHECK_EVERY == 0 and self._backlog_is_full():
            gevent.sleep(BACKLOG_PAUSE_S)
            self._acts -= 1
            return
        act = self.shared.scenario.next_operation(self._random, int(time.time() / WINDOW_S))
        picker = self.shared.picker
        match act:
            case Insert(planned) if planned.job.queue in self.shared.full:
                return
            case Insert(planned):
                self._call("insert", {"job": planned.described()}, picker.insert(planned.job), _id)
                self._poke([planned.job.queue])
            case InsertMany(batch):
                jobs = [planned.job for planned in batch]
                described = [planned.described() for planned in batch]
                self._call("insert_many", {"jobs": described}, picker.insert_many(jobs), _ids)
                self._poke(job.queue for job in jobs)
            case Converse(planned, sends):
                row = self._call("insert", {"job": planned.described()}, picker.insert(planned.job), _id)
                self._poke([planned.job.queue])
                if row is not None:
                    for send in sends:
                        self._send(send, row["id"], planned.job.correlation_key)
                    self._poke([planned.job.queue])

    def _poke(self, queues: Iterable[str]) -> None:
        if (poke := self.shared.poke(queues)) is not None:
            due, operation = poke
            self._call("notify", {"queues": due}, operation, _nothing)

    def _send(self, send: Send, row: int | None, key: str | None) -> None:
        """Deliver as often as asked, and then until the answer is known."""
        target = key if send.by_key else row
        if target is None:
            return
        value = {
            "target": None if send.by_key else row,
            "key": key if send.by_key else None,
            "name": send.name,
            "dedup": send.dedup,
        }
        if send.pause_ms:
            gevent.sleep(send.pause_ms / 1000)
        left = send.copies
        while left > 0:
            operation = self.shared.picker.signal(target, send.name, send.payload, send.dedup)
            told = self._call("signal", value, operation, _delivery)
            if told is not None or send.dedup is None:
                left -= 1

    def _call(
        self, name: str, value: object, operation: Operation[T], describe: Callable[[T], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Perform and record; what was recorded of the answer, None where there was none."""
        recorder = self.shared.recorder
        token = recorder.invoke(name, value)
        began = time.perf_counter()
        failure: Exception | None = None
        told: dict[str, Any] | None = None
        try:
            told = describe(perform(self._connection, operation))
            recorder.complete(token, "ok", told)
        except psycopg.Error as error:
            failure = error
            lost = self._connection.broken or self._connection.closed
            recorder.complete(token, "info" if lost else "fail", describe_error(error))
            if lost:
                gevent.sleep(RECONNECT_PAUSE_S)
                self._connection = self._connect()
        except gevent.GreenletExit:
            recorder.complete(
                token, "info", {"error": "Stopped", "sqlstate": None, "message": "the load ended"}
            )
            raise
        self.environment.events.request.fire(
            request_type="sql",
            name=name,
            response_time=(time.perf_counter() - began) * 1000,
            response_length=0,
            exception=failure,
            context={},
        )
        return told

    def _backlog_is_full(self) -> bool:
        scenario = self.shared.scenario
        self.shared.full = frozenset(
            queue
            for queue, most in scenario.max_in_queue.items()
            if self._count(IN_QUEUE, queue, most) >= most
        )
        return self._count(BACKLOG, scenario.max_backlog) >= scenario.max_backlog

    def _count(self, query: str, *parameters: object) -> int:
        row = self._connection.execute(query.encode(), parameters).fetchone()
        return 0 if row is None else int(row[0])

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self.shared.config.dsn, f"client-{self.shared.config.number}")


def _id(row: int | None) -> dict[str, Any]:
    return {"id": row}


def _ids(rows: list[int | None]) -> dict[str, Any]:
    return {"ids": rows}


def _nothing(_: object) -> dict[str, Any]:
    return {}


def _delivery(delivery: Delivery) -> dict[str, Any]:
    return {"outcome": delivery.outcome, "target": delivery.target, "signal": delivery.signal}
