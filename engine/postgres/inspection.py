"""What a server says about itself: version, the settings that results depend on, and whether the ledger can
work."""

from __future__ import annotations

import secrets
from typing import Any, Final

import psycopg

from engine.errors import InfrastructureError
from engine.postgres import conninfo, spec

# Recorded with every result: a figure or a plan means nothing without them.
RECORDED: Final = (
    "autovacuum",
    "data_checksums",
    "deadlock_timeout",
    "default_transaction_isolation",
    "effective_cache_size",
    "effective_io_concurrency",
    "fsync",
    "full_page_writes",
    "jit",
    "log_lock_waits",
    "max_connections",
    "max_locks_per_transaction",
    "max_parallel_workers_per_gather",
    "max_replication_slots",
    "max_wal_senders",
    "max_wal_size",
    "plan_cache_mode",
    "random_page_cost",
    "server_encoding",
    "shared_buffers",
    "synchronous_commit",
    "synchronous_standby_names",
    "timezone",
    "wal_level",
    "wal_sync_method",
    "work_mem",
)
SLOT_TIMEOUT_MS: Final = 5_000


def version(conn: psycopg.Connection[Any]) -> tuple[int, str]:
    """`server_version_num` and `server_version`. Raises `InfrastructureError` below the oldest supported
    major."""
    number, text = conninfo.fetch_one(
        conn, "SELECT current_setting('server_version_num')::int, current_setting('server_version')"
    )
    if number // 10000 < spec.OLDEST_MAJOR:
        raise InfrastructureError(
            f"the server is Postgres {text}: use one from {spec.OLDEST_MAJOR} to {spec.NEWEST_MAJOR}"
        )
    return number, text.split()[0]


def notes(number: int) -> list[str]:
    """What a reader of results should know about a server of this version."""
    if number // 10000 > spec.NEWEST_MAJOR:
        return [f"Postgres {number // 10000} is newer than the newest that was tried ({spec.NEWEST_MAJOR})"]
    return []


def settings(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """The recorded settings, as `SHOW` prints them; those that this version does not know are left out."""
    rows = conn.execute(
        "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s) ORDER BY name",
        (list(RECORDED),),
    )
    return {str(name): str(value) for name, value in rows}


def why_no_ledger(conn: psycopg.Connection[Any]) -> str | None:
    """None when a logical slot can be made in the database of `conn`, else one sentence about what to change.

    Tried, not derived: a temporary slot is made and dropped. Managed servers grant the privilege in ways of
    their own.
    """
    if conninfo.fetch_one(conn, "SHOW wal_level")[0] != "logical":
        return "the server's wal_level is not logical: set wal_level = logical and restart it"
    slot = f"pgreferee_probe_{secrets.token_hex(6)}"
    try:
        # Making a slot waits for every transaction that is running on the server.
        conn.execute("SELECT set_config('statement_timeout', %s, false)", (str(SLOT_TIMEOUT_MS),))
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", (slot,))
        conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    except psycopg.errors.InsufficientPrivilege:
        return f'the role "{conn.info.user}" may not use replication slots: ALTER ROLE ... REPLICATION'
    except psycopg.errors.ConfigurationLimitExceeded:
        return "every replication slot of the server is in use: raise max_replication_slots and restart it"
    except psycopg.errors.QueryCanceled:
        return (
            "a replication slot was not ready in 5 s: a transaction has been open on the server for that long"
        )
    except psycopg.Error as error:
        why = error.diag.message_primary or "the connection was lost"
        return f"a logical replication slot cannot be made: {why}"
    finally:
        if not conn.closed:
            conn.execute("RESET statement_timeout")
    return None
