"""The client: put work in, send signals, wait for results, look at what is there.

`Client` blocks, `AsyncClient` awaits; both are thin over the same operations and answer alike.

    with Client("postgresql://...") as client:
        job = client.insert(Job(fsm="order", step="reserve", state={"item": "tea"}))
        print(client.result(job, timeout_s=10).value)

Costs (picker.md §3): an insert, a signal, a look at one instance are one statement each by an index. A list or a count
looks at a bounded number of rows a statement, whatever the table holds.

Errors: `UnstorableValue` for what Postgres cannot hold, before anything is sent; `OutcomeUnknown` where the connection
was lost before the answer, so that nobody knows (an insert with a `correlation_key`, or a signal with a `dedup_key`,
can simply be made again); `Unavailable` where no connection could be had, and nothing was sent.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self, cast

import psycopg

from engine.observer import LoggingObserver, Observer
from engine.operation import Operation, Row, T, call
from engine.picker import BIGINT, STATUSES, TERMINAL, Delivery, Job, Picker, Status
from engine.pokes import Debounce, notify
from engine.sessions import OutcomeUnknown, Session, Sessions, Unavailable
from engine.statements import Catalogue
from engine.values import UnstorableValue, check_key

# Jobs of one insert_many statement.
CHUNK = 5_000
# Rows that one statement of `list` looks at, and the most that one page holds.
SCAN = 10_000
MAX_LIMIT = 10_000
# Rows that `counts` looks at.
COUNTED = 100_000
# A wait for a result asks this soon first, then ever more rarely.
FIRST_POLL_S, POLL_GROWTH, MAX_POLL_S = 0.005, 1.5, 0.5
# Pokes of one client for one queue.
POKE_DEBOUNCE_MS = 20.0

Answer = dict[str, object]
Ids = list[int | None]


class NoSuchInstance(LookupError):
    """There is no instance of that id: there never was, or it ended long ago and was collected."""


class ResultTimeout(TimeoutError):
    """The instance has not ended in time; `status` is the one it had when last looked at."""

    def __init__(self, id: int, status: Status, timeout_s: float) -> None:  # noqa: A002  # the name of the column
        super().__init__(f"instance {id} has not ended within {timeout_s} s: it is {status}")
        self.status = status


class InsertInterrupted(Exception):
    """A later chunk of an `insert_many` failed. `ids` are those of the chunks before, which are committed; the chunk
    that failed is not, unless the cause is OutcomeUnknown."""

    def __init__(self, ids: Ids) -> None:
        super().__init__(f"{len(ids)} jobs were sent before a chunk failed")
        self.ids = ids


@dataclass(frozen=True, slots=True)
class Result:
    """How an instance ended. `value` is what `Done` was given, `last_error` what `Stop` was given; a `done` instance
    may have a `last_error` of an earlier try."""

    status: Status
    value: Any
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Instance:
    """All there is to know of one instance at one moment. Instants are in UTC."""

    id: int
    fsm: str
    fsm_version: int
    step: str
    state: dict[str, Any] = field(hash=False)
    status: Status
    attempt: int
    queue: str
    priority: int
    eligible_at: datetime
    locked_by: str | None
    lease_expires_at: datetime | None
    concurrency_key: str | None
    rate_limit: str | None
    weight: float
    awaits: tuple[str, ...] | None
    await_deadline: datetime | None
    parent_id: int | None
    children_pending: int
    correlation_key: str | None
    result: Any = field(hash=False)
    last_error: str | None
    inserted_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """Some instances in id order. `cursor` leads to the next page; None: this was the last."""

    instances: tuple[Instance, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Instances by queue and status. `complete` is False where there are more than were looked at: the newest then
    stand for themselves only, and nothing is said of the older ones."""

    by: dict[tuple[str, Status], int] = field(hash=False)
    complete: bool

    def of(self, *, queue: str | None = None, status: Status | None = None) -> int:
        """How many there are of a queue, of a status, of both, or at all."""
        return sum(
            count
            for (of_queue, of_status), count in self.by.items()
            if queue in (None, of_queue) and status in (None, of_status)
        )


def described(job: Job) -> dict[str, object]:
    """A job as an observer is told of it."""
    return {
        "fsm": job.fsm,
        "queue": job.queue,
        "priority": job.priority,
        "concurrency_key": job.concurrency_key,
        "correlation_key": job.correlation_key,
        "scope": list(job.correlation_scope) if job.correlation_key is not None else [],
        "expect": None,
    }


