"""Sessions on a real server whose clock stands still: what lets a model predict timestamps to the microsecond.

The engine's statements call `now()` by its bare name. In a database prepared here that name finds `public.now()`,
which returns the session setting `pgreferee.now`, before it finds the system's. The statements stay as they are, no
test waits for time to pass, and "eligible at this very instant" is a case like any other. `clock_timestamp()`, by which
the limiter tells a clock that was set back, is a microsecond later. A statement that stores the time of another clock
gives itself away by a timestamp that no model predicts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from engine.operation import PIPELINE, Operation, T, perform
from engine.schema import migrate
from models.canonical import canonical_text
from models.picker import PendingSignal, Row

# By so much `clock_timestamp()` is later than `now()`.
CLOCK_RUNS = timedelta(microseconds=1)

_CLOCK = """
CREATE OR REPLACE FUNCTION public.now() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT pg_catalog.current_setting('pgreferee.now')::timestamptz $$;
CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT pg_catalog.current_setting('pgreferee.now')::timestamptz + interval '1 microsecond' $$
"""
_ROWS = """
SELECT
    id, fsm, fsm_version, step, state::text, attempt, result::text, last_error, status::text, queue, priority,
    eligible_at, locked_by, lease_expires_at, concurrency_key, concurrency_shard, rate_limit, weight,
    correlation_key, correlation_scope::text[], turn, awaits, await_deadline, parent_id, children_pending,
    inserted_at, updated_at, concurrency_name, correlation_guard
FROM gen_durable
"""
_SIGNALS = "SELECT id, target_id, name, payload::text, dedup_key, inserted_at FROM signals"
_RECEIPTS = "SELECT target_id, dedup_key FROM signal_receipts"
_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"
# What an admission writes on a row that it lets start.
_STAMP = "UPDATE gen_durable SET concurrency_shard = %s WHERE id = %s"
_BUCKETS = """
SELECT kind, key, shard, capacity, available, last_refill, debt FROM gen_durable_buckets ORDER BY kind, key, shard
"""
# TRUNCATE makes a file for every index: 11 ms, and 140 ms on a busy machine. DELETE takes 1 ms, but the dead rows that
# it leaves are stepped over by every scan.
_DELETE = """
WITH rows AS (DELETE FROM gen_durable),
buckets AS (DELETE FROM gen_durable_buckets),
configs AS (DELETE FROM gen_durable_bucket_configs)
SELECT setval('gen_durable_id_seq', 1, false), setval('signals_id_seq', 1, false)
"""
_TRUNCATE = """
TRUNCATE gen_durable, signals, signal_receipts, gen_durable_buckets, gen_durable_bucket_configs RESTART IDENTITY
"""
_RESETS_PER_TRUNCATE = 50
# An operation waits for a lock within a millisecond or two; on a busy machine it may take long to get there.
_WAITING_WITHIN_S = 15
_POLL_S = 0.0005
_COLUMNS = tuple(Row.__dataclass_fields__)

# The planner is free to choose; what an operation answers must not depend on it.
PLANNERS: Mapping[str, Mapping[str, str]] = {
    "stock": {},
    "indexes": {"enable_seqscan": "off", "enable_sort": "off", "plan_cache_mode": "force_generic_plan"},
    "hashes": {"enable_nestloop": "off", "enable_tidscan": "off", "enable_indexscan": "off"},
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A row as it is stored, with the two columns that the database computes."""

    row: Row
    concurrency_name: str | None
    correlation_guard: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """All that is committed: rows and pending signals by id, and the receipts."""

    rows: Mapping[int, Seen]
    signals: Mapping[int, PendingSignal]
    receipts: frozenset[tuple[int, str]]


