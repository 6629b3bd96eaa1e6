"""Commits: each makes one version of one execution, whole or not at all, and its caller is told which.

1. An execution's row is written by commits only, and each writes the version after the one it found.
2. Whatever rides on a commit (emits, marker, spawns, timers, trace) is in the transaction of its version.
3. Who wrote a version is known from the history: the commit that was told so; where none was, the one that was told
   nothing, if there is one alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from invariants.changes import Changes, Columns
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Rest, Watcher
from invariants.stored import FORKED, MARKED, SAVED, SENT, TIMED, TRACED, Saved
from invariants.witness import Witness, error_of, is_undecided

COMMIT: Final = "store.commit"
# What a commit may be refused with, and what keeps it from being sent at all.
REFUSALS: Final = ("StoreConflict", "EventAlreadyProcessed")
# A refusal whose reason was lost on the way, and is not to be judged for want of it.
UNEXPLAINED: Final = "ConflictUnexplained"
NOT_SENT: Final = ("UnstorableValue", "Unavailable", "PoolTimeout")


class _Version(msgspec.Struct):
    """The part of an execution's JSON that the store itself reads."""

    version: int | None = None


_VERSION = msgspec.json.Decoder(_Version)


def about(*executions: str) -> list[tuple[str, str]]:
    """Evidence of executions."""
    return [("execution", execution) for execution in executions]


def writer(witness: Witness | None, execution: str, version: int) -> Operation | None:
    """The commit that made that version; None where the history does not tell."""
    if witness is None:
        return None
    told, unknown = [], []
    for operation in witness.commits.get((execution, version), ()):
        if operation.type == "ok":
            told.append(operation)
        elif is_undecided(operation):
            unknown.append(operation)
    if told:
        return told[0]
    return unknown[0] if len(unknown) == 1 else None


class CasChain(Watcher):
    """Each version of an execution is one more than the one before, and one commit alone is told that it made it."""

    name = "cas-chain"
    statement = (
        "the versions of an execution are 1, 2, 3 … with exactly one committed writer each; no update is lost"
    )
    groups = SAVED

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        for saved in changes.stored.saved:
            if saved.after is None:
                continue
            self.checked += 1
            problem = _break(saved) or self._misplaced(saved.id)
            if problem is not None:
                self.findings.add(
                    f"execution {saved.id} {problem}", (), transaction.number, (), about(saved.id)
                )

    def _misplaced(self, execution: str) -> str | None:
        """An execution that is found in two shards has two chains."""
        if self.elsewhere.is_here(execution):
            return None
        return f"is saved here, and lives in shard {self.elsewhere.place_of(execution)}"

    def conclude(self, _: Rest) -> str | None:
        for (execution, version), operations in (
            {} if self.witness is None else self.witness.commits
        ).items():
            told = [operation for operation in operations if operation.type == "ok"]
            if len(told) > 1:
                self.findings.add(
                    f"{len(told)} commits were told that they made version {version} of execution {execution}: "
                    "the update of one is lost",
                    (), None, told, about(execution),
                )  # fmt: skip
        return None


def _break(saved: Saved) -> str | None:
    if saved.before is None and saved.after != 1:
        return f"begins at version {saved.after}"
    if saved.before is not None and saved.after != saved.before + 1:
        return f"goes from version {saved.before} to version {saved.after}"
    try:
        written = None if saved.data is None else _VERSION.decode(saved.data).version
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"holds at version {saved.after} what is no JSON object"
    if written is not None and written != saved.after:
        return f"is at version {saved.after}, and its data say {written}: the next commit of a reader is lost"
    return None


