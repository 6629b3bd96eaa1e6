"""Stream a database's changes over the replication protocol: the thin I/O of the ledger.

Rules of the exchange (PostgreSQL manual, "Streaming Replication Protocol"):

1. The slot exists before the load does. It keeps the write-ahead log from its creation on, so nothing is
   missed.
2. `START_REPLICATION` turns the connection into a two-way copy. The server sends `w` (one message of
   `pgoutput`) and `k` (keepalive: how far it has decoded, and whether it wants an answer); the reader sends
   `r` (how far it has recorded). The server lets log go up to what `r` confirmed; a reader that is silent for
   `wal_sender_timeout` is cut off, so one is sent every second.
3. Only a commit is confirmed. After a broken connection the server sends again, whole, every transaction
   whose commit lies behind the position that the reader asks to start from, and none before it.
4. The reader knows that a position has been passed from the positions of `w` and `k` alone; it asks for a `k`
   when nothing comes.

Streaming decodes each piece of log once. Polling `pg_logical_slot_get_binary_changes` would start decoding
anew at each poll.

The session reads in UTC, ISO style and full float precision, whatever the server's defaults, so the text of a
value is the same on every server.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from invariants.ledger.pgoutput import POSTGRES_EPOCH_US, format_lsn, parse_lsn

# Undefined object; object not in the state that it has to be in.
GONE: Final = ("42704", "55000")
STATUS_INTERVAL_S: Final = 1.0
ASK_INTERVAL_S: Final = 0.1
_OPTIONS = (
    "-c datestyle=ISO,YMD -c timezone=UTC -c intervalstyle=postgres -c extra_float_digits=3 "
    "-c bytea_output=hex"
)
_XLOG = struct.Struct("!xQQq")
_KEEPALIVE = struct.Struct("!xQqB")
_STATUS = struct.Struct("!cQQQqB")
# Messages taken from the connection before its caller is asked again whether to stop.
_BURST: Final = 20_000


class LedgerUnavailable(Exception):  # a state of the server, not of this code
    """The server or the role does not allow a ledger; the message says which setting to change."""


class SlotGone(psycopg.OperationalError):
    """There is no such slot any more, or the log that it needs has been removed: nothing brings that back."""


def plain_text_dsn(dsn: str) -> str:
    """The same server and database, in a session whose text output is the same everywhere."""
    options = conninfo_to_dict(dsn).get("options")
    return make_conninfo(dsn, options=f"{options} {_OPTIONS}" if options else _OPTIONS)


def create_slot(dsn: str, slot: str, publication: str, *, failover: bool = False) -> str:
    """Create publication and slot on the database; returns the position from which changes are kept.

    `failover`: a standby is to have the slot too (Postgres 17). Every ordinary table whose rows have an
    identity is published. Raises LedgerUnavailable.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        level = connection.execute("SHOW wal_level").fetchone()
        if level is None or level[0] != "logical":
            raise LedgerUnavailable(
                "the server runs without wal_level = logical: set it and restart the server"
            )
        tables = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class AS c INNER JOIN pg_namespace AS n ON n.oid = "
            "c.relnamespace "
            "WHERE c.relkind = 'r' AND c.relpersistence = 'p' "
            "AND n.nspname NOT IN ('pg_catalog', 'information_schema') "
            "AND (c.relreplident IN ('f', 'i') OR EXISTS "
            "(SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary)) ORDER BY 1, 2"
        ).fetchall()
        if not tables:
            raise LedgerUnavailable("the database has no table with a primary key: create the schema first")
        names = sql.SQL(", ").join(sql.Identifier(schema, table) for schema, table in tables)
        try:
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(sql.Identifier(publication), names)
            )
            create = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput'{})"
            row = connection.execute(
                create.format(", false, false, true" if failover else "").encode(), [slot]
            ).fetchone()
        except psycopg.errors.InsufficientPrivilege as error:
            raise LedgerUnavailable(f"the role may not record: {error.diag.message_primary}") from error
        except psycopg.errors.ConfigurationLimitExceeded as error:
            raise LedgerUnavailable(
                "all replication slots are in use: raise max_replication_slots"
            ) from error
        assert row is not None
        return str(row[0])