class Sessions:
    """One session per planner for operations, one more that holds row locks, and the time that all of them see."""

    def __init__(
        self, by_planner: Mapping[str, psycopg.Connection[Any]], holder: psycopg.Connection[Any]
    ) -> None:
        self._by_planner = by_planner
        self._holder = holder
        self._resets = 0

    @classmethod
    @contextmanager
    def opened(cls, dsn: str, now: datetime, schema: Sequence[str] = ()) -> Iterator[Sessions]:
        """Sessions on an empty database, which gets the clock, the schema, and what `schema` changes of it.

        Raises ValueError where the schema exists already: its column defaults would go by the system's clock.
        """
        with ExitStack() as stack:
            first = stack.enter_context(_connect(dsn))
            if first.execute("SELECT to_regclass('gen_durable')").fetchone() != (None,):
                raise ValueError("the database must be empty: its schema goes by another clock")
            first.execute(_CLOCK)
            sessions: dict[str, psycopg.Connection[Any]] = {}
            for planner, settings in PLANNERS.items():
                sessions[planner] = first if not sessions else stack.enter_context(_connect(dsn))
                for name, value in settings.items():
                    sessions[planner].execute("SELECT set_config(%s, %s, false)", (name, value))
            opened = cls(sessions, stack.enter_context(_connect(dsn)))
            opened.set_time(now)
            migrate(first)
            for statement in schema:
                first.execute(statement.encode())
            yield opened

    def set_time(self, now: datetime) -> None:
        """From here on it is `now` in every session."""
        for connection in (*self._by_planner.values(), self._holder):
            connection.execute("SELECT set_config('pgreferee.now', %s, false)", (now.isoformat(),))

    def reset(self, now: datetime) -> None:
        """An empty table whose first id is 1, no locks, and this time."""
        self.let_go()
        self._resets += 1
        self._holder.execute(_DELETE if self._resets % _RESETS_PER_TRUNCATE else _TRUNCATE)
        self.set_time(now)

    def perform(self, planner: str, operation: Operation[T]) -> T:
        """Run one operation of the engine to its end."""
        return perform(self._by_planner[planner], operation)

    def hold(self, ids: Collection[int]) -> None:
        """Lock these rows as the engine does, in a transaction that stays open until `let_go`. They must be free."""
        if self._holder.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self._holder.execute("BEGIN")
        query = "SELECT 1 FROM gen_durable WHERE id = ANY (%s) FOR NO KEY UPDATE NOWAIT"
        self._holder.execute(query, (list(ids),))

    def hold_shards(self, key: str, shards: Collection[int]) -> None:
        """Lock these shards of a bucket key like `hold`."""
        if self._holder.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self._holder.execute("BEGIN")
        query = "SELECT 1 FROM gen_durable_buckets WHERE key = %s AND shard = ANY (%s) FOR UPDATE NOWAIT"
        self._holder.execute(query, (key, list(shards)))

    def buckets(self) -> list[tuple[Any, ...]]:
        """Every shard as it is committed: kind, key, shard, capacity, available, last_refill, debt; in order."""
        connection = next(iter(self._by_planner.values()))
        with connection.cursor(binary=True) as cursor:
            return cursor.execute(_BUCKETS, prepare=True).fetchall()

    def let_go(self) -> None:
        """End the transaction that holds row locks, if there is one."""
        if self._holder.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._holder.execute("ROLLBACK")

    def stamp(self, row_id: int, shard: int) -> None:
        """Write on a row what an admission to this shard of its gate writes."""
        next(iter(self._by_planner.values())).execute(_STAMP, (shard, row_id))

    def call_holder(self, name: str) -> None:
        """Let the session that holds locks go by this application name."""
        self._holder.execute("SELECT set_config('application_name', %s, false)", (name,))

    def queue(self, ids: Collection[int], operations: Sequence[tuple[str, Operation[Any]]]) -> list[Any]:
        """Lock these rows, start the operations one behind the other, each in the session of its planner, and let go
        when the last one waits. The answers, or the server's error for one that failed.

        Each operation must be one that waits for these rows, and each planner another: then they take effect in their
        order, for a row's waiters are served in it. An operation that does not wait, as none of the engine's would,
        takes effect at once.
        """
        self.hold(ids)
        with ThreadPoolExecutor(len(operations)) as threads:
            try:
                waiting = []
                for planner, operation in operations:
                    answer = threads.submit(self.perform, planner, operation)
                    waiting.append(answer)
                    self._wait_for_waiting(self._by_planner[planner].info.backend_pid, answer)
            finally:
                self.let_go()
            return [_answer(each) for each in waiting]

    def _wait_for_waiting(self, backend: int, answer: Future[Any]) -> None:
        deadline = time.monotonic() + _WAITING_WITHIN_S
        while not answer.done() and self._holder.execute(_WAITS, (backend,)).fetchone() != (True,):
            if time.monotonic() > deadline:
                raise TimeoutError("an operation neither ends nor waits for a lock")
            time.sleep(_POLL_S)

    def stored(self) -> Stored:
        """The whole tables as they are committed."""
        connection = next(iter(self._by_planner.values()))
        with connection.pipeline() if PIPELINE else nullcontext():
            rows, signals, receipts = (
                connection.cursor(binary=True).execute(query, prepare=True)
                for query in (_ROWS, _SIGNALS, _RECEIPTS)
            )
        return Stored(
            {values[0]: _seen(values) for values in rows},
            {values[0]: _pending(values) for values in signals},
            frozenset(receipts.fetchall()),
        )


def _answer(answer: Future[Any]) -> Any:
    try:
        return answer.result()
    except psycopg.Error as error:
        return error


def _connect(dsn: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(dsn, autocommit=True)
    # pg_catalog must be named to come second; unnamed it comes first.
    connection.execute("SET search_path = public, pg_catalog")
    connection.execute("SET TimeZone = 'UTC'")
    # A planner setting that is off is paid for in made-up cost, and that cost alone would have each plan compiled.
    connection.execute("SET jit = off")
    # Nothing here waits for a lock on purpose.
    connection.execute("SET statement_timeout = '20s'")
    return connection


def _seen(values: tuple[Any, ...]) -> Seen:
    columns = dict(zip(_COLUMNS, values[:-2], strict=True))
    columns["state"] = canonical_text(columns["state"])
    if columns["result"] is not None:
        columns["result"] = canonical_text(columns["result"])
    columns["correlation_scope"] = frozenset(columns["correlation_scope"])
    if columns["awaits"] is not None:
        columns["awaits"] = tuple(columns["awaits"])
    return Seen(Row(**columns), *values[-2:])


def _pending(values: tuple[Any, ...]) -> PendingSignal:
    signal_id, target_id, name, payload, dedup_key, inserted_at = values
    return PendingSignal(signal_id, target_id, name, canonical_text(payload), dedup_key, inserted_at)
