"""Pokes between nodes: LISTEN/NOTIFY as a hint that a queue may have work (picker.md §5, claim `poke-is-a-hint`).

Rules:

1. A poke is a hint. Every queue is polled anyway, within `max_poll_interval`; with every notification lost, all work is
   still done, only later. So nothing here is retried, and no error ends a node.
2. One channel an instance; the payload is a queue's name. Names are any text of up to 2,000 bytes: percent-encoded they
   are ASCII, which every database encoding has, and at most 6,000 of the 7,999 bytes that a payload may be long.
3. The first poke goes out at once. Those of the next `debounce_ms` are collected and go out together, each queue once.
4. After a connection was lost and is back, what was missed is unknown: every queue counts as poked.
5. A dead connection looks like a silent one. So a query goes out on it every `check_interval_s`, and must be answered.

A notification is sent after the commit that made the rows runnable, in a statement of its own: Postgres holds a lock
on the database's one notification queue while a transaction that notifies commits, and a flush has no business there.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote, unquote

import psycopg
from psycopg import sql

from engine.observer import Observer
from engine.operation import Operation, call
from engine.sessions import OutcomeUnknown, Sessions, Unavailable
from engine.statements import Catalogue

# Queues that wait to be announced; beyond that, names are dropped.
MAX_PENDING = 1_000
CHECK_INTERVAL_S, CHECK_TIMEOUT_S = 15.0, 5.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0
# Whoever is not heard of for a minute is gone, also where nobody closed the connection.
KEEPALIVE = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
}


def channel(instance: str) -> str:
    """The channel of an instance; a channel's name ends at 63 bytes, an instance's does not."""
    return f"pgreferee_{hashlib.sha256(instance.encode()).hexdigest()[:24]}"


def encode(queue: str) -> str:
    """A queue's name as a payload."""
    return quote(queue, safe="")


def decode(payload: str) -> str:
    """The queue's name in a payload. Of a payload that somebody else made, some text."""
    return unquote(payload, errors="replace")


def notify(catalogue: Catalogue, instance: str, queues: Iterable[str]) -> Operation[None]:
    """Poke these queues on all nodes of an instance that listen."""
    yield call(catalogue["pokes/notify"], channel(instance), [encode(queue) for queue in queues])


class Debounce:
    """Lets a queue through once in `debounce_ms`: for senders without a loop to send the rest later. What is held back
    within that time is found by the poll that follows the poke which went out."""

    def __init__(self, debounce_ms: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._debounce_s = debounce_ms / 1000
        self._clock = clock
        self._sent: dict[str, float] = {}

    def due(self, queues: Iterable[str]) -> list[str]:
        """Those of the queues to be poked now."""
        now = self._clock()
        due = sorted({queue for queue in queues if self._sent.get(queue, -1e9) + self._debounce_s <= now})
        if len(self._sent) + len(due) > MAX_PENDING:
            self._sent.clear()
        self._sent.update(dict.fromkeys(due, now))
        return due


class Pokes:
    """A node's ear and mouth. `poked` is called from the loop with a queue's name, or with None for every queue."""

    def __init__(
        self,
        dsn: str,
        instance: str,
        *,
        sessions: Sessions,
        observer: Observer,
        name: str,
        poked: Callable[[str | None], None],
        debounce_ms: float,
        check_interval_s: float = CHECK_INTERVAL_S,
        check_timeout_s: float = CHECK_TIMEOUT_S,
        catalogue: Catalogue | None = None,
    ) -> None:
        self._dsn = dsn
        self._instance = instance
        self._sessions = sessions
        self._observer = observer
        self._name = name
        self._poked = poked
        self._debounce_s = debounce_ms / 1000
        self._check_interval_s = check_interval_s
        self._check_timeout_s = check_timeout_s
        self._catalogue = Catalogue.load() if catalogue is None else catalogue
        self._pending: set[str] = set()
        self._announced = asyncio.Event()
        self._pause_s = FIRST_PAUSE_S

    def announce(self, queues: Iterable[str]) -> None:
        """Poke these queues on the other nodes, soon."""
        for queue in queues:
            if len(self._pending) < MAX_PENDING:
                self._pending.add(queue)
        if self._pending:
            self._announced.set()

    async def run(self) -> None:
        """Listen and announce until cancelled."""
        await asyncio.gather(self._listen(), self._send())

    async def _send(self) -> None:
        while True:
            await self._announced.wait()
            queues = sorted(self._pending)
            self._pending.clear()
            self._announced.clear()
            try:
                await self._sessions.run(
                    "notify",
                    {"queues": queues},
                    notify(self._catalogue, self._instance, queues),
                    lambda _: {},
                )
            except (OutcomeUnknown, Unavailable, psycopg.Error):
                self._observer.count("poke_failed", len(queues))
            await asyncio.sleep(self._debounce_s)

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except (psycopg.Error, OSError, TimeoutError):
                self._observer.count("poke_reconnect")
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)

    async def _listen_once(self) -> None:
        """Listen until the connection is lost. Raises what says so."""
        parameters: dict[str, Any] = {**KEEPALIVE, "application_name": self._name}
        connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, **parameters)
        try:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel(self._instance))))
            self._pause_s = FIRST_PAUSE_S
            self._poked(None)
            while True:
                async for notification in connection.notifies(timeout=self._check_interval_s):
                    self._poked(decode(notification.payload))
                async with asyncio.timeout(self._check_timeout_s):
                    await connection.execute("SELECT 1")
        finally:
            await connection.close()