class CommitAtomic(Watcher):
    """Effects stand in the transaction that writes the version, as many as were asked for."""

    name = "commit-atomic"
    statement = (
        "state, outbox, dedupe marker, spawns, timer ops and trace of one commit are all there or none, "
        "whatever dies when"
    )
    groups = SAVED | SENT | MARKED | TIMED | FORKED | TRACED

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        stored = changes.stored
        bumped: dict[str, list[int]] = {}
        for saved in stored.saved:
            if saved.after is not None:
                bumped.setdefault(saved.id, []).append(saved.after)
        effects = [(one.execution, f"event {one.event} is marked") for one in stored.marked if one.born] + [
            (one.parent, f"child {one.child} is forked") for one in stored.forked if one.born
        ]
        effects += [
            (one.execution, f"timer {one.path} is armed") for one in stored.timed if one.after is not None
        ]
        for execution, what in effects:
            if execution not in bumped:
                self._add(transaction, execution, f"{what} without a new version of it")
        sent = [one.seq for one in stored.sent if one.born]
        # A timer that fires becomes a row of the outbox, in the transaction that removes it.
        fired = sum(one.after is None for one in stored.timed)
        if len(sent) > fired and not bumped:
            self.findings.add(
                f"outbox row {sent[-1]} is written in a transaction that writes no execution",
                (), transaction.number, (), [("outbox", str(sent[-1]))],
            )  # fmt: skip
        self.checked += len(effects) + len(sent) + len(bumped)
        if bumped and self.witness is not None:
            self._hold_against_history(transaction, changes, bumped)

    def _hold_against_history(
        self, transaction: Transaction, changes: Changes, bumped: dict[str, list[int]]
    ) -> None:
        emits, all_known = 0, True
        # A child that a relay makes goes with its spawn. Whoever's first save is unknown did not make it.
        made = {one.child for one in changes.stored.forked if not one.born}
        for execution, versions in bumped.items():
            if execution in made:
                all_known = False
                continue
            commits = [writer(self.witness, execution, version) for version in versions]
            known = [commit for commit in commits if commit is not None]
            if len(known) != len(commits):
                all_known = False
                continue
            emits += sum(commit.value["emits"] for commit in known)
            problem = _unlike(changes, execution, known)
            if problem is not None:
                self._add(transaction, execution, problem, known)
        sent = sum(one.born for one in changes.stored.sent)
        if all_known and sent != emits:
            some = next(iter(bumped))
            self._add(transaction, some, f"{emits} events were to be emitted, and {sent} stand in the outbox")

    def _add(
        self, transaction: Transaction, execution: str, problem: str, operations: Sequence[Operation] = ()
    ) -> None:
        self.findings.add(
            f"execution {execution}: {problem}", (), transaction.number, operations, about(execution)
        )


def _unlike(changes: Changes, execution: str, commits: Sequence[Operation]) -> str | None:
    """How what a transaction did for an execution differs from what was asked."""
    stored = changes.stored
    for commit in commits:
        event = commit.value["event"]
        if (
            event is not None
            and changes.find("processed_events", (execution.encode(), event.encode())) is None
        ):
            return f"event {event} was to be marked, and is not"
    asked = Counter[str]()
    for commit in commits:
        asked.update(
            {
                "spawns": commit.value["spawns"],
                "trace steps": commit.value["trace"],
                "timers": commit.value["timers"],
            }
        )
    forked = sum(one.born and one.parent == execution for one in stored.forked)
    if forked != asked["spawns"]:
        return f"{asked['spawns']} children were to be forked, and {forked} are"
    traced = sum(one.after and not one.before and one.execution == execution for one in stored.traced)
    if traced != asked["trace steps"]:
        return f"{int(asked['trace steps'])} steps were to be traced, and {traced} are"
    # An order to cancel what is not armed changes nothing.
    timed = sum(one.execution == execution for one in stored.timed)
    if timed > asked["timers"]:
        return f"{asked['timers']} timers were to be changed, and {timed} are"
    return None


