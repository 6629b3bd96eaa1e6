"""What stands in a seeded database: the rows that the arguments of statements name. Read once a capture, in id
order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import psycopg

# Rows of each kind that are remembered: more than any batch.
LIMIT: Final = 2_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Columns of the first `LIMIT` rows of each kind, scattered over the tables as their statuses are.

    `held`: (id, claim, key, shard, rate) of executing rows whose lease runs on. `slots`: (key, shard) of those that
    hold one, and `xid` a transaction that no count has seen. `place`: (updated_at as text, id) in the middle of the
    terminal.
    """

    batch: int
    rows: int
    held: Sequence[tuple[int, str, str | None, int | None, str | None]]
    parked: Sequence[int]
    joining: Sequence[int]
    terminal: Sequence[int]
    identities: Sequence[str]
    inbox: Sequence[tuple[int, int]]
    shards: Sequence[tuple[str, int]]
    place: tuple[str, int]
    xid: str
    outbox: Sequence[int]
    spawns: Sequence[int]
    messages: Sequence[tuple[str, int]]

    @property
    def many(self) -> range:
        """One number for each of a batch."""
        return range(1, self.batch + 1)

    def executions(self) -> list[str]:
        """Ids of stored executions, a batch of them, scattered, every one with a trace."""
        step = max(1, self.rows // 20 // self.batch)
        return [f"e{n * step * 10}" for n in self.many]


def read(connection: psycopg.Connection[Any], rows: int, batch: int) -> Sample:
    """Read the sample of a database that `profiles.seed` filled. Raises IndexError where a kind is missing."""

    def column(query: str) -> list[Any]:
        return [row[0] for row in fetch(query)]

    def fetch(query: str) -> list[Any]:
        return connection.execute(f"{query} LIMIT {LIMIT}".encode()).fetchall()

    of = "SELECT id FROM gen_durable WHERE status ="
    return Sample(
        batch=batch,
        rows=rows,
        held=fetch(
            "SELECT id, locked_by, concurrency_key, concurrency_shard, rate_limit FROM gen_durable"
            " WHERE status = 'executing' AND lease_expires_at > now() ORDER BY id"
        ),
        parked=column(f"{of} 'awaiting_signal' AND await_deadline IS NULL ORDER BY id"),
        joining=column(f"{of} 'awaiting_children' ORDER BY id"),
        terminal=column(f"{of} 'done' ORDER BY id"),
        identities=column(
            "SELECT correlation_guard FROM gen_durable WHERE status = 'awaiting_signal'"
            " AND correlation_guard IS NOT NULL ORDER BY id"
        ),
        inbox=fetch("SELECT target_id, id FROM signals ORDER BY id"),
        shards=fetch("SELECT key, shard FROM gen_durable_buckets WHERE kind = 'conc' ORDER BY key, shard"),
        place=cast(
            "tuple[str, int]",
            fetch(
                "SELECT updated_at::text, id FROM gen_durable WHERE status IN ('done', 'failed')"
                " AND id > (SELECT max(id) / 2 FROM gen_durable) ORDER BY updated_at, id"
            )[0],
        ),
        xid=fetch("SELECT pg_current_xact_id()::text")[0][0],
        outbox=column("SELECT seq FROM outbox ORDER BY seq"),
        spawns=column("SELECT seq FROM spawns ORDER BY seq"),
        messages=fetch(
            "SELECT g.group_id, min(m.seq) FROM transport_groups AS g JOIN transport_messages AS m USING (group_id)"
            " WHERE g.locked_by IS NOT NULL GROUP BY 1 ORDER BY 2"
        ),
    )
