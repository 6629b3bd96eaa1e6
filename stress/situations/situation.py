"""A situation: rows, one statement asked once, and what it must answer and leave. Plain data.

Beside what a statement answers alone, a situation can show what it does beside another session: that it passes over a
row which that one holds, or waits for it, and what it holds itself meanwhile; and what it makes of a row that was
changed while it waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Rows = Sequence[tuple[Any, ...]]

# Instants that are past and future whenever this runs.
PAST: Final = "2001-01-01 00:00:00+00"
FUTURE: Final = "2201-01-01 00:00:00+00"
# Rows that do not fit into the memory of a session that has next to none.
MANY: Final = 3_000
# Where a statement can be stopped before it changes a row, and the lock that it waits for.
GATED: Final = "transport_groups"
GATE: Final = 4711


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """`says`: in a sentence, what is right. `given`: statements that make the rows. `arguments`: of the statement.

    `answer`: the rows that it returns, of their columns `shows` (all, where empty), `in_order` or in any; None where
    they are of no interest. `after`: queries, and what they answer once it has returned. `as_planned`: it is about what
    the planner chooses, and taken under no other plan. `spills`: its rows are so many that a hash join of a session
    with next to no memory writes them to disk and joins them in parts, and it is taken under that plan alone.

    `holding`: what another session has done in a transaction that is open; the statement must not wait for it, unless
    `waits`. Then `meanwhile` are queries of a third session while it waits, none of which may wait, and what they
    answer; the other session's transaction is committed next, or undone where it `gives_up`. `beside`: the same once
    the statement has returned and its transaction is open. `elsewhere`: as `holding`, of a session in another database.
    `gate`: before the statement changes the row of that key, of the table `GATED`, it takes the advisory lock `GATE`,
    which the other session may have.
    """

    statement: str
    says: str
    given: tuple[str, ...] = ()
    arguments: tuple[Any, ...] = ()
    answer: Rows | None = None
    shows: tuple[int, ...] = ()
    in_order: bool = False
    after: Mapping[str, Rows] = field(default_factory=dict)
    holding: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    as_planned: bool = False
    spills: bool = False
    waits: bool = False
    gives_up: bool = False
    beside: Mapping[str, Rows] = field(default_factory=dict)
    gate: str = ""
    meanwhile: Mapping[str, Rows] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """By which it is listed."""
        return f"{self.statement}: {self.says}"


class Sql(str):
    """An expression, which goes into a row as it is."""

    __slots__ = ()


def row(table: str, **columns: Any) -> str:
    """The insert of one row."""
    names, values = ", ".join(columns), ", ".join(literal(value) for value in columns.values())
    return f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE VALUES ({values})"


def literal(value: Any) -> str:
    """A value as SQL: a list of texts is an array."""
    if value is None:
        return "NULL"
    if isinstance(value, Sql | bool | int | float):
        return str(value)
    text = "{" + ",".join(value) + "}" if isinstance(value, list) else str(value)
    return "'" + text.replace("'", "''") + "'"


def job(id: int, **columns: Any) -> str:  # noqa: A002  # the column's name
    """A row of `gen_durable` that is runnable and due, but for what is said."""
    return row("gen_durable", **{"id": id, "fsm": "m", "step": "s", "eligible_at": PAST, **columns})


def held(id: int, claim: str = "c", **columns: Any) -> str:  # noqa: A002
    """One that executes under a claim."""
    owned = {"status": "executing", "locked_by": claim, "lease_expires_at": FUTURE}
    return job(id, **{**owned, **columns})


def lock(table: str, condition: str, strength: str = "FOR UPDATE") -> str:
    """Hold rows."""
    return f"SELECT FROM {table} WHERE {condition} {strength}"


def free(table: str, shown: str) -> str:
    """Ask which rows nobody holds."""
    return f"SELECT {shown} FROM {table} ORDER BY {shown} FOR UPDATE SKIP LOCKED"


def looked_at(table: str) -> str:
    """Among what is `given`: remember how many rows of the table the session has looked at until then."""
    return f"CREATE TEMPORARY TABLE looked_at ON COMMIT DROP AS {_LOOKED_AT.format(table)}"


def few_were_looked_at(table: str, rows: int) -> str:
    """Ask whether the statement has looked at fewer rows than that."""
    return f"SELECT now.n - before.n < {rows} FROM ({_LOOKED_AT.format(table)}) AS now, looked_at AS before"


def noted(table: str, column: str) -> tuple[str, ...]:
    """Among what is `given`: note the order in which rows are inserted from then on, by a column that is a number."""
    return (
        "CREATE TEMPORARY TABLE noted (n bigserial, it bigint) ON COMMIT DROP",
        f"CREATE FUNCTION pg_temp.note() RETURNS trigger LANGUAGE plpgsql AS $$ {_NOTE.format(column)} $$",
        f"CREATE TRIGGER note AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION pg_temp.note()",
    )


# Asks how many were noted, and whether each was greater than the one before.
NOTED_IN_ORDER: Final = (
    "SELECT count(*), bool_and(it > before) "
    "FROM (SELECT it, lag(it, 1, -1::bigint) OVER (ORDER BY n) AS before FROM noted) AS t"
)
_NOTE: Final = "BEGIN INSERT INTO noted (it) VALUES (NEW.{}); RETURN NULL; END"
_LOOKED_AT: Final = (
    "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) AS n "
    "FROM pg_stat_xact_user_tables WHERE relname = '{}'"
)
