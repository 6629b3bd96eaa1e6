"""A relay through a store's own contract, for any store and any transport: `StoreRelay` blocks, `AsyncStoreRelay`
awaits.

Rules:

1. Read, publish, acknowledge, in this order: whoever dies in between leaves rows that are delivered again. Delivery is
   at least once; consumers compare event ids.
2. Rows are read and published in the order of `seq`, and a reading stops at the first failure. With several relays a
   row may be published twice, but never for the first time after a later one of its emitter: who read the later one
   has read the earlier and published it before, or it was gone by then, and only what was published is removed.
3. What was emitted to a child waits for it. A fork is committed before or with the first emit to its child, so spawns
   that are read after the outbox name every child that one of its rows can be too early for. What must wait hides
   nothing behind it: where a reading brings nothing else, the next is longer.
4. A child's start event is published after the child is saved, also where the child was there already: who saved it
   may have died before it published.
5. A timer's event has an id that follows from the execution, the path and `fire_at`: two relays that both fire it are
   one event. A commit that cancels the timer between the reading and the publishing comes too late here, and one that
   arms it anew for the same instant may lose it; `engine.relay.handover` has neither hole.

`sweep` is not for use beside `AsyncTimerSweeper`, whose events have other ids.

An observer is told `relay.deliver` and `relay.spawn` with the seqs of the rows that are taken on, before they are, and
`relay.timers` with what was fired, where there is anything to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from engine.observer import LoggingObserver, Observer
from engine.relay.children import birth
from engine.sessions import describe_error
from engine.store.encoding import MAX_ROWS, derived_id
from engine.store.execution import Event, Execution, StoreConflict
from engine.values import UnstorableValue

# Rows of one reading, and calls of an asynchronous relay that are under way at once.
BATCH = 100
AT_ONCE = 4

T = TypeVar("T")
Call: TypeAlias = Callable[[], Any]
# What a relay does, written once: it yields a call of the store or the transport and is sent the answer, or several
# whose order does not matter, and is sent their answers and errors.
Steps: TypeAlias = Generator[Call | Sequence[Call], Any, T]
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
    store: Store,
    transport: Transport,
    limit: int,
    on_broadcast: Callable[[Event], object] | None,
    observer: Observer,
) -> Steps[int]:
    """Deliver up to `limit` outbox rows. Returns how many."""
    ready = yield from _deliverable(store, limit)
    if not ready:
        return 0
    seqs = [seq for seq, _, _ in ready]
    return (
        yield from _told(
            observer,
            "relay.deliver",
            {"seqs": seqs},
            _handing_over(store, transport, ready, on_broadcast),
            lambda _: {"seqs": seqs},
        )
    )


def _deliverable(store: Store, limit: int) -> Steps[list[Any]]:
    """Up to `limit` outbox rows, oldest first, without those that wait for their target."""
    size = limit
    while True:
        rows = yield partial(store.pending_outbox, limit=size)
        unborn = yield from _unborn(store, {target for _, target, _ in rows if target is not None}, limit)
        ready = [row for row in rows if row[1] not in unborn]
        if ready or len(rows) < size or size == MAX_ROWS:
            return ready[:limit]
        size = min(size * 10, MAX_ROWS)


def _unborn(store: Store, targets: Set[str], limit: int) -> Steps[Set[str]]:
    """Those of the targets that are, or may be, still to be made."""
    if not targets:
        return targets
    unborn: Set[str] = frozenset()
    for size in (limit, MAX_ROWS):
        spawns = yield partial(store.pending_spawns, limit=size)
        unborn = targets & {row[2] for row in spawns}
        if len(spawns) < size:
            return unborn
    # There may be more spawns than one can read. Who is there is not to be made.
    asked = sorted(targets - unborn)
    loaded = _checked((yield [partial(store.load, target) for target in asked]))
    return unborn | {target for target, found in zip(asked, loaded, strict=True) if found is None}


def _handing_over(
    store: Store,
    transport: Transport,
    rows: Sequence[tuple[int, str | None, Event]],
    on_broadcast: Callable[[Event], object] | None,
) -> Steps[int]:
    targeted = [(target, event) for _, target, event in rows if target is not None]
    if targeted:
        yield lambda: transport.publish_many(targeted)
    _checked((yield [partial(store.ack_outbox, seq) for seq, target, _ in rows if target is not None]))
    for seq, target, event in rows:
        if target is None:
            if on_broadcast is not None:
                yield partial(on_broadcast, event)
            yield partial(store.ack_outbox, seq)
    return len(rows)


def spawning(store: Store, transport: Transport, limit: int, observer: Observer) -> Steps[int]:
    """Make up to `limit` children. Returns how many spawns were done. Those that can never be done stay."""
    size = limit
    while True:
        rows = yield partial(store.pending_spawns, limit=size)
        done: list[int] = []
        if rows:
            done = yield from _told(
                observer,
                "relay.spawn",
                {"seqs": [row[0] for row in rows]},
                _making(store, transport, rows),
                lambda done: {"seqs": done},
            )
        if done or len(rows) < size or size == MAX_ROWS:
            return len(done)
        size = min(size * 10, MAX_ROWS)


def _making(
    store: Store, transport: Transport, rows: Sequence[tuple[int, str, str, str, dict[str, Any]]]
) -> Steps[list[int]]:
    parents = _checked((yield [partial(store.load, parent_id) for _, parent_id, _, _, _ in rows]))
    births = []
    for (seq, _, child_id, root_path, context), parent in zip(rows, parents, strict=True):
        if parent is not None:
            with suppress(UnstorableValue):
                births.append(birth(seq, parent, child_id, root_path, context))
    # One that is there already was made by another relay, or by this one before it died.
    saved = _checked(
        (yield [partial(store.save, each.child) for each in births]), StoreConflict, UnstorableValue
    )
    births = [
        each for each, answer in zip(births, saved, strict=True) if not isinstance(answer, UnstorableValue)
    ]
    if not births:
        return []
    yield lambda: transport.publish_many([(each.child.id, each.start) for each in births])
    _checked((yield [partial(store.ack_spawn, each.seq) for each in births]))
    return [each.seq for each in births]


def sweeping(store: Store, transport: Transport, limit: int, now: float, observer: Observer) -> Steps[int]:
    """Fire up to `limit` timers that are due at `now`. Returns how many."""
    due = yield lambda: store.due_timers(now, limit=limit)
    if not due:
        return 0
    return (
        yield from _told(
            observer,
            "relay.timers",
            {},
            _firing(store, transport, due),
            lambda _: {"fired": [list(each) for each in due]},
        )
    )


def _firing(store: Store, transport: Transport, due: Sequence[tuple[str, str, float]]) -> Steps[int]:
    yield lambda: transport.publish_many([(each[0], timer_event(*each)) for each in due])
    _checked((yield [partial(store.delete_timer, *each) for each in due]))
    return len(due)


def _checked(answers: list[Any], *accepted: type[Exception]) -> list[Any]:
    """The answers to several calls. Raises the first error that is none of the accepted."""
    for each in answers:
        if isinstance(each, Exception) and not isinstance(each, accepted):
            raise each
    return answers


def _told(
    observer: Observer, name: str, value: object, steps: Steps[T], report: Callable[[T], object]
) -> Steps[T]:
    """The steps, with the observer told when they begin and how they end."""
    token = observer.invoke(name, value)
    try:
        answer = yield from steps
    except Exception as error:
        observer.complete(token, "info", describe_error(error))
        raise
    observer.complete(token, "ok", report(answer))
    return answer


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
        observer: Observer | None = None,
    ) -> None:
        self._store, self._transport, self._batch = store, transport, batch
        self._on_broadcast = on_broadcast
        self._observer: Observer = LoggingObserver() if observer is None else observer

    def deliver(self) -> int:
        """Deliver one batch of the outbox. Returns how many rows."""
        return _drive(
            delivering(self._store, self._transport, self._batch, self._on_broadcast, self._observer)
        )

    def spawn(self) -> int:
        """Make one batch of children. Returns how many spawns were done."""
        return _drive(spawning(self._store, self._transport, self._batch, self._observer))

    def sweep(self, now: float) -> int:
        """Fire one batch of timers that are due at `now`. Returns how many."""
        return _drive(sweeping(self._store, self._transport, self._batch, now, self._observer))


class AsyncStoreRelay:
    """The asynchronous twin; `on_broadcast` is awaited."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        *,
        batch: int = BATCH,
        on_broadcast: Callable[[Event], Awaitable[object]] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._store, self._transport, self._batch = store, transport, batch
        self._on_broadcast = on_broadcast
        self._observer: Observer = LoggingObserver() if observer is None else observer

    async def deliver(self) -> int:
        """As `StoreRelay.deliver`."""
        return await _drive_async(
            delivering(self._store, self._transport, self._batch, self._on_broadcast, self._observer)
        )

    async def spawn(self) -> int:
        """As `StoreRelay.spawn`."""
        return await _drive_async(spawning(self._store, self._transport, self._batch, self._observer))

    async def sweep(self, now: float) -> int:
        """As `StoreRelay.sweep`."""
        return await _drive_async(sweeping(self._store, self._transport, self._batch, now, self._observer))


def _drive(steps: Steps[T]) -> T:
    def tried(call: Call) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # the steps look at it
            return error

    try:
        act = next(steps)
        while True:
            if not callable(act):
                act = steps.send([tried(call) for call in act])
                continue
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
    turns = asyncio.Semaphore(AT_ONCE)

    async def tried(call: Call) -> Any:
        async with turns:
            try:
                return await call()
            except Exception as error:  # noqa: BLE001  # the steps look at it
                return error

    try:
        act = next(steps)
        while True:
            if not callable(act):
                act = steps.send(await asyncio.gather(*map(tried, act)))
                continue
            try:
                answer = await act()
            except Exception as error:  # noqa: BLE001  # raised again where the steps handle it
                act = steps.throw(error)
            else:
                act = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
