"""What leaves the store: emits, timers and forks, from the commit that made them to the relay that took them out.

1. A row of the outbox, of the spawns or of the timers goes when its work is done, and not before.
2. A relay may die between the work and the row's end: the work is done again. What must be once is once for other
   reasons: a marker, an existing child, a time that still matches.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from invariants.changes import Changes, Columns
from invariants.commits import about, writer
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Rest, Watcher
from invariants.stored import FORKED, QUEUED, SAVED, SENT, TIMED, Timed, event_id
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
        # One that took what it could and never said what that was may have delivered any row.
        self._unknown = False
        for operation in (*self.named("relay.deliver"), *self.named("relay.broadcast")):
            seqs = delivered(operation)
            self._unknown |= seqs is None
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
        told = self._named and not self._unknown
        if told and not any(o.type != "fail" for o in self._named.get(seq, ())):
            self._add(
                transaction, emit, "was acknowledged, and no relay delivered it", self._named.get(seq, [])
            )
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
        if self._publishes:
            for emit in (*self._lost, *self._early.values()):
                self._add(None, emit, "was acknowledged and never delivered")
        if self.elsewhere.is_known and self.elsewhere.publishes():
            self._judge_abroad()
        if rest.evidence.at_rest:
            for emit in self._pending.values():
                self._add(None, emit, "stands in the outbox at rest")
        return self.elsewhere.why_unknown

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


class TimerRearm(Watcher):
    """A timer that goes without a commit was fired at the very time that it was armed for."""

    name = "timer-rearm"
    statement = (
        "a re-armed timer survives a stale sweep; a cancelled one never fires after the cancel's commit was "
        "seen"
    )
    groups = SAVED | TIMED | SENT
    needs_history = True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._fired: dict[tuple[str, str, float], list[Operation]] = {}
        # Where no sweep is on record, nobody says what was fired.
        self._sweeps = self.named("relay.timers")
        self._unknown_sweeps = False
        for sweep in self._sweeps:
            if sweep.type == "ok":
                for execution, path, fire_at in sweep.result["fired"]:
                    self._fired.setdefault((execution, path, fire_at), []).append(sweep)
            else:
                self._unknown_sweeps = True
        self._armed: set[tuple[str, str, float]] = set()
        # Ids of the events that timers became.
        self._events: set[str] = set()
        # The commits that cancelled a timer which was not armed for the same time again.
        self._cancelled: dict[tuple[str, str, float], Operation] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        written = {saved.id: saved.after for saved in changes.stored.saved if saved.after is not None}
        if not written:
            self._fire(transaction, changes)
        for timed in changes.stored.timed:
            self.checked += 1
            if timed.after is not None:
                key = (timed.execution, timed.path, timed.after)
                self._armed.add(key)
                self._cancelled.pop(key, None)
            if timed.before is None or timed.before == timed.after:
                continue
            key = (timed.execution, timed.path, timed.before)
            version = written.get(timed.execution)
            if version is None:
                self._swept(transaction, timed, key)
            elif (operation := writer(self.witness, timed.execution, version)) is not None:
                self._cancelled[key] = operation

    def _fire(self, transaction: Transaction, changes: Changes) -> None:
        """What stands in the outbox without a commit is a timer that fired, and it goes with that."""
        gone = Counter(timed.execution for timed in changes.stored.timed if timed.after is None)
        for sent in changes.stored.sent:
            if not sent.born:
                continue
            event, target = event_id(sent.event) or "no id", sent.target or ""
            if event in self._events:
                self._add(transaction, target, f"event {event} was the event of an earlier firing too")
            elif not gone[target]:
                self._add(transaction, target, f"event {event} goes out, and no timer with it")
            self._events.add(event)
            gone[target] -= 1

    def _add(self, transaction: Transaction, execution: str, problem: str) -> None:
        self.findings.add(f"execution {execution}: {problem}", (), transaction.number, (), about(execution))

    def _swept(self, transaction: Transaction, timed: Timed, key: tuple[str, str, float]) -> None:
        if self._sweeps and key not in self._fired and not self._unknown_sweeps:
            fired = [at for execution, path, at in self._fired if (execution, path) == key[:2]]
            told = (
                f"fired for {', '.join(f'{at:.6f}' for at in sorted(fired))} only" if fired else "never fired"
            )
            self.findings.add(
                f"timer {timed.path} of execution {timed.execution}, armed for {timed.before:.6f}, is gone without a "
                f"commit: it was {told}",
                (), transaction.number, (), about(timed.execution),
            )  # fmt: skip

    def conclude(self, _: Rest) -> str | None:
        for key, sweeps in self._fired.items():
            execution, path, fire_at = key
            cancel = self._cancelled.get(key)
            for sweep in sweeps:
                if key not in self._armed:
                    problem = "was never armed"
                elif cancel is not None and cancel.end_ns is not None and cancel.end_ns < sweep.start_ns:
                    problem = "was cancelled by a commit that had been answered before"
                else:
                    continue
                self.findings.add(
                    f"{sweep.process} fires timer {path} of execution {execution} for {fire_at:.6f}, which {problem}",
                    (), None, [sweep] if cancel is None else [cancel, sweep], about(execution),
                )  # fmt: skip
        return None
