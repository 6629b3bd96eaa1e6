"""`SqliteStore`: the same store in one file, for one machine; any number of processes and threads, and no server.

    store = SqliteStore("state.db")

Rules, where they differ from Postgres':

1. A commit is `BEGIN IMMEDIATE` to `COMMIT`: one writer at a time in the whole file, the others wait their turn up to
   `timeout_s` and raise StoreBusy then, with nothing written. So nothing races, and each step is plain.
2. The file is in WAL mode, so readers wait for nobody; a commit is on the disk when it returns (`synchronous = FULL`).
3. Outbox and spawns use AUTOINCREMENT: a seq whose row was acked is never drawn again, or a late second ack would
   delete somebody else's event.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from engine.schema import SchemaTooNew
from engine.store.calls import Blocking
from engine.store.encoding import (
    ROWS,
    TRACE_MAX,
    Prepared,
    bounded,
    event_of,
    execution_of,
    instant,
    key,
    page_of_rows,
    place_of,
    prepare,
    ring,
    seq_of,
    statuses_of,
    step,
    steps_of,
)
from engine.store.execution import (
    Commit,
    Event,
    Execution,
    Page,
    Refusal,
    StoreConflict,
)
from engine.store.operations import StoreBusy, check_batch, check_size, refusal_of
from engine.values import UnstorableValue

Json = Any

TIMEOUT_S = 30.0
_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE executions (
    id TEXT NOT NULL PRIMARY KEY, definition_id TEXT NOT NULL, data TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 1),
    status TEXT, outcome TEXT, active_path TEXT, parent_id TEXT
);
CREATE INDEX executions_status ON executions (status, id);
CREATE TABLE outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, target_id TEXT, event TEXT NOT NULL);
CREATE TABLE processed_events (
    execution_id TEXT NOT NULL, event_id TEXT NOT NULL, PRIMARY KEY (execution_id, event_id)
) WITHOUT ROWID;
CREATE TABLE timers (
    execution_id TEXT NOT NULL, path TEXT NOT NULL, fire_at REAL NOT NULL, PRIMARY KEY (execution_id, path)
) WITHOUT ROWID;
CREATE INDEX timers_due ON timers (fire_at, execution_id, path);
CREATE TABLE spawns (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, parent_id TEXT NOT NULL, child_id TEXT NOT NULL, root_path TEXT NOT NULL,
    context TEXT NOT NULL
);
CREATE TABLE trace (
    execution_id TEXT NOT NULL, idx INTEGER NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (execution_id, idx)
);
"""
_FIND: Final = """
SELECT
    (SELECT version FROM executions WHERE id = :id),
    EXISTS (SELECT 1 FROM processed_events WHERE execution_id = :id AND event_id = :event)
"""
_INSERT: Final = """
INSERT INTO executions (id, definition_id, data, version, status, outcome, active_path, parent_id)
VALUES (:id, :definition_id, :data, 1, :status, :outcome, :active_path, :parent_id)
"""
_UPDATE: Final = """
UPDATE executions SET
    definition_id = :definition_id, data = :data, version = version + 1,
    status = :status, outcome = :outcome, active_path = :active_path, parent_id = :parent_id
WHERE id = :id
"""
_SCHEDULE: Final = """
INSERT INTO timers (execution_id, path, fire_at) VALUES (?, ?, ?)
ON CONFLICT (execution_id, path) DO UPDATE SET fire_at = excluded.fire_at
"""
_LAST_STEP: Final = "SELECT coalesce(max(idx), -1) FROM trace WHERE execution_id = ?"
_LOAD_FOR_EVENT: Final = """
SELECT data, version, EXISTS (SELECT 1 FROM processed_events WHERE execution_id = :id AND event_id = :event)
FROM executions WHERE id = :id
"""
_PAGE: Final = """
SELECT id, definition_id, version, status, outcome, active_path, parent_id
FROM executions
WHERE id > :after
    AND (:definition_id IS NULL OR definition_id = :definition_id)
    AND (NOT :roots_only OR parent_id IS NULL)
    AND (:statuses IS NULL OR status IN (SELECT value FROM json_each(:statuses)))
ORDER BY id LIMIT :limit
"""
_DUE: Final = """
SELECT execution_id, path, fire_at FROM timers
WHERE fire_at <= ? ORDER BY fire_at, execution_id, path LIMIT ?
"""


