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

import enum
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from engine.picker import NOTHING_AROUND, Claimed, Job, Status, Surroundings

# An error text is for a person to read; a traceback of megabytes is not.
MAX_ERROR_CHARACTERS = 10_000


class Keep(enum.Enum):
    """The type of `KEEP`."""

    KEEP = "keep"


# The concurrency key stays as it is; None would drop it.
KEEP: Final = Keep.KEEP


@dataclass(frozen=True, slots=True)
class Next:
    """Go on to another step. `state` None keeps the state as it is.

    `rate_limit` (a limit's name, or "name:partition") and `weight` are those of the step that comes; `concurrency_key`
    is from there on the instance's. Of the signals that this step awaited, those it was handed are consumed.
    """

    step: str
    state: Mapping[str, Any] | None = None
    rate_limit: str | None = None
    weight: float = 1.0
    concurrency_key: str | Keep | None = KEEP


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


@dataclass(frozen=True, slots=True)
class Await:
    """Park until a signal of one of these names arrives, or `timeout_ms` has passed, then run `step` (None: this one).

    Nothing is consumed: the step that wakes is handed the whole inbox, and may park again for more. A signal that this
    step was handed already does not wake it: look at `Step.signals` before you await. A wake by time-out hands over no
    new signal. Without names it is a pause, and needs a time-out.
    """

    names: str | Sequence[str]
    step: str | None = None
    state: Mapping[str, Any] | None = None
    timeout_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ScheduleChildren:
    """Insert these jobs as children and run `step` when all of them have ended, well or not; at once where none landed.

    A job whose identity is occupied does not land. Consumes as `Next` does.
    """

    jobs: Sequence[Job]
    step: str
    state: Mapping[str, Any] | None = None


Outcome = Next | Retry | Done | Stop | Await | ScheduleChildren


@dataclass(frozen=True, slots=True)
class Signal:
    """A pending signal."""

    id: int
    name: str
    payload: Any = field(hash=False)


@dataclass(frozen=True, slots=True)
class Child:
    """A child of this instance, of any round, as it stood when the step was claimed."""

    id: int
    machine: str
    status: Status
    state: dict[str, Any] = field(hash=False)
    result: Any = field(hash=False)
    error: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """What a step function is given. `attempt` is 0 the first time; `state` is the function's own copy.

    `signals`: the whole inbox, oldest first. `awaits`: what the instance was parked for, if this step runs because of
    that. `children`: all children, oldest first.
    """

    instance_id: int
    machine: str
    version: int
    name: str
    attempt: int
    queue: str
    concurrency_key: str | None
    state: dict[str, Any] = field(hash=False)
    signals: tuple[Signal, ...] = ()
    children: tuple[Child, ...] = ()
    awaits: tuple[str, ...] | None = None

    @property
    def awaited(self) -> tuple[Signal, ...]:
        """The signals that the instance was parked for: what a progressing outcome consumes."""
        names = self.awaits
        if not names or not self.signals:
            return ()
        return tuple(signal for signal in self.signals if signal.name in names)

    @classmethod
    def of(cls, claimed: Claimed, around: Surroundings | None = None) -> Step:
        """The step that a claimed row stands at. Raises ValueError for JSON that Python cannot hold."""
        around = NOTHING_AROUND if around is None else around
        return cls(
            instance_id=claimed.id,
            machine=claimed.fsm,
            version=claimed.fsm_version,
            name=claimed.step,
            attempt=claimed.attempt,
            queue=claimed.queue,
            concurrency_key=claimed.concurrency_key,
            state=json.loads(claimed.state),
            signals=()
            if not around.signals
            else tuple(Signal(each.id, each.name, json.loads(each.payload)) for each in around.signals),
            children=()
            if not around.children
            else tuple(
                Child(
                    id=each.id,
                    machine=each.fsm,
                    status=each.status,
                    state=json.loads(each.state),
                    result=None if each.result is None else json.loads(each.result),
                    error=each.last_error,
                )
                for each in around.children
            ),
            awaits=claimed.awaits,
        )


StepFunction = Callable[[Step], Outcome | Awaitable[Outcome]]


def stop_with_error(error: Exception) -> Outcome:
    """The default answer to a step that raised: the instance fails with the error's text."""
    return Stop(f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS])


class Machine:
    """Base of machines written as classes: every public method is a step; see the module for an example.

    Override `on_error` to answer a step that raised with something else than `Stop`. `inline_execution`: a `Next` that
    has committed is followed by its step at once, under the same claim, where the concurrency key allows it.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    inline_execution: ClassVar[bool] = False

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

    def __init__(
        self,
        name: str,
        steps: Mapping[str, StepFunction],
        version: int = 1,
        *,
        inline_execution: bool = False,
    ) -> None:
        self.name = name  # type: ignore[misc]  # per instance here, per class in a written machine
        self.version = version  # type: ignore[misc]
        self.inline_execution = inline_execution  # type: ignore[misc]
        self._steps = dict(steps)

    def steps(self) -> Mapping[str, StepFunction]:
        return self._steps


class Registry:
    """The machines a node can run, by name and version. Raises ValueError for two of one name and version."""

    def __init__(self, machines: Iterable[Machine | type[Machine]]) -> None:
        self._machines: dict[tuple[str, int], tuple[Machine, Mapping[str, StepFunction]]] = {}
        self._coroutines: set[tuple[str, int, str]] = set()
        for given in machines:
            machine = given() if isinstance(given, type) else given
            key = (machine.name, machine.version)
            if key in self._machines:
                raise ValueError(f"machine {key[0]!r} version {key[1]} is registered twice")
            steps = machine.steps()
            if not steps:
                raise ValueError(f"machine {key[0]!r} has no steps")
            self._machines[key] = (machine, steps)
            self._coroutines |= {(*key, name) for name in steps if inspect.iscoroutinefunction(steps[name])}

    def function(self, step: Step) -> StepFunction | None:
        """The step's function, or None where this node has no such machine, version or step."""
        found = self._machines.get((step.machine, step.version))
        return None if found is None else found[1].get(step.name)

    def is_coroutine(self, step: Step) -> bool:
        """Whether the step's function is a coroutine's, and so needs no thread."""
        return (step.machine, step.version, step.name) in self._coroutines

    def goes_on_inline(self, step: Step, following: str) -> bool:
        """Whether the step's machine wants its next step at once, and this node has that step."""
        found = self._machines.get((step.machine, step.version))
        return found is not None and found[0].inline_execution and following in found[1]

    def on_error(self, step: Step, error: Exception) -> Outcome:
        """The outcome of a step that raised, by its machine's own handler."""
        return self._machines[step.machine, step.version][0].on_error(step, error)
