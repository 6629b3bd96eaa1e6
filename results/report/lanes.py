"""A violation as a drawn schedule: a lane for each session, a row for each transaction, in the order of the commits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

NOBODY: Final = "somebody"
LONGEST: Final = 80
_TIME: Final = re.compile(r"^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d(?:\.\d+)?)\+00$")


@dataclass(frozen=True, slots=True)
class Event:
    """A transaction in its lane: what it was called, and what it changed, a line for each row."""

    number: int
    committed_at: str
    lane: str
    what: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A violation: its sentence, its lanes in the order in which they first did something, its events, and the
    operations that are part of the evidence."""

    invariant: str
    summary: str
    lanes: tuple[str, ...]
    events: tuple[Event, ...]
    operations: tuple[str, ...]


def drawn(invariant: str, violation: Mapping[str, Any]) -> Drawn:
    """`violation`: as it stands in verdict.json."""
    events = tuple(_event(transaction) for transaction in violation["transactions"])
    return Drawn(
        invariant,
        violation["summary"],
        tuple(dict.fromkeys(event.lane for event in events)),
        events,
        tuple(violation["operations"]),
    )


def _event(transaction: Mapping[str, Any]) -> Event:
    lane, _, what = (transaction["who"] or NOBODY).partition(" ")
    return Event(
        transaction["number"],
        transaction["committed_at"],
        lane,
        what or "changed",
        tuple(_line(row) for row in transaction["changes"]),
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


def order(lanes: Sequence[str]) -> dict[str, int]:
    """The column of each lane."""
    return {lane: column for column, lane in enumerate(lanes)}
