"""Replay transactions into tables: the committed state after each one.

Goals, in this order: give every update and delete its whole old row; fill values that the server left out;
remember no more than the tables hold. A row that a caller calls settled (a terminal job: many, and hardly
looked at again) is kept as one packed byte string, about a third of the size of a tuple.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator

import msgspec

from invariants.ledger.pgoutput import UNCHANGED, Change, Relation, Row, Value

Key = tuple[Value, ...] | Value


class StateError(ValueError):
    """A change of a row that the replay has never seen: the ledger does not begin where the table did."""


class Step(msgspec.Struct, frozen=True, gc=False):
    """One row's way through one change: absent before an insert, absent after a delete."""

    relation: Relation
    old: Row | None
    new: Row | None


class Table:
    """One table's committed rows by key."""

    def __init__(self, relation: Relation, settled: Callable[[Row], bool] | None = None) -> None:
        self.relation = relation
        self._rows: dict[Key, Row | bytes] = {}
        self._settled = settled
        self._single = relation.key[0] if len(relation.key) == 1 else None

    def __len__(self) -> int:
        return len(self._rows)

    def key(self, row: Row) -> Key:
        """What the row is known by: its primary key, or all of it in a table that has none."""
        if self._single is not None:
            return row[self._single]
        return tuple(row[place] for place in self.relation.key) if self.relation.key else row

    def get(self, key: Key) -> Row | None:
        """The row of that key."""
        found = self._rows.get(key)
        return marshal.loads(found) if isinstance(found, bytes) else found

    def rows(self) -> Iterator[Row]:
        """All rows, in the order in which their keys first appeared."""
        for found in self._rows.values():
            yield marshal.loads(found) if isinstance(found, bytes) else found

    def put(self, row: Row) -> None:
        """Insert or replace."""
        packed = self._settled is not None and self._settled(row)
        self._rows[self.key(row)] = marshal.dumps(row) if packed else row

    def pop(self, key: Key) -> Row | None:
        """Remove; returns what was there."""
        found = self._rows.pop(key, None)
        return marshal.loads(found) if isinstance(found, bytes) else found


class State:
    """All tables of a ledger. `settled[table name]` says which rows of it are kept packed."""

    def __init__(self, settled: dict[str, Callable[[Row], bool]] | None = None) -> None:
        self._settled = settled or {}
        self._tables: dict[int, Table] = {}
        self._named: dict[str, Table] = {}

    def tables(self) -> dict[str, Table]:
        """By name; of two tables with one name in two schemas the one seen last."""
        return dict(self._named)

    def table(self, name: str) -> Table | None:
        """One of them."""
        return self._named.get(name)

    def apply(self, change: Change) -> list[Step]:
        """Replay one change. Returns one step, or one per row for a truncate. Raises StateError."""
        if change.kind != "truncate":
            old, new = self.replay(change)
            return [Step(change.relation, old, new)]
        table = self._table(change.relation)
        gone = [Step(change.relation, row, None) for row in table.rows()]
        self._add(change.relation)
        return gone

    def replay(self, change: Change) -> tuple[Row | None, Row | None]:
        """The old row and the new one of a change that is no truncate. Raises StateError. The hot path of the judge."""
        relation, kind, new = change.relation, change.kind, change.new
        table = self._tables.get(relation.id)
        if table is None or table.relation is not relation:
            table = self._table(relation)
        if kind == "update":
            assert new is not None
            key = table.key(new if change.old is None else change.old)
            old = table.get(key)
            if old is None:
                raise StateError(f"an update of {relation.name} {key!r}, which was never inserted")
            if change.partial:
                new = tuple(o if n is UNCHANGED else n for o, n in zip(old, new, strict=True))
            if change.old is not None and table.key(new) != key:
                table.pop(key)
            table.put(new)
            return old, new
        if kind == "insert":
            assert new is not None
            table.put(new)
            return None, new
        assert change.old is not None
        key = table.key(change.old)
        old = table.pop(key)
        if old is None:
            raise StateError(f"a delete of {relation.name} {key!r}, which was never inserted")
        return old, None

    def _table(self, relation: Relation) -> Table:
        table = self._tables.get(relation.id)
        if table is None:
            table = self._add(relation)
        elif table.relation is not relation:
            if table.relation.columns != relation.columns:
                raise StateError(f"{relation.name} changed its columns while it was recorded")
            table.relation = relation
        return table

    def _add(self, relation: Relation) -> Table:
        table = Table(relation, self._settled.get(relation.name))
        self._tables[relation.id] = self._named[relation.name] = table
        return table
