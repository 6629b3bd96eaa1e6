"""Whether tables grow without bound, from samples of their sizes between the rounds of a soak. Pure.

Every round of a soak leaves its tables empty of rows: what has ended is collected by the nodes, the rest is deleted. So
space that is written to again and again must be used again and again, once autovacuum has come round. Rules:

1. The first round in which a table is written to much tells what a row version of it costs where no space is used
   again: bytes of table and indexes, by versions written (inserts and updates, as the server counts them).
2. Over the later half of the rounds a table that never used space again would grow by that much for every version. One
   that grows by more than `SHARE` of it, and by more than `SLACK_BYTES`, grows without bound.
3. A round in which the server's counters were set back, by a crash, counts for neither.
4. Fewer than `MIN_ROUNDS` rounds, or fewer than `MIN_VERSIONS` versions in the later half, tell nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

SHARE = 0.5
SLACK_BYTES = 8 * 1024 * 1024
MIN_ROUNDS = 6
MIN_VERSIONS = 5_000


class TableSize(msgspec.Struct, frozen=True):
    """A table as the server describes it: bytes of its heap and of its indexes, rows dead and live by its estimate,
    row versions written since its counters began, and how often autovacuum has been there."""

    heap: int
    indexes: int
    dead: int
    live: int
    written: int
    vacuums: int

    @property
    def total(self) -> int:
        """Bytes of both."""
        return self.heap + self.indexes


Sizes = Mapping[str, TableSize]


def total_bytes(sizes: Sizes) -> int:
    """Of all tables."""
    return sum(size.total for size in sizes.values())


def total_dead(sizes: Sizes) -> int:
    """Rows of all tables."""
    return sum(size.dead for size in sizes.values())


def growths(samples: Sequence[Sizes]) -> dict[str, str]:
    """By table that grows without bound, how it does, in a sentence. `samples`: one before the first round and one
    after each, on one server."""
    if len(samples) <= MIN_ROUNDS:
        return {}
    half = len(samples) // 2
    found = {}
    for table in samples[-1]:
        steps = [
            _step(before.get(table), after[table]) for before, after in pairwise(samples) if table in after
        ]
        cost = next((grown / written for grown, written in steps if written >= MIN_VERSIONS), None)
        later = steps[-half:]
        grown, written = sum(step[0] for step in later), sum(step[1] for step in later)
        if cost is None or written < MIN_VERSIONS or grown <= SLACK_BYTES:
            continue
        if grown > SHARE * cost * written:
            found[table] = (
                f"{table} grew by {grown / 2**20:,.1f} MB in the last {len(later)} rounds, in which {written:,} row "
                f"versions were written: {grown / written:,.0f} bytes each, where {cost:,.0f} is what one costs when "
                "no space is ever used again"
            )
    return found


def _step(before: TableSize | None, after: TableSize) -> tuple[int, int]:
    """Bytes and versions of one round; nothing where the counters began anew."""
    if before is None:
        return after.total, after.written
    if after.written < before.written:
        return 0, 0
    return max(0, after.total - before.total), after.written - before.written
