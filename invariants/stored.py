"""What one committed transaction changed in the tables of the store and of the transport, parsed once for all rules.

Each table is one group, and each of its changes one record:

    executions            Saved     a version written, or an execution deleted
    outbox                Sent      an emit committed, or acknowledged
    processed_events      Marked    an event's effect marked
    timers                Timed     armed, re-armed or gone
    spawns                Forked    a fork committed, or acknowledged
    trace                 Traced    a step written, or gone
    transport_messages    Queued    published, or gone
    transport_groups      Leased    a group's lease and priority

Evidence of a change belongs to its subjects: the execution, the group, the row of an outbox.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from invariants.ledger.pgoutput import Relation, Row

SAVED, SENT, MARKED, TIMED, FORKED, TRACED, QUEUED, LEASED = (1 << n for n in range(10, 18))

Subject = tuple[str, str]


class Saved(msgspec.Struct, frozen=True, gc=False):
    """One execution through one change: its versions, None where it was or is not there, and its new row."""

    id: str
    before: int | None
    after: int | None
    data: bytes | None
    definition: str | None
    status: str | None
    parent: str | None


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A row of the outbox that came (`born`) or went."""

    seq: int
    target: str | None
    event: bytes
    born: bool


class Marked(msgspec.Struct, frozen=True, gc=False):
    """A dedupe marker that came or went."""

    execution: str
    event: str
    born: bool


class Timed(msgspec.Struct, frozen=True, gc=False):
    """A timer through one change: when it was and is due, in seconds; None where it was or is not armed."""

    execution: str
    path: str
    before: float | None
    after: float | None


class Forked(msgspec.Struct, frozen=True, gc=False):
    """A spawn intent that came or went."""

    seq: int
    parent: str
    child: str
    born: bool


class Traced(msgspec.Struct, frozen=True, gc=False):
    """A step of a trace: whether it was there before, and is there after."""

    execution: str
    index: int
    before: bool
    after: bool


class Queued(msgspec.Struct, frozen=True, gc=False):
    """A message that was published or went."""

    seq: int
    group: str
    event: bytes
    born: bool


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A group's row. `expiry` in seconds since the epoch."""

    holder: str | None
    expiry: float | None
    priority: int


class Leased(msgspec.Struct, frozen=True, gc=False):
    """A group through one change."""

    group: str
    before: Lease | None
    after: Lease | None


class Stored:
    """One transaction's changes of these tables, in the order in which they were made."""

    __slots__ = ("forked", "leased", "marked", "queued", "saved", "sent", "timed", "traced")

    def __init__(self) -> None:
        # Most transactions of a picker's run have none of these.
        self.saved: list[Saved] | tuple[()] = ()
        self.sent: list[Sent] | tuple[()] = ()
        self.marked: list[Marked] | tuple[()] = ()
        self.timed: list[Timed] | tuple[()] = ()
        self.forked: list[Forked] | tuple[()] = ()
        self.traced: list[Traced] | tuple[()] = ()
        self.queued: list[Queued] | tuple[()] = ()
        self.leased: list[Leased] | tuple[()] = ()


class _Id(msgspec.Struct):
    id: str | None = None


_ID = msgspec.json.Decoder(_Id)


def event_id(event: bytes) -> str | None:
    """The id in an event's JSON; None where there is none."""
    try:
        return _ID.decode(event).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


