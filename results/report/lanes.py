"""A schedule as a drawing: a lane for each session, a row for each step, arrows from who waits to whom it waits for.

Two things are drawn so: the steps of a controlled schedule (`stress/schedules/story.py`), and the transactions of a
violation in the order of their commits. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

NOBODY: Final = "somebody"
LONGEST: Final = 80
_TIME: Final = re.compile(r"^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d(?:\.\d+)?)\+00$")

# `echo`: what another session's step set going again. `offence`: where the violation shows.
Kind = Literal["did", "echo", "offence"]


class Box(msgspec.Struct, frozen=True):
    """What a session did in one row."""

    lane: str
    title: str
    lines: tuple[str, ...] = ()
    kind: Kind = "did"


class Row(msgspec.Struct, frozen=True):
    """One step, or one transaction. `number`: what it is known by elsewhere."""

    number: str
    boxes: tuple[Box, ...]


class Wait(msgspec.Struct, frozen=True):
    """A session that waits for others from one row to another, both by place. `until` is None where it waited to the
    end; the same row, where the wait was over within it. `lock` is empty where nobody knows."""

    waiter: str
    holders: tuple[str, ...]
    lock: str
    since: int
    until: int | None


class Drawn(msgspec.Struct, frozen=True):
    """`lanes` in the order in which they stand."""

    lanes: tuple[str, ...]
    rows: tuple[Row, ...]
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Something with its place in a grid, as CSS counts lines: from 1, the end behind it. Row 1 has the lanes' names,
    column 1 the numbers. `towards`: of an arrow, where its head is."""

    what: Any
    row: int
    column: int
    end_row: int
    end_column: int
    towards: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A drawing, laid out. `lines` are, in the order of reading, each row's boxes and then its arrows; `bars` stand
    behind them, where a session waits."""

    drawn: Drawn
    numbers: tuple[Placed, ...]
    lines: tuple[Placed, ...]
    bars: tuple[Placed, ...]
    height: int

    def number_at(self, line: int) -> str:
        """What the row on that line of the grid is known by."""
        return next((number.what for number in self.numbers if number.row == line), "")


@dataclass(frozen=True, slots=True)
class Shown:
    """A violation: its sentence, its drawing, and the operations that are part of the evidence."""

    invariant: str
    summary: str
    grid: Grid
    operations: tuple[str, ...]


def grid(drawn: Drawn) -> Grid:
    """Lay it out: a line of the grid for each row, and one behind it for each arrow that begins there."""
    column = {lane: number for number, lane in enumerate(drawn.lanes, 2)}
    numbers, lines, first = [], [], {}
    arrows: list[tuple[Wait, int]] = []
    line = 2
    for place, row in enumerate(drawn.rows):
        first[place] = line
        numbers.append(Placed(row.number, line, 1, line + 1, 2))
        lines += [
            Placed(box, line, column[box.lane], line + 1, column[box.lane] + 1)
            for box in row.boxes
            if box.lane in column
        ]
        line += 1
        for wait in drawn.waits:
            if wait.since == place and wait.waiter in column:
                arrows.append((wait, line))
                for holder in wait.holders:
                    if holder in column and holder != wait.waiter:
                        left, right = sorted((column[wait.waiter], column[holder]))
                        towards = "left" if column[holder] == left else "right"
                        lines.append(Placed((wait, holder), line, left, line + 1, right, towards))
                        line += 1
    bars = tuple(
        Placed(
            wait,
            begins,
            column[wait.waiter],
            line if wait.until is None else max(begins + 1, first.get(wait.until, line)),
            column[wait.waiter] + 1,
        )
        for wait, begins in arrows
        if wait.until != wait.since
    )
    return Grid(drawn, tuple(numbers), tuple(lines), bars, line - 2)


class Seen(msgspec.Struct, frozen=True):
    """A wait as it was seen from time to time: from the first look to the last, microseconds since the epoch. The
    transactions are None where they had changed nothing yet."""

    waiter: str
    holder: str
    lock: str
    first_us: int
    last_us: int
    waiter_xid: int | None = None
    holder_xid: int | None = None


def shown(invariant: str, violation: Mapping[str, Any], seen: Sequence[Seen] = ()) -> Shown:
    """`violation`: as in verdict.json; of the waits that were seen, those between its transactions are drawn."""
    rows = tuple(
        _row(transaction, last=transaction is violation["transactions"][-1])
        for transaction in violation["transactions"]
    )
    lanes = dict.fromkeys(box.lane for row in rows for box in row.boxes)
    times = [_us(transaction["committed_at"]) for transaction in violation["transactions"]]
    places = {transaction["xid"]: place for place, transaction in enumerate(violation["transactions"])}
    waits = tuple(
        Wait(
            rows[places[each.waiter_xid]].boxes[0].lane,
            (rows[places[each.holder_xid]].boxes[0].lane,),
            each.lock,
            max(0, bisect_right(times, each.first_us) - 1),
            places[each.waiter_xid],
        )
        for each in seen
        if each.waiter_xid in places and each.holder_xid in places
    )
    return Shown(
        invariant,
        violation["summary"],
        grid(Drawn(tuple(lanes), rows, waits)),
        tuple(violation["operations"]),
    )


def _us(committed_at: str) -> int:
    return round(datetime.fromisoformat(committed_at).timestamp() * 1_000_000)


def _row(transaction: Mapping[str, Any], *, last: bool) -> Row:
    lane, _, what = (transaction["who"] or NOBODY).partition(" ")
    lines = tuple(_line(row) for row in transaction["changes"])
    return Row(
        str(transaction["number"]), (Box(lane, what or "changed", lines, "offence" if last else "did"),)
    )


def _line(row: Mapping[str, Any]) -> str:
    name = f"{row['table']} {row['id']}" if row["table"] != "gen_durable" else f"row {row['id']}"
    before, after = row["before"], row["after"]
    if not before:
        return f"{name} inserted: {_values(after)}"
    if not after:
        return f"{name} deleted"
    changed = [
        f"{column} {_short(before.get(column))} → {_short(after.get(column))}"
        for column in after
        if before.get(column) != after.get(column)
    ]
    return f"{name}: {', '.join(changed) or 'touched'}"


def _values(row: Mapping[str, str | None]) -> str:
    return ", ".join(f"{column} {_short(value)}" for column, value in row.items() if value is not None)


def _short(value: str | None) -> str:
    """A time without its day: a run is short, and the page says when it was."""
    if value is None:
        return "∅"
    value = _TIME.sub(r"\1", value)
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
