"""Decode `pgoutput`, protocol version 1, into transactions: pure, no I/O.

Theory of operation (PostgreSQL manual, "Logical Replication Message Formats"):

1. Messages come in commit order and never interleaved: Begin, then the changes of one transaction, then
   Commit. A transaction that was rolled back never appears.
2. A Relation message describes a table before its first change on a connection, and again after its
   definition changed. A change names its relation by number only, so the decoder keeps the last description
   of each.
3. A row is a list of columns, each null, a text, or "unchanged": a large value that lives out of line and was
   not written by this update. The decoder marks the row `partial`; `state` puts the old value back.
4. Generated columns are not sent (Postgres 18 can, and is not asked to).
5. With the default replica identity an update that leaves the primary key alone carries no old row, and a
   delete carries the key with nulls elsewhere. `state` knows the rest.

A value stays the bytes that the server sent. Most columns of most changes are only compared, never read, and
a rule that reads one decodes that one. Text order is worth knowing: timestamps of a session in UTC and ISO
style compare as bytes exactly as they compare in time, from year 1 to 9999.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

# Microseconds between 1970-01-01 and 2000-01-01, where Postgres counts from.
POSTGRES_EPOCH_US: Final = 946_684_800_000_000

Kind = Literal["insert", "update", "delete", "truncate"]
Value = bytes | None
Row = tuple[Value, ...]

# Stands in a partial row where the server left a value out. No text of Postgres holds a NUL.
UNCHANGED: Final = b"\x00unchanged"

_BEGIN = struct.Struct("!xqqI")
_COMMIT = struct.Struct("!xBqqq")
_RELATION_ID = struct.Struct("!xI")
_LENGTH = struct.Struct("!I")
_COUNT = struct.Struct("!H")


class DecodeError(ValueError):
    """Bytes that are not protocol version 1, or a change that names an unknown relation."""


class Relation(msgspec.Struct, frozen=True):
    """A table as the stream describes it. `key` holds the places of the columns of its replica identity."""

    id: int
    schema: str
    name: str
    columns: tuple[str, ...]
    key: tuple[int, ...]
    full: bool = False


class Change(msgspec.Struct, frozen=True, gc=False):
    """One row changed. `old` is the old row, or the key alone, where the server sent one. Truncate has
    neither row."""

    relation: Relation
    kind: Kind
    old: Row | None
    new: Row | None
    partial: bool = False


class Transaction(msgspec.Struct, frozen=True):
    """One committed transaction.

    `number` counts from 1 over transactions with changes, `xid` is the 32-bit transaction id, `lsn` the end
    of its commit record, `committed_us` the server's clock at commit in microseconds since 1970.
    """

    number: int
    xid: int
    lsn: int
    committed_us: int
    changes: tuple[Change, ...]


class Decoder:
    """Feed it messages in order; it answers with a transaction at each Commit that closes one with changes.

    `open` is true inside a transaction. Raises DecodeError; what was decoded before stays good.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.open = False
        self._relations: dict[int, Relation] = {}
        self._changes: list[Change] = []
        self._xid = 0
        self._committed_us = 0

    def reset(self) -> None:
        """Forget an unfinished transaction: the connection broke and the server will send it again whole."""
        self.open = False
        self._changes = []

    def feed(self, message: bytes) -> Transaction | None:
        """Decode one message."""
        try:
            kind = message[0]
            if kind == 85:  # U
                self._changes.append(self._update(message))
            elif kind == 73:  # I
                relation = self._relation(message)
                row, _, partial = _row(message, 6)
                self._changes.append(Change(relation, "insert", None, row, partial))
            elif kind == 66:  # B
                _, committed, self._xid = _BEGIN.unpack_from(message)
                self._committed_us = committed + POSTGRES_EPOCH_US
                self._changes = []
                self.open = True
            elif kind == 67:  # C
                return self._commit(message)
            elif kind == 68:  # D
                row, _, _ = _row(message, 6)
                self._changes.append(Change(self._relation(message), "delete", row, None))
            elif kind == 82:  # R
                relation = _relation(message)
                self._relations[relation.id] = relation
            elif kind == 84:  # T
                self._truncate(message)
            elif kind not in b"YOM":
                raise DecodeError(f"no message of protocol version 1 begins with {message[:1]!r}")
        except (struct.error, IndexError) as error:
            raise DecodeError(
                f"a {message[:1]!r} message of {len(message)} bytes ends early: {error}"
            ) from None
        return None

    def _update(self, message: bytes) -> Change:
        relation = self._relation(message)
        old, at = None, 5
        if message[5] != 78:  # K or O comes before N
            old, at, _ = _row(message, 6)
        row, _, partial = _row(message, at + 1)
        return Change(relation, "update", old, row, partial)

    def _commit(self, message: bytes) -> Transaction | None:
        _, _, end, _ = _COMMIT.unpack_from(message)
        changes, self._changes, self.open = self._changes, [], False
        if not changes:
            return None
        self.number += 1
        return Transaction(self.number, self._xid, end, self._committed_us, tuple(changes))

    def _truncate(self, message: bytes) -> None:
        (count,) = struct.unpack_from("!xI", message)
        for relation_id in struct.unpack_from(f"!{count}I", message, 6):
            self._changes.append(Change(self._named(relation_id), "truncate", None, None))

    def _relation(self, message: bytes) -> Relation:
        return self._named(_RELATION_ID.unpack_from(message)[0])

    def _named(self, relation_id: int) -> Relation:
        try:
            return self._relations[relation_id]
        except KeyError:
            raise DecodeError(f"a change of relation {relation_id}, which was never described") from None


