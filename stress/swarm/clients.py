"""Clients: Locust users that insert jobs as the scenario says, each on a connection of its own.

Every call goes to the history before it is sent. A failed call never ends a user: the failure is recorded, the
connection is made anew where it was lost, and the user goes on.
"""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import time
from random import Random
from typing import Any

import gevent
import psycopg
import psycopg.waiting

from engine.operation import Operation, perform
from engine.picker import Picker
from engine.sessions import connect, describe_error
from invariants.history import Recorder
from stress.scenarios import Insert, Scenario
from stress.swarm.configs import ClientsConfig

WINDOW_S = 0.25
BACKLOG_CHECK_EVERY = 40
BACKLOG_PAUSE_S = 0.1
RECONNECT_PAUSE_S = 0.1
BACKLOG = "SELECT count(*) FROM (SELECT 1 FROM gen_durable WHERE status = 'runnable' LIMIT %s) AS backlog"


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
        self._users = 0

    def next_random(self) -> Random:
        """The random source of the next user, derived from the run's seed."""
        self._users += 1
        return Random(f"clients/{self.config.seed}/{self.config.number}/{self._users}")


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
        if isinstance(act, Insert):
            self._call("insert", {"job": act.planned.described()}, picker.insert(act.planned.job), "id")
        else:
            jobs = [planned.job for planned in act.planned]
            described = [planned.described() for planned in act.planned]
            self._call("insert_many", {"jobs": described}, picker.insert_many(jobs), "ids")

    def _call(self, name: str, value: object, operation: Operation[Any], answer: str) -> None:
        recorder = self.shared.recorder
        token = recorder.invoke(name, value)
        began = time.perf_counter()
        failure: Exception | None = None
        try:
            result = perform(self._connection, operation)
            recorder.complete(token, "ok", {answer: result})
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

    def _backlog_is_full(self) -> bool:
        limit = self.shared.scenario.max_backlog
        row = self._connection.execute(BACKLOG, (limit,)).fetchone()
        return row is not None and row[0] >= limit

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self.shared.config.dsn, f"client-{self.shared.config.number}")
