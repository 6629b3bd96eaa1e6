"""What a run put the engine through while its load lasted: counts of what the rules can only be tried by.

A rule that held where nothing happened has shown nothing. So each exercise is counted from the ledger and the history,
over the time from the phase `load` to the phase after it; a run without phases counts as a whole. These are the
picker's; what a run of the store is asked for stands in `invariants/stored_exercise.py`.

    denials            rows that an admission did not let in
    throttles          those of them that asked for tokens of a rate limit
    gates_saturated    times that a gate key went from free slots to none
    parks_raced        parks that found a signal in the inbox which had come while their step ran
    joins              parents woken by their last child
    inline_chains      claims under which a step was followed by another
    reconciles         sweeps over gates that ended well
    bucket_sweeps      sweeps over rate buckets that dropped or mended one
    gc_deletes         rows collected
    reaps              claims taken back after their lease
    expiries           waits for a signal that ran out of time
    pokes              statements that notified
    pokes_dropped      notifications that a node was kept from hearing
    limits_changed     configurations of gates and rates that were written down or changed
    nodes_rolled       nodes that a rolling restart replaced
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from invariants.changes import (
    BUCKETS,
    CONFIGS,
    ENDED,
    JOINING,
    MOVED,
    PARKED,
    RUNNABLE,
    Changes,
    Columns,
    Transition,
)
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.limits import GATE, Levels
from invariants.rules import text
from invariants.witness import Witness, committed

EXERCISES: Final = (
    "denials", "throttles", "gates_saturated", "parks_raced", "joins", "inline_chains", "reconciles", "bucket_sweeps",
    "gc_deletes", "reaps", "expiries", "pokes", "pokes_dropped",
    "limits_changed", "nodes_rolled",
)  # fmt: skip
# A slot less than whole lets nobody in.
FREE: Final = 1.0


class Span:
    """From the phase `load` to the phase after it, on the history's clock and on the ledger's."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        phases = [o for o in operations if o.f == "phase"]
        began = next((o for o in phases if o.value["phase"] == "load"), None)
        over = next((o for o in phases if began is not None and o.start_ns > began.start_ns), None)
        self._from_ns = 0 if began is None else began.start_ns
        self._to_ns = 2**63 if over is None else over.start_ns
        self._from_us = 0 if began is None else began.begun_us
        self._to_us = 2**63 if over is None else over.begun_us

    def holds(self, operation: Operation) -> bool:
        """Whether the operation began within it."""
        return self._from_ns <= operation.start_ns < self._to_ns

    def counts(self, transaction: Transaction) -> bool:
        """Whether the transaction was committed within it."""
        return self._from_us <= transaction.committed_us < self._to_us


class Exercise:
    """Fed like a rule, it judges nothing."""

    groups = BUCKETS | CONFIGS | ENDED | MOVED

    def __init__(self, columns: Columns, witness: Witness) -> None:
        self.counts = dict.fromkeys(EXERCISES, 0)
        self._c = columns
        self._gates = Levels(GATE)
        self._full: set[str] = set()
        self._denied: set[tuple[int, str]] = set()
        self._span = Span(witness.operations)
        self._tell(witness.operations)

    def _tell(self, operations: Sequence[Operation]) -> None:
        counts, chains = self.counts, set()
        for o in operations:
            if o.type != "ok" or not self._span.holds(o):
                continue
            if o.f == "flush":
                lasting = {(row, claim) for row, claim, kind in o.value["outcomes"] if kind == "continue"}
                if lasting:
                    chains |= lasting & set(committed(o))
            elif o.f == "admit":
                counts["denials"] += len(o.result["denied"])
                self._denied |= {(row, o.value["claim"]) for row in o.result["denied"]}
            elif o.f == "count":
                if o.value["event"] == "poke_dropped":
                    counts["pokes_dropped"] += o.value["amount"]
            elif (name := COUNTED.get(o.f)) is not None:
                counts[name] += _amount(o)
        counts["inline_chains"] = len(chains)

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        """Follow one transaction."""
        counting = self._span.counts(transaction)
        for key in self._gates.observe(changes.buckets):
            full = sum(level.available for level in self._gates.now.get(key, {}).values()) < FREE
            if full and key not in self._full and key in self._gates.now:
                self._full.add(key)
                self.counts["gates_saturated"] += counting
            elif not full:
                self._full.discard(key)
        if not counting:
            return
        self.counts["limits_changed"] += len(changes.configs)
        parked = {t.id for t in changes.ended if t.after == PARKED}
        for t in changes.moved:
            if t.after == RUNNABLE:
                self.counts["joins"] += t.before == JOINING
                self.counts["parks_raced"] += t.before == PARKED and t.id in parked
        for t in changes.ended:
            self.counts["throttles"] += t.shape == "release" and self._was_throttled(t)

    def _was_throttled(self, t: Transition) -> bool:
        assert t.old is not None
        asked = t.old[self._c.rate_limit] is not None
        return asked and (t.id, text(t.old[self._c.locked_by])) in self._denied


COUNTED: Final = {
    "reconcile": "reconciles", "sweep_buckets": "bucket_sweeps", "gc": "gc_deletes", "reap": "reaps",
    "expire": "expiries", "notify": "pokes", "roll": "nodes_rolled",
}  # fmt: skip


def _amount(o: Operation) -> int:
    result: dict[str, Any] = o.result
    match o.f:
        case "gc" | "expire":
            return len(result["ids"])
        case "reap":
            return len(result["holds"])
        case "roll":
            return int(result["did"].get("nodes replaced", 0))
        case "sweep_buckets":
            return int(any(result.get(name) for name in ("dropped", "made", "cut")))
        case _:
            return 1
