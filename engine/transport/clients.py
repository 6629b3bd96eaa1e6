"""The transport's two clients: `PostgresTransport` blocks, `AsyncPostgresTransport` awaits; both answer alike.

    with PostgresTransport.from_dsn("postgresql://...") as transport:
        transport.publish("execution-1", Event(id="e1", kind="paid"))
        message = transport.claim(lease=30.0)
        if message is not None:
            transport.ack(message.group_id, message.seq, message.token)

Every call is one round trip. An empty claim means that nothing was ready, leases and parked groups apart: a publisher
at work does not hide a group.

Errors: `UnstorableValue` before anything is sent; `OutcomeUnknown` where the connection was lost before the answer, so
that nobody knows; `Unavailable` where no connection could be had, and nothing was sent. Every call can simply be made
again: a publish may then be there twice, for which consumers compare event ids; an ack that had taken effect answers
False.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeAlias, TypeVar
from uuid import uuid4

from engine.observer import LoggingObserver, Observer
from engine.operation import Operation
from engine.schema import migrate
from engine.sessions import Session, Sessions, connect
from engine.store.arrival import INTERVAL_S, RETRIES, await_server
from engine.store.execution import Event
from engine.transport.queue import LEASE_S, GroupState, Message, Publication, Queue

NAME = "pgreferee transport"
POOL_SIZE = 10

T = TypeVar("T")
# What `publish_many` takes: publications, or pairs of a group and its event.
Item: TypeAlias = Publication | tuple[str, Event | str]
Ack: TypeAlias = Message | tuple[str, int, str]
_Task: TypeAlias = tuple[str, dict[str, object], Operation[T], Callable[[T], object]]


class Tasks:
    """What the two clients send: per call the history's name and values, and the operation."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def publish(self, items: Iterable[Item], now: float | None) -> _Task[list[int]]:
        publications = [item if isinstance(item, Publication) else Publication(*item) for item in items]
        told: dict[str, object]
        if len(publications) == 1:
            told = {"group": publications[0].group_id, "event": _event_id(publications[0].event)}
        else:
            told = {"messages": [[each.group_id, _event_id(each.event)] for each in publications]}
        return (
            "transport.publish",
            told,
            self._queue.publish(publications, now),
            lambda seqs: {"seq": seqs[0]} if len(publications) == 1 else {"seqs": seqs},
        )

    def claim(
        self, limit: int, now: float | None, lease: float, token: str | None, min_priority: int
    ) -> _Task[list[Message]]:
        token = uuid4().hex if token is None else token
        return (
            "transport.claim",
            {"token": token, "limit": limit},
            self._queue.claim(limit, token=token, lease=lease, min_priority=min_priority, now=now),
            lambda messages: _told_of_claim(limit, messages),
        )

    def ack(self, items: Iterable[Ack], now: float | None) -> _Task[list[bool]]:
        messages = [
            item if isinstance(item, Message) else Message(item[0], item[1], "", item[2]) for item in items
        ]
        triples = [{"group": each.group_id, "seq": each.seq, "token": each.token} for each in messages]
        one = len(messages) == 1
        return (
            "transport.ack",
            dict(triples[0]) if one else {"messages": triples},
            self._queue.ack(messages, now),
            lambda done: done[0] if one else done,
        )

    def nack(self, group_id: str, token: str, delay: float, now: float | None) -> _Task[bool]:
        value = {"group": group_id, "token": token, "delay": delay}
        return "transport.nack", value, self._queue.nack(group_id, token, delay, now), bool

    def extend(self, group_id: str, token: str, lease: float, now: float | None) -> _Task[bool]:
        value = {"group": group_id, "token": token, "lease": lease}
        return "transport.extend", value, self._queue.extend(group_id, token, lease, now), bool

    def set_priority(self, group_id: str, priority: int) -> _Task[bool]:
        value = {"group": group_id, "priority": priority}
        return "transport.set_priority", value, self._queue.set_priority(group_id, priority), bool

    def depth(self, group_id: str | None) -> _Task[int]:
        return "transport.depth", {"group": group_id}, self._queue.depth(group_id), int

    def groups(self, limit: int, after: str | None) -> _Task[list[GroupState]]:
        return "transport.groups", {"after": after}, self._queue.groups(limit, after), len


