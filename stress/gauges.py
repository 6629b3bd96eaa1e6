"""What is read off the server now and then while a run goes on: dead rows, and who waits for whom.

    gauges.parquet   at_ns, name, value: `waiting`, sessions that wait for a lock; `dead TABLE`, by the server's count
    waits.parquet    at_ns, at_us, waiter, holder, lock, statement, waiter_xid, holder_xid: who was seen waiting for
                     whom, by the names of the histories, and their transactions, null for one that has changed nothing

`at_ns` is on the history's clock, `at_us` on this machine's, since the epoch. Samples, no measure: a wait that is over
between two looks was not seen. At most MOST rows are kept of each file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
import psycopg

from engine.statements import Catalogue

MOST: Final = 20_000
# Before 15 a look at the counts makes the server write them to a file.
COUNTS_INTERVAL_S: Final = 1.0
GAUGES, WAITS = "gauges.parquet", "waits.parquet"
# Of a statement, what the server keeps by default (track_activity_query_size), less a character cut in two.
KNOWN_BY: Final = 1_000

_WAITS: Final = """
SELECT
    waiter.pid, waiter.application_name, coalesce(holder.application_name, ''), waiter.wait_event, waiter.query,
    waiter.backend_xid::text::bigint, holder.backend_xid::text::bigint
FROM pg_stat_activity AS waiter
CROSS JOIN LATERAL unnest(pg_blocking_pids(waiter.pid)) AS blocking (pid)
LEFT JOIN pg_stat_activity AS holder ON holder.pid = blocking.pid
WHERE waiter.datname = current_database() AND waiter.wait_event_type = 'Lock'
"""
_DEAD: Final = """
SELECT relname, pg_stat_get_dead_tuples(oid) FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""
_SESSION: Final = re.compile(r"^[^@#]*@([^#]+)#.*$")


class Gauges:
    """Asked for a look again and again, written once. `names`: statements by how their text begins."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._names = {each.text[:KNOWN_BY]: name for name, each in catalogue.items()}
        self._gauges: list[tuple[int, str, int]] = []
        self._waits: list[tuple[Any, ...]] = []
        self._counted_at = 0.0

    def look(self, connections: Sequence[psycopg.Connection[Any]]) -> None:
        """Take one sample of all servers. Raises psycopg.Error."""
        now = time.monotonic()
        at_ns, at_us = time.monotonic_ns(), time.time_ns() // 1000
        found = [row for each in connections for row in each.execute(_WAITS).fetchall()]
        if len(self._gauges) < MOST:
            self._gauges.append((at_ns, "waiting", len({row[0] for row in found})))
            if now - self._counted_at >= COUNTS_INTERVAL_S:
                self._counted_at = now
                dead: dict[str, int] = {}
                for each in connections:
                    for table, count in each.execute(_DEAD).fetchall():
                        dead[table] = dead.get(table, 0) + count
                self._gauges += [(at_ns, f"dead {table}", count) for table, count in sorted(dead.items())]
        if len(self._waits) < MOST:
            self._waits += [
                (
                    at_ns,
                    at_us,
                    session(waiter),
                    session(holder),
                    lock,
                    self._names.get(query[:KNOWN_BY], ""),
                    *xids,
                )
                for _, waiter, holder, lock, query, *xids in found
            ]

    def write(self, folder: Path) -> None:
        """Both files."""
        gauges = {"at_ns": pl.Int64, "name": pl.String, "value": pl.Int64}
        waits = {
            "at_ns": pl.Int64,
            "at_us": pl.Int64,
            **dict.fromkeys(("waiter", "holder", "lock", "statement"), pl.String),
            **dict.fromkeys(("waiter_xid", "holder_xid"), pl.Int64),
        }
        pl.DataFrame(self._gauges, schema=gauges, orient="row").write_parquet(folder / GAUGES)
        pl.DataFrame(self._waits, schema=waits, orient="row").write_parquet(folder / WAITS)


def session(name: str) -> str:
    """The process of a session by its application_name, as histories name it: `swarm@node-1.1#0c…` is node-1.1."""
    return _SESSION.sub(r"\1", name)
