"""What a session does with the store, the relay and the timer sweeper, as actions of a race (see `actions`).

An execution is known by its id. A session that has loaded it commits what it loaded; another commits what the set-up
left, or, where that left nothing, saves it for the first time. Every event has an id that follows from who emits it
and where, never from the order of the schedule.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

from engine.operation import Operation
from engine.relay.handover import Fired, Spawned
from engine.store.execution import (
    Commit,
    Emit,
    Event,
    Execution,
    ExecutionSummary,
    Page,
    Spawn,
    StoreConflict,
    TimerOp,
)
from engine.store.operations import Answer as Refusal
from engine.transport.queue import Publication
from stress.schedules.actions import Action, Answer, Prepared, World
from stress.swarm.contention import refused

# A moment at which every timer of a race is due that is armed for an earlier one.
NOW: Final = 1_000.0
LIMIT: Final = 10
LANES: Final = 16
SETUP: Final = "setup"


def commit(*executions: str, many: bool = False, **effects: Any) -> Action:
    """Commit executions, one by itself or several in one transaction.

    Effects, of each: `emits` (targets), `spawns` (children), `arm` (path to instant), `cancel` (paths), `trace`,
    `event` (processed by this commit; where the session has asked and it was, there is nothing to do).
    """
    together = many or len(executions) > 1

    def prepare(world: World, process: str) -> Prepared | None:
        if (event := effects.get("event")) is not None and any(
            (process, of, event) in world.processed for of in executions
        ):
            return None
        commits = [_commit(process, _held(world, process, of), **effects) for of in executions]
        store = world.variant.store
        return Prepared(
            "store.commit",
            None,
            store.commit_many(commits) if together else _answered(store.commit(commits[0])),
            lambda refusals: [_told(one, refusal) for one, refusal in zip(commits, refusals, strict=True)],
            batch=tuple(one.told() for one in commits),
        )

    rides = ", ".join(name for name, value in effects.items() if value)
    return Action(f"commit {', '.join(executions)}{' with ' if rides else ''}{rides}", prepare)


def _held(world: World, process: str, of: str) -> Execution:
    """The session's own object."""
    key = (process, of)
    if key not in world.executions:
        left = world.executions.get((SETUP, of))
        fresh = Execution(id=of, definition_id="chart")
        world.executions[key] = fresh if left is None else copy.deepcopy(left)
    return world.executions[key]


def _commit(
    process: str,
    execution: Execution,
    *,
    emits: Sequence[str | None] = (),
    spawns: Sequence[str] = (),
    arm: dict[str, float] | None = None,
    cancel: Sequence[str] = (),
    trace: bool = False,
    event: str | None = None,
) -> Commit:
    step = f"{execution.id}:{process}:{execution.version + 1}"
    execution.context["by"] = step
    return Commit(
        execution=execution,
        emits=[Emit(to, Event(id=f"{step}:{place}", kind="told")) for place, to in enumerate(emits)],
        processed_event_id=event,
        timers=[
            *(TimerOp("cancel", path) for path in cancel),
            *(TimerOp("schedule", path, at) for path, at in (arm or {}).items()),
        ],
        spawns=[Spawn(child, "", {}) for child in spawns],
        trace={"step": step} if trace else None,
    )


def _answered(operation: Operation[None]) -> Operation[list[Refusal]]:
    try:
        yield from operation
    except StoreConflict as conflict:
        return [conflict]
    return [None]


def _told(one: Commit, refusal: Refusal) -> Answer:
    version = one.execution.version
    if refusal is None:
        return Answer("ok", {"version": version})
    kind, value = refused(refusal)
    return Answer(kind, value | {"version": version})


def load(of: str) -> Action:
    """Load an execution; what the session commits next is what it has loaded."""

    def prepare(world: World, process: str) -> Prepared:
        return Prepared(
            "store.load",
            {"execution": of},
            world.variant.store.load(of),
            _version,
            _keeps(world, process, of),
        )

    return Action(f"load {of}", prepare)


def load_for_event(of: str, event: str) -> Action:
    """Load an execution, and whether it has processed an event."""

    def prepare(world: World, process: str) -> Prepared:
        def absorb(found: tuple[Execution | None, bool]) -> None:
            _keeps(world, process, of)(found[0])
            if found[1]:
                world.processed.add((process, of, event))

        return Prepared(
            "store.load",
            {"execution": of},
            world.variant.store.load_for_event(of, event),
            lambda found: {**_version(found[0]), "processed": found[1]},
            absorb,
        )

    return Action(f"load {of} for {event}", prepare)


def ask_processed(of: str, event: str) -> Action:
    """Whether an execution has processed an event, asked by itself."""

    def prepare(world: World, process: str) -> Prepared:
        def absorb(found: bool) -> None:
            if found:
                world.processed.add((process, of, event))

        asked = world.variant.store.is_processed(of, event)
        return Prepared("store.processed", {"execution": of, "event": event}, asked, bool, absorb)

    return Action(f"ask whether {of} processed {event}", prepare)


def _version(found: Execution | None) -> dict[str, object]:
    return {"version": None if found is None else found.version}


