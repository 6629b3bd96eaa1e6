"""What a run put the store, the relay and the transport through while its load lasted (`invariants/exercise.py`).

conflicts_lost     commits that lost a race
processed_before   events that came again and had been processed before
takeovers          groups that a claim took from a holder whose lease had run out
timers_fired       timers that became events
timers_raced       timers that a commit cancelled or armed anew when they were due already
forks_joined       parents that went on because their last child had ended
outbox_delivered   rows of the outbox that were handed over
spawns_made        children that were made
"""

from __future__ import annotations

from typing import Final

import msgspec

from invariants.changes import Changes
from invariants.commits import COMMIT
from invariants.exercise import Span
from invariants.ledger.pgoutput import Transaction
from invariants.stored import FORKED, LEASED, SAVED, SENT, TIMED, Saved, Sent
from invariants.transport import taken
from invariants.witness import Witness, error_of

STORED_EXERCISES: Final = (
    "conflicts_lost", "processed_before", "takeovers", "timers_fired", "timers_raced", "forks_joined",
    "outbox_delivered", "spawns_made",
)  # fmt: skip


class _Child(msgspec.Struct):
    finished: bool = False


class _Parent(msgspec.Struct):
    """The part of an execution's JSON that says which children it waits for."""

    children: dict[str, _Child] = msgspec.field(default_factory=dict)


_PARENT = msgspec.json.Decoder(_Parent)


class StoredExercise:
    """Fed like a rule, it judges nothing."""

    groups = SAVED | SENT | TIMED | FORKED | LEASED

    def __init__(self, witness: Witness) -> None:
        self.counts = dict.fromkeys(STORED_EXERCISES, 0)
        self._span = Span(witness.operations)
        # By parent, the children that it still waits for.
        self._awaited: dict[str, frozenset[str]] = {}
        for o in witness.operations:
            if not self._span.holds(o):
                continue
            if o.f == COMMIT and o.type == "fail":
                error = error_of(o).get("error")
                self.counts["conflicts_lost"] += error == "StoreConflict"
                self.counts["processed_before"] += error == "EventAlreadyProcessed"
            elif o.f == "count" and o.value["event"] == "processed_before":
                self.counts["processed_before"] += o.value["amount"]

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        """Follow one transaction."""
        stored, counts = changes.stored, self.counts
        joined = sum(self._joins(saved, stored.sent) for saved in stored.saved)
        if not self._span.counts(transaction):
            return
        now = transaction.committed_us / 1e6
        written = {saved.id for saved in stored.saved}
        counts["forks_joined"] += joined
        counts["outbox_delivered"] += sum(not sent.born for sent in stored.sent)
        counts["spawns_made"] += sum(not forked.born for forked in stored.forked)
        for timed in stored.timed:
            if timed.before is None or timed.before == timed.after:
                continue
            if timed.execution not in written:
                counts["timers_fired"] += 1
            elif timed.before <= now:
                counts["timers_raced"] += 1
        for leased in stored.leased:
            counts["takeovers"] += (
                taken(leased) and leased.before is not None and leased.before.holder is not None
            )

    def _joins(self, saved: Saved, sent: list[Sent] | tuple[()]) -> bool:
        """Whether the fork is left with one child to wait for, which is not told to stop."""
        before = self._awaited.pop(saved.id, frozenset())
        try:
            children = {} if saved.data is None else _PARENT.decode(saved.data).children
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if children:
            self._awaited[saved.id] = frozenset(each for each in children if not children[each].finished)
            return False
        return len(before) == 1 and not any(each.born and each.target in before for each in sent)
