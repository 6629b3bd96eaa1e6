"""Where the executions of a ledger's neighbours live, and what their ledgers tell: for runs on several servers.

1. A shard's ledger has one order, and two ledgers have none in common: between them there are only their servers'
   clocks. So that something happened elsewhere too late is found where it is later than clocks can be apart.
2. A group of the transport is an execution, and lives where it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from engine.store.shards import shard_of
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.stored import event_id


class Place(msgspec.Struct, frozen=True, gc=False):
    """When something first happened: its rank among all that is remembered of its ledger, and its commit's time."""

    rank: int
    committed_us: int


class Digest:
    """What the other shards need to know of a ledger: who was born, of which parent, and what was published."""

    def __init__(self, transactions: Iterable[Transaction]) -> None:
        self.published: dict[tuple[str, str], Place] = {}
        # How often each execution got its first version.
        self.births: dict[str, int] = {}
        self.born: dict[str, Place] = {}
        self.parents: dict[str, str] = {}
        rank = 0
        for transaction in transactions:
            for change in transaction.changes:
                if change.new is None or change.relation.name not in ("executions", "transport_messages"):
                    continue
                rank += 1
                place = Place(rank, transaction.committed_us)
                row = dict(zip(change.relation.columns, change.new, strict=True))
                if change.relation.name == "executions":
                    self._save(row, place)
                elif change.kind == "insert":
                    event = event_id(row["event"] or b"")
                    if event is not None:
                        self.published.setdefault((_text(row["group_id"]), event), place)

    def _save(self, row: Mapping[str, bytes | None], place: Place) -> None:
        if row["version"] != b"1":
            return
        execution = _text(row["id"])
        self.births[execution] = self.births.get(execution, 0) + 1
        self.born.setdefault(execution, place)
        if row["parent_id"] is not None:
            self.parents[execution] = _text(row["parent_id"])


class Elsewhere:
    """The view of one shard. Without `digests` it knows only what lives here: a recorder's judge has no more."""

    def __init__(
        self,
        shard: int = 0,
        count: int = 1,
        digests: Sequence[Digest] = (),
        promises: Mapping[str, Operation] | None = None,
        slack_us: float = 0.0,
    ) -> None:
        self.shard, self.count = shard, count
        # How far two servers' clocks may be apart.
        self.slack_us = slack_us
        self._digests = tuple(digests)
        # Commits of all shards that promise an end (`invariants/endings.py`).
        self.promises: Mapping[str, Operation] = {} if promises is None else promises

    @property
    def is_known(self) -> bool:
        """Whether there are other shards, and their ledgers were read."""
        return bool(self._digests)

    @property
    def why_unknown(self) -> str | None:
        """Why what lives elsewhere cannot be judged; None where it can, or where nothing does."""
        if self.count == 1 or self.is_known:
            return None
        return "what crosses shards cannot be judged: the ledger of one of them is not whole"

    def is_here(self, execution: str) -> bool:
        """Whether it lives in this shard."""
        return self.count == 1 or shard_of(execution, self.count) == self.shard

    def place_of(self, execution: str) -> int:
        """The shard that it lives in."""
        return shard_of(execution, self.count)

    def published(self, group: str, event: str) -> Place | None:
        """When an event was first published to a group that lives elsewhere."""
        return self._of(group).published.get((group, event)) if self.is_known else None

    def born(self, execution: str) -> Place | None:
        """When an execution that lives elsewhere was first saved."""
        return self._of(execution).born.get(execution) if self.is_known else None

    def births(self, execution: str) -> int:
        """How often it was."""
        return self._of(execution).births.get(execution, 0) if self.is_known else 0

    def parent(self, execution: str) -> str | None:
        """The parent of an execution that lives elsewhere."""
        return self._of(execution).parents.get(execution) if self.is_known else None

    def publishes(self) -> bool:
        """Whether any shard has a transport at all."""
        return any(digest.published for digest in self._digests)

    def _of(self, execution: str) -> Digest:
        return self._digests[self.place_of(execution)]


ALONE: Final = Elsewhere()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
