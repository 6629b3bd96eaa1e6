"""What the schema must refuse: for every constraint a change that breaks it and nothing else, tried and undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg

# A row of every table, which the changes below start from.
ROWS: Final = (
    "INSERT INTO gen_durable (id, fsm, step) OVERRIDING SYSTEM VALUE VALUES (1, 'm', 's'), (2, 'm', 's')",
    (
        "INSERT INTO gen_durable (id, fsm, step, status, locked_by, lease_expires_at, concurrency_key, correlation_key,"
        " correlation_scope) OVERRIDING SYSTEM VALUE"
        " VALUES (3, 'm', 's', 'executing', 'w', now(), 'k', 'c', '{runnable,executing}')"
    ),
    "INSERT INTO signals (id, target_id, name, dedup_key) OVERRIDING SYSTEM VALUE VALUES (100, 1, 'n', 'd')",
    "INSERT INTO signal_receipts VALUES (1, 'd')",
    "INSERT INTO gen_durable_bucket_configs (kind, name, rate, capacity) VALUES ('rate', 'r', 1, 1)",
    "INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available) VALUES ('rate', 'r', 0, 1, 1)",
    "INSERT INTO executions (id, definition_id, data, version) VALUES ('e', 'd', '{}', 1)",
    "INSERT INTO outbox (seq, event) VALUES (1, '{}')",
    "INSERT INTO processed_events VALUES ('e', 'v')",
    "INSERT INTO timers VALUES ('e', 'p', 1)",
    "INSERT INTO spawns (seq, parent_id, child_id, root_path, context) VALUES (1, 'e', 'c', '', '{}')",
    "INSERT INTO trace VALUES ('e', 0, '{}')",
    "INSERT INTO transport_messages (seq, group_id, event) VALUES (1, 'g', '{}')",
    "INSERT INTO transport_groups (group_id, lock_expiry) VALUES ('g', 0)",
)
_LONG: Final = "repeat('x', 2001)"
_DURABLE: Final = "UPDATE gen_durable SET {} WHERE id = 1"
# By constraint or unique index, the changes that it must refuse, each by itself.
REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "gen_durable_pkey": (
        "INSERT INTO gen_durable (id, fsm, step) OVERRIDING SYSTEM VALUE VALUES (1, 'm', 's')",
    ),
    "gen_durable_parent_id_fkey": (_DURABLE.format("parent_id = 999"),),
    "gen_durable_owned": (
        _DURABLE.format("status = 'executing'"),
        _DURABLE.format("locked_by = 'w', lease_expires_at = now()"),
        "UPDATE gen_durable SET lease_expires_at = NULL WHERE id = 3",
        _DURABLE.format("lease_expires_at = now()"),
    ),
    "gen_durable_scope_from_insert": (_DURABLE.format("correlation_scope = '{executing}'"),),
    "gen_durable_indexable": tuple(
        _DURABLE.format(f"{column} = {_LONG}") for column in ("queue", "concurrency_key", "correlation_key")
    ),
    "gen_durable_state_object": (_DURABLE.format("state = '[]'"), _DURABLE.format("state = '\"{}\"'")),
    "gen_durable_children_pending": (_DURABLE.format("children_pending = -1"),),
    "gen_durable_concurrency_active": (
        _DURABLE.format(
            "status = 'executing', locked_by = 'v', lease_expires_at = now(), concurrency_key = 'k'"
        ),
    ),
    "gen_durable_correlation": (_DURABLE.format("correlation_key = 'c', correlation_scope = '{runnable}'"),),
    "signals_pkey": (
        "INSERT INTO signals (id, target_id, name) OVERRIDING SYSTEM VALUE VALUES (100, 1, 'n')",
    ),
    "signals_target_id_fkey": ("INSERT INTO signals (target_id, name) VALUES (999, 'n')",),
    "signals_target_id_dedup_key_key": (
        "INSERT INTO signals (target_id, name, dedup_key) VALUES (1, 'o', 'd')",
    ),
    "signals_indexable": (
        f"UPDATE signals SET name = {_LONG}",
        f"UPDATE signals SET dedup_key = {_LONG}",
    ),
    "signal_receipts_pkey": ("INSERT INTO signal_receipts VALUES (1, 'd')",),
    "signal_receipts_target_id_fkey": ("INSERT INTO signal_receipts VALUES (999, 'd')",),
    "gen_durable_bucket_configs_kind_check": ("UPDATE gen_durable_bucket_configs SET kind = 'another'",),
    "gen_durable_bucket_configs_pkey": (
        "INSERT INTO gen_durable_bucket_configs (kind, name, capacity) VALUES ('rate', 'r', 2)",
    ),
    "gen_durable_buckets_kind_check": ("UPDATE gen_durable_buckets SET kind = 'another'",),
    "gen_durable_buckets_pkey": (
        "INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available) VALUES ('rate', 'r', 0, 1, 1)",
    ),
    "gen_durable_buckets_check": (
        "UPDATE gen_durable_buckets SET available = -0.5",
        "UPDATE gen_durable_buckets SET available = 1.5",
    ),
    "executions_pkey": (
        "INSERT INTO executions (id, definition_id, data, version) VALUES ('e', 'd', '{}', 1)",
    ),
    "executions_version_check": ("UPDATE executions SET version = 0",),
    "outbox_pkey": ("INSERT INTO outbox (seq, event) VALUES (1, '{}')",),
    "processed_events_pkey": ("INSERT INTO processed_events VALUES ('e', 'v')",),
    "timers_pkey": ("INSERT INTO timers VALUES ('e', 'p', 2)",),
    "timers_fire_at_check": tuple(
        f"UPDATE timers SET fire_at = '{value}'" for value in ("infinity", "-infinity", "nan")
    ),
    "spawns_pkey": (
        "INSERT INTO spawns (seq, parent_id, child_id, root_path, context) VALUES (1, 'e', 'c', '', '{}')",
    ),
    "trace_pkey": ("INSERT INTO trace VALUES ('e', 0, '{}')",),
    "transport_messages_pkey": (
        "INSERT INTO transport_messages (seq, group_id, event) VALUES (1, 'g', '{}')",
    ),
    "transport_groups_pkey": ("INSERT INTO transport_groups (group_id, lock_expiry) VALUES ('g', 0)",),
    "transport_groups_lock_expiry_check": tuple(
        f"UPDATE transport_groups SET lock_expiry = '{value}'" for value in ("infinity", "-infinity", "nan")
    ),
    "transport_groups_priority_check": (
        "UPDATE transport_groups SET priority = 5",
        "UPDATE transport_groups SET priority = -1",
    ),
}
_NOT_NULL: Final = """
SELECT a.attrelid::regclass::text, a.attname
FROM pg_attribute AS a INNER JOIN pg_class AS r ON r.oid = a.attrelid
WHERE r.relnamespace = 'public'::regnamespace AND r.relkind = 'r' AND a.attnum > 0 AND a.attnotnull
    AND a.attidentity = '' AND a.attgenerated = '' AND r.relname <> 'pgreferee_migrations'