def _row(message: bytes, at: int) -> tuple[Row, int, bool]:
    """The row that begins at `at`, where it ends, and whether a value was left out. The hot loop of the
    ledger."""
    (count,) = _COUNT.unpack_from(message, at)
    at += 2
    unpack = _LENGTH.unpack_from
    values: list[Value] = []
    append = values.append
    partial = False
    for _ in range(count):
        kind = message[at]
        if kind == 116:  # t
            start = at + 5
            at = start + unpack(message, at + 1)[0]
            append(message[start:at])
        elif kind == 110:  # n
            append(None)
            at += 1
        elif kind == 117:  # u
            append(UNCHANGED)
            partial = True
            at += 1
        else:
            raise DecodeError(f"a column of kind {chr(kind)!r} at byte {at}")
    if at > len(message):
        raise DecodeError(f"a row ends {at - len(message)} bytes after its message")
    return tuple(values), at, partial


def _relation(message: bytes) -> Relation:
    (relation_id,) = _RELATION_ID.unpack_from(message)
    schema, at = _string(message, 5)
    name, at = _string(message, at)
    identity, (count,) = message[at], _COUNT.unpack_from(message, at + 1)
    at += 3
    columns: list[str] = []
    key: list[int] = []
    for place in range(count):
        if message[at] & 1:
            key.append(place)
        column, at = _string(message, at + 1)
        columns.append(column)
        at += 8
    return Relation(
        relation_id, schema or "pg_catalog", name, tuple(columns), tuple(key), identity == ord("f")
    )


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def format_lsn(lsn: int) -> str:
    """As Postgres writes it: `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Inverse of `format_lsn`. Raises ValueError."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is not a write-ahead log position such as 16/B374D848")
    return (int(high, 16) << 32) | int(low, 16)


def reduce(change_row: Row | None, columns: Sequence[str], keep: Sequence[int]) -> dict[str, str | None]:
    """The kept columns of a row as text, for a person to read."""
    if change_row is None:
        return {}
    return {
        columns[place]: None if (value := change_row[place]) is None else value.decode(errors="replace")
        for place in keep
    }
