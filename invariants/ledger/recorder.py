"""The recorder: the process that owns a run's ledger.

It talks to its parent over standard input and output, one JSON object a line, and its life hangs on its
parent's: the end of standard input is an order to stop. The DSN comes that way because arguments can be read
by every user.

    parent → {"dsn", "folder", "shard"?, "shards"?, "settled_timeout_s"?}     once, first
    → parent {"event": "ready", "start"}                 slot and publication exist: the load may begin
    → parent {"event": "progress", "transactions", "changes", "violations", "rules": {name: [checked, violated]},
              "lag_bytes"}                               once a second
    parent → {"until": lsn or null}                      stop when that is passed; null: when everything is
    that is
                                                         committed now
    parent → {"abandon": reason}                         stop now: the run ends early
    → parent {"event": "done", "complete", "transactions", "changes", "differences", "reason"}
    → parent {"event": "failed", "error", "usage"}       instead, when it cannot record

After `until` it compares the replay with the tables and drops slot and publication. SIGINT and SIGTERM, or a
parent that is gone: it writes what it has, drops both, and says that the ledger is not complete. Nothing but
the tables' rows is kept in memory.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql
from typing_extensions import override

from invariants.elsewhere import Elsewhere
from invariants.evidence import LEDGER_SUMMARY, LedgerSummary
from invariants.judge import Judge
from invariants.ledger.frames import NAME, FrameWriter
from invariants.ledger.pgoutput import Decoder, format_lsn, parse_lsn
from invariants.ledger.reader import (
    LedgerUnavailable,
    SlotGone,
    Stream,
    create_slot,
    drop_slot,
    mark_rest,
    plain_text_dsn,
)
from invariants.ledger.state import Table
from invariants.picker import TABLE, check_generated
from invariants.stored import TABLES as STORED_TABLES

log = logging.getLogger("invariants.recorder")

PROGRESS_INTERVAL_S: Final = 1.0
# A slot that is gone is told apart; a server that recovers on a busy machine takes its time.
RECONNECT_S: Final = 120.0
STEP_S: Final = 0.1
MAX_DIFFERENCES: Final = 20
_READ_ROWS: Final = 5000


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a recorder is told. `settled_timeout_s` bounds the way to the marker; `failover`: see `create_slot`.
    `shard`: the server's place among `shards`."""

    dsn: str
    folder: str
    name: str = "pgreferee_ledger"
    settled_timeout_s: float = 120.0
    failover: bool = False
    shard: int = 0
    shards: int = 1

    @override
    def __repr__(self) -> str:
        return f"Config(folder={self.folder!r})"


class Order(msgspec.Struct, frozen=True):
    """The parent's order to stop: when `until` is passed, or at once because of what `abandon` says."""

    until: str | None = None
    abandon: str | None = None


class Orders:
    """Standard input and signals as one thing that can be waited for."""

    def __init__(self, source: int) -> None:
        self.source = source
        self.stopped: str | None = None
        self.order: Order | None = None
        self._buffer = b""
        self._read, self._written = os.pipe()
        os.set_blocking(self._written, False)
        signal.set_wakeup_fd(self._written)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    @property
    def wake(self) -> int:
        """Readable when there is an order; after one, only a signal counts."""
        return self._read if self.order is not None else self.source

    def line(self) -> bytes:
        """The first line, waited for. Raises EOFError."""
        while b"\n" not in self._buffer:
            data = os.read(self.source, 65536)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def look(self) -> None:
        """Take what has come, without waiting."""
        if self.order is not None or self.stopped is not None:
            return
        if b"\n" not in self._buffer and select.select([self.source], [], [], 0)[0]:
            data = os.read(self.source, 65536)
            if not data:
                self.stopped = "the parent is gone"
                return
            self._buffer += data
        if b"\n" in self._buffer:
            order = msgspec.json.decode(self.line(), type=Order)
            if order.abandon is not None:
                self.stopped = order.abandon
            else:
                self.order = order

    def _stop(self, number: int, _: object) -> None:
        self.stopped = f"interrupted by {signal.Signals(number).name}"