Reading = Callable[[Row | None, Row | None], Any]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _known(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def _number(value: bytes | None) -> float | None:
    return None if value is None else float(value)


def _saved(pick: Callable[[Row], Any]) -> Reading:
    def read(old: Row | None, new: Row | None) -> Saved:
        before = None if old is None else int(pick(old)[1])
        if new is None:
            assert old is not None
            return Saved(_known(pick(old)[0]), before, None, None, None, None, None)
        name, version, data, definition, status, parent = pick(new)
        return Saved(
            _known(name), before, int(version), data, _text(definition), _text(status), _text(parent)
        )

    return read


def _timed(pick: Callable[[Row], Any]) -> Reading:
    def read(old: Row | None, new: Row | None) -> Timed:
        execution, path, after = pick(old if new is None else new)  # type: ignore[arg-type]
        before = None if old is None else _number(pick(old)[2])
        return Timed(_known(execution), _known(path), before, None if new is None else _number(after))

    return read


def _leased(pick: Callable[[Row], Any]) -> Reading:
    def lease(row: Row | None) -> Lease | None:
        if row is None:
            return None
        _, holder, expiry, priority = pick(row)
        return Lease(_text(holder), _number(expiry), int(priority))

    def read(old: Row | None, new: Row | None) -> Leased:
        return Leased(_known(pick(old if new is None else new)[0]), lease(old), lease(new))  # type: ignore[arg-type]

    return read


def _sent(pick: Callable[[Row], Any]) -> Reading:
    def read(old: Row | None, new: Row | None) -> Sent:
        seq, target, event = pick(old if new is None else new)  # type: ignore[arg-type]
        return Sent(int(seq), _text(target), event, new is not None)

    return read


def _marked(pick: Callable[[Row], Any]) -> Reading:
    def read(old: Row | None, new: Row | None) -> Marked:
        execution, event = pick(old if new is None else new)  # type: ignore[arg-type]
        return Marked(_known(execution), _known(event), new is not None)

    return read


def _forked(pick: Callable[[Row], Any]) -> Reading:
    def read(old: Row | None, new: Row | None) -> Forked:
        seq, parent, child = pick(old if new is None else new)  # type: ignore[arg-type]
        return Forked(int(seq), _known(parent), _known(child), new is not None)

    return read


def _traced(pick: Callable[[Row], Any]) -> Reading:
    def read(old: Row | None, new: Row | None) -> Traced:
        execution, index = pick(old if new is None else new)  # type: ignore[arg-type]
        return Traced(_known(execution), int(index), old is not None, new is not None)

    return read


def _queued(pick: Callable[[Row], Any]) -> Reading:
    def read(old: Row | None, new: Row | None) -> Queued:
        seq, group, event = pick(old if new is None else new)  # type: ignore[arg-type]
        return Queued(int(seq), _known(group), event, new is not None)

    return read


class _Table(msgspec.Struct, frozen=True):
    """How a table is read. `about`: what its evidence belongs to, as kind and column."""

    group: int
    slot: str
    columns: tuple[str, ...]
    reading: Callable[[Callable[[Row], Any]], Reading]
    about: tuple[tuple[str, str], ...]
    known_by: str


_EXECUTION: Final = ("execution", "execution_id")
_TABLES: Final[dict[str, _Table]] = {
    "executions": _Table(
        SAVED, "saved", ("id", "version", "data", "definition_id", "status", "parent_id"), _saved,
        (("execution", "id"),), "id",
    ),
    "outbox": _Table(SENT, "sent", ("seq", "target_id", "event"), _sent, (("outbox", "seq"),), "seq"),
    "processed_events": _Table(
        MARKED, "marked", ("execution_id", "event_id"), _marked, (_EXECUTION,), "event_id"
    ),
    "timers": _Table(TIMED, "timed", ("execution_id", "path", "fire_at"), _timed, (_EXECUTION,), "path"),
    "spawns": _Table(
        FORKED, "forked", ("seq", "parent_id", "child_id"), _forked,
        (("execution", "parent_id"), ("execution", "child_id")), "seq",
    ),
    "trace": _Table(TRACED, "traced", ("execution_id", "idx"), _traced, (_EXECUTION,), "idx"),
    "transport_messages": _Table(
        QUEUED, "queued", ("seq", "group_id", "event"), _queued, (("group", "group_id"),), "seq"
    ),
    "transport_groups": _Table(
        LEASED, "leased", ("group_id", "locked_by", "lock_expiry", "priority"), _leased,
        (("group", "group_id"),), "group_id",
    ),
}  # fmt: skip
TABLES: Final = frozenset(_TABLES)


class StoredParser:
    """Turns rows of these tables into records."""

    def __init__(self) -> None:
        self._readings: dict[int, tuple[int, str, Reading]] = {}
        self._places: dict[int, tuple[tuple[tuple[str, int], ...], int]] = {}

    def add(self, stored: Stored, relation: Relation, old: Row | None, new: Row | None) -> int:
        """Sort one change in; answers with its group. Raises ValueError where the table lacks a column."""
        found = self._readings.get(relation.id)
        if found is None:
            table = _TABLES[relation.name]
            pick = itemgetter(*(relation.columns.index(name) for name in table.columns))
            found = self._readings[relation.id] = (table.group, table.slot, table.reading(pick))
        group, slot, reading = found
        record = reading(old, new)
        records = getattr(stored, slot)
        if records:
            records.append(record)
        else:
            setattr(stored, slot, [record])
        return group

    def subjects(self, relation: Relation, row: Row) -> tuple[Subject, ...]:
        """What evidence of that row belongs to."""
        return tuple((kind, _known(row[place])) for kind, place in self._about(relation)[0])

    def known_by(self, relation: Relation, row: Row) -> str:
        """What the row is called beside its subject."""
        return _known(row[self._about(relation)[1]])

    def _about(self, relation: Relation) -> tuple[tuple[tuple[str, int], ...], int]:
        found = self._places.get(relation.id)
        if found is None:
            table = _TABLES[relation.name]
            places = tuple((kind, relation.columns.index(name)) for kind, name in table.about)
            found = self._places[relation.id] = (places, relation.columns.index(table.known_by))
        return found
