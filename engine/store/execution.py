"""What a store keeps: executions, the events they emit, their timers, their children (store.md, "Data").

Plain data. An `Execution` is mutable, for a step changes it in place; its `version` belongs to the store: 0 before the
first save, then one more with each commit that succeeded, and the old one again after any that did not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from engine.values import UnstorableValue

Json = Any

Status = Literal["PENDING", "RUNNING", "DONE", "CANCELLED", "SUSPENDED", "CANCELLING", "FAILED"]
STATUSES: tuple[Status, ...] = (
    "PENDING", "RUNNING", "DONE", "CANCELLED", "SUSPENDED", "CANCELLING", "FAILED",
)  # fmt: skip
TERMINAL: frozenset[Status] = frozenset(("DONE", "CANCELLED", "FAILED"))
PRIORITIES = range(5)


class Child(msgspec.Struct, kw_only=True):
    """One region of a fork, as its parent knows it."""

    root_path: str
    finished: bool = False
    outcome: str | None = None
    result: Json = None


class Execution(msgspec.Struct, kw_only=True):
    """One running statechart.

    `id` is a uuid's 32 hex digits by habit, any text by right. `active_path` is the path of the active state, `history`
    the last active substate of each composite that was left. `children` is the join counter: child id to `Child`.
    `invoke_seq` counts forks, so that the ids of children of one round differ from those of the next. `armed` says for
    which instant each path's timer is armed, so that a late timer event is known for one.
    """

    id: str
    definition_id: str
    definition_fqn: str | None = None
    root_path: str = ""
    status: Status = "PENDING"
    outcome: str | None = None
    error: str | None = None
    active_path: str | None = None
    history: dict[str, str] = msgspec.field(default_factory=dict)
    context: dict[str, Json] = msgspec.field(default_factory=dict)
    version: int = 0
    priority: int = 0
    parent_id: str | None = None
    child_id: str | None = None
    children: dict[str, Child] = msgspec.field(default_factory=dict)
    invoke_seq: int = 0
    armed: dict[str, float] = msgspec.field(default_factory=dict)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, addressed to an execution. `id` is what deduplicates it."""

    id: str
    kind: str
    payload: Mapping[str, Json] = msgspec.field(default_factory=dict)


class TimerOp(msgspec.Struct, frozen=True):
    """Arm or disarm the timer of a state's path. `fire_at` is in seconds since the epoch."""

    action: Literal["schedule", "cancel"]
    path: str
    fire_at: float = 0.0


class Emit(msgspec.Struct, frozen=True):
    """An event for the outbox. `target_id` is None where nobody in particular is meant."""

    target_id: str | None
    event: Event


class Spawn(msgspec.Struct, frozen=True):
    """A child to be made: its id is the forking parent's choice, so that making it twice makes it once."""

    child_id: str
    root_path: str
    context: Mapping[str, Json]


class ExecutionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing shows of an execution."""

    id: str
    definition_id: str
    version: int
    status: str
    outcome: str | None = None
    active_path: str | None = None
    parent_id: str | None = None


class Page(msgspec.Struct, frozen=True):
    """One page of a listing. `next_cursor` is None on the last."""

    items: tuple[ExecutionSummary, ...]
    next_cursor: str | None


class StoreConflict(Exception):
    """The stored version is not the one that was loaded: reload and decide anew, or drop the work.

    `expected` is the version that the execution was loaded at, `found` the stored one, None where there is no row. The
    execution in memory is back at `expected`.
    """

    def __init__(self, execution_id: str, expected: int, found: int | None) -> None:
        super().__init__(f"execution {execution_id}: expected version {expected}, found {found}")
        self.execution_id = execution_id
        self.expected = expected
        self.found = found


class EventAlreadyProcessed(StoreConflict):
    """The event's effect on this execution was committed before; nothing was written. Drop the event."""


class ConflictUnexplained(StoreConflict):
    """The commit was refused and nothing was written, but the connection was lost, also when it was asked again, before
    anybody could say which version is stored or whether the event was processed. `found` is None. Reload, as after any
    conflict.
    """

    def __init__(self, execution_id: str, expected: int, event_id: str | None) -> None:
        super().__init__(execution_id, expected, None)
        self.event_id = event_id
        self.args = (f"execution {execution_id}: expected version {expected}, found another or none",)


class CommitOutcomeUnknown(Exception):
    """The connection was lost before the server answered: the commit may have happened, or not.

    The execution in memory is back at its old version. Safe to retry: `commit` again with the same arguments. Where the
    first did happen, the second finds another version and raises `StoreConflict` (`EventAlreadyProcessed` where it
    carried an event); reload then.
    """

    def __init__(self, execution_id: str) -> None:
        super().__init__(f"execution {execution_id}: the connection was lost during the commit")
        self.execution_id = execution_id


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One step of an execution and everything that happens with it, all or none of it.

    `emits` are delivered in their order. Of several operations on one timer's path the last one counts. Without effects
    (an event's marker is none) it is a state-only commit.
    """

    execution: Execution
    emits: Sequence[Emit | tuple[str | None, Event]] = ()
    processed_event_id: str | None = None
    timers: Sequence[TimerOp] = ()
    spawns: Sequence[Spawn | tuple[str, str, Mapping[str, Json]]] = ()
    trace: Mapping[str, Json] | None = None

    def told(self) -> dict[str, Json]:
        """What the history says of it before it is sent."""
        return {
            "execution": self.execution.id,
            "expected": self.execution.version,
            "event": self.processed_event_id,
            "emits": len(self.emits),
            "timers": len(self.timers),
            "spawns": len(self.spawns),
            "trace": self.trace is not None,
            "to": addressed(self.emits),
        }


def addressed(emits: Sequence[Emit | tuple[str | None, Event]]) -> list[list[str]]:
    """Target and event id of each emit that has a target, in order: what a history says of them."""
    each = [(emit.target_id, emit.event) if isinstance(emit, Emit) else emit for emit in emits]
    return [[target, event.id] for target, event in each if target is not None]


# Why a commit of a batch did not happen, or may not have.
Refusal = StoreConflict | UnstorableValue | CommitOutcomeUnknown
