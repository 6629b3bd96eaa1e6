"""The pure model of the sweeps: startup reclaim and garbage collection (picker.md §3).

Rules:

1. Reclaim takes what an earlier process of a node left behind: claims that carry exactly the node's name, and whose
   lease nobody can have renewed lately. It takes nothing beside another living process of that name (`lease-respect`).
2. What is collected has ended longer than the retention ago, has no children, and no parent that may still read it
   (`gc-safe`). Its inbox and its receipts go with it.
3. A page of collection is a page of what was looked at, deleted or spared; the next begins behind it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from models.picker import Ended, Row, Table, milliseconds, taken_back


@dataclass(frozen=True, slots=True)
class Page:
    """What one page of collection did: the rows deleted, how many were looked at, and the place behind the last."""

    ids: tuple[int, ...]
    looked_at: int
    place: tuple[datetime, int] | None


def reclaim(
    table: Table,
    now: datetime,
    *,
    prefixes: Collection[str],
    margin_ms: float,
    limit: int,
    namesake: bool = False,
    locked: Collection[int] = (),
) -> tuple[Table, Ended]:
    """Take back up to `limit` claims of these prefixes, each ending in a hyphen; `namesake`: a process of the same name
    is connected."""
    left_behind = [
        (row.lease_expires_at, row.id)
        for row in table.rows.values()
        if row.locked_by is not None
        and row.lease_expires_at is not None
        and row.lease_expires_at < now + milliseconds(margin_ms)
        and "".join(row.locked_by.rpartition("-")[:2]) in prefixes
        and row.id not in locked
        and not namesake
    ]
    return taken_back(table, now, [table.rows[row_id] for _, row_id in sorted(left_behind)[:limit]])


def collect(
    table: Table,
    now: datetime,
    *,
    retention_ms: float,
    limit: int,
    after: tuple[datetime, int] | None = None,
    locked: Collection[int] = (),
) -> tuple[Table, Page]:
    """Look at the next `limit` rows that ended longer than the retention ago, and delete those that may go."""
    ended = sorted(
        (row.updated_at, row.id)
        for row in table.rows.values()
        if not row.live and row.updated_at < now - milliseconds(retention_ms)
    )
    page = [place for place in ended if after is None or place > after][:limit]
    gone = {row_id for _, row_id in page if _may_go(table, table.rows[row_id]) and row_id not in locked}
    left = replace(
        table,
        rows={row_id: row for row_id, row in table.rows.items() if row_id not in gone},
        signals={each.id: each for each in table.signals.values() if each.target_id not in gone},
        receipts=frozenset(receipt for receipt in table.receipts if receipt[0] not in gone),
    )
    return left, Page(tuple(sorted(gone)), len(page), page[-1] if page else after)


def _may_go(table: Table, row: Row) -> bool:
    parent = None if row.parent_id is None else table.rows.get(row.parent_id)
    return not table.children(row.id) and (parent is None or not parent.live)