class SqliteStore(Blocking):
    """The store in a SQLite file. The constructor creates the schema, whoever else does so at the same time.

    Threads may share one: a call waits for the one before. Methods and errors are those of `PostgresStore`;
    CommitOutcomeUnknown cannot happen, for there is no connection to lose.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, trace_max: int = TRACE_MAX, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._trace_max = ring(trace_max)
        self._lock = threading.RLock()
        self._timeout_s = timeout_s
        self._connection = sqlite3.connect(
            path, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def load(self, execution_id: str) -> Execution | None:
        """As `PostgresStore.load`."""
        rows = self._read(
            "SELECT data, version FROM executions WHERE id = ?", (key("execution_id", execution_id),)
        )
        return execution_of(*rows[0]) if rows else None

    def load_for_event(self, execution_id: str, event_id: str) -> tuple[Execution | None, bool]:
        """As `PostgresStore.load_for_event`."""
        names = {"id": key("execution_id", execution_id), "event": key("event_id", event_id)}
        rows = self._read(_LOAD_FOR_EVENT, names)
        return (execution_of(*rows[0][:2]), bool(rows[0][2])) if rows else (None, False)

    def is_processed(self, execution_id: str, event_id: str) -> bool:
        """As `PostgresStore.is_processed`."""
        names = (key("execution_id", execution_id), key("event_id", event_id))
        return bool(
            self._read("SELECT 1 FROM processed_events WHERE execution_id = ? AND event_id = ?", names)
        )

    def _commit(self, commit: Commit) -> None:
        (refusal,) = self.commit_many([commit])
        if refusal is not None:
            raise refusal

    def commit_many(self, commits: Sequence[Commit]) -> list[Refusal | None]:
        """As `PostgresStore.commit_many`."""
        check_batch(commits)
        prepared = [_prepared(commit) for commit in commits]
        good = [commit for commit in prepared if isinstance(commit, Prepared)]
        check_size(good)
        versions = {id(commit.execution): commit.expected for commit in good}
        answers: list[Refusal | None] = []
        with self._transaction():
            for commit in prepared:
                if isinstance(commit, UnstorableValue):
                    answers.append(commit)
                    continue
                refusal = self._write(commit, versions[id(commit.execution)])
                versions[id(commit.execution)] += refusal is None
                answers.append(refusal)
        for commit in good:
            commit.execution.version = versions[id(commit.execution)]
        return answers

    def pending_outbox(self, limit: int = ROWS) -> list[tuple[int, str | None, Event]]:
        """As `PostgresStore.pending_outbox`."""
        rows = self._read("SELECT seq, target_id, event FROM outbox ORDER BY seq LIMIT ?", (bounded(limit),))
        return [(seq, target_id, event_of(event)) for seq, target_id, event in rows]

    def ack_outbox(self, seq: int) -> None:
        """As `PostgresStore.ack_outbox`."""
        with self._transaction():
            self._connection.execute("DELETE FROM outbox WHERE seq = ?", (seq_of(seq),))

    def pending_spawns(self, limit: int = ROWS) -> list[tuple[int, str, str, str, dict[str, Json]]]:
        """As `PostgresStore.pending_spawns`."""
        rows = self._read(
            "SELECT seq, parent_id, child_id, root_path, context FROM spawns ORDER BY seq LIMIT ?",
            (bounded(limit),),
        )
        return [(*row[:4], json.loads(row[4])) for row in rows]

    def ack_spawn(self, seq: int) -> None:
        """As `PostgresStore.ack_spawn`."""
        with self._transaction():
            self._connection.execute("DELETE FROM spawns WHERE seq = ?", (seq_of(seq),))

    def due_timers(self, now: float, limit: int = ROWS) -> list[tuple[str, str, float]]:
        """As `PostgresStore.due_timers`."""
        return self._read(_DUE, (instant("now", now), bounded(limit)))

    def delete_timer(self, execution_id: str, path: str, fire_at: float) -> None:
        """As `PostgresStore.delete_timer`."""
        names = (key("execution_id", execution_id), key("path", path), instant("fire_at", fire_at))
        with self._transaction():
            self._connection.execute(
                "DELETE FROM timers WHERE execution_id = ? AND path = ? AND fire_at = ?", names
            )

    def append_trace(self, execution_id: str, entry: dict[str, Json]) -> None:
        """As `PostgresStore.append_trace`."""
        execution_id, text = key("execution_id", execution_id), step(entry)
        with self._transaction():
            self._append(execution_id, text)

    def read_trace(self, execution_id: str) -> list[dict[str, Json]]:
        """As `PostgresStore.read_trace`."""
        names = (key("execution_id", execution_id),)
        return steps_of(self._read("SELECT idx, entry FROM trace WHERE execution_id = ? ORDER BY idx", names))

    def list_executions(
        self,
        status: str | Iterable[str] | None = None,
        definition_id: str | None = None,
        roots_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """As `PostgresStore.list_executions`."""
        statuses = statuses_of(status)
        names = {
            "after": place_of(cursor),
            "definition_id": None if definition_id is None else key("definition_id", definition_id),
            "roots_only": bool(roots_only),
            "statuses": None if statuses is None else json.dumps(statuses),
            "limit": bounded(limit) + 1,
        }
        rows = self._read(_PAGE, names)
        return page_of_rows(rows, limit)

    def _set_up(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                # The busy timeout does not cover this change of the file's header.
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            ((version,),) = self._connection.execute("PRAGMA user_version")
            if version > _SCHEMA_VERSION:
                raise SchemaTooNew(
                    f"the file's schema is at version {version}, this engine knows {_SCHEMA_VERSION}: upgrade it"
                )
            if version < _SCHEMA_VERSION:
                # One by one: executescript would commit first.
                for statement in _SCHEMA.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    def _write(self, commit: Prepared, expected: int) -> StoreConflict | None:
        execute = self._connection.execute
        names = {
            "id": commit.id, "definition_id": commit.definition_id, "data": commit.data, "status": commit.status,
            "outcome": commit.outcome, "active_path": commit.active_path, "parent_id": commit.parent_id,
            "event": commit.event,
        }  # fmt: skip
        ((found, processed),) = execute(_FIND, names)
        if processed or (found or 0) != expected:
            return refusal_of(commit.id, expected, found, bool(processed))
        execute(_INSERT if found is None else _UPDATE, names)
        for emit in commit.outbox:
            execute("INSERT INTO outbox (target_id, event) VALUES (?, ?)", emit)
        if commit.event is not None:
            execute("INSERT INTO processed_events VALUES (?, ?)", (commit.id, commit.event))
        for spawn in commit.spawns:
            execute(
                "INSERT INTO spawns (parent_id, child_id, root_path, context) VALUES (?, ?, ?, ?)",
                (commit.id, *spawn),
            )
        for path, fire_at in commit.timers:
            if fire_at is None:
                execute("DELETE FROM timers WHERE execution_id = ? AND path = ?", (commit.id, path))
            else:
                execute(_SCHEDULE, (commit.id, path, fire_at))
        if commit.trace is not None:
            self._append(commit.id, commit.trace)
        return None

    def _append(self, execution_id: str, entry: str) -> None:
        ((last,),) = self._connection.execute(_LAST_STEP, (execution_id,))
        self._connection.execute("INSERT INTO trace VALUES (?, ?, ?)", (execution_id, last + 1, entry))
        self._connection.execute(
            "DELETE FROM trace WHERE execution_id = ? AND idx <= ?",
            (execution_id, last + 1 - self._trace_max),
        )

    def _read(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                    raise StoreBusy(f"other writers held the file for {self._timeout_s} s") from error
                raise
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")


def _prepared(commit: Commit) -> Prepared | UnstorableValue:
    try:
        return prepare(commit)
    except UnstorableValue as error:
        return error