class Questions:
    """The operations of a client that are not the picker's, bound to one catalogue of statements."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._sql = Catalogue.load() if catalogue is None else catalogue

    def outcome(self, id: int) -> Operation[Result]:  # noqa: A002
        """How far an instance is; `value` is None until it has ended. Raises NoSuchInstance."""
        rows = (yield call(self._sql["client/outcome"], id)) if id in BIGINT else []
        if not rows:
            raise NoSuchInstance(f"there is no instance {id}")
        status, result, last_error = rows[0]
        return Result(status, _loaded(result), last_error)

    def inspect(self, ids: Sequence[int]) -> Operation[tuple[Instance, ...]]:
        """Those of the instances that exist, in id order."""
        rows = yield call(self._sql["client/inspect"], [id for id in ids if id in BIGINT])  # noqa: A001
        return tuple(_instance(row) for row in rows)

    def list(
        self, *, status: Status | None, queue: str | None, limit: int, cursor: str | None
    ) -> Operation[Page]:
        """One page. Looks at `SCAN` rows a statement until the page is full or the table ends."""
        if status is not None and status not in STATUSES:
            raise UnstorableValue(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
        if queue is not None:
            check_key("queue", queue)
        if isinstance(limit, bool) or not 1 <= limit <= MAX_LIMIT:
            raise UnstorableValue(f"limit must be from 1 to {MAX_LIMIT}, not {limit}")
        place: int | None = _place(cursor)
        found: list[int] = []
        while place is not None and len(found) < limit:
            missing = limit - len(found)
            rows = yield call(self._sql["client/page"], place, SCAN, missing, status, queue)
            looked_at, last = int(rows[0][0]), rows[0][1]
            ids = [row[2] for row in rows if row[2] is not None]
            found += ids
            if len(ids) == missing:
                place = ids[-1]
            else:
                place = last if looked_at == SCAN else None
        instances = (yield from self.inspect(found)) if found else ()
        return Page(instances, None if place is None else _cursor(place))

    def counts(self, at_most: int) -> Operation[Counts]:
        """Counts over the newest `at_most` instances."""
        rows = yield call(self._sql["client/counts"], at_most + 1)
        by: dict[tuple[str, Status], int] = {(row[0], row[1]): row[2] for row in rows}
        return Counts(by, sum(by.values()) <= at_most)


class Client:
    """A client that blocks. Threads may share it: it has one connection, and a call waits for the one before.

    `poke_instance`: tell the nodes of that instance where there is new work, if their policy has `pokes` on. `name`:
    what the server calls the session.
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str = "pgreferee client",
        poke_instance: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._picker, self._questions = Picker(), Questions()
        self._observer: Observer = LoggingObserver() if observer is None else observer
        self._poker = _Poker(poke_instance)
        self._session = Session(dsn, self._observer, name=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. The next call connects again."""
        self._session.close()

    def insert(self, job: Job) -> int | None:
        """Insert one job. Returns its id, or None when its identity is occupied.

        client.insert(Job(fsm="order", step="reserve", correlation_key="order:17"))
        """
        row_id = self._run(
            "insert", {"job": described(job)}, self._picker.insert(job), lambda row_id: {"id": row_id}
        )
        self._poke([job.queue])
        return row_id

    def insert_many(self, jobs: Iterable[Job]) -> Ids:
        """Insert any number of jobs, `CHUNK` a statement. Returns an id per job, None where the identity was occupied.

        A chunk is inserted whole or not at all. Raises InsertInterrupted where a later chunk than the first fails.
        """
        ids: Ids = []
        for chunk in _chunks(jobs):
            try:
                ids += self._run(
                    "insert_many",
                    {"jobs": [described(job) for job in chunk]},
                    self._picker.insert_many(chunk),
                    _told_of_ids,
                )
            except (psycopg.Error, OutcomeUnknown, Unavailable) as error:
                if not ids:
                    raise
                raise InsertInterrupted(ids) from error
            self._poke(job.queue for job in chunk)
        return ids

    def signal(
        self, target: int | str, name: str, payload: object = None, *, dedup_key: str | None = None
    ) -> Delivery:
        """Send a signal to a live instance, by its id or by the `correlation_key` that it occupies.

        A `dedup_key` is delivered to one target once: sent again, also after a step has consumed the first, it is a
        `duplicate`. The answer `no_target` is about now: an instance that is inserted later gets nothing.

            client.signal("order:17", "paid", {"amount": 20}, dedup_key="payment:4711")
        """
        delivery = self._run(
            "signal",
            _signalled(target, name, dedup_key),
            self._picker.signal(target, name, payload, dedup_key),
            _told_of_delivery,
        )
        self._poke([] if delivery.woken is None else [delivery.woken])
        return delivery

    def result(self, id: int, timeout_s: float) -> Result:  # noqa: A002
        """Wait until an instance has ended, `timeout_s` at most; 0 looks once.

        Raises ResultTimeout, which tells the status, and NoSuchInstance.
        """
        wait = _Wait(id, timeout_s)
        while True:
            result = self._run("outcome", {"id": id}, self._questions.outcome(id), _told_of_result)
            if result.status in TERMINAL:
                return result
            time.sleep(wait.pause_after(result.status))

    def inspect(self, id: int) -> Instance:  # noqa: A002
        """All there is to know of one instance. Raises NoSuchInstance."""
        return _only(id, self._run("inspect", {"id": id}, self._questions.inspect([id]), _told_of_nothing))

    def list(
        self,
        *,
        status: Status | None = None,
        queue: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """One page of instances in id order.

        An instance that is there throughout, with that status and queue, comes exactly once, whatever comes and goes:

            page = client.list(status="failed")
            while page.cursor is not None:
                page = client.list(status="failed", cursor=page.cursor)
        """
        operation = self._questions.list(status=status, queue=queue, limit=limit, cursor=cursor)
        return self._run("list", {}, operation, _told_of_nothing)

    def counts(self, *, at_most: int = COUNTED) -> Counts:
        """Instances by queue and status, exact in a table of up to `at_most` rows.

        print(client.counts().of(queue="mail", status="runnable"))
        """
        return self._run("counts", {"at_most": at_most}, self._questions.counts(at_most), _told_of_nothing)

    def _poke(self, queues: Iterable[str]) -> None:
        if (operation := self._poker.after(queues)) is not None:
            try:
                self._run("notify", {}, operation, _told_of_nothing)
            except (psycopg.Error, OutcomeUnknown, Unavailable):
                self._observer.count("poke_failed")

    def _run(self, name: str, value: object, operation: Operation[T], report: Callable[[T], object]) -> T:
        return self._session.run(name, value, operation, report)


class AsyncClient:
    """The asynchronous twin of `Client`; use it with `async with`. Up to `size` calls run at once.

    async with AsyncClient("postgresql://...") as client:
        job = await client.insert(Job(fsm="order", step="reserve"))
        result = await client.result(job, timeout_s=10)
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str = "pgreferee client",
        size: int = 4,
        poke_instance: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._picker, self._questions = Picker(), Questions()
        self._observer: Observer = LoggingObserver() if observer is None else observer
        self._poker = _Poker(poke_instance)
        self._sessions = Sessions(dsn, self._observer, size=size, name=name)

    async def __aenter__(self) -> Self:
        await self._sessions.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._sessions.__aexit__(*exception)

    async def insert(self, job: Job) -> int | None:
        """As `Client.insert`."""
        row_id = await self._sessions.run(
            "insert", {"job": described(job)}, self._picker.insert(job), lambda found: {"id": found}
        )
        await self._poke([job.queue])
        return row_id

    async def insert_many(self, jobs: Iterable[Job]) -> Ids:
        """As `Client.insert_many`."""
        ids: Ids = []
        for chunk in _chunks(jobs):
            try:
                ids += await self._sessions.run(
                    "insert_many",
                    {"jobs": [described(job) for job in chunk]},
                    self._picker.insert_many(chunk),
                    _told_of_ids,
                )
            except (psycopg.Error, OutcomeUnknown, Unavailable) as error:
                if not ids:
                    raise
                raise InsertInterrupted(ids) from error
            await self._poke(job.queue for job in chunk)
        return ids

    async def signal(
        self, target: int | str, name: str, payload: object = None, *, dedup_key: str | None = None
    ) -> Delivery:
        """As `Client.signal`."""
        delivery = await self._sessions.run(
            "signal",
            _signalled(target, name, dedup_key),
            self._picker.signal(target, name, payload, dedup_key),
            _told_of_delivery,
        )
        await self._poke([] if delivery.woken is None else [delivery.woken])
        return delivery

    async def result(self, id: int, timeout_s: float) -> Result:  # noqa: A002
        """As `Client.result`."""
        wait = _Wait(id, timeout_s)
        while True:
            result = await self._sessions.run(
                "outcome", {"id": id}, self._questions.outcome(id), _told_of_result
            )
            if result.status in TERMINAL:
                return result
            await asyncio.sleep(wait.pause_after(result.status))

    async def inspect(self, id: int) -> Instance:  # noqa: A002
        """As `Client.inspect`."""
        return _only(
            id,
            await self._sessions.run("inspect", {"id": id}, self._questions.inspect([id]), _told_of_nothing),
        )

    async def list(
        self,
        *,
        status: Status | None = None,
        queue: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """As `Client.list`."""
        operation = self._questions.list(status=status, queue=queue, limit=limit, cursor=cursor)
        return await self._sessions.run("list", {}, operation, _told_of_nothing)

    async def counts(self, *, at_most: int = COUNTED) -> Counts:
        """As `Client.counts`."""
        operation = self._questions.counts(at_most)
        return await self._sessions.run("counts", {"at_most": at_most}, operation, _told_of_nothing)

    async def _poke(self, queues: Iterable[str]) -> None:
        if (operation := self._poker.after(queues)) is not None:
            try:
                await self._sessions.run("notify", {}, operation, _told_of_nothing)
            except (psycopg.Error, OutcomeUnknown, Unavailable):
                self._observer.count("poke_failed")


class _Poker:
    """What a client says to the nodes after it made work."""

    def __init__(self, instance: str | None) -> None:
        self._instance = instance
        self._debounce = Debounce(POKE_DEBOUNCE_MS)
        self._sql = Catalogue.load()

    def after(self, queues: Iterable[str]) -> Operation[None] | None:
        """The poke that work on these queues deserves, None for none."""
        if self._instance is None:
            return None
        due = self._debounce.due(queues)
        return notify(self._sql, self._instance, due) if due else None


class _Wait:
    """When to ask again for a result."""

    def __init__(self, id: int, timeout_s: float) -> None:  # noqa: A002
        self._id, self._timeout_s = id, timeout_s
        self._until = time.monotonic() + timeout_s
        self._pause_s = FIRST_POLL_S

    def pause_after(self, status: Status) -> float:
        """Seconds until the next question. Raises ResultTimeout when the time is up."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise ResultTimeout(self._id, status, self._timeout_s)
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * POLL_GROWTH, MAX_POLL_S)
        return min(pause_s, left)


def _chunks(jobs: Iterable[Job]) -> Iterable[list[Job]]:
    chunk: list[Job] = []
    for job in jobs:
        chunk.append(job)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _cursor(place: int) -> str:
    return base64.urlsafe_b64encode(b"1:%d" % place).decode().rstrip("=")


def _place(cursor: str | None) -> int:
    if cursor is None:
        return 0
    try:
        version, _, place = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).partition(b":")
        if version == b"1" and 0 <= int(place) < 2**63:
            return int(place)
    except ValueError:
        pass
    raise UnstorableValue(f"{cursor!r:.40} is no cursor of a page")


def _only(id: int, found: tuple[Instance, ...]) -> Instance:  # noqa: A002
    if not found:
        raise NoSuchInstance(f"there is no instance {id}")
    return found[0]


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _instance(row: Row) -> Instance:
    values: list[Any] = [value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for value in row]
    values[4], values[20] = _loaded(values[4]), _loaded(values[20])
    values[15] = None if values[15] is None else tuple(values[15])
    return Instance(*values)


def _told_of_ids(ids: Iterable[int | None]) -> Answer:
    return {"ids": list(ids)}


def _signalled(target: int | str, name: str, dedup_key: str | None) -> Answer:
    by_id = isinstance(target, int)
    return {
        "target": target if by_id else None,
        "key": None if by_id else target,
        "name": name,
        "dedup": dedup_key,
    }


def _told_of_delivery(delivery: Delivery) -> Answer:
    return {"outcome": delivery.outcome, "target": delivery.target, "signal": delivery.signal}


def _told_of_result(result: Result) -> Answer:
    return {"status": cast("str", result.status)}


def _told_of_nothing(_: object) -> Answer:
    return {}
