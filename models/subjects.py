"""Stores under test: several sessions of one store, and its tables as they are committed.

    postgres    one database: a connection of the store's own, one that was handed to it, and a pool that is awaited
    sqlite      one file: two connections
    sharded     two Postgres schemas and a file behind one router, in two sessions

The sessions on Postgres begin with a default of REPEATABLE READ, which the store must not inherit.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.conninfo import make_conninfo

from engine.statements import Catalogue
from engine.store import AsyncPostgresStore, PostgresStore, ShardedStore, SqliteStore, Store
from engine.store.shards import ticket
from models.store import Emitted, Saved, Spawned, canonical

# A ring this short is full after a few steps.
TRACE_MAX = 3

TABLES = ("executions", "outbox", "processed_events", "timers", "spawns", "trace")
_COLUMNS: Mapping[str, str] = {
    "executions": "id, definition_id, data, version, status, outcome, active_path, parent_id",
    "outbox": "seq, target_id, event",
    "processed_events": "execution_id, event_id",
    "timers": "execution_id, path, fire_at",
    "spawns": "seq, parent_id, child_id, root_path, context",
    "trace": "execution_id, idx, entry",
}
_DELETE = """
WITH a AS (DELETE FROM executions),
b AS (DELETE FROM outbox),
c AS (DELETE FROM processed_events),
d AS (DELETE FROM timers),
e AS (DELETE FROM spawns),
f AS (DELETE FROM trace)
SELECT setval('outbox_seq_seq', 1, false), setval('spawns_seq_seq', 1, false)
"""
# Dead rows are stepped over by every scan, and TRUNCATE takes long: one of it in so many resets.
_RESETS_PER_TRUNCATE = 50

Query = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Tables:
    """All that is stored, by key."""

    executions: Mapping[str, Saved]
    processed: frozenset[tuple[str, str]]
    outbox: Mapping[int, Emitted]
    spawns: Mapping[int, Spawned]
    timers: Mapping[tuple[str, str], float]
    trace: Mapping[str, tuple[tuple[int, str], ...]]


@dataclass(frozen=True, slots=True)
class Subject:
    """`sessions` by name; `tables` reads what is committed; `reset` empties everything. `shards`: how many."""

    sessions: Mapping[str, Store]
    tables: Callable[[], Tables]
    reset: Callable[[], None]
    shards: int = 1


@contextmanager
def postgres(dsn: str, catalogue: Catalogue | None, schema: Sequence[str]) -> Iterator[Subject]:
    """The store in a database that has no store yet. `schema` is run after its migrations."""
    with ExitStack() as stack:
        sloppy = _sloppy(dsn)
        own = PostgresStore.from_dsn(sloppy, trace_max=TRACE_MAX, catalogue=catalogue)
        stack.callback(own.close)
        injected = PostgresStore(psycopg.connect(dsn), trace_max=TRACE_MAX, catalogue=catalogue)
        stack.callback(injected.close)
        awaited = stack.enter_context(_awaited(sloppy, catalogue))
        reader = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        for statement in schema:
            reader.execute(statement)
        sessions: dict[str, Store] = {"own": own, "injected": injected, "awaited": awaited}
        yield Subject(sessions, lambda: _tables([_query(reader)]), _reset(reader))


@contextmanager
def sqlite(folder: Path) -> Iterator[Subject]:
    """The store in a new file of that folder."""
    path = folder / "store.db"
    with ExitStack() as stack:
        sessions: dict[str, Store] = {}
        for name in ("one", "two"):
            store = SqliteStore(path, trace_max=TRACE_MAX)
            stack.callback(store.close)
            sessions[name] = store
        reader = sqlite3.connect(path, isolation_level=None)
        stack.callback(reader.close)
        yield Subject(sessions, lambda: _tables([_query(reader)]), lambda: _empty(reader))


@contextmanager
def sharded(dsn: str, catalogue: Catalogue | None, schema: Sequence[str]) -> Iterator[Subject]:
    """A store of three shards, two of them schemas of a database that has no store yet."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgreferee-store-")))
        path = folder / "shard.db"
        readers: list[psycopg.Connection[Any]] = []
        dsns = []
        for name in ("shard_one", "shard_two"):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {name}")
            dsns.append(_sloppy(dsn, f"-c search_path={name}"))
            readers.append(stack.enter_context(psycopg.connect(dsns[-1], autocommit=True)))
        sessions: dict[str, Store] = {}
        for name in ("one", "two"):
            shards: list[Store] = [
                PostgresStore.from_dsn(each, trace_max=TRACE_MAX, catalogue=catalogue) for each in dsns
            ]
            store = ShardedStore([*shards, SqliteStore(path, trace_max=TRACE_MAX)])
            stack.callback(store.close)
            sessions[name] = store
        for reader in readers:
            for statement in schema:
                reader.execute(statement)
        file = sqlite3.connect(path, isolation_level=None)
        stack.callback(file.close)

        resets: list[Callable[[], None]] = [*(_reset(reader) for reader in readers), lambda: _empty(file)]

        def reset() -> None:
            for each in resets:
                each()

        queries = [*(_query(reader) for reader in readers), _query(file)]
        yield Subject(sessions, lambda: _tables(queries), reset, len(queries))


