"""Clients: Locust users that act as the scenario says, each on connections of its own.

Every call goes to the history before it is sent. A failed call never ends a user: the failure is recorded, the
connection is made anew where it was lost, and the user goes on.
"""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import time
from importlib import import_module
from random import Random

import psycopg.waiting

from invariants.history import Recorder
from stress.scenarios import AnyScenario
from stress.subjects.subject import Subject
from stress.swarm.configs import ClientsConfig


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
        """Draw the seed."""
        self.random = self.shared.next_random()

    def wait_time(self) -> float:
        """Seconds to the next act."""
        return self.random.expovariate(1000 / self.shared.scenario.pause_ms)

    def fire(self, name: str, began: float, failure: Exception | None) -> None:
        """Tell Locust of a call that began at that reading of `time.perf_counter`."""
        self.environment.events.request.fire(
            request_type="sql",
            name=name,
            response_time=(time.perf_counter() - began) * 1000,
            response_length=0,
            exception=failure,
            context={},
        )


def user_class(subject: Subject) -> type[ClientUser]:
    """The class of a subject's users."""
    module, _, name = subject.user.partition(":")
    found: type[ClientUser] = getattr(import_module(module), name)
    return found
