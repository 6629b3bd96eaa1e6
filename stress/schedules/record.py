"""A schedule as JSON: what `replay` takes, and what `explore` leaves for every race that did not hold.

    {"schema": 1, "kind": "schedule", "race": NAME, "mutant": NAME or null, "subject": WORDS or null,
     "planner": NAME,
     "actions": {session: [places of its actions in the race]}, "choices": [[session] or [session, "dies"], …],
     "violated": [invariants], "summaries": [prose], "postgres": text}

The race is named, not written out: it is code. One that has changed since says so by the choices that are not open.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import UsageError
from stress.schedules.race import Race
from stress.schedules.search import Choice

SCHEMA: Final = 1


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """See the module."""

    schema: int = SCHEMA
    kind: str = "schedule"
    race: str
    mutant: str | None
    subject: str | None = None
    planner: str
    actions: dict[str, tuple[int, ...]]
    choices: list[list[str]]
    violated: list[str] = []
    summaries: list[str] = []
    postgres: str = ""

    def steps(self) -> tuple[Choice, ...]:
        """The choices as the search takes them."""
        return tuple(Choice(entry[0], len(entry) > 1) for entry in self.choices)


def written(choices: tuple[Choice, ...]) -> list[list[str]]:
    """Choices as JSON holds them."""
    return [[choice.session, *(["dies"] if choice.dies else [])] for choice in choices]


def reduced(race: Race, actions: dict[str, tuple[int, ...]]) -> Race:
    """The race with these actions only. Raises UsageError where it has no such actions."""
    try:
        sessions = {
            name: tuple(race.sessions[name][place] for place in kept)
            for name, kept in actions.items()
            if kept
        }
    except (KeyError, IndexError):
        raise UsageError(
            f"race {race.name!r} has changed: it lacks a session or an action of this schedule"
        ) from None
    return replace(
        race,
        sessions=sessions,
        settings={name: value for name, value in race.settings.items() if name in sessions},
        row_gates={name: value for name, value in race.row_gates.items() if name in sessions},
        inner=tuple(name for name in race.inner if name in sessions),
        stops=None if race.stops is None else tuple(name for name in race.stops if name in sessions),
    )


def read_schedule(path: Path) -> Schedule:
    """From a file. Raises UsageError."""
    try:
        schedule = msgspec.json.decode(path.read_bytes(), type=Schedule)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is no schedule: {error}") from None
    if schedule.schema != SCHEMA or schedule.kind != "schedule":
        raise UsageError(
            f"{path} is a {schedule.kind} of schema {schedule.schema}, not a schedule of schema {SCHEMA}"
        )
    return schedule
