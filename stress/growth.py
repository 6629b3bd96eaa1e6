"""Whether tables grow without bound, from samples of their sizes between the rounds of a soak. Pure.

Every round of a soak leaves its tables empty of rows: what has ended is collected by the nodes, the rest is deleted. So
space that is written to again and again must be used again and again, once autovacuum has come round. Rules:

1. The first round in which a table is written to much tells what a row version of it costs where no space is used
   again: bytes of table and indexes, by versions written (inserts and updates, as the server counts them).
2. Over the later half of the rounds a table that never used space again would grow by that much for every version.
   One that grows by more than `SHARE` of it, and by more than `SLACK_BYTES`, grows without bound. What counts is how
   much more there is at the end: a table that a vacuum cuts off grows again in the next round, and not without bound.
   The end is the smaller of the last two samples, for the last round's work may not have been cleaned up yet.
3. Of a round in which the server's counters were set back, by a crash, only what was written after that is known.
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

ABSENT = TableSize(0, 0, 0, 0, 0, 0)


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
    later = samples[-(len(samples) // 2) - 1 :]
    found = {}
    for table in samples[-1]:
        cost = _cost([sample[table] for sample in samples if table in sample])
        sizes = [sample.get(table, ABSENT) for sample in later]
        end = len(sizes) - 1 if sizes[-1].total <= sizes[-2].total else len(sizes) - 2
        grown, written = (
            sizes[end].total - sizes[0].total,
            sum(_written(*pair) for pair in pairwise(sizes[: end + 1])),
        )
        if cost is None or written < MIN_VERSIONS or grown <= SLACK_BYTES:
            continue
        if grown > SHARE * cost * written:
            found[table] = (
                f"{table} grew by {grown / 2**20:,.1f} MB in {end} of the last {len(later) - 1} rounds, in which "
                f"{written:,} row versions were written: {grown / written:,.0f} bytes each, where {cost:,.0f} is what "
                "one costs when no space is ever used again"
            )
    return found


def _cost(sizes: Sequence[TableSize]) -> float | None:
    """Bytes for a version in the first round that wrote many and made the table larger."""
    for before, after in pairwise([ABSENT, *sizes]):
        written, grown = after.written - before.written, after.total - before.total
        if written >= MIN_VERSIONS and grown > 0:
            return grown / written
    return None


def _written(before: TableSize, after: TableSize) -> int:
    """Versions of one round; at least, where the counters began anew."""
    return after.written if after.written < before.written else after.written - before.written
