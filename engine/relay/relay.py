"""The relay's clients: `AsyncRelay` delivers and spawns, `AsyncTimerSweeper` fires timers; `Relay` and `TimerSweeper`
are the same for code that blocks.

    async with AsyncRelay(dsn) as relay, AsyncTimerSweeper(dsn) as sweeper:
        await asyncio.gather(relay.run(stop), sweeper.run(stop))

For a store and a transport that share a database (`engine.relay.handover`); others: `engine.relay.store_relay`. Any
number may run at once, and any may die at any moment.

Events without a target go to `on_broadcast`, at least once and in order; what it raises is counted as
`broadcast_failed`, and the event and those behind it wait. Without a handler they are dropped, and counted as
`broadcast_dropped`. Events that are too much for one statement go one by one, counted as `batch_too_large`. Spawns that
can never be done are left, and counted in every pass as `spawn_refused`.

Errors: as the transport's. Every call can be made again.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

import psycopg

from engine.observer import LoggingObserver, Observer
from engine.operation import Operation
from engine.relay.handover import LANES, Fired, Handover, Spawned
from engine.relay.polling import Polling, poll
from engine.sessions import Sessions, configure_indexed
from engine.store.execution import Event

# Rows of one statement, per lane; spawns and timers of one transaction; lanes that one statement holds.
BATCH = 200
LANES_AT_ONCE = 4
# Statements of one pass, which then looks at its other work: nobody waits for ever behind a backlog.
PAGES = 50

T = TypeVar("T")
OnBroadcast = Callable[[Event], Awaitable[object]]


class Service(ABC):
    """Sessions, a loop, and how they begin and end."""

    def __init__(
        self,
        dsn: str,
        *,
        name: str,
        observer: Observer | None,
        handover: Handover | None,
        polling: Polling | None,
    ) -> None:
        self._observer: Observer = LoggingObserver() if observer is None else observer
        self._handover = Handover() if handover is None else handover
        self._polling = Polling() if polling is None else polling
        self._sessions = Sessions(dsn, self._observer, size=1, name=name, configure=configure_indexed)

    async def __aenter__(self) -> Self:
        await self._sessions.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._sessions.__aexit__()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. What the database refuses is counted as `tick_failed` and tried again."""
        await poll(self.tick, stop, self._polling, self._observer)

    @abstractmethod
    async def tick(self) -> int:
        """One pass over all there is to do, bounded. Returns how much was done."""

    async def _send(self, name: str, operation: Operation[T], report: Callable[[T], object]) -> T:
        return await self._sessions.run(name, {}, operation, report)


class AsyncRelay(Service):
    """Makes children and delivers what is in the outbox. Use it with `async with`.

    `batch`: rows of one statement, of each of up to `lanes` lanes. `handover`: the operations, for tests that break
    them.
    """

    def __init__(
        self,
        dsn: str,
        *,
        on_broadcast: OnBroadcast | None = None,
        batch: int = BATCH,
        lanes: int = LANES_AT_ONCE,
        polling: Polling | None = None,
        observer: Observer | None = None,
        handover: Handover | None = None,
    ) -> None:
        super().__init__(dsn, name="pgreferee relay", observer=observer, handover=handover, polling=polling)
        self._on_broadcast = on_broadcast
        self._batch, self._lanes = _bounded("batch", batch, 10_000), _bounded("lanes", lanes, LANES)
        self._first_lane = random.randrange(LANES)

    async def tick(self) -> int:
        """Children first: what is emitted to them waits for them."""
        return await self.spawn() + await self.deliver() + await self.broadcast()

    async def deliver(self) -> int:
        """Hand the outbox over until nothing is left that this relay may take, or for `PAGES` statements. Returns how
        many rows."""
        total = 0
        for _ in range(PAGES):
            # Relays that begin at different lanes stay out of each other's way, and no lane is always the last.
            self._first_lane = (self._first_lane + self._lanes) % LANES
            try:
                seqs = await self._move(self._lanes, self._batch)
            except psycopg.errors.ProgramLimitExceeded:
                # Together they are more than one array of the server's can hold.
                self._observer.count("batch_too_large")
                seqs = await self._move(1, 1)
            total += len(seqs)
            if not seqs:
                break
        return total

    async def _move(self, lanes: int, batch: int) -> list[int]:
        operation = self._handover.move(lanes, batch, self._first_lane)
        return await self._send("relay.deliver", operation, lambda seqs: {"seqs": seqs})

    async def broadcast(self) -> int:
        """Hand on what has no target, one batch. Returns how many rows."""
        rows = await self._send(
            "relay.broadcast",
            self._handover.broadcasts(self._batch),
            lambda rows: {"seqs": [s for s, _ in rows]},
        )
        if not rows:
            return 0
        handed = await self._hand_on(rows)
        if not handed:
            return 0
        acked = await self._send("relay.ack", self._handover.ack(handed), lambda seqs: {"seqs": seqs})
        if acked:
            self._observer.count(
                "broadcast_dropped" if self._on_broadcast is None else "broadcast", len(acked)
            )
        return len(acked)

    async def _hand_on(self, rows: Sequence[tuple[int, Event]]) -> list[int]:
        """The rows that the handler took, up to the first that it did not."""
        handed = []
        for seq, event in rows:
            if self._on_broadcast is not None:
                try:
                    await self._on_broadcast(event)
                except Exception:  # noqa: BLE001  # somebody else's code: whatever it raises, the event stays
                    self._observer.count("broadcast_failed")
                    break
            handed.append(seq)
        return handed

    async def spawn(self) -> int:
        """Make the children that wait to be made. Returns how many spawns were done."""
        total, after = 0, 0
        for _ in range(PAGES):
            page = await self._send("relay.spawn", self._handover.spawn(after, self._batch), _told_of_spawned)
            total += len(page.seqs)
            if page.refused:
                self._observer.count("spawn_refused", len(page.refused))
            if page.last is None:
                break
            after = page.last
        return total