class PostgresTransport:
    """The transport over one connection that is opened when it is needed. Threads may share it: a call waits for the
    one before. `queue`: the operations, for tests that break them."""

    def __init__(
        self, dsn: str, *, name: str = NAME, observer: Observer | None = None, queue: Queue | None = None
    ) -> None:
        told = LoggingObserver() if observer is None else observer
        self._session = Session(dsn, told, name=name)
        self._tasks = Tasks(Queue() if queue is None else queue)

    @classmethod
    def from_dsn(
        cls, dsn: str, *, retries: int = RETRIES, interval_s: float = INTERVAL_S, **options: Any
    ) -> Self:
        """A transport whose tables are there: waits for the server and migrates. Raises InfrastructureError."""
        _prepare(dsn, retries, interval_s)
        return cls(dsn, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. The next call connects again."""
        self._session.close()

    def publish(
        self, group_id: str, event: Event | str, priority: int | None = None, now: float | None = None
    ) -> int:
        """Append one message to its group. Returns its seq. `priority`, 0 to 4, holds for a new group."""
        [seq] = self._run(self._tasks.publish([Publication(group_id, event, priority)], now))
        return seq

    def publish_many(self, items: Iterable[Item], now: float | None = None) -> list[int]:
        """Append any number of messages in one round trip, all or none. Returns their seqs in the order given."""
        return self._run(self._tasks.publish(items, now))

    def claim(
        self,
        now: float | None = None,
        lease: float = LEASE_S,
        token: str | None = None,
        min_priority: int = 0,
    ) -> Message | None:
        """Lease the group that has waited longest, for `lease` seconds. Returns its head message."""
        messages = self._run(self._tasks.claim(1, now, lease, token, min_priority))
        return messages[0] if messages else None

    def claim_many(
        self,
        limit: int,
        now: float | None = None,
        lease: float = LEASE_S,
        token: str | None = None,
        min_priority: int = 0,
    ) -> list[Message]:
        """Lease up to `limit` groups under one token. Returns the head message of each."""
        return self._run(self._tasks.claim(limit, now, lease, token, min_priority))

    def ack(self, group_id: str, seq: int, token: str, now: float | None = None) -> bool:
        """The message is done: remove it. False where the group is not held by this token, or that is not its head."""
        [done] = self._run(self._tasks.ack([(group_id, seq, token)], now))
        return done

    def ack_many(self, items: Sequence[Ack], now: float | None = None) -> list[bool]:
        """Several in one round trip: messages, or (group_id, seq, token). Returns for each what `ack` would."""
        return self._run(self._tasks.ack(items, now))

    def nack(self, group_id: str, token: str, delay: float = 0.0, now: float | None = None) -> bool:
        """Give the group back; nobody gets it for `delay` seconds. False where the token does not hold it."""
        return self._run(self._tasks.nack(group_id, token, delay, now))

    def extend(self, group_id: str, token: str, lease: float = LEASE_S, now: float | None = None) -> bool:
        """The lease ends `lease` seconds from now. False where the token does not hold the group."""
        return self._run(self._tasks.extend(group_id, token, lease, now))

    def set_priority(self, group_id: str, priority: int) -> bool:
        """Change a group's priority, 0 to 4. False where it has no messages."""
        return self._run(self._tasks.set_priority(group_id, priority))

    def depth(self, group_id: str | None = None) -> int:
        """How many messages there are, of one group or of all."""
        return self._run(self._tasks.depth(group_id))

    def groups(self, limit: int = 100, after: str | None = None) -> list[GroupState]:
        """Groups in the order of their ids, behind `after`."""
        return self._run(self._tasks.groups(limit, after))

    def _run(self, task: _Task[T]) -> T:
        return self._session.run(*task)


class AsyncPostgresTransport:
    """The asynchronous twin: up to `pool_size` calls run at once. `open` it, or use `async with`."""

    def __init__(
        self,
        dsn: str,
        *,
        pool_size: int = POOL_SIZE,
        name: str = NAME,
        observer: Observer | None = None,
        queue: Queue | None = None,
    ) -> None:
        told = LoggingObserver() if observer is None else observer
        self._sessions = Sessions(dsn, told, size=pool_size, name=name)
        self._tasks = Tasks(Queue() if queue is None else queue)

    @classmethod
    async def from_dsn(
        cls, dsn: str, *, retries: int = RETRIES, interval_s: float = INTERVAL_S, **options: Any
    ) -> Self:
        """As `PostgresTransport.from_dsn`, and open."""
        await asyncio.to_thread(_prepare, dsn, retries, interval_s)
        transport = cls(dsn, **options)
        await transport.open()
        return transport

    async def open(self) -> None:
        """Open the pool."""
        await self._sessions.__aenter__()

    async def close(self) -> None:
        """Hang up for good."""
        await self._sessions.__aexit__()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def publish(
        self, group_id: str, event: Event | str, priority: int | None = None, now: float | None = None
    ) -> int:
        """As `PostgresTransport.publish`."""
        [seq] = await self._run(self._tasks.publish([Publication(group_id, event, priority)], now))
        return seq

    async def publish_many(self, items: Iterable[Item], now: float | None = None) -> list[int]:
        """As `PostgresTransport.publish_many`."""
        return await self._run(self._tasks.publish(items, now))

    async def claim(
        self,
        now: float | None = None,
        lease: float = LEASE_S,
        token: str | None = None,
        min_priority: int = 0,
    ) -> Message | None:
        """As `PostgresTransport.claim`."""
        messages = await self._run(self._tasks.claim(1, now, lease, token, min_priority))
        return messages[0] if messages else None

    async def claim_many(
        self,
        limit: int,
        now: float | None = None,
        lease: float = LEASE_S,
        token: str | None = None,
        min_priority: int = 0,
    ) -> list[Message]:
        """As `PostgresTransport.claim_many`."""
        return await self._run(self._tasks.claim(limit, now, lease, token, min_priority))

    async def ack(self, group_id: str, seq: int, token: str, now: float | None = None) -> bool:
        """As `PostgresTransport.ack`."""
        [done] = await self._run(self._tasks.ack([(group_id, seq, token)], now))
        return done

    async def ack_many(self, items: Sequence[Ack], now: float | None = None) -> list[bool]:
        """As `PostgresTransport.ack_many`."""
        return await self._run(self._tasks.ack(items, now))

    async def nack(self, group_id: str, token: str, delay: float = 0.0, now: float | None = None) -> bool:
        """As `PostgresTransport.nack`."""
        return await self._run(self._tasks.nack(group_id, token, delay, now))

    async def extend(
        self, group_id: str, token: str, lease: float = LEASE_S, now: float | None = None
    ) -> bool:
        """As `PostgresTransport.extend`."""
        return await self._run(self._tasks.extend(group_id, token, lease, now))

    async def set_priority(self, group_id: str, priority: int) -> bool:
        """As `PostgresTransport.set_priority`."""
        return await self._run(self._tasks.set_priority(group_id, priority))

    async def depth(self, group_id: str | None = None) -> int:
        """As `PostgresTransport.depth`."""
        return await self._run(self._tasks.depth(group_id))

    async def groups(self, limit: int = 100, after: str | None = None) -> list[GroupState]:
        """As `PostgresTransport.groups`."""
        return await self._run(self._tasks.groups(limit, after))

    async def _run(self, task: _Task[T]) -> T:
        return await self._sessions.run(*task)


def _prepare(dsn: str, retries: int, interval_s: float) -> None:
    await_server(dsn, retries, interval_s)
    with connect(dsn, NAME) as connection:
        migrate(connection, "transport")


def _event_id(event: Event | str) -> str:
    return event.id if isinstance(event, Event) else event


def _told_of_claim(limit: int, messages: Sequence[Message]) -> object:
    told = [{"group": each.group_id, "seq": each.seq, "event": _event_of(each)} for each in messages]
    return told if limit != 1 else told[0] if told else None


def _event_of(message: Message) -> str:
    """The event's id, which is what a history compares; text that is no event stands for itself."""
    try:
        return message.decoded().id
    except (ValueError, RecursionError):
        return message.event
