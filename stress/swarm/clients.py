"""Clients: Locust users that act as the scenario says, each on a connection of its own.

Every call goes to the history before it is sent. A failed call never ends a user: the failure is recorded, the
connection is made anew where it was lost, and the user goes on.
"""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import time
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any, TypeVar

import gevent
import psycopg
import psycopg.waiting

from engine.operation import Operation, perform
from engine.sessions import connect, describe_error
from invariants.history import Recorder
from stress.scenarios import AnyScenario
from stress.subjects import Subject
from stress.swarm.configs import ClientsConfig

RECONNECT_PAUSE_S = 0.1

T = TypeVar("T")


class Clients:
    """What the users of one worker process share."""

    def __init__(self, config: ClientsConfig, scenario: AnyScenario, recorder: Recorder) -> None:
        assert psycopg.waiting.wait is not getattr(psycopg.waiting, "wait_c", None), (
            "psycopg would block gevent's loop"
        )
        self.config = config
        self.scenario = scenario
        self.recorder = recorder
        self._users = 0

    def next_random(self) -> Random:
        """The random source of the next user, derived from the run's seed."""
        self._users += 1
        return Random(f"clients/{self.config.seed}/{self.config.number}/{self._users}")


class ClientUser(locust.User):
    """One client; a subject's own say what they do. `shared` is set by the worker process before any user starts."""

    abstract = True
    shared: Clients

    def on_start(self) -> None:
        """Draw the seed and connect."""
        self.random = self.shared.next_random()
        self.connection = self.connect()

    def on_stop(self) -> None:
        """Hang up."""
        self.connection.close()

    def wait_time(self) -> float:
        """Seconds to the next act."""
        return self.random.expovariate(1000 / self.shared.scenario.pause_ms)

    def call(
        self, name: str, value: object, operation: Operation[T], describe: Callable[[T], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Perform and record; what was recorded of the answer, None where there was none."""
        told: dict[str, Any] | None = None

        def act() -> dict[str, Any]:
            nonlocal told
            told = describe(perform(self.connection, operation))
            return told

        self.record(name, value, act)
        return told

    def record(self, name: str, value: object, act: Callable[[], object]) -> None:
        """Do it and record what it answers, or how it failed."""
        recorder = self.shared.recorder
        token = recorder.invoke(name, value)
        began = time.perf_counter()
        failure: Exception | None = None
        try:
            recorder.complete(token, "ok", act())
        except psycopg.Error as error:
            failure = error
            lost = self.connection.broken or self.connection.closed
            recorder.complete(token, "info" if lost else "fail", describe_error(error))
            if lost:
                gevent.sleep(RECONNECT_PAUSE_S)
                self.connection = self.connect()
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

    def connect(self) -> psycopg.Connection[Any]:
        """A session of this client's own."""
        return connect(self.shared.config.dsn, f"client-{self.shared.config.number}")


def user_class(subject: Subject) -> type[ClientUser]:
    """The class of a subject's users."""
    module, _, name = subject.user.partition(":")
    found: type[ClientUser] = getattr(import_module(module), name)
    return found
