"""Statements that are not ours: a folder of `.sql` files, a schema and a seed, captured like the engine's own.

Each file is one statement with parameters `$1`, `$2`, ...; the server finds their types, or a cast says them. Arguments
are a JSON array in a file of the same name that ends in `.json`: texts, numbers, booleans, null, arrays for arrays,
objects for json. A statement without parameters needs none. Schema and seed may be several statements each, as psql
takes them but for its own commands and for COPY from the file itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
from psycopg.adapt import PyFormat, Transformer

from engine.errors import UsageError
from engine.statements import Statement
from results.plans import folder
from results.plans.capture import Session, tied
from results.plans.folder import Capture
from results.plans.profiles import Profile

MOST_STATEMENTS: Final = 1_000
SCRIPT_TIMEOUT_MS: Final = 600_000
# What newer versions of pg_dump begin and end with, for psql alone.
_FOR_PSQL: Final = re.compile(r"^\\(?:un)?restrict\b.*$", re.MULTILINE)

Asked = Mapping[str, tuple[Statement, tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Own:
    """What a user brings. `batch`: the rows that a statement is asked for, which the general rules count in."""

    sql: Path
    schema: Path
    seed: Path | None
    batch: int

    @property
    def profile(self) -> Profile:
        """Whose rows are not counted: they are the user's."""
        return Profile(
            name="own",
            rows=0,
            runnable=0,
            executing=0,
            parked=0,
            joining=0,
            signals=0,
            expired=0,
            batch=self.batch,
        )


def statements(place: Path) -> Asked:
    """The statements of a folder with their arguments, by name. Raises UsageError in one sentence."""
    found = sorted(place.glob("*.sql"))
    if not found or len(found) > MOST_STATEMENTS:
        raise UsageError(f"{place} holds {len(found)} .sql files: one to {MOST_STATEMENTS} are wanted")
    answer = {}
    for path in found:
        beside = path.with_suffix(".json")
        try:
            arguments = (
                msgspec.json.decode(beside.read_bytes(), type=list[object]) if beside.is_file() else []
            )
            texts = tuple(map(_text, arguments))
        except (OSError, msgspec.DecodeError, psycopg.Error) as error:
            raise UsageError(f"{beside.name}: a JSON array of arguments is wanted: {error}") from error
        answer[path.stem] = _statement(path, len(texts)), texts
    return answer


def capture(dsn: str, source: str, out: Path, own: Own) -> Capture:
    """Run schema and seed in an empty database, then capture each statement. Raises UsageError."""
    asked = statements(own.sql)
    for path in (own.schema, own.seed):
        if path is not None:
            _run(dsn, path)
    session = Session(dsn, settings="")
    try:
        session.connection.execute("VACUUM (ANALYZE)")
        captured = {}
        for name, (statement, arguments) in asked.items():
            captured[name] = session.capture(statement, arguments, name, "")
            if captured[name].error:
                raise UsageError(f"{name}.sql cannot be explained: {captured[name].error}")
        captured = tied(session, captured, asked)
        environment = session.environment(source=source, profile=own.profile, labels=captured)
    finally:
        session.close()
    for each in captured.values():
        folder.write_statement(out, each)
    folder.write_environment(out, environment)
    return Capture(environment=environment, statements=captured)


def _statement(path: Path, parameters: int) -> Statement:
    lines = _read(path).strip().splitlines()
    while lines and lines[0].lstrip().startswith("--"):
        del lines[0]
    text = "\n".join(lines).strip()
    if not text:
        raise UsageError(f"{path.name} holds no statement")
    return Statement(path.stem, text, "", (), text.encode(), (_text,) * parameters)


def _text(value: object) -> str | None:
    """An argument as Postgres reads it, of whatever type the parameter is."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return bytes(Transformer().get_dumper(value, PyFormat.TEXT).dump(value) or b"").decode()


def _run(dsn: str, path: Path) -> None:
    text = _FOR_PSQL.sub("", _read(path))
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"SET statement_timeout TO {SCRIPT_TIMEOUT_MS}")
            connection.execute(text.encode())
    except psycopg.OperationalError as error:
        if not isinstance(error, psycopg.errors.QueryCanceled):
            raise
        raise UsageError(f"{path.name} runs for more than {SCRIPT_TIMEOUT_MS // 1000} s") from error
    except psycopg.Error as error:
        place = error.diag.statement_position
        line = f" in line {text.count(chr(10), 0, int(place)) + 1}" if place else ""
        raise UsageError(f"{path.name}{line}: {str(error).strip().splitlines()[0]}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{path.name} cannot be read: {error}") from error
