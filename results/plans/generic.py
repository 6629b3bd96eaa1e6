"""The generic plan of each statement on tables as they are, estimated and not executed: what a run keeps of its plans.

    plans.json   {"version", "plans": {statement: its tree}}

A session of the engine's settings prepares each statement and asks for its generic plan; what the tables at hand do
not allow, for they are those of other statements, is left out. It costs milliseconds and touches no row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import psycopg

from engine import sessions
from engine.errors import UsageError
from engine.statements import Catalogue
from results.plans.capture import execution, preparation
from results.plans.tree import Node, parse
from results.runs import write_json

NAME: Final = "plans.json"
_LIMITS: Final = (
    "SET statement_timeout = '5s'; SET lock_timeout = '1s'; SET plan_cache_mode = force_generic_plan"
)


class Generic(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    version: str
    plans: dict[str, Node]


def generic(dsn: str, catalogue: Catalogue) -> Generic:
    """Ask a server. Raises psycopg.OperationalError where it is not there."""
    plans: dict[str, Node] = {}
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(f"{sessions.SETTINGS}; {_LIMITS}".encode())
        version = str(connection.info.parameter_status("server_version")).split()[0]
        for name, statement in catalogue.items():
            try:
                connection.execute(preparation("asked", statement).encode())
                asked = psycopg.sql.SQL("EXPLAIN (FORMAT JSON) {}").format(
                    execution("asked", [None] * len(statement.types))
                )
                row = connection.execute(asked).fetchone()
            except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError):
                connection.execute("DEALLOCATE ALL")
                continue
            connection.execute("DEALLOCATE asked")
            if row is not None:
                plans[name] = parse(row[0]).root
    return Generic(version=version, plans=plans)


def write(folder: Path, found: Generic) -> None:
    """The file of a run's folder."""
    write_json(folder / NAME, found)


def read(folder: Path) -> Generic | None:
    """None where the run kept none. Raises UsageError."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Generic)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise UsageError(f"{folder / NAME} cannot be read: {error}") from None