class _Awaited:
    """A store that is awaited, for code that blocks."""

    def __init__(self, runner: asyncio.Runner, store: AsyncPostgresStore) -> None:
        self._runner, self._store = runner, store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *arguments, **named: self._runner.run(method(*arguments, **named))


@contextmanager
def _awaited(dsn: str, catalogue: Catalogue | None) -> Iterator[Store]:
    with asyncio.Runner() as runner:
        opened = AsyncPostgresStore.from_dsn(dsn, pool_size=2, trace_max=TRACE_MAX, catalogue=catalogue)
        store = runner.run(opened)
        try:
            yield cast(Store, _Awaited(runner, store))
        finally:
            runner.run(store.close())


def _sloppy(dsn: str, more: str = "") -> str:
    return make_conninfo(dsn, options=f"-c default_transaction_isolation=repeatable\\ read {more}")


def _query(connection: psycopg.Connection[Any] | sqlite3.Connection) -> Query:
    return lambda sql: connection.execute(sql).fetchall()


def _reset(connection: psycopg.Connection[Any]) -> Callable[[], None]:
    resets = 0

    def reset() -> None:
        nonlocal resets
        resets += 1
        names = ", ".join(TABLES)
        connection.execute(_DELETE if resets % _RESETS_PER_TRUNCATE else f"TRUNCATE {names} RESTART IDENTITY")

    return reset


def _empty(connection: sqlite3.Connection) -> None:
    for name in (*TABLES, "sqlite_sequence"):
        connection.execute(f"DELETE FROM {name}")  # noqa: S608  # a name of ours


def _tables(shards: Sequence[Query]) -> Tables:
    executions: dict[str, Saved] = {}
    processed: set[tuple[str, str]] = set()
    outbox: dict[int, Emitted] = {}
    spawns: dict[int, Spawned] = {}
    timers: dict[tuple[str, str], float] = {}
    trace: dict[str, list[tuple[int, str]]] = {}
    several = len(shards) > 1
    for place, query in enumerate(shards):
        rows = {name: query(f"SELECT {_COLUMNS[name]} FROM {name}") for name in TABLES}  # noqa: S608
        for name, definition_id, data, *rest in rows["executions"]:
            assert name not in executions, f"execution {name!r} lives in two shards"
            executions[name] = Saved(definition_id, canonical(json.loads(data)), *rest)
        processed.update((execution, event) for execution, event in rows["processed_events"])
        for seq, target_id, event in rows["outbox"]:
            known = ticket(place, seq) if several else seq
            outbox[known] = Emitted(target_id, canonical(json.loads(event)), "")
        for seq, parent_id, child_id, root_path, context in rows["spawns"]:
            known = ticket(place, seq) if several else seq
            spawns[known] = Spawned(parent_id, child_id, root_path, canonical(json.loads(context)))
        timers |= {(execution, path): fire_at for execution, path, fire_at in rows["timers"]}
        for execution, index, entry in rows["trace"]:
            trace.setdefault(execution, []).append((index, canonical(json.loads(entry))))
    steps = {execution: tuple(sorted(entries)) for execution, entries in trace.items()}
    return Tables(executions, frozenset(processed), outbox, spawns, timers, steps)
