"""Ownership as nodes saw it: one claim of a row at a time, each outcome told once, and a step behind every outcome.

1. A claim's name is used once. What is told to have been found under a claim was held under it since the claim was told
   of (`invariants/seen/holds.py`), so two such times of one row never overlap.
2. A claim ends once, and a row ends once: whoever is told that his end took effect is told so alone.
3. A row that has ended is claimed no more.
4. A step may run more often than its outcome counts: by a node whose claim was gone, or that died. It never runs less
   often. A `stop` and a `retry` may be the node's own: for a state that it cannot read, a limit that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable

from invariants.history.operations import Operation
from invariants.seen.holds import Holds, Pair, Span, most_at_once, operations_of
from invariants.seen.seer import Seer
from invariants.witness import Insert, Witness, committed, ended, is_unknown

ENDS = ("done", "stop")
# Kinds of outcomes that only a step can have.
OF_STEPS = ("next", "await", "done", "childs", "continue")


class SeenSingleOwner(Seer):
    """Claims of one row, and what ended them, in the order in which nodes were told."""

    name = "seen-single-owner"
    statement = (
        "by what nodes were told: a row is held under one claim at a time, an outcome commits once, and a row "
        "that has ended is claimed no more"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        self._names(witness)
        self._overlaps(witness)
        over = self._ends(witness)
        for (row, claim), taken in witness.derived(Holds).taken.items():
            end = over.get(row)
            if end is not None and end.end_ns is not None and end.end_ns < taken.start_ns:
                self.add(f"row {row} was claimed under {claim} when it had ended already", end, taken)
        return None

    def _names(self, witness: Witness) -> None:
        used: dict[str, Operation] = {}
        for o in witness.named.get("claim", ()):
            if o.type != "ok" or not o.result["ids"]:
                continue
            self.checked += len(o.result["ids"])
            first = used.setdefault(o.value["claim"], o)
            if first is not o:
                self.add(f"two claims have the name {o.value['claim']}, and both were told rows", first, o)

    def _overlaps(self, witness: Witness) -> None:
        spans: dict[int, list[Span]] = {}
        for row, span in witness.derived(Holds).of_rows():
            spans.setdefault(row, []).append(span)
        for row, held in spans.items():
            at_once = most_at_once(held)
            if len(at_once) > 1:
                names = " and ".join(span.name for span in at_once)
                self.add(f"row {row} was held under {names} at one time", *operations_of(at_once))

    def _ends(self, witness: Witness) -> dict[int, Operation]:
        """The first operation that was told to have ended each row for good."""
        claims: dict[Pair, Operation] = {}
        over: dict[int, Operation] = {}
        for o in witness.operations:
            if o.f not in ("flush", "release", "reap", "reclaim") or o.type != "ok":
                continue
            kinds = {(e[0], e[1]): e[2] for e in o.value["outcomes"]} if o.f == "flush" else {}
            for pair in ended(o):
                first = claims.setdefault(pair, o)
                if first is not o:
                    self.add(f"claim {pair[1]} of row {pair[0]} was told twice that it was ended", first, o)
                if kinds.get(pair) in ENDS and (first := over.setdefault(pair[0], o)) is not o:
                    self.add(f"row {pair[0]} ended twice", first, o)
        return over


class SeenExecuted(Seer):
    """Looks for the step behind each outcome, and at rest for the end of each job."""

    name = "seen-executed"
    statement = (
        "by what nodes were told: an outcome that committed is one that a step of its claim returned, and what "
        "was accepted has ended when nothing is under way"
    )

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:
        steps, nodes = _steps(witness.named.get("step", ()))
        for flush in witness.named.get("flush", ()):
            if flush.type == "ok" and flush.process in nodes:
                self._behind(flush, steps)
        if at_rest and nodes:
            self._ended(witness)
        return None

    def _behind(self, flush: Operation, steps: dict[tuple[int, str, str], Operation]) -> None:
        told = set(committed(flush))
        for row, claim, kind in flush.value["outcomes"]:
            if kind not in OF_STEPS or (row, claim) not in told:
                continue
            self.checked += 1
            step = steps.get((row, claim, kind))
            if step is None or step.start_ns > flush.start_ns:
                self.add(
                    f"the outcome {kind} of row {row} under claim {claim} committed, and no step of that claim had "
                    "returned it",
                    *([flush] if step is None else [step, flush]),
                )

    def _ended(self, witness: Witness) -> None:
        over: set[int] = set()
        parked: set[int] = set()
        for flush in witness.named.get("flush", ()):
            told = set(committed(flush)) if flush.type == "ok" else set()
            for row, claim, kind in flush.value["outcomes"]:
                if (row, claim) in told or is_unknown(flush):
                    if kind in ENDS:
                        over.add(row)
                    elif kind == "await":
                        parked.add(row)
        for row, insert in witness.inserts.items():
            self.checked += 1
            patient = witness.is_early(insert) or (row in parked and not witness.may_end(insert))
            if row not in over and not patient:
                self._lost(row, insert)

    def _lost(self, row: int, insert: Insert) -> None:
        self.add(
            f"{insert.operation.process} was told that its job is row {row}, and nobody was told of its end, nor may "
            "have brought it about",
            insert.operation,
        )


def _steps(operations: Iterable[Operation]) -> tuple[dict[tuple[int, str, str], Operation], set[str]]:
    """The first step of each row and claim that returned that kind, and the processes that say what theirs return."""
    steps: dict[tuple[int, str, str], Operation] = {}
    nodes: set[str] = set()
    for o in operations:
        if o.type == "ok" and "kind" in o.result:
            nodes.add(o.process)
            steps.setdefault((o.value["id"], o.value["claim"], o.result["kind"]), o)
    return steps, nodes
