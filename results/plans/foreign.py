"""Statements that are not ours: a folder of `.sql` files, a schema and a seed, captured like the engine's own.

Each file is one statement in the form of the catalogue: parameters with a cast, `$1::text`. Its arguments are a JSON
array
in a file of the same name that ends in `.json`; a statement without parameters needs none. Schema and seed may be
several statements each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import psycopg

from engine.errors import UsageError
from engine.statements import Statement
from results.plans import folder
from results.plans.capture import Session
from results.plans.folder import Capture
from results.plans.profiles import Profile

MOST_STATEMENTS: Final = 1_000


def statements(place: Path) -> list[tuple[Statement, list[object]]]:
    """The statements of a folder with their arguments, by name. Raises UsageError in one sentence."""
    found = sorted(place.glob("*.sql"))
    if not found or len(found) > MOST_STATEMENTS:
        raise UsageError(f"{place} holds {len(found)} .sql files: one to {MOST_STATEMENTS} are wanted")
    answer = []
    for path in found:
        try:
            statement = Statement.parse(path.stem, path.read_text("utf-8").strip().removesuffix(";"))
            beside = path.with_suffix(".json")
            arguments = (
                msgspec.json.decode(beside.read_bytes(), type=list[object]) if beside.is_file() else []
            )
            statement.encode(tuple(arguments))
        except (ValueError, TypeError, msgspec.DecodeError) as error:
            raise UsageError(f"{path.name}: {error}") from error
        answer.append((statement, arguments))
    return answer


def capture(dsn: str, source: str, out: Path, sql: Path, schema: Path, seed: Path | None) -> Capture:
    """Run schema and seed in an empty database, then capture each statement. Raises UsageError."""
    wanted = statements(sql)
    for path in (schema, seed):
        if path is None:
            continue
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(path.read_bytes())
        except psycopg.Error as error:
            raise UsageError(f"{path.name}: {str(error).strip().splitlines()[0]}") from error
    session = Session(dsn, settings="")
    try:
        session.connection.execute("VACUUM (ANALYZE)")
        captured = {
            statement.name: session.capture(statement, arguments, statement.name, "")
            for statement, arguments in wanted
        }
        none = Profile(
            name="own",
            rows=0,
            runnable=0,
            executing=0,
            parked=0,
            joining=0,
            signals=0,
            expired=0,
            batch=1_000,
        )
        environment = session.environment(source=source, profile=none, labels=captured)
    finally:
        session.close()
    for each in captured.values():
        folder.write_statement(out, each)
    folder.write_environment(out, environment)
    return Capture(environment=environment, statements=captured)