def mark_rest(dsn: str) -> str:
    """A position that lies behind every transaction committed before this call, flushed to the log."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")
        connection.execute("SELECT pg_logical_emit_message(true, 'pgreferee', 'rest')")
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])


def read_tail(dsn: str, slot: str, publication: str) -> list[tuple[int, bytes]]:
    """(position, message) of all that a server has committed since its slot last moved, which stays where it is. For
    a server that nobody uses any more. Raises psycopg.Error."""
    query = (
        "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes("
        "%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)"
    )
    with psycopg.connect(plain_text_dsn(dsn), autocommit=True) as connection:
        return [
            (parse_lsn(lsn), data) for lsn, data in connection.execute(query.encode(), (slot, publication))
        ]


def drop_slot(dsn: str, slot: str, publication: str, deadline_s: float = 10.0) -> None:
    """Drop both, waiting for the server to let go of the slot. Raises psycopg.Error; absent ones are no
    error."""
    with psycopg.connect(
        dsn, autocommit=True, options=f"-c statement_timeout={int(deadline_s * 1000)}"
    ) as connection:
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication)))
    with psycopg.connect(dsn, autocommit=True, replication="database") as connection:
        try:
            connection.execute(sql.SQL("DROP_REPLICATION_SLOT {} WAIT").format(sql.Identifier(slot)))
        except psycopg.errors.UndefinedObject:
            pass


class Stream:
    """An open stream of one slot, from `start` on.

    `passed` is how far the server says it has decoded. Raises SlotGone, and psycopg.OperationalError when the
    connection breaks.
    """

    def __init__(self, dsn: str, slot: str, publication: str, start: str) -> None:
        self.passed = parse_lsn(start)
        self._recorded = self.passed
        self._answer = False
        self._connection: psycopg.Connection[Any] = psycopg.connect(
            plain_text_dsn(dsn), autocommit=True, replication="database"
        )
        self._pgconn = self._connection.pgconn
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})"
        ).format(sql.Identifier(slot), sql.SQL(format_lsn(self.passed)), sql.Literal(publication))
        result = self._pgconn.exec_(command.as_bytes(self._connection))
        if result.status != pq.ExecStatus.COPY_BOTH:
            message = " ".join(result.get_error_message().split())
            gone = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode() in GONE
            self._connection.close()
            raise (SlotGone if gone else psycopg.OperationalError)(f"the slot cannot be read: {message}")
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._sent_at = time.monotonic()

    def messages(self, timeout_s: float, wake: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(position, message) of what has come, or comes within `timeout_s`; at most a burst.

        `wake` is a file descriptor that ends the wait when it becomes readable.
        """
        get, unpack = self._pgconn.get_copy_data, _XLOG.unpack_from
        size, data = get(1)
        if size == 0:
            self._wait(timeout_s, wake)
            size, data = get(1)
        taken = 0
        while size > 0:
            if data[0] == 119:  # w
                frame = bytes(data)
                start, _, _ = unpack(frame)
                self.passed = max(self.passed, start)
                yield start, frame[25:]
            else:
                end, _, wanted = _KEEPALIVE.unpack_from(data)
                self.passed = max(self.passed, end)
                self._answer = self._answer or bool(wanted)
            taken += 1
            if taken >= _BURST:
                break
            size, data = get(1)
        if size == -1:
            raise psycopg.OperationalError("the server ended the stream")
        if size == -2:
            raise psycopg.OperationalError(self._pgconn.error_message.decode(errors="replace"))
        if self._answer or time.monotonic() - self._sent_at >= STATUS_INTERVAL_S:
            self._status(ask=False)

    def record(self, lsn: int) -> None:
        """Everything up to that position is recorded and need not be sent again."""
        self._recorded = max(self._recorded, lsn)

    def ask(self) -> None:
        """Ask the server how far it is; more often than every tenth of a second is left out."""
        if time.monotonic() - self._sent_at >= ASK_INTERVAL_S:
            self._status(ask=True)

    def close(self) -> None:
        """End the copy, so that the server lets go of the slot, and disconnect."""
        try:
            self._status(ask=False)
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        except psycopg.Error:
            pass
        self._connection.close()

    def _wait(self, timeout_s: float, wake: int | None) -> None:
        # Several messages may have arrived in one read, so the socket alone does not tell: consume, then
        # look.
        if wake is not None:
            self._poll.register(wake, select.POLLIN)
        self._poll.poll(timeout_s * 1000)
        if wake is not None:
            self._poll.unregister(wake)
        self._pgconn.consume_input()

    def _status(self, *, ask: bool) -> None:
        now = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        at = self._recorded
        self._pgconn.put_copy_data(_STATUS.pack(b"r", at, at, at, now, int(ask)))
        self._pgconn.flush()
        self._sent_at = time.monotonic()
        self._answer = False