class ConflictTyped(Watcher):
    """A commit that lost is refused with a conflict that names the version it met, and leaves nothing behind."""

    name = "conflict-typed"
    statement = (
        "of n racing writers at one version exactly one wins, and every other gets `StoreConflict` with the "
        "version found, a clean connection, and its object back at the old version"
    )
    groups = SAVED
    needs_ledger, needs_history = False, True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._gone: set[str] = set()

    def transaction(self, _: Transaction, changes: Changes) -> None:
        self._gone.update(saved.id for saved in changes.stored.saved if saved.after is None)

    def conclude(self, _: Rest) -> str | None:
        for o in self.named(COMMIT):
            if o.type != "fail" or is_undecided(o):
                continue
            self.checked += error_of(o).get("error") != UNEXPLAINED
            problem = self._problem(o)
            if problem is not None:
                self.findings.add(
                    f"{o.process}'s commit of execution {o.value['execution']} at version {o.value['expected']} "
                    f"{problem}",
                    (), None, [o], about(o.value["execution"]),
                )  # fmt: skip
        return None

    def _problem(self, o: Operation) -> str | None:
        error, expected = error_of(o), o.value["expected"]
        kind, found = error.get("error"), error.get("found")
        if kind in NOT_SENT:
            return None
        if kind not in (*REFUSALS, UNEXPLAINED):
            return f"ended with {kind}: {error.get('message', '')}"
        if kind == "StoreConflict" and found == expected:
            return "was refused, and found the very version that it expected"
        if found is not None and found < expected and o.value["execution"] not in self._gone:
            return f"found version {found}: an execution's version never falls"
        if found is None and kind == "StoreConflict" and o.value["execution"] not in self._gone:
            return "was refused without the version found"
        if error.get("version", expected) != expected:
            return f"was refused and left its object at version {error['version']}"
        return "was refused and left a transaction open" if error.get("clean") is False else None


class EffectOnce(Watcher):
    """No two commits of an execution carry the same event."""

    name = "effect-once"
    statement = "an event's effect on an execution is committed at most once, whatever is redelivered"
    groups = SAVED | MARKED

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._unmarked: set[tuple[str, str]] = set()
        self._effects: dict[tuple[str, str], list[Operation]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        for one in changes.stored.marked:
            pair = (one.execution, one.event)
            if not one.born:
                self._unmarked.add(pair)
                continue
            self.checked += 1
            if pair in self._unmarked:
                self.findings.add(
                    f"event {one.event} is marked for execution {one.execution} a second time: its marker was gone",
                    (), transaction.number, (), about(one.execution),
                )  # fmt: skip
        if self.witness is not None:
            for saved in changes.stored.saved:
                if saved.after is not None:
                    self._attribute(transaction, saved.id, saved.after)

    def _attribute(self, transaction: Transaction, execution: str, version: int) -> None:
        operation = writer(self.witness, execution, version)
        event = None if operation is None else operation.value["event"]
        if operation is None or event is None:
            return
        effects = self._effects.setdefault((execution, event), [])
        effects.append(operation)
        if len(effects) > 1:
            self.findings.add(
                f"event {event} took effect on execution {execution} {len(effects)} times, last as version {version}",
                (), transaction.number, effects, about(execution),
            )  # fmt: skip


class UnknownOutcome(Watcher):
    """What was told as done was done, what was told as refused was not, and what was lost on the way was told as
    neither."""

    name = "unknown-outcome"
    statement = (
        "a connection lost during commit is reported as unknown, not as success or failure; the documented "
        "retry is safe"
    )
    groups = SAVED
    needs_ledger, needs_history = True, True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._last: dict[str, int] = {}

    def transaction(self, _: Transaction, changes: Changes) -> None:
        for saved in changes.stored.saved:
            if saved.after is not None:
                self._last[saved.id] = max(saved.after, self._last.get(saved.id, 0))

    def conclude(self, rest: Rest) -> str | None:
        for (execution, version), operations in (
            {} if self.witness is None else self.witness.commits
        ).items():
            made = self._last.get(execution, 0) >= version
            told = [o for o in operations if o.type == "ok"]
            undecided = [o for o in operations if is_undecided(o)]
            self.checked += len(undecided)
            # What a ledger that ends early does not show may have come after its end.
            if told and not made and rest.summary.complete:
                self._add(
                    execution, f"version {version} was never committed, and its writer was told so", told
                )
            # Version 1 of a child may be the work of a relay, which records no commit.
            if made and not told and not undecided and version > 1:
                self._add(
                    execution,
                    f"version {version} is committed, and every commit that could have made it was told that it failed",
                    operations,
                )
        return None

    def _add(self, execution: str, problem: str, operations: Sequence[Operation]) -> None:
        self.findings.add(f"execution {execution}: {problem}", (), None, operations, about(execution))
