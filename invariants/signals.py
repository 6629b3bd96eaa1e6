"""Signals: each delivered once, none lost, nobody asleep beside one, nobody awake without cause.

What the rules lean on (picker.md §3, §4):

1. A delivery locks its target, puts the signal into the inbox and wakes the target if it is parked on that name, in
   one transaction.
2. A park and its look at the inbox are one transaction; what the parking step was handed does not wake it again. What
   a step was handed, its history says.
3. A progressing outcome deletes what it saw of what it awaited; a terminal one empties the inbox; nothing else
   deletes, but the collection of the target.
"""

from __future__ import annotations

from invariants.changes import (
    ENDED,
    GONE,
    MOVED,
    PARKED,
    RUNNABLE,
    SIGNALS,
    STAYED,
    TERMINAL,
    Changes,
    Columns,
    Transition,
    text_array,
)
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Findings, Rest, microseconds, text
from invariants.witness import Witness


class Inboxes:
    """The pending signals by target: id → name."""

    def __init__(self) -> None:
        self.of: dict[int, dict[int, str]] = {}

    def observe(self, changes: Changes) -> None:
        """Follow one transaction."""
        for signal in changes.signals:
            if signal.born:
                self.of.setdefault(signal.target, {})[signal.id] = signal.name
            elif (inbox := self.of.get(signal.target)) is not None:
                inbox.pop(signal.id, None)
                if not inbox:
                    del self.of[signal.target]