class Recording:
    """One recording. `run` returns its summary; see the module for the conversation."""

    def __init__(self, config: Config, orders: Orders) -> None:
        self._config = config
        self._orders = orders
        self._judge = Judge(elsewhere=Elsewhere(config.shard, config.shards))
        self._decoder = Decoder()
        self._until: int | None = None
        self._deadline = 0.0
        self._said_at = time.monotonic()
        self._side: psycopg.Connection[Any] | None = None
        self._recorded = 0

    def run(self) -> LedgerSummary:
        """Record until told to stop. Raises LedgerUnavailable, FileExistsError and psycopg.Error before
        `ready`."""
        config = self._config
        with FrameWriter(Path(config.folder) / NAME) as writer:
            start = create_slot(config.dsn, config.name, config.name, failover=config.failover)
            try:
                say({"event": "ready", "start": start})
                reason = self._record(writer, start)
                writer.flush()
                summary = self._summarise(reason)
                (Path(config.folder) / LEDGER_SUMMARY).write_bytes(msgspec.json.encode(summary))
            finally:
                self._clean_up()
        return summary

    def _clean_up(self) -> None:
        if self._side is not None:
            self._side.close()
        try:
            drop_slot(self._config.dsn, self._config.name, self._config.name)
        except psycopg.Error as error:
            # A server that is gone keeps them, and they go with its database: an idle slot does not hold that up.
            log.warning("slot and publication could not be dropped: %s", error)

    def _record(self, writer: FrameWriter, start: str) -> str | None:
        """Stream until the marker is passed; a reason where it was not."""
        recorded, lost_at = parse_lsn(start), None
        while True:
            try:
                stream = Stream(self._config.dsn, self._config.name, self._config.name, format_lsn(recorded))
            except SlotGone as error:
                return f"the ledger was lost: {error}"
            except psycopg.OperationalError as error:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > RECONNECT_S or self._orders.stopped is not None:
                    return f"the server could not be reached again: {error}"
                self._pause()
                continue
            lost_at = None
            try:
                return self._follow(stream, writer)
            except psycopg.OperationalError:
                # The server went away. What was open is sent again whole, what was recorded is not.
                self._decoder.reset()
                recorded = self._recorded
            finally:
                stream.close()

    def _follow(self, stream: Stream, writer: FrameWriter) -> str | None:
        feed, observe, append = self._decoder.feed, self._judge.observe, writer.append
        orders = self._orders
        self._recorded = stream.passed
        while True:
            for lsn, message in stream.messages(STEP_S, orders.wake):
                append(lsn, message)
                transaction = feed(message)
                if transaction is not None:
                    observe(transaction)
                    self._recorded = transaction.lsn
            if not self._decoder.open:
                self._recorded = max(self._recorded, stream.passed)
            orders.look()
            self._progress(stream, writer)
            if orders.stopped is not None:
                return orders.stopped
            if orders.order is not None and self._until is None:
                self._until = parse_lsn(orders.order.until or mark_rest(self._config.dsn))
                self._deadline = time.monotonic() + self._config.settled_timeout_s
            if self._until is not None and not self._decoder.open:
                if stream.passed >= self._until:
                    return None
                if time.monotonic() > self._deadline:
                    return f"the stream did not reach {format_lsn(self._until)} in time"
                stream.ask()

    def _progress(self, stream: Stream, writer: FrameWriter) -> None:
        now = time.monotonic()
        if now - self._said_at < PROGRESS_INTERVAL_S:
            return
        self._said_at = now
        writer.flush()
        stream.record(self._recorded)
        say(
            {
                "event": "progress",
                "transactions": self._judge.transactions,
                "changes": self._judge.changes,
                "violations": self._judge.violations,
                "rules": self._judge.standing,
                "lag_bytes": self._lag(stream),
            }
        )

    def _lag(self, stream: Stream) -> int | None:
        """Bytes of log that the server has flushed and the stream has not passed."""
        try:
            if self._side is None or self._side.closed:
                self._side = psycopg.connect(
                    self._config.dsn, autocommit=True, application_name="pgreferee recorder"
                )
            row = self._side.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        except psycopg.Error:
            return None
        return None if row is None else max(0, parse_lsn(row[0]) - stream.passed)

    def _pause(self) -> None:
        select.select([self._orders.wake], [], [], 0.25)
        self._orders.look()

    def _summarise(self, reason: str | None) -> LedgerSummary:
        judge = self._judge
        if reason is not None:
            return LedgerSummary(judge.transactions, judge.changes, False, reason=reason)
        compared, differences, generated = 0, [], []
        try:
            for name in ("signals", TABLE, *sorted(STORED_TABLES)):
                table = judge.table(name)
                if table is not None:
                    count, differs, wrong = compare(self._config.dsn, table)
                    compared += count
                    differences += differs
                    generated += wrong
        except psycopg.Error as error:
            reason = f"the tables at rest could not be read: {error}"
            return LedgerSummary(judge.transactions, judge.changes, False, compared, reason=reason)
        return LedgerSummary(
            judge.transactions, judge.changes, True, compared, tuple(differences), tuple(generated)
        )


