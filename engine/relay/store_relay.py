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
5. A delivery makes the children that wait, between its reading and its publishing: a fork that was committed with an
   emit that was read is in the later reading, so a child is there before what was emitted to it.

Do not run it beside `AsyncTimerSweeper`, whose events have other ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from engine.relay.children import birth
from engine.store.execution import Event, Execution, StoreConflict

# Rows of one reading.
BATCH = 100
# Pages of spawns that one delivery makes at most.
PAGES = 100

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
        id=f"timer:{execution_id}:{path}:{fire_at!r}",
        kind="timer",
        payload={"path": path, "fire_at": fire_at},
    )


def delivering(
    store: Store, transport: Transport, limit: int, on_broadcast: Callable[[Event], object] | None
) -> Steps[int]:
    """Deliver up to `limit` outbox rows, to targets that are there. Returns how many."""
    rows = yield lambda: store.pending_outbox(limit=limit)
    targeted = [(target, event) for _, target, event in rows if target is not None]
    if targeted:
        for _ in range(PAGES):
            if not (yield from spawning(store, transport, limit)):
                break
        yield lambda: transport.publish_many(targeted)
    for seq, target, event in rows:
        if target is None and on_broadcast is not None:
            yield lambda event=event: on_broadcast(event)  # type: ignore[misc]
        yield lambda seq=seq: store.ack_outbox(seq)  # type: ignore[misc]
    return len(rows)


def spawning(store: Store, transport: Transport, limit: int) -> Steps[int]:
    """Make up to `limit` children. Returns how many spawns were done."""
    rows = yield lambda: store.pending_spawns(limit=limit)
    done = 0
    for seq, parent_id, child_id, root_path, context in rows:
        parent = yield lambda parent_id=parent_id: store.load(parent_id)  # type: ignore[misc]
        if parent is None:
            continue
        made = birth(seq, parent, child_id, root_path, context)
        try:
            yield lambda made=made: store.save(made.child)  # type: ignore[misc]
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
