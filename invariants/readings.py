"""What readers of the store see: the newest version, every execution of a listing once, the last steps of a trace."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any, Final

import msgspec

from invariants.changes import Changes, Columns
from invariants.commits import COMMIT, about
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Rest, Watcher
from invariants.stored import SAVED, TRACED, Traced
from invariants.witness import Witness

# How many executions one violation names.
_SHOWN: Final = 5


class TraceRing(Watcher):
    """Counts each trace's first and last index. How long a ring is, the run says (`Evidence.trace_max`)."""

    name = "trace-ring"
    statement = "step indices are contiguous and stable; the ring holds the last N"
    groups = TRACED

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        # Per execution the first index there and the one after the last.
        self._rings: dict[str, list[int]] = {}
        # The rings' greatest length, and the least that anything was dropped from, with who and when.
        self._longest: tuple[int, str, int] | None = None
        self._cut: tuple[int, str, int] | None = None

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        touched: dict[str, None] = {}
        dropped: dict[str, None] = {}
        # A statement drops its steps in the order of its plan, which nobody sees.
        for traced in sorted(changes.stored.traced, key=lambda step: (not step.after, step.index)):
            self.checked += 1
            problem = self._step(traced)
            if problem is not None:
                self._add(transaction.number, traced.execution, problem)
            touched[traced.execution] = None
            if not traced.after:
                dropped[traced.execution] = None
        for execution in touched:
            first, end = self._rings[execution]
            length = end - first
            if self._longest is None or length > self._longest[0]:
                self._longest = (length, execution, transaction.number)
            if execution in dropped and (self._cut is None or length < self._cut[0]):
                self._cut = (length, execution, transaction.number)

    def _step(self, traced: Traced) -> str | None:
        ring = self._rings.setdefault(traced.execution, [0, 0])
        if traced.before and traced.after:
            return f"step {traced.index} was changed"
        if traced.after:
            expected, ring[1] = ring[1], traced.index + 1
            if traced.index != expected:
                return f"step {traced.index} follows step {expected - 1}"
            return None
        expected, ring[0] = ring[0], traced.index + 1
        return None if traced.index == expected else f"step {traced.index} was dropped before step {expected}"

    def conclude(self, rest: Rest) -> str | None:
        wanted = rest.evidence.trace_max
        if self._cut is not None and self._longest is not None and self._longest[0] != self._cut[0]:
            self._add(self._longest[2], self._longest[1], f"its ring holds {self._longest[0]} steps, and others "
                      f"were cut to {self._cut[0]}")  # fmt: skip
        for bound, kind in ((self._longest, "holds"), (self._cut, "was cut to")):
            if (
                wanted
                and bound is not None
                and (bound[0] > wanted or (bound is self._cut and bound[0] != wanted))
            ):
                self._add(bound[2], bound[1], f"its ring {kind} {bound[0]} steps, not the last {wanted}")
        return None

    def _add(self, number: int, execution: str, problem: str) -> None:
        self.findings.add(f"trace of execution {execution}: {problem}", (), number, (), about(execution))


class ReadFresh(Watcher):
    """A load is never older than a commit that was answered before it began."""

    name = "read-fresh"
    statement = "a load that begins after another connection's commit returned sees it"
    groups = SAVED
    needs_ledger, needs_history = False, True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._gone: set[str] = set()

    def transaction(self, _: Transaction, changes: Changes) -> None:
        self._gone.update(saved.id for saved in changes.stored.saved if saved.after is None)

    def conclude(self, _: Rest) -> str | None:
        answered: dict[str, list[tuple[int, int, Operation]]] = {}
        for commit in self.named(COMMIT):
            if commit.type == "ok" and commit.end_ns is not None:
                answered.setdefault(commit.value["execution"], []).append(
                    (commit.end_ns, commit.result["version"], commit)
                )
        newest = {execution: _newest(commits) for execution, commits in answered.items()}
        for load in self.named("store.load"):
            execution = load.value["execution"]
            if load.type != "ok" or execution not in newest or execution in self._gone:
                continue
            ends, commits = newest[execution]
            place = bisect_left(ends, load.start_ns)
            if place == 0:
                continue
            self.checked += 1
            version, commit = commits[place - 1]
            seen = load.result["version"]
            if seen is None or seen < version:
                self.findings.add(
                    f"{load.process} loads execution {execution} at version {seen}, and version {version} had been "
                    f"committed before it began",
                    (), None, [commit, load], about(execution),
                )  # fmt: skip
        return None


