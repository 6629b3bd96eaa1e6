"""How much lay where while a run went on: jobs by status, rows of the other tables, read off the ledger.

A gauge and no rule: it judges nothing, and is fed what the judge is fed. At most MAX_SAMPLES are kept: when there are
more, every other one goes, and the steps between them are twice as long from there on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from invariants.changes import Changes, Transition
from invariants.ledger.pgoutput import Transaction
from invariants.stored import TABLES

MAX_SAMPLES: Final = 2_000
FIRST_STEP_US: Final = 20_000


class Depth(msgspec.Struct, frozen=True):
    """What lay where at one time. `at_us`: microseconds since the epoch, the commit's time on the server's clock; `of`:
    jobs by status, rows of a table of the store or the transport by its name."""

    at_us: int
    of: dict[str, int]


class Depths:
    """Fed like a rule, with every transaction."""

    groups = -1

    def __init__(self) -> None:
        self.samples: list[Depth] = []
        self.counts: dict[str, int] = {}
        self._now: Counter[str] = Counter()
        self._step_us = FIRST_STEP_US
        self._next_us = 0

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        """Follow one."""
        for group in (changes.born, changes.claimed, changes.ended, changes.moved, changes.gone):
            self._follow(group)
        for change in transaction.changes:
            name = change.relation.name
            if name in TABLES and change.kind in ("insert", "delete"):
                self._now[name] += 1 if change.kind == "insert" else -1
        if transaction.committed_us >= self._next_us:
            self.samples.append(Depth(transaction.committed_us, dict(self._now)))
            self._next_us = transaction.committed_us + self._step_us
            if len(self.samples) > MAX_SAMPLES:
                self.samples = self.samples[::2]
                self._step_us *= 2

    def _follow(self, group: Iterable[Transition]) -> None:
        now = self._now
        for t in group:
            if t.before is not None:
                now[t.before.decode()] -= 1
            if t.after is not None:
                now[t.after.decode()] += 1


def together(shards: Sequence[Sequence[Depth]]) -> tuple[Depth, ...]:
    """The depths of several servers as one, summed: each counts with what it last was."""
    last: list[dict[str, int]] = [{} for _ in shards]
    merged: list[Depth] = []
    ordered = sorted(
        ((depth.at_us, shard, depth) for shard, depths in enumerate(shards) for depth in depths),
        key=lambda entry: entry[:2],
    )
    for at_us, shard, depth in ordered:
        last[shard] = depth.of
        merged.append(Depth(at_us, dict(sum((Counter(of) for of in last), Counter()))))
    return tuple(merged)
