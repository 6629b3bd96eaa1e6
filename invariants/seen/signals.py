"""Signals as they were seen: what a client was told of its delivery against what steps say they were handed.

1. A delivery lands before its answer comes, and a step is handed the whole inbox of its row as it stands after the
   claim (or, in line, after the outcome before it). So a signal that was delivered before the claim began is handed to
   each of its steps, until an outcome has consumed it.
2. A signal is consumed by a `next`, `childs` or `continue` of a step that awaited its name, and gone with the end of
   its row. What a step awaited and was handed, it says; what the name of a signal is, its delivery says.
3. A delivery of unknown outcome may have arrived, and may be the one that a `duplicate` is of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from invariants.changes import Columns
from invariants.history.operations import Operation
from invariants.seen.seer import Seer
from invariants.witness import Witness, committed, is_unknown

# Outcomes that take what their step awaited out of the inbox.
CONSUMING: Final = ("next", "childs", "continue")


class SeenSignals(Seer):
    """Holds every step of a row against the deliveries that its row got."""

    name = "seen-signals"
    statement = (
        "by what clients and nodes were told: a dedup key is delivered once, a signal is handed to every step of its "
        "target until one consumes it and to none after that, and no step is handed what nobody sent"
    )

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._sent: dict[int, Operation] = {}
        self._unknown: list[Operation] = []

    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:  # noqa: ARG002
        self._deliveries(witness.deliveries)
        if not witness.names_signals:
            return None
        steps: dict[int, list[Operation]] = {}
        for step in witness.named.get("step", ()):
            if step.value.get("signals") is not None:
                steps.setdefault(step.value["id"], []).append(step)
        of_row: dict[int, dict[int, Operation]] = {}
        for signal, delivery in self._sent.items():
            if delivery.result["target"] is not None:
                of_row.setdefault(delivery.result["target"], {})[signal] = delivery
        outcomes = _consuming(witness, of_row)
        for row, its_steps in steps.items():
            for step in its_steps:
                for signal in step.value["signals"]:
                    self._handed(step, row, signal)
            if row in of_row:
                self._inbox(witness, its_steps, of_row[row], outcomes.get(row, ()))
        return None

    def _deliveries(self, deliveries: Sequence[Operation]) -> None:
        """What clients were told, held against each other."""
        keyed: dict[tuple[int, str], Operation] = {}
        first: dict[str, int] = {}
        for o in deliveries:
            dedup = o.value["dedup"]
            if is_unknown(o):
                self._unknown.append(o)
            elif o.type != "ok" or o.result["outcome"] != "delivered":
                continue
            else:
                self.checked += 1
                if self._sent.setdefault(o.result["signal"], o) is not o:
                    self.add(
                        f"signal {o.result['signal']} was delivered twice", self._sent[o.result["signal"]], o
                    )
                if dedup is not None and o.result["target"] is not None:
                    other = keyed.setdefault((o.result["target"], dedup), o)
                    if other is not o:
                        self.add(
                            f"row {o.result['target']} got what has the dedup key {dedup} twice: signals "
                            f"{other.result['signal']} and {o.result['signal']}",
                            other, o,
                        )  # fmt: skip
            if dedup is not None:
                first[dedup] = min(o.start_ns, first.get(dedup, o.start_ns))
        for o in deliveries:
            if o.type == "ok" and o.result["outcome"] == "duplicate":
                self.checked += 1
                # Of any target: whom an unknown delivery by key reached, nobody says.
                if o.end_ns is not None and first.get(o.value["dedup"], o.end_ns) >= o.end_ns:
                    self.add(
                        f"{o.process} was told that {o.value['dedup']} is a duplicate, and nobody had sent it",
                        o,
                    )

    def _handed(self, step: Operation, row: int, signal: int) -> None:
        self.checked += 1
        delivery = self._sent.get(signal)
        if delivery is None:
            if not any(
                o.start_ns < step.latest_start_ns and o.value["target"] in (None, row) for o in self._unknown
            ):
                self.add(f"a step of row {row} was handed signal {signal}, which nobody sent", step)
        elif delivery.result["target"] not in (None, row):
            self.add(
                f"a step of row {row} was handed signal {signal} of row {delivery.result['target']}",
                delivery,
                step,
            )
        elif delivery.start_ns > step.latest_start_ns:
            self.add(f"a step of row {row} was handed signal {signal} before it was sent", step, delivery)

    def _inbox(
        self,
        witness: Witness,
        steps: Sequence[Operation],
        inbox: Mapping[int, Operation],
        outcomes: Sequence[Outcome],
    ) -> None:
        """Each signal of one row against each of its steps."""
        saw: set[tuple[str, int]] = set()
        awaited: set[tuple[str, int]] = set()
        for step in steps:
            claim, names = step.value["claim"], step.value["awaits"] or ()
            for signal in step.value["signals"]:
                saw.add((claim, signal))
                if signal in inbox and inbox[signal].value["name"] in names:
                    awaited.add((claim, signal))
        for signal, delivery in inbox.items():
            may = [o.flush for o in outcomes if (o.claim, signal) in saw]
            did = [o.flush for o in outcomes if o.told and (o.claim, signal) in awaited]
            for step in steps:
                self._held_against(witness, step, signal, delivery, may, did)

    def _held_against(
        self,
        witness: Witness,
        step: Operation,
        signal: int,
        delivery: Operation,
        may: Sequence[Operation],
        did: Sequence[Operation],
    ) -> None:
        taken = witness.claims.get(step.value["claim"])
        if taken is None:
            return
        row = step.value["id"]
        if signal in step.value["signals"]:
            gone = next((o for o in did if o.end_ns is not None and o.end_ns < taken.start_ns), None)
            if gone is not None:
                self.add(
                    f"row {row} consumed signal {signal}, and a later step was handed it again",
                    gone,
                    taken,
                    step,
                )
        elif (
            delivery.end_ns is not None
            and delivery.end_ns < taken.start_ns
            and not any(o.start_ns < step.latest_start_ns for o in may)
        ):
            self.add(
                f"row {row} got signal {signal} before claim {step.value['claim']} began, no outcome had consumed it, "
                "and the step was not handed it",
                delivery, taken, step,
            )  # fmt: skip


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """An outcome that consumes what its step awaited, if it committed. `told`: somebody was told that it did."""

    flush: Operation
    claim: str
    told: bool


def _consuming(witness: Witness, rows: Collection[int]) -> Mapping[int, Sequence[Outcome]]:
    """By row, the outcomes that consume and committed, or may have."""
    found: dict[int, list[Outcome]] = {}
    for flush in witness.named.get("flush", ()):
        unknown = is_unknown(flush)
        told = set(committed(flush)) if flush.type == "ok" else set()
        for row, claim, kind in flush.value["outcomes"]:
            if kind in CONSUMING and row in rows and (unknown or (row, claim) in told):
                found.setdefault(row, []).append(Outcome(flush, claim, not unknown))
    return found
