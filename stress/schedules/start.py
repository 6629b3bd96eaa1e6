"""What a race's set-up leaves, kept for the runs that begin with it: rows, sequences, memory, history.

The rows are copied as they lay in the tables, in the transaction that empties them; that one is not part of a run's
ledger, which begins with the transactions that the set-up really committed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from invariants.history.operations import Operation
from stress.schedules.actions import World
from stress.schedules.race import Race

# Leases and what else was written as a moment stays true to its race for so long.
MAX_AGE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Start:
    """The set-up of `race` as run `number` did it. `restoring`: the statements that bring its rows back."""

    race: Race
    number: int
    world: World
    operations: tuple[Operation, ...]
    restoring: str
    made: float = field(default_factory=time.monotonic)

    def fits(self, race: Race) -> bool:
        """Whether a run of that race may begin with it."""
        return (
            race.setup is self.race.setup
            and race.limits is self.race.limits
            and time.monotonic() - self.made < MAX_AGE_S
        )


class Keeping:
    """Reads what is in the tables as the statements that make it again."""

    def __init__(self, control: psycopg.Connection[Any], tables: Sequence[str]) -> None:
        self._control = control
        sequences = [name for (name,) in control.execute(_SEQUENCES).fetchall()]
        self._rows = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {}, array_agg(t::text ORDER BY t.ctid)::text FROM {} AS t").format(
                sql.Literal(table), sql.Identifier(table)
            )
            for table in tables
        )
        self._counts = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {}, last_value, is_called FROM {}").format(
                sql.Literal(name), sql.Identifier(name)
            )
            for name in sequences
        )
        self._columns = {table: control.execute(_COLUMNS, (table,)).fetchall()[0][0] for table in tables}
        # Every sequence begins anew, so that a row has the same id in every run.
        self.rewinding = "".join(f"SELECT setval('{name}', 1, false); " for name in sequences)

    def restoring(self) -> str:
        """The statements, for tables that are empty."""
        parts = []
        for table, rows in self._control.execute(self._rows).fetchall():
            if rows is not None:
                columns = self._columns[table]
                parts.append(
                    f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE "  # noqa: S608  # names of our own
                    f"SELECT {columns} FROM unnest({_literal(rows)}::{table}[]); "
                )
        for name, last, called in self._control.execute(self._counts).fetchall():
            parts.append(f"SELECT setval('{name}', {last}, {called}); ")
        return "".join(parts)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_SEQUENCES: Final = """
SELECT c.relname FROM pg_class AS c INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind = 'S' ORDER BY 1
"""
# Without those that are generated from others.
_COLUMNS: Final = """
SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute AS a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
"""
