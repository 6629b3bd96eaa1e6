"""The picker's clients: they insert, signal and poke as the scenario says."""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import gevent
import psycopg

from engine.operation import Operation, perform
from engine.picker import Delivery
from engine.pokes import Debounce, notify
from engine.sessions import connect, describe_error
from engine.statements import Catalogue
from stress.scenarios import Converse, Insert, InsertMany, Scenario, Send
from stress.swarm.clients import ClientUser
from stress.swarm.configs import INSTANCE
from stress.swarm.mutation import picker_for

WINDOW_S = 0.25
BACKLOG_CHECK_EVERY = 40
BACKLOG_PAUSE_S = 0.1
# What is due much later is nobody's backlog yet.
BACKLOG = """
SELECT count(*) FROM (
    SELECT 1 FROM gen_durable WHERE status = 'runnable' AND eligible_at < now() + interval '1 hour' LIMIT %s
) AS backlog
"""
IN_QUEUE = """
SELECT count(*) FROM (SELECT 1 FROM gen_durable WHERE status = 'runnable' AND queue = %s LIMIT %s) AS waiting
"""
POKE_DEBOUNCE_MS = 20.0
RECONNECT_PAUSE_S = 0.1

T = TypeVar("T")

# All users of a process share it.
_debounce = Debounce(POKE_DEBOUNCE_MS)


class PickerUser(ClientUser):
    """One client of the picker, on one connection."""

    def on_start(self) -> None:
        """Connect, with a picker over the run's statements."""
        super().on_start()
        scenario = self.shared.scenario
        assert isinstance(scenario, Scenario)
        self.scenario = scenario
        self.picker = picker_for(self.shared.config.mutant)
        self.full: frozenset[str] = frozenset()
        self._catalogue = Catalogue.load()
        self._acts = 0
        self._opening = deque(scenario.opening(self.random))
        self.connection = self._connected()

    def on_stop(self) -> None:
        """Hang up."""
        self.connection.close()

    @locust.task
    def act(self) -> None:
        """One operation of the scenario."""
        self._acts += 1
        if self._acts % BACKLOG_CHECK_EVERY == 0 and self._backlog_is_full():
            gevent.sleep(BACKLOG_PAUSE_S)
            self._acts -= 1
            return
        if self._opening:
            act = self._opening.popleft()
        else:
            act = self.scenario.next_operation(self.random, int(time.time() / WINDOW_S))
        picker = self.picker
        match act:
            case Insert(planned) if planned.job.queue in self.full:
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
        due = [] if self.scenario.pokes == "none" else _debounce.due(queues)
        if due:
            self._call("notify", {"queues": due}, notify(self._catalogue, INSTANCE, due), _nothing)

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
            operation = self.picker.signal(target, send.name, send.payload, send.dedup)
            told = self._call("signal", value, operation, _delivery)
            if told is not None or send.dedup is None:
                left -= 1

    def _call(
        self, name: str, value: object, operation: Operation[T], describe: Callable[[T], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Perform and record; what was recorded of the answer, None where there was none."""
        # Before the call, so that what is recorded as sent was sent.
        if self.connection.closed or self.connection.broken:
            self.connection = self._connected()
        recorder = self.shared.recorder
        token = recorder.invoke(name, value)
        began = time.perf_counter()
        failure: Exception | None = None
        told: dict[str, Any] | None = None
        try:
            told = describe(perform(self.connection, operation))
            recorder.complete(token, "ok", told)
        except psycopg.Error as error:
            failure = error
            lost = self.connection.broken or self.connection.closed
            recorder.complete(token, "info" if lost else "fail", describe_error(error))
        except gevent.GreenletExit:
            recorder.complete(
                token, "info", {"error": "Stopped", "sqlstate": None, "message": "the load ended"}
            )
            raise
        self.fire(name, began, failure)
        return told

    def _connected(self) -> psycopg.Connection[Any]:
        """A session, tried for until the load ends: a server that is down comes back."""
        while True:
            try:
                return connect(self.shared.config.dsns[0], f"client-{self.shared.config.number}")
            except psycopg.OperationalError:
                gevent.sleep(RECONNECT_PAUSE_S)

    def _backlog_is_full(self) -> bool:
        scenario = self.scenario
        self.full = frozenset(
            queue
            for queue, most in scenario.max_in_queue.items()
            if self._count(IN_QUEUE, queue, most) >= most
        )
        return self._count(BACKLOG, scenario.max_backlog) >= scenario.max_backlog

    def _count(self, query: str, *parameters: object) -> int:
        try:
            row = self.connection.execute(query.encode(), parameters).fetchone()
        except psycopg.OperationalError:
            # The next call finds the session gone, or the moment over.
            return 0
        return 0 if row is None else int(row[0])


def _id(row: int | None) -> dict[str, Any]:
    return {"id": row}


def _ids(rows: list[int | None]) -> dict[str, Any]:
    return {"ids": rows}


def _nothing(_: object) -> dict[str, Any]:
    return {}


def _delivery(delivery: Delivery) -> dict[str, Any]:
    return {"outcome": delivery.outcome, "target": delivery.target, "signal": delivery.signal}
