"""A capture: one folder.

    capture.json              environment, server, settings, profile, tables and indexes, what was captured
    <area>/<name>.json        one statement: its plans, custom and generic, and what it could not be asked

Plans are kept in the one form of `tree`, without costs and times, so that a folder of one version can be held against
one of another, and a committed one changes only where a plan does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from engine.errors import UsageError
from results.plans.profiles import Profile
from results.plans.tree import Node
from results.runs import write_json

SCHEMA: Final = 1
Mode = Literal["custom", "generic", "kept"]
# The plans of a session that plans now. The third is of one that planned when the tables were empty (`kept`).
MODES: Final[tuple[Mode, ...]] = ("custom", "generic")


class Table(msgspec.Struct, frozen=True):
    """What a table held when it was captured."""

    rows: int
    pages: int


class Index(msgspec.Struct, frozen=True):
    """An index; `predicate` is empty for a whole one."""

    table: str
    predicate: str


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    """A statement inside a function, as auto_explain saw it: how often it ran, and its costliest run."""

    text: str
    calls: int
    plan: Node


class Explained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement in one mode. `alternate`: its plan after a second ANALYZE, where that is another one: a tie."""

    plan: Node
    inner: tuple[Inner, ...] = ()
    alternate: Node | None = None


class Captured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement. `key` is a hash of all that its plans depend on; `functions` says how the statements inside the
    functions that it calls were captured, and is empty where it calls none. `error` instead of plans: it failed."""

    label: str
    statement: str
    text: str
    key: str
    plans: dict[Mode, Explained] = {}
    functions: str = ""
    error: str = ""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """`capture.json`. `settings`: those that the planner reads. `note`: what was done to the server meanwhile."""

    schema: int = SCHEMA
    version: str
    major: int
    source: str
    settings: dict[str, str]
    profile: Profile
    repetitions: int
    tables: dict[str, Table]
    indexes: dict[str, Index]
    labels: list[str]
    note: str = ""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A whole folder, read."""

    environment: Environment
    statements: Mapping[str, Captured]


def path_of(folder: Path, label: str) -> Path:
    """Where a statement is kept."""
    return folder / f"{label}.json"


def write_statement(folder: Path, captured: Captured) -> None:
    """Write one statement whole or not at all."""
    path = path_of(folder, captured.label)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, captured)


def write_environment(folder: Path, environment: Environment) -> None:
    """Write what makes the folder a capture; the last thing that is written."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "capture.json", environment)


def read_statement(folder: Path, label: str) -> Captured | None:
    """One statement, or None where there is none that this version can read."""
    try:
        return msgspec.json.decode(path_of(folder, label).read_bytes(), type=Captured)
    except (OSError, msgspec.DecodeError):
        return None


def read(folder: Path) -> Capture:
    """A whole capture. Raises UsageError in one sentence where the folder holds none."""
    try:
        environment = msgspec.json.decode((folder / "capture.json").read_bytes(), type=Environment)
        statements = {
            label: msgspec.json.decode(path_of(folder, label).read_bytes(), type=Captured)
            for label in environment.labels
        }
    except FileNotFoundError as missing:
        raise UsageError(f"{folder} holds no capture: {missing.filename} is missing") from missing
    except msgspec.DecodeError as broken:
        raise UsageError(f"{folder} holds a capture that cannot be read: {broken}") from broken
    return Capture(environment=environment, statements=statements)
