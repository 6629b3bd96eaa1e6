"""A relay through a store's own contract, for any store and any transport: `StoreRelay` blocks, `AsyncStoreRelay`
awaits.

Rules:

1. Read, publish, acknowledge, in this order and by row: whoever dies in between leaves rows that are delivered again.
   Delivery is at least once; consumers compare event ids.
2. Rows are read and published in the order of `seq`, and a reading stops at the first failure. With several relays a
   row may be published twice, but never for the first time after a later one of its emitter: who read the later one
   has read the earlier and published it before, or it was gone by then, and only what was published is removed.
3. A child's start event is published after the child is saved, also where the child was there already: who saved it
   may have died before it published.
4. A timer's event has an id that follows from the execution, the path and `fire_at`: two relays that both fire it are
   one event. A commit that cancels the timer between the reading and the publishing comes too late here, and one that
   arms it anew for the same instant may lose it; `engine.relay.handover` has neither hole.

5. An event waits while its target is still to be made: nobody would know what to do with it. The outbox is read before
   the spawns, which then show every child that what was read may be for. What must wait hides nothing behind it: where
   a reading brings nothing else, the next is longer.

Do not run it beside `AsyncTimerSweeper`, whose events have other ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from engine.relay.children import birth
from engine.store.encoding import MAX_ROWS, derived_id
from engine.store.execution import Event, Execution, StoreConflict
from engine.values import UnstorableValue

# Rows of one reading.
BATCH = 100

T = TypeVar("T")
# What a relay does, written once: it yields calls of the store or the transport and is sent their answers.
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]
Rows: TypeAlias = Sequence[tuple[str, Event]]


class Store(Protocol):
    """What is needed of a store; the answers may be awaitable."""

    def load(self, execution_id: str) -> Any: ...
    def save(self, execution: Execution) -> Any: ...
    def pending_outbox(self, limit: int) -> Any: ...
    def ack_outbox(self, seq: int) -> Any: ...
    def pending_spawns(self, limit: int) -> Any: ...
    def ack_spawn(self, seq: int) -> Any: ...
    def due_timers(self, now: float, limit: int) -> Any: ...
    def delete_timer(self, execution_id: str, path: str, fire_at: float) -> Any: ...


class Transport(Protocol):
    """What is needed of a transport; the answer may be awaitable."""

    def publish_many(self, items: Rows) -> Any: ...


def timer_event(execution_id: str, path: str, fire_at: float) -> Event:
    """The event of a timer that fires."""
    return Event(
        id=derived_id("timer", execution_id, path, repr(fire_at)),
        kind="timer",
        payload={"path": path, "fire_at": fire_at},
    )


def delivering(
    store: Store, transport: Transport, limit: int, on_broadcast: Callable[[Event], object] | None
) -> Steps[int]:
    """Deliver up to `limit` outbox rows. Returns how many."""
    rows = yield from _deliverable(store, limit)
    targeted = [(target, event) for _, target, event in rows if target is not None]
    if targeted:
        yield lambda: transport.publish_many(targeted)
    for seq, target, event in rows:
        if target is None and on_broadcast is not None:
            yield lambda event=event: on_broadcast(event)  # type: ignore[misc]
        yield lambda seq=seq: store.ack_outbox(seq)  # type: ignore[misc]
    return len(rows)


def _deliverable(store: Store, limit: int) -> Steps[list[Any]]:
    """Up to `limit` outbox rows, oldest first, without those that wait for their target."""
    size = limit
    while True:
        rows = yield lambda size=size: store.pending_outbox(limit=size)  # type: ignore[misc]
        unborn = yield from _unborn(store, {target for _, target, _ in rows if target is not None}, limit)
        free = [row for row in rows if row[1] not in unborn]
        if free or len(rows) < size or size == MAX_ROWS:
            return free[:limit]
        size = min(size * 10, MAX_ROWS)


def _unborn(store: Store, targets: set[str], limit: int) -> Steps[set[str]]:
    """Those of the targets that are, or may be, still to be made."""
    if not targets:
        return set()
    unborn: set[str] = set()
    for size in (limit, MAX_ROWS):
        spawns = yield lambda size=size: store.pending_spawns(limit=size)  # type: ignore[misc]
        unborn = targets & {row[2] for row in spawns}
        if len(spawns) < size:
            return unborn
    # There may be more spawns than one can read. Who is there is not to be made.
    for target in sorted(targets - unborn):
        if (yield lambda target=target: store.load(target)) is None:  # type: ignore[misc]
            unborn.add(target)
    return unborn


def spawning(store: Store, transport: Transport, limit: int) -> Steps[int]:
    """Make up to `limit` children. Returns how many spawns were done. Those that can never be done stay."""
    size = limit
    while True:
        rows = yield lambda size=size: store.pending_spawns(limit=size)  # type: ignore[misc]
        done = yield from _make(store, transport, rows)
        if done or len(rows) < size or size == MAX_ROWS:
            return done
        size = min(size * 10, MAX_ROWS)


def _make(store: Store, transport: Transport, spawns: Sequence[Any]) -> Steps[int]:
    done = 0
    for seq, parent_id, child_id, root_path, context in spawns:
        parent = yield lambda parent_id=parent_id: store.load(parent_id)  # type: ignore[misc]
        if parent is None:
            continue
        try:
            made = birth(seq, parent, child_id, root_path, context)
            yield lambda made=made: store.save(made.child)  # type: ignore[misc]
        except UnstorableValue:
            continue
        except StoreConflict:
            pass
        yield lambda made=made: transport.publish_many([(made.child.id, made.start)])  # type: ignore[misc]
        yield lambda seq=seq: store.ack_spawn(seq)  # type: ignore[misc]
        done += 1
    return done


def sweeping(store: Store, transport: Transport, limit: int, now: float) -> Steps[int]:
    """Fire up to `limit` timers that are due at `now`. Returns how many."""
    due = yield lambda: store.due_timers(now, limit=limit)
    if due:
        yield lambda: transport.publish_many([(each[0], timer_event(*each)) for each in due])
    for each in due:
        yield lambda each=each: store.delete_timer(*each)  # type: ignore[misc]
    return len(due)


class StoreRelay:
    """A relay between a store and a transport that block. `on_broadcast` gets events without a target; without one
    they are dropped."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        *,
        batch: int = BATCH,
        on_broadcast: Callable[[Event], object] | None = None,
    ) -> None:
        self._store, self._transport, self._batch = store, transport, batch
        self._on_broadcast = on_broadcast

    def deliver(self) -> int:
        """Deliver one batch of the outbox. Returns how many rows."""
        return _drive(delivering(self._store, self._transport, self._batch, self._on_broadcast))

    def spawn(self) -> int:
        """Make one batch of children. Returns how many spawns were done."""
        return _drive(spawning(self._store, self._transport, self._batch))

    def sweep(self, now: float) -> int:
        """Fire one batch of timers that are due at `now`. Returns how many."""
        return _drive(sweeping(self._store, self._transport, self._batch, now))