class SignalDedup:
    """One delivery a dedup key, also when the first one has been consumed."""

    name = "signal-dedup"
    statement = "one `(target, dedup_key)` is in the inbox, or was consumed, at most once"
    groups = SIGNALS | GONE
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, _: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness
        self._delivered: dict[int, dict[str, int]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        for signal in changes.signals:
            if not signal.born or signal.dedup is None:
                continue
            self.checked += 1
            first = self._delivered.setdefault(signal.target, {}).setdefault(signal.dedup, signal.id)
            if first != signal.id:
                self.findings.add(
                    f"row {signal.target} got signal {signal.id} under dedup key {signal.dedup}, under which it had "
                    f"got signal {first}",
                    [signal.target],
                    transaction.number,
                )

    def conclude(self, rest: Rest) -> str | None:
        """A delivery that was called a duplicate is one."""
        if self._witness is None or not rest.summary.complete:
            return None
        for o in self._witness.deliveries:
            if o.type != "ok" or o.result["outcome"] != "duplicate" or o.result.get("target") is None:
                continue
            self.checked += 1
            target = o.result["target"]
            if o.value["dedup"] not in self._delivered.get(target, {}):
                self.findings.add(
                    f"{o.process} was told that {o.value['dedup']} is a duplicate, and row {target} never got it",
                    [target],
                    None,
                    [o],
                )
        return None


class NoLostWakeup:
    """Nobody is parked beside a signal that is news to it."""

    name = "no-lost-wakeup"
    statement = (
        "no instance stays `awaiting_signal` while its inbox holds a matching signal that the parking step "
        "had not been handed"
    )
    groups = ENDED | MOVED | GONE | SIGNALS
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness
        self._inboxes = Inboxes()
        # What each parked row waits for, and the signals that are no news to it.
        self._parked: dict[int, tuple[frozenset[str], frozenset[int]]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        self._inboxes.observe(changes)
        touched = {signal.target for signal in changes.signals if signal.born}
        for t in changes.ended:
            if t.after == PARKED:
                self._park(t)
                touched.add(t.id)
        for group in (changes.moved, changes.gone):
            for t in group:
                if t.before == PARKED and t.after != PARKED:
                    # Woken, or gone: it stayed for nothing.
                    self.checked += 1
                    self._parked.pop(t.id, None)
        for number in touched & self._parked.keys():
            self.checked += 1
            names, known = self._parked[number]
            news = [
                signal
                for signal, name in self._inboxes.of.get(number, {}).items()
                if name in names and signal not in known
            ]
            if news:
                self.findings.add(
                    f"row {number} is parked on {', '.join(sorted(names))} while its inbox holds signal {news[0]}, "
                    "which the step that parked it had not been handed",
                    [number],
                    transaction.number,
                )

    def _park(self, t: Transition) -> None:
        c = self._c
        assert t.old is not None
        assert t.new is not None
        presented = None if self._witness is None else self._witness.presented(t.id, text(t.old[c.locked_by]))
        if presented is None:
            # Nobody says what the step saw: only what arrives from now on is surely news.
            presented = frozenset(self._inboxes.of.get(t.id, ()))
        self._parked[t.id] = (frozenset(text_array(t.new[c.awaits])), presented)

    def conclude(self, _: Rest) -> str | None:
        return None


class NoLostSignal:
    """A signal leaves an inbox by a step that saw it, or with the end of its target; and none enters after that."""

    name = "no-lost-signal"
    statement = (
        "a delivery that answered ok is either handed to a step, or dropped by a terminal outcome that "
        "committed later; a progressing outcome deletes only what its step saw"
    )
    groups = ENDED | STAYED | GONE | SIGNALS
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness
        self._inboxes = Inboxes()
        self._arrived: dict[int, int] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        before = self._inboxes
        if changes.signals:
            self._deletions(transaction, changes)
        before.observe(changes)
        for signal in changes.signals:
            if not signal.born:
                continue
            self.checked += 1
            self._arrived[signal.id] = signal.target
            row = changes.row(signal.target)
            if row is None or row[self._c.status] in TERMINAL:
                status = "gone" if row is None else text(row[self._c.status])
                self.findings.add(
                    f"signal {signal.id} was delivered to row {signal.target}, which is {status}: no step will see "
                    "it, and nothing that commits later drops it",
                    [signal.target],
                    transaction.number,
                )
        for t in changes.ended:
            if t.after in TERMINAL and t.id in before.of:
                self.checked += 1
                self.findings.add(
                    f"row {t.id} ended and left {len(before.of[t.id])} signals in its inbox",
                    [t.id],
                    transaction.number,
                )

    def _deletions(self, transaction: Transaction, changes: Changes) -> None:
        c = self._c
        taken = [signal for signal in changes.signals if not signal.born]
        if not taken:
            return
        over = {t.id for t in changes.ended if t.after in TERMINAL} | {t.id for t in changes.gone}
        going = {t.id: t for t in (*changes.ended, *changes.stayed) if t.after not in TERMINAL}
        for signal in taken:
            self.checked += 1
            if signal.target in over:
                continue
            t = going.get(signal.target)
            if t is None:
                self._lost(transaction, signal.id, signal.target, "and no outcome of its target committed")
                continue
            assert t.old is not None
            claim = text(t.old[c.locked_by])
            presented = None if self._witness is None else self._witness.presented(t.id, claim)
            if presented is not None and signal.id not in presented:
                self._lost(transaction, signal.id, signal.target, f"and no step of claim {claim} had seen it")
            elif signal.name not in text_array(t.old[c.awaits]):
                self._lost(transaction, signal.id, signal.target, f"and nobody awaited {signal.name}")

    def _lost(self, transaction: Transaction, signal: int, target: int, why: str) -> None:
        self.findings.add(f"signal {signal} of row {target} was deleted, {why}", [target], transaction.number)

    def conclude(self, rest: Rest) -> str | None:
        if self._witness is None or not rest.summary.complete:
            return None
        for o in self._witness.deliveries:
            if o.type != "ok" or o.result["outcome"] != "delivered":
                continue
            self.checked += 1
            signal, target = o.result["signal"], o.result.get("target")
            arrived = self._arrived.get(signal)
            if arrived is None or (target is not None and arrived != target):
                self.findings.add(
                    f"{o.process} was told that its signal {signal} was delivered to row {target}, where it never "
                    "arrived",
                    [] if target is None else [target],
                    None,
                    [o],
                )
        return None


class NoSpin:
    """Who is parked is woken by news, by time, and by nothing else."""

    name = "no-spin"
    statement = "re-awaiting with unconsumed, already-seen signals parks; it does not loop"
    groups = ENDED | MOVED | SIGNALS
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness
        self._inboxes = Inboxes()

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        c = self._c
        self._inboxes.observe(changes)
        for t in changes.ended:
            if t.after == RUNNABLE and self._awaited(transaction, t):
                self.findings.add(
                    f"row {t.id} asked to await and went back to runnable without having parked",
                    [t.id],
                    transaction.number,
                )
        parked_here = {t.id: t for t in changes.ended if t.after == PARKED}
        for t in changes.moved:
            if t.before != PARKED or t.after != RUNNABLE:
                continue
            assert t.old is not None
            self.checked += 1
            names = text_array(t.old[c.awaits])
            deadline = t.old[c.await_deadline]
            if deadline is not None and microseconds(deadline) <= transaction.committed_us:
                continue
            if (park := parked_here.get(t.id)) is not None:
                assert park.old is not None
                claim = text(park.old[c.locked_by])
                seen = None if self._witness is None else self._witness.presented(t.id, claim)
                inbox = self._inboxes.of.get(t.id, {})
                if any(name in names and (seen is None or s not in seen) for s, name in inbox.items()):
                    continue
                why = "its inbox holds nothing that the step which parked it had not been handed"
            else:
                if any(s.born and s.target == t.id and s.name in names for s in changes.signals):
                    continue
                why = f"no signal among {', '.join(names)} arrived and no deadline had passed"
            self.findings.add(f"row {t.id} was woken, and {why}", [t.id], transaction.number)

    def _awaited(self, transaction: Transaction, t: Transition) -> bool:
        ender = None if self._witness is None else self._witness.enders.get(transaction.xid)
        if ender is None or ender.f != "flush":
            return False
        assert t.old is not None
        claim = text(t.old[self._c.locked_by])
        return [t.id, claim, "await"] in [list(entry) for entry in ender.value["outcomes"]]

    def conclude(self, _: Rest) -> str | None:
        return None