def _newest(
    commits: list[tuple[int, int, Operation]],
) -> tuple[list[int], list[tuple[int, Operation]]]:
    """When commits were answered, in order, and the greatest version that had been answered by then."""
    commits.sort(key=lambda each: each[:2])
    ends: list[int] = []
    greatest: list[tuple[int, Operation]] = []
    for end, version, commit in commits:
        ends.append(end)
        greatest.append((version, commit) if not greatest or version > greatest[-1][0] else greatest[-1])
    return ends, greatest


class _Listed(msgspec.Struct):
    """What a listing can filter an execution by, with all the statuses that it ever had."""

    definition: str | None
    parent: str | None
    statuses: set[str | None]


class ListingComplete(Watcher):
    """Every listing against the executions that were there before it began and are there still."""

    name = "listing-complete"
    statement = (
        "paging through `list_executions` returns each execution that exists throughout exactly once, while "
        "others come and go"
    )
    groups = SAVED
    needs_ledger, needs_history = True, True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._listings = [o for o in self.named("store.list") if o.type == "ok"]
        self._known: dict[str, _Listed] = {}
        self._gone: set[str] = set()

    def transaction(self, _: Transaction, changes: Changes) -> None:
        if not self._listings:
            return
        for saved in changes.stored.saved:
            if saved.after is None:
                self._gone.add(saved.id)
            elif (known := self._known.get(saved.id)) is None:
                self._known[saved.id] = _Listed(saved.definition, saved.parent, {saved.status})
            else:
                known.statuses.add(saved.status)

    def conclude(self, _: Rest) -> str | None:
        births = sorted(
            (commit.end_ns, commit.value["execution"])
            for commit in self.named(COMMIT)
            if commit.type == "ok" and commit.value["expected"] == 0 and commit.end_ns is not None
        )
        ends = [end for end, _ in births]
        for listing in self._listings:
            self.checked += 1
            ids = Counter(listing.result["ids"])
            twice = [execution for execution, count in ids.items() if count > 1]
            if twice:
                self._add(listing, "shows {} more than once", twice)
            strange = [execution for execution in ids if execution not in self._known]
            if strange:
                self._add(listing, "shows {}, which never existed", strange)
            there = (execution for _, execution in births[: bisect_left(ends, listing.start_ns)])
            missing = [
                e for e in there if e not in ids and e not in self._gone and self._shown(e, listing.value)
            ]
            if missing:
                self._add(listing, "does not show {}, which was there before it began", missing)
        return None

    def _shown(self, execution: str, value: dict[str, Any]) -> bool:
        """Whether it matches the filters all the time; one whose status changes may have been missed rightly."""
        known = self._known.get(execution)
        if known is None:
            return False
        filters = value["filters"]
        status, definition = filters.get("status"), filters.get("definition_id")
        wanted = set(status) if isinstance(status, list | tuple) else {status}
        if status is not None and not known.statuses <= wanted:
            return False
        if definition is not None and known.definition != definition:
            return False
        return not filters.get("roots_only") or known.parent is None

    def _add(self, listing: Operation, problem: str, executions: list[str]) -> None:
        shown = ", ".join(sorted(executions)[:_SHOWN]) + (" …" if len(executions) > _SHOWN else "")
        self.findings.add(
            f"the listing of {listing.process} {problem.format(shown)}",
            (), None, [listing], about(*sorted(executions)[:_SHOWN]),
        )  # fmt: skip