ORDER BY 1, 2
"""


def changes(connection: psycopg.Connection[Any]) -> Iterator[tuple[str, str]]:
    """All of them: what must refuse it, a constraint or `table.column` that may not be null; and the change."""
    for name, texts in REFUSED.items():
        for text in texts:
            yield name, text
    for table, column in connection.execute(_NOT_NULL).fetchall():
        yield f"{table}.{column}", f"UPDATE {table} SET {column} = NULL"  # from the catalogue


def first_taken(connection: psycopg.Connection[Any], alterations: Sequence[str] = ()) -> str | None:
    """The first change that is taken once the schema has been altered so; None where every one is refused. All is
    undone. The connection is in autocommit mode, its database has the whole schema and no rows."""
    for _, text, error in outcomes(connection, alterations):
        if error is None:
            return f"taken: {text}"
    return None


def outcomes(
    connection: psycopg.Connection[Any], alterations: Sequence[str] = ()
) -> list[tuple[str, str, psycopg.Error | None]]:
    """What must refuse each change, the change, and the error that it met."""
    told: list[tuple[str, str, psycopg.Error | None]] = []
    wanted = list(changes(connection))
    with connection.transaction(force_rollback=True):
        for text in (*ROWS, *alterations):
            connection.execute(text.encode())
        for name, text in wanted:
            error: psycopg.Error | None = None
            try:
                with connection.transaction(force_rollback=True):
                    connection.execute(text.encode())
            except psycopg.Error as raised:
                error = raised
            told.append((name, text, error))
    return told