class AsyncStoreRelay:
    """The asynchronous twin; `on_broadcast` is awaited."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        *,
        batch: int = BATCH,
        on_broadcast: Callable[[Event], Awaitable[object]] | None = None,
    ) -> None:
        self._store, self._transport, self._batch = store, transport, batch
        self._on_broadcast = on_broadcast

    async def deliver(self) -> int:
        """As `StoreRelay.deliver`."""
        return await _drive_async(delivering(self._store, self._transport, self._batch, self._on_broadcast))

    async def spawn(self) -> int:
        """As `StoreRelay.spawn`."""
        return await _drive_async(spawning(self._store, self._transport, self._batch))

    async def sweep(self, now: float) -> int:
        """As `StoreRelay.sweep`."""
        return await _drive_async(sweeping(self._store, self._transport, self._batch, now))


def _drive(steps: Steps[T]) -> T:
    try:
        act = next(steps)
        while True:
            try:
                answer = act()
            except Exception as error:  # noqa: BLE001  # raised again where the steps handle it
                act = steps.throw(error)
            else:
                act = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def _drive_async(steps: Steps[T]) -> T:
    try:
        act = next(steps)
        while True:
            try:
                answer = await act()
            except Exception as error:  # noqa: BLE001  # raised again where the steps handle it
                act = steps.throw(error)
            else:
                act = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