class AsyncTimerSweeper(Service):
    """Fires due timers: each becomes an event in the outbox. Use it with `async with`."""

    def __init__(
        self,
        dsn: str,
        *,
        batch: int = BATCH,
        polling: Polling | None = None,
        observer: Observer | None = None,
        handover: Handover | None = None,
    ) -> None:
        super().__init__(dsn, name="pgreferee timers", observer=observer, handover=handover, polling=polling)
        self._batch = _bounded("batch", batch, 10_000)

    async def tick(self) -> int:
        return len(await self.sweep())

    async def sweep(self, now: float | None = None) -> list[Fired]:
        """Fire what is due, oldest first, up to `PAGES` batches. `now` is for tests; None: the server's clock."""
        fired: list[Fired] = []
        for _ in range(PAGES):
            page = await self._send("relay.timers", self._handover.sweep(self._batch, now), _told_of_fired)
            fired += page
            if not page:
                break
        return fired


class _Blocking:
    """Runs an asynchronous service on an event loop of its own. For one thread."""

    def __init__(self, service: Service) -> None:
        self._runner = asyncio.Runner()
        self._service = service
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up for good."""
        if self._open:
            self._runner.run(self._service.__aexit__())
        self._runner.close()

    def tick(self) -> int:
        """One pass over all there is to do, bounded. Returns how much was done."""
        return self._run(self._service.tick)

    def _run(self, act: Callable[[], Awaitable[T]]) -> T:
        return self._runner.run(self._opened(act))

    async def _opened(self, act: Callable[[], Awaitable[T]]) -> T:
        if not self._open:
            await self._service.__aenter__()
            self._open = True
        return await act()


class Relay(_Blocking):
    """`AsyncRelay` for code that blocks; the same arguments."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self._relay = AsyncRelay(dsn, **options)
        super().__init__(self._relay)

    def deliver(self) -> int:
        """As `AsyncRelay.deliver`."""
        return self._run(self._relay.deliver)

    def broadcast(self) -> int:
        """As `AsyncRelay.broadcast`."""
        return self._run(self._relay.broadcast)

    def spawn(self) -> int:
        """As `AsyncRelay.spawn`."""
        return self._run(self._relay.spawn)


class TimerSweeper(_Blocking):
    """`AsyncTimerSweeper` for code that blocks; the same arguments."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self._sweeper = AsyncTimerSweeper(dsn, **options)
        super().__init__(self._sweeper)

    def sweep(self, now: float | None = None) -> list[Fired]:
        """As `AsyncTimerSweeper.sweep`."""
        return self._run(lambda: self._sweeper.sweep(now))


def _bounded(name: str, value: int, most: int) -> int:
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be 1 to {most}, not {value}")
    return value


def _told_of_spawned(page: Spawned) -> dict[str, object]:
    return {"seqs": list(page.seqs), "made": list(page.made)}


def _told_of_fired(fired: Sequence[Fired]) -> dict[str, object]:
    return {"fired": [[each.execution_id, each.path, each.fire_at] for each in fired]}
