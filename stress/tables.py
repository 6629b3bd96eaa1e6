"""The tables of a run from outside: how big they are, and how they are emptied between the rounds of a soak."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from stress.growth import TableSize

# From the catalogue and the statistics alone: no extension, and no page of the table is read.
SIZES = """
SELECT
    n.nspname || '.' || c.relname, pg_relation_size(c.oid), pg_indexes_size(c.oid),
    coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0),
    coalesce(s.n_tup_ins + s.n_tup_upd, 0), coalesce(s.autovacuum_count, 0)
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 1
"""
TABLES = """
SELECT n.nspname, c.relname
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE
    c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND c.relname <> 'pgreferee_migrations'
ORDER BY 1, 2
"""


def sizes(connection: psycopg.Connection[Any]) -> dict[str, TableSize]:
    """By name with its schema, every table of the database."""
    return {name: TableSize(*figures) for name, *figures in connection.execute(SIZES)}


def empty(connection: psycopg.Connection[Any]) -> int:
    """Delete every row, and tell how many there were. Deleted, not truncated: the files stay, with all that is dead in
    them."""
    deleted = 0
    for schema, name in connection.execute(TABLES).fetchall():
        deleted += connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, name))).rowcount
    return deleted
