"""What a blocked session waits for, in words, as `pg_locks` has it.

Who waits for a row waits for the end of the transaction that has it; which row that is says the tuple's lock that the
waiter has taken meanwhile, so that it is the next (src/backend/access/heap/README.tuplock).
"""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from psycopg import sql

_LOCKS: Final = """
SELECT locktype, mode, granted, relation::regclass::text, page, tuple FROM pg_locks
WHERE pid = %s AND (NOT granted OR locktype = 'tuple')
ORDER BY granted
"""
_KEY: Final = """
SELECT array_agg(attname ORDER BY array_position(indkey, attnum))
FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
WHERE indrelid = %s::regclass AND indisprimary
"""
# Of the error with which the server breaks a circle: DETAIL, a line for each who waits, and CONTEXT.
_EDGE: Final = re.compile(r"Process (\d+) waits for [^;]*; blocked by process (\d+)\.")
_AT: Final = re.compile(r'while \w+ tuple \((\d+),(\d+)\) in relation "([^"]+)"')


def awaited(control: psycopg.Connection[Any], pid: int) -> str:
    """The lock that the session of that process waits for: `row 7 of gen_durable`. Empty where it waits no more."""
    found = control.execute(_LOCKS, (pid,)).fetchall()
    wanted = next((lock for lock in found if not lock[2]), None)
    if wanted is None:
        return ""
    held = next((lock for lock in found if lock[2]), None)
    kind, mode, _, table, page, place = wanted
    if kind == "transactionid":
        return "the end of its transaction" if held is None else _row(control, *held[3:])
    if kind == "tuple":
        return f"{_row(control, table, page, place)}, for which others wait"
    return f"{kind} {table or ''}".strip() + f", {mode}"


def _row(control: psycopg.Connection[Any], table: str, page: int, place: int) -> str:
    """A row by its key; by its place where the key cannot be read."""
    found = control.execute(_KEY, (table,)).fetchone()
    key = [] if found is None else found[0] or []
    if key:
        query = sql.SQL("SELECT {} FROM {} WHERE ctid = %s::tid").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in key),
            sql.Identifier(*table.split(".")),
        )
        row = control.execute(query, (f"({page},{place})",)).fetchone()
        if row is not None:
            return f"row {'/'.join(row)} of {table}"
    return f"row ({page},{place}) of {table}"


def circle(detail: str) -> list[tuple[int, int]]:
    """Who waited for whom in a deadlock, as processes, as the server's DETAIL has it. Pure."""
    return [(int(waiter), int(holder)) for waiter, holder in _EDGE.findall(detail)]


def stood_at(control: psycopg.Connection[Any], context: str) -> str:
    """The row at which the session stood that the server chose to end, from its CONTEXT; empty where there was none."""
    found = _AT.search(context)
    return "" if found is None else _row(control, found[3], int(found[1]), int(found[2]))
