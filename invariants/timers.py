"""Timers, from the commit that armed them to the commit that cancelled them or the sweep that fired them.

1. A timer goes with a commit of its execution, or because it was fired: then its event goes out with it or before it,
   and after it was armed.
2. A timer that is armed anew, be it for the same instant, is another: what was fired before was not this one.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from invariants.changes import Changes, Columns
from invariants.commits import about, writer
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Rest, Watcher, bare
from invariants.stored import QUEUED, SAVED, SENT, TIMED, event_id
from invariants.witness import Witness

# Timers that went without an event are remembered so far.
_REMEMBERED: Final = 10_000
# Execution, path and instant.
Key = tuple[str, str, float]


class _Due(msgspec.Struct):
    """The payload of a timer's event."""

    path: str
    fire_at: float


class _Fired(msgspec.Struct, tag_field="kind", tag="timer"):
    """A timer's event."""

    payload: _Due


_FIRED = msgspec.json.Decoder(_Fired)


def _timer(event: bytes) -> _Due | None:
    """Which timer it is the event of; None where it is none."""
    if b'"timer"' not in event:
        return None
    try:
        return _FIRED.decode(event).payload
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class TimerRearm(Watcher):
    """A timer that goes without a commit was fired at the very time that it was armed for."""

    name = "timer-rearm"
    statement = (
        "a re-armed timer survives a stale sweep; a cancelled one never fires after the cancel's commit was "
        "seen"
    )
    groups = SAVED | TIMED | SENT | QUEUED
    needs_history = True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._fired: dict[Key, list[Operation]] = {}
        # Where no sweep is on record, nobody says what was fired.
        self._sweeps = self.named("relay.timers")
        # When the first began that never said what it fired.
        self._silent_us: int | None = None
        for sweep in self._sweeps:
            if sweep.type == "ok":
                for execution, path, fire_at in sweep.result["fired"]:
                    self._fired.setdefault((execution, path, fire_at), []).append(sweep)
            elif self._silent_us is None:
                self._silent_us = sweep.begun_us
        # In which transaction each was armed last, and in which its event went out last.
        self._armed: dict[Key, int] = {}
        self._out: dict[Key, int] = {}
        # Those that went without a commit, with why that may be wrong: nobody says that he fired it, or no event of it
        # went out since it was armed, which counts where such events are seen at all.
        self._unclaimed: list[tuple[Transaction, Key]] = []
        self._unheard: list[tuple[Transaction, Key]] = []
        # Ids of the events that timers became.
        self._events: set[str] = set()
        # The commits that cancelled a timer which was not armed for the same time again.
        self._cancelled: dict[Key, Operation] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        written = {saved.id: saved.after for saved in changes.stored.saved if saved.after is not None}
        if not written:
            self._fire(transaction, changes)
        for sent in changes.stored.sent:
            if sent.born:
                self._heard(transaction, sent.target, sent.event)
        for queued in changes.stored.queued:
            if queued.born:
                self._heard(transaction, queued.group, queued.event)
        for timed in changes.stored.timed:
            self.checked += 1
            if timed.after is not None:
                key = (timed.execution, timed.path, timed.after)
                self._armed[key] = transaction.number
                self._cancelled.pop(key, None)
            if timed.before is None or timed.before == timed.after:
                continue
            key = (timed.execution, timed.path, timed.before)
            version = written.get(timed.execution)
            if version is None:
                self._swept(transaction, key)
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

    def _heard(self, transaction: Transaction, target: str | None, event: bytes) -> None:
        if (timer := _timer(event)) is not None and target is not None:
            self._out[target, timer.path, timer.fire_at] = transaction.number

    def _swept(self, transaction: Transaction, key: Key) -> None:
        if self._sweeps and key not in self._fired:
            self._unclaimed.append((bare(transaction), key))
        if self._out.get(key, 0) < self._armed.get(key, 0) and len(self._unheard) < _REMEMBERED:
            self._unheard.append((bare(transaction), key))

    def _gone(self, transaction: Transaction, key: Key, told: str) -> None:
        execution, path, fire_at = key
        self.findings.add(
            f"timer {path} of execution {execution}, armed for {fire_at:.6f}, is gone without a commit: it was {told}",
            (), transaction.number, (), about(execution),
        )  # fmt: skip

    def _judge_swept(self, slack_us: float) -> None:
        for transaction, key in self._unclaimed:
            # A sweep whose outcome is unknown may have fired what goes after its beginning.
            if self._silent_us is None or transaction.committed_us + slack_us < self._silent_us:
                fired = [at for execution, path, at in self._fired if (execution, path) == key[:2]]
                told = f"fired for {', '.join(f'{at:.6f}' for at in sorted(fired))} only"
                self._gone(transaction, key, told if fired else "never fired")
        for transaction, key in self._unheard if self._out else ():
            self._gone(transaction, key, "armed anew, and no event of it went out since")

    def conclude(self, rest: Rest) -> str | None:
        self._judge_swept(rest.evidence.clock_slack_ms * 1_000)
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
