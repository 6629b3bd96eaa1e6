"""What leaves the store: emits and forks, from the commit that made them to the relay that took them out.

1. A row of the outbox or of the spawns goes when its work is done, and not before.
2. A relay may die between the work and the row's end: the work is done again. What must be once is once for other
   reasons: a marker, an existing child.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import msgspec

from invariants.changes import Changes, Columns
from invariants.commits import about
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Rest, Watcher, bare
from invariants.stored import FORKED, QUEUED, SAVED, SENT, event_id
from invariants.verdict import MAX_VIOLATIONS
from invariants.witness import Witness

# Emits that were acknowledged before they were published are remembered so far back.
_REMEMBERED: Final = 10_000


def delivered(operation: Operation) -> list[int] | None:
    """The rows that a relay says it delivered, in its order, before or after it did; None where it says neither."""
    told: list[int] | None = operation.value.get("seqs")
    if told is None and operation.type == "ok":
        told = operation.result["seqs"]
    return told


class _Emit(msgspec.Struct):
    """An emit on its way. `emitter` is None where several executions were written in its transaction."""

    seq: int
    emitter: str | None
    target: str | None
    event: str | None
    number: int
    delivered: bool = False
    # When it was acknowledged, for one whose target lives elsewhere.
    done_us: int | None = None


class OutboxNoLoss(Watcher):
    """Follows each emit from its commit to its acknowledgement, and where the transport is in the same ledger to its
    publication too. The order is that of one emitter to one target: no other is one that anybody can see."""

    name = "outbox-no-loss"
    statement = (
        "every committed emit is delivered at least once, in emission order per emitter, and acked only after "
        "delivery"
    )
    groups = SENT | QUEUED | FORKED
    needs_rest = True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._pending: dict[int, _Emit] = {}
        self._published: dict[tuple[str, str], list[_Emit]] = {}
        self._emitted: dict[str, int] = {}
        # The youngest row delivered, by emitter and target: relays hand targets over side by side.
        self._delivered: dict[tuple[str, str], int] = {}
        # Acknowledged and not published: a loss only where the relay publishes at all.
        self._early: dict[tuple[str, str], _Emit] = {}
        self._lost: list[_Emit] = []
        self._publishes = False
        # Children that are still to be made, each with the number of its spawns.
        self._unborn: dict[str, int] = {}
        # Emits to other shards, and in which transaction children were first forked that live there.
        self._abroad: list[_Emit] = []
        self._forked: dict[str, int] = {}
        self._named: dict[int, list[Operation]] = {}
        # By whether the rows have a target: when those began that never said what they took, and the rows that went
        # without a word, by transaction.
        self._silent: dict[bool, list[int]] = {True: [], False: []}
        self._unclaimed: dict[bool, list[tuple[Transaction, list[_Emit]]]] = {True: [], False: []}
        for name in ("relay.deliver", "relay.broadcast"):
            for operation in self.named(name):
                seqs = delivered(operation)
                if seqs is None:
                    self._silent[name == "relay.deliver"].append(operation.begun_us)
                for seq in seqs or ():
                    self._named.setdefault(seq, []).append(operation)

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        stored = changes.stored
        written = {saved.id for saved in stored.saved if saved.after is not None}
        emitter = next(iter(written)) if len(written) == 1 else None
        for sent in stored.sent:
            if sent.born:
                self._emit(
                    transaction,
                    _Emit(sent.seq, emitter, sent.target, event_id(sent.event), transaction.number),
                )
        for forked in stored.forked:
            if forked.born and not self.elsewhere.is_here(forked.child):
                self._forked.setdefault(forked.child, transaction.number)
            count = self._unborn.pop(forked.child, 0) + (1 if forked.born else -1)
            if count > 0:
                self._unborn[forked.child] = count
        for queued in stored.queued:
            if queued.born:
                self._publish(transaction, queued.group, event_id(queued.event))
        for sent in stored.sent:
            if not sent.born:
                self._acknowledge(transaction, sent.seq)

    def _emit(self, transaction: Transaction, emit: _Emit) -> None:
        self.checked += 1
        self._pending[emit.seq] = emit
        if emit.target is not None and not self.elsewhere.is_here(emit.target):
            self._abroad.append(emit)
        elif emit.target is not None and emit.event is not None:
            self._published.setdefault((emit.target, emit.event), []).append(emit)
        if emit.emitter is not None:
            if emit.seq < self._emitted.get(emit.emitter, 0):
                self._add(
                    transaction, emit, f"stands before row {self._emitted[emit.emitter]}, emitted earlier"
                )
            self._emitted[emit.emitter] = max(emit.seq, self._emitted.get(emit.emitter, 0))

    def _publish(self, transaction: Transaction, group: str, event: str | None) -> None:
        if event is None:
            return
        early = self._early.pop((group, event), None)
        if early is not None:
            self._publishes = True
            self._add(transaction, early, "was acknowledged before it was delivered")
        for emit in self._published.get((group, event), ()):
            self._publishes = True
            if emit.delivered:
                continue
            emit.delivered = True
            if group in self._unborn:
                self._add(transaction, emit, "was delivered before its target was made")
            if emit.emitter is not None:
                lane = (emit.emitter, group)
                latest = self._delivered.get(lane, 0)
                if emit.seq < latest:
                    self._add(transaction, emit, f"was delivered after row {latest} of the same emitter")
                self._delivered[lane] = max(emit.seq, latest)

    def _acknowledge(self, transaction: Transaction, seq: int) -> None:
        emit = self._pending.pop(seq, None)
        if emit is None:
            return
        if self._named and not any(o.type != "fail" for o in self._named.get(seq, ())):
            unclaimed = self._unclaimed[emit.target is not None]
            if not unclaimed or unclaimed[-1][0].number != transaction.number:
                unclaimed.append((bare(transaction), []))
            unclaimed[-1][1].append(emit)
        if emit.target is None or emit.event is None:
            return
        if not self.elsewhere.is_here(emit.target):
            emit.done_us = transaction.committed_us
            return
        key = (emit.target, emit.event)
        waiting = self._published.get(key, [])
        if emit in waiting:
            waiting.remove(emit)
        if not waiting:
            self._published.pop(key, None)
        if not emit.delivered:
            self._early[key] = emit
            if len(self._early) > _REMEMBERED:
                oldest = self._early.pop(next(iter(self._early)))
                if len(self._lost) < MAX_VIOLATIONS:
                    self._lost.append(oldest)

    def conclude(self, rest: Rest) -> str | None:
        for operation in self.named("relay.deliver"):
            seqs = list(delivered(operation) or ())
            if seqs != sorted(seqs):
                self.findings.add(
                    f"{operation.process} delivers rows {seqs}: not oldest first", (), None, [operation]
                )
        for targeted in (True, False):
            self._judge_unclaimed(targeted, rest.evidence.clock_slack_ms * 1_000)
        if self._publishes:
            for emit in (*self._lost, *self._early.values()):
                self._add(None, emit, "was acknowledged and never delivered")
        if self.elsewhere.is_known and self.elsewhere.publishes():
            self._judge_abroad()
        if rest.evidence.at_rest:
            for emit in self._pending.values():
                self._add(None, emit, "stands in the outbox at rest")
        return self.elsewhere.why_unknown

    def _judge_unclaimed(self, targeted: bool, slack_us: float) -> None:
        """A delivery of unknown outcome is one transaction, after its beginning: of rows that no relay names it excuses
        those of one transaction, and no others."""
        begun = sorted(self._silent[targeted])
        excused, now_us = 0, 0
        for transaction, emits in self._unclaimed[targeted]:
            now_us = max(now_us, transaction.committed_us)
            if excused < bisect_right(begun, now_us + slack_us):
                excused += 1
                continue
            for emit in emits:
                self._add(
                    transaction,
                    emit,
                    "was acknowledged, and no relay delivered it",
                    self._named.get(emit.seq, []),
                )

    def _judge_abroad(self) -> None:
        """Emits to other shards: published there, in the order of their emitter, and after their target was made."""
        latest: dict[tuple[str, str], tuple[int, int]] = {}
        for emit in self._abroad:
            assert emit.target is not None
            if emit.event is None:
                continue
            published = self.elsewhere.published(emit.target, emit.event)
            if published is None:
                if emit.done_us is not None:
                    self._add(None, emit, "was acknowledged and never delivered")
                continue
            if emit.done_us is not None and published.committed_us > emit.done_us + self.elsewhere.slack_us:
                self._add(None, emit, "was acknowledged before it was delivered")
            born = self.elsewhere.born(emit.target)
            if self._forked.get(emit.target, emit.number + 1) <= emit.number and (
                born is None or born.rank > published.rank
            ):
                self._add(None, emit, "was delivered before its target was made")
            if emit.emitter is not None:
                rank, seq = latest.get((emit.emitter, emit.target), (0, 0))
                if published.rank < rank:
                    self._add(None, emit, f"was delivered before row {seq} of the same emitter")
                else:
                    latest[emit.emitter, emit.target] = (published.rank, emit.seq)

    def _add(
        self,
        transaction: Transaction | None,
        emit: _Emit,
        problem: str,
        operations: list[Operation] | None = None,
    ) -> None:
        self.findings.add(
            f"outbox row {emit.seq} ({emit.event or 'no id'} to {emit.target or 'nobody in particular'}) {problem}",
            (),
            None if transaction is None else transaction.number,
            operations or (),
            [("outbox", str(emit.seq)), *about(*([] if emit.emitter is None else [emit.emitter]))],
        )


class SpawnOnce(Watcher):
    """Every fork's child comes into being once, before its intent goes."""

    name = "spawn-once"
    statement = "a committed fork creates each child exactly once"
    groups = SAVED | FORKED
    needs_rest = True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._pending: dict[int, tuple[str, str]] = {}
        # Every child ever forked, and how often it was made.
        self._made: dict[str, int] = {}
        # Children that live in other shards: their parents, and when the intent went.
        self._abroad: dict[str, tuple[str, int | None]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        for forked in changes.stored.forked:
            if forked.born:
                self.checked += 1
                self._pending[forked.seq] = (forked.parent, forked.child)
                if not self.elsewhere.is_here(forked.child):
                    self._abroad.setdefault(forked.child, (forked.parent, None))
                    continue
                there = changes.find("executions", forked.child.encode()) is not None
                self._made.setdefault(forked.child, int(there))
        for saved in changes.stored.saved:
            if saved.id in self._made and saved.after == 1:
                self._made[saved.id] += 1
                if self._made[saved.id] > 1 or saved.before is not None:
                    over = "" if saved.before is None else f", over version {saved.before}"
                    self._add(transaction, saved.id, f"is made a second time{over}")
        for forked in changes.stored.forked:
            if not forked.born:
                self._pending.pop(forked.seq, None)
                if not self.elsewhere.is_here(forked.child):
                    parent, done_us = self._abroad.get(forked.child, (forked.parent, None))
                    self._abroad[forked.child] = (parent, done_us or transaction.committed_us)
                elif not self._made.get(forked.child):
                    self._add(transaction, forked.child, "was acknowledged and not made", forked.parent)

    def conclude(self, rest: Rest) -> str | None:
        if self.elsewhere.is_known:
            self._judge_abroad()
        if rest.evidence.at_rest:
            for parent, child in self._pending.values():
                self._add(None, child, "is still to be made at rest", parent)
        return self.elsewhere.why_unknown

    def _judge_abroad(self) -> None:
        """Children of other shards: made there once, and not after the intent went."""
        for child, (parent, done_us) in self._abroad.items():
            born = self.elsewhere.born(child)
            if self.elsewhere.births(child) > 1:
                self._add(None, child, "is made a second time", parent)
            if done_us is None:
                continue
            if born is None:
                self._add(None, child, "was acknowledged and not made", parent)
            elif born.committed_us > done_us + self.elsewhere.slack_us:
                self._add(None, child, "was acknowledged before it was made", parent)

    def _add(
        self, transaction: Transaction | None, child: str, problem: str, parent: str | None = None
    ) -> None:
        of = "" if parent is None else f" of {parent}"
        self.findings.add(
            f"child {child}{of} {problem}",
            (),
            None if transaction is None else transaction.number,
            (),
            about(child, *([] if parent is None else [parent])),
        )
