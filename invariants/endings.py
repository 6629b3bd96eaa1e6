"""Endings: what was begun in order to end by itself has ended when everything is at rest.

A commit that says `"ends": true` saves an execution that needs nobody to come to its end: its events, its timers and
its children bring it there. One that says `"needs": [ids]` beside it waits for those others, and its promise is void
where one of them was never saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from invariants.changes import Changes, Columns
from invariants.commits import COMMIT, about
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Rest, Watcher
from invariants.stored import SAVED
from invariants.witness import Witness, is_undecided

# store.md, "Data"; an execution of another status can still be moved.
ENDED: Final = frozenset(("DONE", "CANCELLED", "FAILED"))
# No family is deeper; a chain of parents that is longer leads nowhere.
MAX_DEPTH: Final = 1_000


def promises_of(operations: Iterable[Operation]) -> dict[str, Operation]:
    """By execution, the commits that promise an end, acknowledged or not known to have failed."""
    promises: dict[str, Operation] = {}
    for commit in operations:
        if commit.f == COMMIT and commit.value.get("ends") and (commit.type == "ok" or is_undecided(commit)):
            promises.setdefault(commit.value["execution"], commit)
    return promises


class ExecutionEnds(Watcher):
    """Looks at rest for executions that were to end and have not, and for their children, and theirs."""

    name = "execution-ends"
    statement = (
        "what was saved in order to end by itself has ended when nothing is under way, its children too"
    )
    groups = SAVED
    needs_history, needs_rest = True, True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._promised = promises_of(self.named(COMMIT))
        # Every execution that is there, with the status that it has; the parents of those that have one.
        self._status: dict[str, str | None] = {}
        self._parents: dict[str, str] = {}
        self._gone: set[str] = set()
        self._at_rest = False

    def transaction(self, _: Transaction, changes: Changes) -> None:
        for saved in changes.stored.saved:
            if saved.after is None:
                self._status.pop(saved.id, None)
                self._gone.add(saved.id)
                continue
            self._status[saved.id] = saved.status
            if saved.parent is not None:
                self._parents[saved.id] = saved.parent

    def conclude(self, rest: Rest) -> str | None:
        self._at_rest = rest.evidence.at_rest
        for execution, commit in self._promised.items():
            if execution in self._gone:
                continue
            if execution not in self._status:
                # One whose answer was lost need not have happened.
                if commit.type == "ok":
                    self.checked += 1
                    self._add(execution, "was told saved, and never was", commit)
            elif self._has_what_it_needs(commit):
                self._look(execution, commit)
        for child in self._parents:
            promise = self._promise_of(child)
            if promise is not None and child in self._status:
                self._look(child, promise)
        return self.elsewhere.why_unknown

    def _look(self, execution: str, commit: Operation) -> None:
        self.checked += 1
        status = self._status[execution]
        if self._at_rest and status not in ENDED:
            self._add(execution, f"is {status or 'of no status'} at rest, and was to end", commit)

    def _has_what_it_needs(self, commit: Operation) -> bool:
        return all(self._is_there(needed) for needed in commit.value.get("needs", ()))

    def _is_there(self, execution: str) -> bool:
        if not self.elsewhere.is_here(execution):
            return self.elsewhere.births(execution) > 0
        return execution in self._status or execution in self._gone

    def _promise_of(self, child: str) -> Operation | None:
        """The promise of the ancestor that was saved with one; None where nobody made it."""
        execution: str | None = child
        for _ in range(MAX_DEPTH):
            execution = self._parents.get(execution or "") or self.elsewhere.parent(execution or "")
            if execution is None:
                return None
            commit = self._promised.get(execution) or self.elsewhere.promises.get(execution)
            if commit is not None:
                return commit if self._is_there(execution) else None
        return None

    def _add(self, execution: str, problem: str, commit: Operation) -> None:
        parent = self._parents.get(execution)
        whose = "" if parent is None else f", a child of {parent},"
        self.findings.add(f"execution {execution}{whose} {problem}", (), None, [commit], about(execution))
