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
5. A timer is fired by a commit (`engine.relay.firing`): its event goes into the outbox, and is delivered from there.

`sweep` is not for use beside `AsyncTimerSweeper`, which fires without one.

An observer is told `relay.deliver` and `relay.spawn` with the seqs of the rows that are taken on, before they are, and
`relay.timers` with what was fired, where there is anything to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

from engine.observer import LoggingObserver, Observer
from engine.relay import firing
from engine.relay.children import birth
from engine.relay.driving import Steps, checked, drive, drive_async, told
from engine.store.encoding import MAX_ROWS
from engine.store.execution import Event, Execution, StoreConflict
from engine.values import TooLarge, UnstorableValue

# Rows of one reading.
BATCH = 100

Rows: TypeAlias = Sequence[tuple[str, Event]]


class Source(Protocol):
    """Where rows are read that are to be relayed; the answers may be awaitable."""

    def pending_outbox(self, limit: int) -> Any: ...
    def pending_spawns(self, limit: int) -> Any: ...


class Store(firing.Store, Source, Protocol):
    """What is needed of a store; the answers may be awaitable."""

    def save(self, execution: Execution) -> Any: ...
    def ack_outbox(self, seq: int) -> Any: ...
    def ack_spawn(self, seq: int) -> Any: ...


class Transport(Protocol):
    """What is needed of a transport; the answer may be awaitable."""

    def publish_many(self, items: Rows) -> Any: ...


def delivering(
    source: Source,
    store: Store,
    transport: Transport,
    limit: int,
    on_broadcast: Callable[[Event], object] | None,
    observer: Observer,
) -> Steps[int]:
    """Deliver up to `limit` outbox rows. Returns how many."""
    ready = yield from _deliverable(source, store, limit)
    if not ready:
        return 0
    seqs = [seq for seq, _, _ in ready]
    return (
        yield from told(
            observer,
            "relay.deliver",
            {"seqs": seqs},
            _handing_over(store, transport, ready, on_broadcast),
            lambda _: {"seqs": seqs},
        )
    )


def _deliverable(source: Source, store: Store, limit: int) -> Steps[list[Any]]:
    """Up to `limit` outbox rows, oldest first, without those that wait for their target."""
    size = limit
    while True:
        rows = yield partial(source.pending_outbox, limit=size)
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
    loaded = checked((yield [partial(store.load, target) for target in asked]))
    return unborn | {target for target, found in zip(asked, loaded, strict=True) if found is None}


def _handing_over(
    store: Store,
    transport: Transport,
    rows: Sequence[tuple[int, str | None, Event]],
    on_broadcast: Callable[[Event], object] | None,
) -> Steps[int]:
    targeted = [(target, event) for _, target, event in rows if target is not None]
    yield from _publishing(transport, targeted)
    checked((yield [partial(store.ack_outbox, seq) for seq, target, _ in rows if target is not None]))
    for seq, target, event in rows:
        if target is None:
            if on_broadcast is not None:
                yield partial(on_broadcast, event)
            yield partial(store.ack_outbox, seq)
    return len(rows)


def _publishing(transport: Transport, items: Rows) -> Steps[None]:
    """Publish all, in their order; what is too much at once in parts."""
    if not items:
        return
    try:
        yield partial(transport.publish_many, items)
    except TooLarge:
        if len(items) == 1:
            raise
        middle = len(items) // 2
        yield from _publishing(transport, items[:middle])
        yield from _publishing(transport, items[middle:])


def spawning(
    source: Source, store: Store, transport: Transport, limit: int, observer: Observer
) -> Steps[int]:
    """Make up to `limit` children. Returns how many spawns were done. Those that can never be done stay."""
    size = limit
    while True:
        rows = yield partial(source.pending_spawns, limit=size)
        done: list[int] = []
        if rows:
            done = yield from told(
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
    # A parent that nobody can read has children that nobody can make.
    parents = checked(
        (yield [partial(store.load, parent_id) for _, parent_id, _, _, _ in rows]), ValueError, RecursionError
    )
    births = []
    for (seq, _, child_id, root_path, context), parent in zip(rows, parents, strict=True):
        if parent is not None and not isinstance(parent, Exception):
            with suppress(UnstorableValue):
                births.append(birth(seq, parent, child_id, root_path, context))
    # One that is there already was made by another relay, or by this one before it died.
    saved = checked(
        (yield [partial(store.save, each.child) for each in births]), StoreConflict, UnstorableValue
    )
    births = [
        each for each, answer in zip(births, saved, strict=True) if not isinstance(answer, UnstorableValue)
    ]
    if not births:
        return []
    yield from _publishing(transport, [(each.child.id, each.start) for each in births])
    checked((yield [partial(store.ack_spawn, each.seq) for each in births]))
    return [each.seq for each in births]


class _Relaying:
    """What is to be done, without the way of doing it."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        *,
        source: Source | None = None,
        batch: int = BATCH,
        on_broadcast: Callable[[Event], object] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._store, self._transport, self._batch = store, transport, batch
        self._source: Source = store if source is None else source
        self._on_broadcast = on_broadcast
        self._observer: Observer = LoggingObserver() if observer is None else observer

    def _delivering(self) -> Steps[int]:
        return delivering(
            self._source, self._store, self._transport, self._batch, self._on_broadcast, self._observer
        )

    def _spawning(self) -> Steps[int]:
        return spawning(self._source, self._store, self._transport, self._batch, self._observer)

    def _sweeping(self, now: float) -> Steps[int]:
        return firing.sweeping(self._store, self._batch, now, self._observer)


class StoreRelay(_Relaying):
    """A relay between a store and a transport that block. `on_broadcast` gets events without a target; without one
    they are dropped. `source`: the part of the store whose outbox and spawns it relays; None: all of it."""

    def deliver(self) -> int:
        """Deliver one batch of the outbox. Returns how many rows."""
        return drive(self._delivering())

    def spawn(self) -> int:
        """Make one batch of children. Returns how many spawns were done."""
        return drive(self._spawning())

    def sweep(self, now: float) -> int:
        """Fire one batch of timers that are due at `now`, into the outbox. Returns how many."""
        return drive(self._sweeping(now))


class AsyncStoreRelay(_Relaying):
    """The asynchronous twin; what `on_broadcast` returns is awaited."""

    async def deliver(self) -> int:
        """As `StoreRelay.deliver`."""
        return await drive_async(self._delivering())

    async def spawn(self) -> int:
        """As `StoreRelay.spawn`."""
        return await drive_async(self._spawning())

    async def sweep(self, now: float) -> int:
        """As `StoreRelay.sweep`."""
        return await drive_async(self._sweeping(now))