def compare(dsn: str, table: Table) -> tuple[int, list[str], list[str]]:
    """Hold a replayed table against the real one: rows read, differences, wrong generated columns, in
    prose."""
    relation = table.relation
    read = 0
    differences: list[str] = []
    generated: list[str] = []
    with psycopg.connect(plain_text_dsn(dsn)) as connection, connection.cursor(name="compare") as cursor:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        names = [
            row[0]
            for row in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT "
                "attisdropped "
                "ORDER BY attnum",
                [relation.id],
            )
        ]
        columns = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
        cursor.itersize = _READ_ROWS
        cursor.execute(
            sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(relation.schema, relation.name))
        )
        for values in cursor:
            read += 1
            row: dict[str, Any] = dict(zip(names, values, strict=True))
            real = tuple(None if row[c] is None else row[c].encode() for c in relation.columns)
            replayed = table.get(table.key(real))
            if replayed != real and len(differences) < MAX_DIFFERENCES:
                differences.append(_difference(relation.name, relation.columns, real, replayed))
            if relation.name == TABLE and len(generated) < MAX_DIFFERENCES:
                wrong = check_generated(row)
                if wrong is not None:
                    generated.append(wrong)
    if read != len(table):
        differences.append(f"{relation.name} has {read} rows, its replay {len(table)}")
    return read, differences, generated


def _difference(
    name: str,
    columns: tuple[str, ...],
    real: tuple[bytes | None, ...],
    replayed: tuple[bytes | None, ...] | None,
) -> str:
    if replayed is None:
        return f"{name} {real[0]!r} is in the table and not in the replay"
    which = ", ".join(
        f"{column} {was!r} in the replay, {now!r} in the table"
        for column, was, now in zip(columns, replayed, real, strict=True)
        if was != now
    )
    return f"{name} {real[0]!r}: {which}"


def say(message: dict[str, object]) -> None:
    """One line to the parent. A parent that is gone is no error here: the recording is still written."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        pass


def main() -> int:
    """Run a recorder on this process's standard input and output. Returns an exit status: 0, 2 or 3."""
    orders = Orders(sys.stdin.fileno())
    # What was imported stays: looking at it again and again was a tenth of the time.
    gc.collect()
    gc.freeze()
    try:
        config = msgspec.json.decode(orders.line(), type=Config)
        summary = Recording(config, orders).run()
    except (EOFError, msgspec.DecodeError, LedgerUnavailable, OSError) as error:
        say({"event": "failed", "error": str(error) or "no configuration came", "usage": True})
        return 2
    except psycopg.Error as error:
        say({"event": "failed", "error": str(error), "usage": False})
        return 3
    say(
        {
            "event": "done",
            "complete": summary.complete,
            "transactions": summary.transactions,
            "changes": summary.changes,
            "differences": len(summary.differences),
            "reason": summary.reason,
        }
    )
    return 0
