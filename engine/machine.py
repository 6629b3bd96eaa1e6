"""The public API for people who write machines: steps, and the outcomes they return.

A machine is a name and a mapping of step names to functions. A step function takes a `Step` (what the row held when it
was claimed) and returns an outcome. It runs outside any transaction and at least once; the outcome commits at most
once, and only while the claim it ran under still holds (picker.md §4).

    class Order(Machine):
        name = "order"

        def reserve(self, step):
            return Next("charge", {"order": step.state["order"]})

        async def charge(self, step):
            return Done({"charged": True})
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engine.picker import Claimed

# An error text is for a person to read; a traceback of megabytes is not.
MAX_ERROR_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Next:
    """Go on to another step. `state` None keeps the state as it is."""

    step: str
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the same step again after `delay_ms`, with one attempt more on its count."""

    delay_ms: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The instance has ended well, with a result of any JSON value."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The instance has failed."""

    error: str


Outcome = Next | Retry | Done | Stop


@dataclass(frozen=True, slots=True)
class Step:
    """What a step function is given. `attempt` is 0 the first time; `state` is the function's own copy."""

    instance_id: int
    machine: str
    version: int
    name: str
    attempt: int
    queue: str
    concurrency_key: str | None
    state: dict[str, Any] = field(hash=False)

    @classmethod
    def of(cls, claimed: Claimed) -> Step:
        """The step that a claimed row stands at."""
        return cls(
            instance_id=claimed.id,
            machine=claimed.fsm,
            version=claimed.fsm_version,
            name=claimed.step,
            attempt=claimed.attempt,
            queue=claimed.queue,
            concurrency_key=claimed.concurrency_key,
            state=json.loads(claimed.state),
        )


StepFunction = Callable[[Step], Outcome | Awaitable[Outcome]]


def stop_with_error(error: Exception) -> Outcome:
    """The default answer to a step that raised: the instance fails with the error's text."""
    return Stop(f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS])


class Machine:
    """Base of machines written as classes: every public method is a step; see the module for an example.

    Override `on_error` to answer a step that raised with something else than `Stop`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    def steps(self) -> Mapping[str, StepFunction]:
        """Step functions by name."""
        return {
            name: method
            for name, method in inspect.getmembers(self, inspect.ismethod)
            if not name.startswith("_") and not hasattr(Machine, name)
        }

    def on_error(self, step: Step, error: Exception) -> Outcome:
        """The outcome of a step that raised."""
        return stop_with_error(error)


class MappedMachine(Machine):
    """A machine made of a mapping of step functions."""

    def __init__(self, name: str, steps: Mapping[str, StepFunction], version: int = 1) -> None:
        self.name = name  # type: ignore[misc]  # per instance here, per class in a written machine
        self.version = version  # type: ignore[misc]
        self._steps = dict(steps)

    def steps(self) -> Mapping[str, StepFunction]:
        return self._steps


class Registry:
    """The machines a node can run, by name and version. Raises ValueError for two of one name and version."""

    def __init__(self, machines: Iterable[Machine | type[Machine]]) -> None:
        self._machines: dict[tuple[str, int], tuple[Machine, Mapping[str, StepFunction]]] = {}
        for given in machines:
            machine = given() if isinstance(given, type) else given
            key = (machine.name, machine.version)
            if key in self._machines:
                raise ValueError(f"machine {key[0]!r} version {key[1]} is registered twice")
            steps = machine.steps()
            if not steps:
                raise ValueError(f"machine {key[0]!r} has no steps")
            self._machines[key] = (machine, steps)

    def function(self, step: Step) -> StepFunction | None:
        """The step's function, or None where this node has no such machine, version or step."""
        found = self._machines.get((step.machine, step.version))
        return None if found is None else found[1].get(step.name)

    def on_error(self, step: Step, error: Exception) -> Outcome:
        """The outcome of a step that raised, by its machine's own handler."""
        return self._machines[step.machine, step.version][0].on_error(step, error)