def _keeps(world: World, process: str, of: str) -> Callable[[Execution | None], None]:
    def absorb(found: Execution | None) -> None:
        if found is not None:
            world.executions[process, of] = found

    return absorb


def append_trace(of: str) -> Action:
    """One step more, outside of any commit."""

    def prepare(world: World, process: str) -> Prepared:
        appended = world.variant.store.append_trace(of, {"by": process})
        return Prepared("store.append_trace", {"execution": of}, appended, lambda _: {})

    return Action(f"append to the trace of {of}", prepare)


def list_executions(page: int = 1) -> Action:
    """A whole listing, in pages of so many."""

    def prepare(world: World, _: str) -> Prepared:
        def listing() -> Operation[list[ExecutionSummary]]:
            found: list[ExecutionSummary] = []
            cursor = None
            while True:
                got: Page = yield from world.variant.store.list_executions(limit=page, cursor=cursor)
                found += got.items
                cursor = got.next_cursor
                if cursor is None:
                    return found

        def report(items: list[ExecutionSummary]) -> object:
            return {"ids": [item.id for item in items], "versions": [item.version for item in items]}

        return Prepared("store.list", {"filters": {}}, listing(), report)

    return Action("list", prepare)


def read_due(label: str) -> Action:
    """Read which timers are due, as a sweeper through the store's contract does before it fires and deletes them."""

    def prepare(world: World, _: str) -> Prepared:
        def absorb(rows: list[tuple[str, str, float]]) -> None:
            world.due[label] = tuple(rows)

        read = world.variant.store.due_timers(NOW, LIMIT)
        return Prepared("relay.timers", {}, read, lambda rows: {"fired": [list(row) for row in rows]}, absorb)

    return Action(f"read due timers {label}", prepare)


def delete_timers(label: str) -> Action:
    """Delete the timers that were read as due, one by one."""

    def prepare(world: World, _: str) -> Prepared | None:
        rows = world.due.get(label, ())

        def delete() -> Operation[None]:
            for row in rows:
                yield from world.variant.store.delete_timer(*row)

        if not rows:
            return None
        return Prepared("store.delete_timer", {"timers": [list(row) for row in rows]}, delete(), lambda _: {})

    return Action(f"delete timers {label}", prepare)


def sweep() -> Action:
    """Put the events of due timers into the outbox."""

    def prepare(world: World, process: str) -> Prepared:
        def report(fired: list[Fired]) -> object:
            return {"fired": [[one.execution_id, one.path, one.fire_at] for one in fired]}

        return Prepared("relay.timers", {}, world.relay(process).sweep(LIMIT, NOW), report)

    return Action("sweep timers", prepare)


def move(relay: str | None = None, *, limit: int = LIMIT) -> Action:
    """Hand the outbox over, up to `limit` rows of each lane. `relay`: whose memory it is; the session's by default."""

    def prepare(world: World, process: str) -> Prepared:
        moved = world.relay(relay or process).move(LANES, limit, 0)
        return Prepared("relay.deliver", {}, moved, lambda seqs: {"seqs": list(seqs)})

    return Action("move the outbox", prepare)


def make() -> Action:
    """Make the children that wait to be made."""

    def prepare(world: World, process: str) -> Prepared:
        def report(page: Spawned) -> object:
            return {"seqs": list(page.seqs), "made": list(page.made)}

        return Prepared("relay.spawn", {}, world.relay(process).spawn(0, LIMIT), report)

    return Action("make children", prepare)


def read_outbox(label: str) -> Action:
    """Read the outbox, as a relay through the store's contract does before it publishes and acknowledges."""

    def prepare(world: World, _: str) -> Prepared:
        def absorb(rows: list[tuple[int, str | None, Event]]) -> None:
            world.pending[label] = tuple(rows)

        read = world.variant.store.pending_outbox(LIMIT)
        return Prepared("store.outbox", {}, read, lambda rows: {"seqs": [row[0] for row in rows]}, absorb)

    return Action(f"read the outbox {label}", prepare)


def publish_outbox(label: str) -> Action:
    """Publish what was read."""

    def prepare(world: World, _: str) -> Prepared | None:
        rows = [row for row in world.pending.get(label, ()) if row[1] is not None]
        if not rows:
            return None
        items = [Publication(to or "", event) for _, to, event in rows]
        published = world.variant.transport.publish(items, None)[2]
        return Prepared("relay.deliver", {"seqs": [row[0] for row in rows]}, published, lambda _: {})

    return Action(f"publish the outbox {label}", prepare)


def ack_outbox(label: str) -> Action:
    """Acknowledge what was read, row by row."""

    def prepare(world: World, _: str) -> Prepared | None:
        seqs = [row[0] for row in world.pending.get(label, ())]

        def acked() -> Operation[None]:
            for seq in seqs:
                yield from world.variant.store.ack_outbox(seq)

        return Prepared("store.ack_outbox", {"seqs": seqs}, acked(), lambda _: {}) if seqs else None

    return Action(f"acknowledge the outbox {label}", prepare)
