"""Which ways a job may go, what it must come to, and what may be thrown away.

1. A status changes only by an outcome, a claim, the reaper, a release, a reclaim, a wake, an expiry, a join; and each
   of these changes only the columns that are its own.
2. An identity is taken at insert and given up for good when the row leaves its scope (docs/findings.md, "identity
   retaken").
3. What was accepted ends as its machine prescribes. A child is accepted by the outcome that made it.
4. A row that ended may be collected, when its time is up and no living parent can still read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import itemgetter
from typing import Final

import msgspec

from invariants.changes import (
    BORN,
    CLAIMED,
    ENDED,
    EXECUTING,
    GONE,
    JOBS,
    JOINING,
    MOVED,
    PARKED,
    RUNNABLE,
    TERMINAL,
    Changes,
    Columns,
    Transition,
)
from invariants.ledger.pgoutput import Row, Transaction
from invariants.rules import Findings, Rest, microseconds, scope, text
from invariants.witness import Insert, Witness, error_of, signature_of

# What every end of a claim may change.
HELD_COLUMNS: Final = (
    "status", "locked_by", "lease_expires_at", "turn", "concurrency_shard", "updated_at", "correlation_scope",
)  # fmt: skip
TOLD: Final = (*HELD_COLUMNS, "step", "state", "last_error")
NEW_STEP: Final = ("attempt", "rate_limit", "weight", "concurrency_key", "awaits", "await_deadline")


class IdentityUnique:
    """At most one row per occupied correlation key, recomputed from key, scope and status."""

    name = "identity-unique"
    statement = "at every commit at most one row occupies a correlation key"
    groups = BORN | CLAIMED | ENDED | MOVED | GONE
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._key = columns.correlation_key
        self._occupies = _occupies(columns)
        self._occupied: dict[bytes, set[int]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        touched: set[bytes] = set()
        key_place = self._key
        for group in (changes.born, changes.claimed, changes.ended, changes.moved, changes.gone):
            for t in group:
                row = t.old if t.new is None else t.new
                if row is None or row[key_place] is None:
                    continue
                held, holds = self._occupies(t.old, t.before), self._occupies(t.new, t.after)
                if held == holds:
                    continue
                if held is not None:
                    rows = self._occupied[held]
                    rows.discard(t.id)
                    if not rows:
                        del self._occupied[held]
                if holds is not None:
                    self._occupied.setdefault(holds, set()).add(t.id)
                    touched.add(holds)
        for key in touched:
            self.checked += 1
            rows = self._occupied.get(key, set())
            if len(rows) > 1:
                self.findings.add(
                    f"correlation key {text(key)} is occupied by {len(rows)} rows at once: {sorted(rows)}",
                    sorted(rows),
                    transaction.number,
                )

    def conclude(self, _: Rest) -> str | None:
        return None


class NoLostJob:
    """What was accepted ends, as its machine prescribes, and nothing else appears."""

    name = "no-lost-job"
    statement = (
        "an insert that answered with an id reaches a terminal status once workers run; nothing is runnable "
        "or executing at rest"
    )
    groups = BORN | CLAIMED | ENDED | MOVED | GONE
    needs_ledger, needs_history, needs_rest = True, True, True

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness
        self._occupies = _occupies(columns)
        self._watched = {insert.job["correlation_key"] for insert in witness.refused} if witness else set()
        # Per watched identity: row, committed since, and until (None while it lasts).
        self._spans: dict[str, list[tuple[int, int, int | None]]] = {}
        self._deleted: set[int] = set()
        # Rows that nobody was told of, as they were born: a key may change later.
        self._strangers: dict[int, tuple[str | None, ...]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        c = self._c
        for t in changes.born:
            if self._witness is None or t.id in self._witness.inserts or t.new is None:
                continue
            if t.new[c.parent_id] is None:
                keys = (c.fsm, c.queue, c.priority, c.concurrency_key, c.correlation_key)
                self._strangers[t.id] = tuple(None if t.new[k] is None else text(t.new[k]) for k in keys)
        for t in changes.gone:
            self._deleted.add(t.id)
            if self._witness is not None and (insert := self._witness.inserts.get(t.id)) is not None:
                assert t.old is not None
                self.checked += 1
                self._compare(t.old, insert)
        if self._watched:
            for group in (changes.born, changes.claimed, changes.ended, changes.moved, changes.gone):
                for t in group:
                    self._watch(transaction, t)

    def _watch(self, transaction: Transaction, t: Transition) -> None:
        held, holds = self._occupies(t.old, t.before), self._occupies(t.new, t.after)
        if held == holds:
            return
        if held is not None and (key := text(held)) in self._watched:
            self._spans[key] = [
                (row, since, transaction.committed_us if row == t.id and until is None else until)
                for row, since, until in self._spans.get(key, [])
            ]
        if holds is not None and (key := text(holds)) in self._watched:
            self._spans.setdefault(key, []).append((t.id, transaction.committed_us, None))

    def conclude(self, rest: Rest) -> str | None:
        witness, c = self._witness, self._c
        if witness is None or not rest.summary.complete or not rest.evidence.at_rest:
            return None
        known: set[int] = set()
        for row in rest.table.rows() if rest.table is not None else ():
            self.checked += 1
            number = int(row[c.id] or b"0")
            known.add(number)
            insert = witness.inserts.get(number)
            # What waits for a signal may wait for ever, unless all that its end needs was delivered.
            # Nobody can say what one waits for, or must come to, whose id was another's before a failover.
            confused = number in witness.echoes.rows
            patient = row[c.status] == PARKED and (confused or insert is None or not witness.may_end(insert))
            patient = patient or (row[c.status] == RUNNABLE and self._is_early(row, insert))
            if row[c.status] not in TERMINAL and not patient:
                self.findings.add(f"row {number} is {text(row[c.status])} at rest", [number])
            if insert is not None:
                self._compare(row, insert)
        for number, insert in witness.inserts.items():
            if number not in known and number not in self._deleted:
                self.findings.add(
                    f"{insert.operation.process} was told that its job is row {number}, which never was",
                    [number], None, [insert.operation],
                )  # fmt: skip
        self._explain(witness)
        for o in witness.broken_inserts:
            self.checked += 1
            jobs = len(o.value.get("jobs", (None,)))
            self.findings.add(
                f"{o.process} could not insert {jobs} jobs: {error_of(o).get('error')}: "
                f"{error_of(o).get('message', '')}",
                (), None, [o],
            )  # fmt: skip
        for insert in witness.refused:
            self._refusal(insert, rest.evidence.clock_slack_ms)
        return None

    def _is_early(self, row: Row, insert: Insert | None) -> bool:
        """Whether it need not have started: it was not due when the last operation of the run began, and was inserted
        so. Where nobody was told of the row, some insert of unknown outcome must have asked for a time as late."""
        if self._witness is None or not self._witness.operations:
            return False
        if microseconds(row[self._c.eligible_at] or b"") <= self._witness.operations[-1].begun_us:
            return False
        inserts = self._witness.unknown_inserts if insert is None else (insert,)
        return any(map(self._witness.is_early, inserts))

    def _compare(self, row: Row, insert: Insert) -> None:
        c, expect = self._c, insert.job.get("expect")
        if expect is None or row[c.status] not in TERMINAL:
            return
        if self._witness is not None and insert.id in self._witness.echoes.rows:
            return
        status = text(row[c.status])
        result = None if row[c.result] is None else msgspec.json.decode(row[c.result] or b"null")
        if status != expect["status"]:
            self.findings.add(
                f"row {text(row[c.id])} ended {status}, its machine prescribes {expect['status']}",
                [insert.id or 0], None, [insert.operation],
            )  # fmt: skip
        elif status == "done" and result != expect["result"]:
            result = json.loads(row[c.result] or b"null")
            # Integers of more than 64 bits survive only the slow way.
            if result == expect["result"]:
                return
            self.findings.add(
                f"row {text(row[c.id])} ended with result {json.dumps(result)}, its machine prescribes "
                f"{json.dumps(expect['result'])}",
                [insert.id or 0], None, [insert.operation],
            )  # fmt: skip

    def _explain(self, witness: Witness) -> None:
        """Match rows that nobody was told of with inserts whose outcome is unknown, one to one."""
        open_inserts: dict[tuple[str | None, ...], list[Insert]] = {}
        for insert in witness.unknown_inserts:
            open_inserts.setdefault(signature_of(insert.job), []).append(insert)
        for number, signature in self._strangers.items():
            candidates = open_inserts.get(signature)
            if not candidates:
                self.findings.add(f"row {number} appeared, and no insert explains it", [number])
            else:
                candidates.pop()

    def _refusal(self, insert: Insert, slack_ms: float) -> None:
        self.checked += 1
        key, o = insert.job["correlation_key"], insert.operation
        slack_us = int(slack_ms * 1000)
        begun = o.begun_us - slack_us
        over = ((o.end_ns or 0) + o.wall_offset_ns) // 1000 + slack_us
        spans = self._spans.get(key, [])
        if any(since <= over and (until is None or until >= begun) for _, since, until in spans):
            return
        self.findings.add(
            f"{o.process} was told that identity {key} is occupied while no row occupied it",
            sorted({row for row, _, _ in spans}), None, [o],
        )  # fmt: skip


class Lifecycle:
    """Which status may follow which, and what may change on the way."""

    name = "lifecycle"
    statement = "only the transitions of picker.md §4, the reaper, the release, the wake and the sweeps occur"
    groups = JOBS
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._claim = itemgetter(*columns.all_but(*HELD_COLUMNS))
        stamp = ("concurrency_shard", "updated_at")
        self._stamp = itemgetter(*columns.all_but(*stamp))
        lasting = ("step", "state", "last_error", "lease_expires_at", "turn", "correlation_scope", *NEW_STEP)
        self._continue = itemgetter(*columns.all_but(*stamp, *lasting))
        wake = ("status", "await_deadline", "updated_at", "correlation_scope")
        self._wake = itemgetter(*columns.all_but(*wake))
        self._join = itemgetter(
            *columns.all_but("status", "children_pending", "updated_at", "correlation_scope")
        )
        self._orphan = itemgetter(*columns.all_but("parent_id"))
        forgotten = ("awaits", "await_deadline")
        # The columns that must stay, and by how much the attempt grows; None: it is 0 again.
        self._ends: dict[str, tuple[Callable[[Row], object], int | None]] = {
            "next": (itemgetter(*columns.all_but(*TOLD, *NEW_STEP)), None),
            "awaiting_signal": (
                itemgetter(*columns.all_but(*TOLD, "attempt", "rate_limit", "weight", *forgotten)),
                None,
            ),
            "awaiting_children": (itemgetter(*columns.all_but(*TOLD, *NEW_STEP, "children_pending")), None),
            "retry": (itemgetter(*columns.all_but(*TOLD, "attempt", "eligible_at")), 1),
            "reap": (itemgetter(*columns.all_but(*HELD_COLUMNS, "attempt")), 1),
            "release": (itemgetter(*columns.all_but(*HELD_COLUMNS)), 0),
            "done": (itemgetter(*columns.all_but(*TOLD, "result", *forgotten)), 0),
            "failed": (itemgetter(*columns.all_but(*TOLD, *forgotten)), 0),
        }

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        self.checked += len(changes.held)
        for group, judge in (
            (changes.born, self._born),
            (changes.claimed, self._claimed),
            (changes.stayed, self._stayed),
            (changes.ended, self._ended),
            (changes.moved, self._moved),
            (changes.gone, self._gone),
        ):
            for t in group:
                self.checked += 1
                problem = judge(t) or (None if t.new is None else self._sound(t.new, t.after))
                if problem is not None:
                    self.findings.add(f"row {t.id} {problem}", [t.id], transaction.number)
        if changes.moved:
            self._orphans(transaction, changes)

    def _sound(self, new: Row, after: bytes | None) -> str | None:
        """What is wrong with the row itself, however it came to be so."""
        c = self._c
        state = new[c.state]
        if state is None or state[:1] != b"{":
            return f"has a state that is no JSON object: {text(state)[:80]}"
        if (after == EXECUTING) != (new[c.locked_by] is not None):
            return f"is {text(after)} with locked_by {text(new[c.locked_by])}"
        if (new[c.locked_by] is None) != (new[c.lease_expires_at] is None):
            return "has an owner without a lease, or a lease without an owner"
        if new[c.concurrency_shard] is not None and after != EXECUTING:
            return f"is {text(after)} and keeps shard {text(new[c.concurrency_shard])} of its gate"
        if after == PARKED and new[c.awaits] is None:
            return "is parked and awaits nothing"
        if new[c.await_deadline] is not None and after != PARKED:
            return f"is {text(after)} and keeps a deadline for signals"
        if (new[c.children_pending] or b"0") != b"0" and after != JOINING:
            return f"is {text(after)} and counts {text(new[c.children_pending])} children"
        return None

    def _born(self, t: Transition) -> str | None:
        c, new = self._c, t.new
        assert new is not None
        fresh = t.after == RUNNABLE and new[c.attempt] == b"0" and new[c.result] is None
        return None if fresh else f"was born {text(t.after)} at attempt {text(new[c.attempt])}"

    def _claimed(self, t: Transition) -> str | None:
        assert t.old is not None
        assert t.new is not None
        if self._claim(t.old) != self._claim(t.new):
            return f"changed more than a claim may: {self._changed(t.old, t.new)}"
        return self._scope(t, "a claim")

    def _stayed(self, t: Transition) -> str | None:
        c, old, new = self._c, t.old, t.new
        assert old is not None
        assert new is not None
        if old == new:
            return None
        if self._stamp(old) == self._stamp(new):
            if old[c.concurrency_shard] is None or new[c.concurrency_shard] is None:
                return f"changed while executing: {self._changed(old, new)}"
            return None
        if self._continue(old) != self._continue(new):
            return f"changed while executing: {self._changed(old, new)}"
        if new[c.attempt] != b"0":
            return f"went from attempt {text(old[c.attempt])} to {text(new[c.attempt])} by a continuation"
        return None

    def _ended(self, t: Transition) -> str | None:
        c, old, new, shape = self._c, t.old, t.new, t.shape or ""
        assert old is not None
        assert new is not None
        frozen, attempts = self._ends[shape]
        if frozen(old) != frozen(new):
            return f"changed more than a {shape} may: {self._changed(old, new)}"
        if attempts is None:
            if new[c.attempt] != b"0":
                return f"went from attempt {text(old[c.attempt])} to {text(new[c.attempt])} by {shape}"
        elif attempts == 0:
            if new[c.attempt] != old[c.attempt]:
                return f"went from attempt {text(old[c.attempt])} to {text(new[c.attempt])} by {shape}"
        elif int(new[c.attempt] or 0) != int(old[c.attempt] or 0) + attempts:
            return f"went from attempt {text(old[c.attempt])} to {text(new[c.attempt])} by {shape}"
        return self._scope(t, shape)

    def _moved(self, t: Transition) -> str | None:
        c, old, new = self._c, t.old, t.new
        assert old is not None
        assert new is not None
        if t.before == t.after and new[c.parent_id] is None and old[c.parent_id] is not None:
            same = self._orphan(old) == self._orphan(new)
            return None if same else f"lost its parent and changed: {self._changed(old, new)}"
        if t.before == PARKED and t.after == RUNNABLE:
            same = self._wake(old) == self._wake(new)
            return self._scope(t, "a wake") if same else f"changed by a wake: {self._changed(old, new)}"
        if t.before == JOINING and t.after in (JOINING, RUNNABLE):
            same = self._join(old) == self._join(new)
            return self._scope(t, "a join") if same else f"changed by a join: {self._changed(old, new)}"
        return f"went from {text(t.before)} to {text(t.after)}"

    def _gone(self, t: Transition) -> str | None:
        return None if t.before in TERMINAL else f"was deleted while {text(t.before)}"

    def _orphans(self, transaction: Transaction, changes: Changes) -> None:
        """A parent is forgotten only with the parent's own deletion."""
        place = self._c.parent_id
        gone = {t.id for t in changes.gone}
        for t in changes.moved:
            if t.old is not None and t.new is not None and t.new[place] is None:
                before = t.old[place]
                if before is not None and int(before) not in gone:
                    self.findings.add(
                        f"row {t.id} lost its parent {text(before)}, which was not deleted",
                        [t.id],
                        transaction.number,
                    )

    def _scope(self, t: Transition, what: str) -> str | None:
        place = self._c.correlation_scope
        assert t.old is not None
        assert t.new is not None
        before, after = t.old[place], t.new[place]
        if before == after:
            return None
        if after != b"{}" or t.after in scope(before):
            return f"had its scope changed from {text(before)} to {text(after)} by {what}"
        return None

    def _changed(self, old: Row, new: Row) -> str:
        return ", ".join(
            f"{name} {text(o)[:80]} → {text(n)[:80]}"
            for name, o, n in zip(self._c.names, old, new, strict=True)
            if o != n
        )

    def conclude(self, rest: Rest) -> str | None:
        for difference in rest.summary.generated:
            self.findings.add(difference)
        return None


class GcSafe:
    """What is collected was over for long enough, and nobody alive can ask for it."""

    name = "gc-safe"
    statement = (
        "GC deletes only terminal rows past retention, and never a child that its live parent may still read"
    )
    groups = GONE
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        c = self._c
        for t in changes.gone:
            self.checked += 1
            assert t.old is not None
            if t.before not in TERMINAL:
                self.findings.add(
                    f"row {t.id} was collected while {text(t.before)}", [t.id], transaction.number
                )
                continue
            age_us = transaction.committed_us - microseconds(t.old[c.updated_at] or b"")
            kept_us = self._kept_us(t.id)
            if age_us < kept_us:
                self.findings.add(
                    f"row {t.id} was collected {age_us / 1e6:.3f} s after its end, and was to be kept for "
                    f"{kept_us / 1e6:.3f} s",
                    [t.id],
                    transaction.number,
                )
            if (parent := t.old[c.parent_id]) is None:
                continue
            row = changes.row(int(parent))
            if row is not None and row[c.status] not in TERMINAL:
                self.findings.add(
                    f"row {t.id} was collected while its parent {text(parent)} is {text(row[c.status])}",
                    [int(parent), t.id],
                    transaction.number,
                )

    def _kept_us(self, row: int) -> float:
        """For how long the row was to be kept: as its collector says; where none does, as the most hurried one."""
        if self._witness is None or self._witness.retention_ms is None:
            return 0.0
        return 1000 * self._witness.kept_ms.get(row, self._witness.retention_ms)

    def conclude(self, _: Rest) -> str | None:
        return None


class PokeIsAHint:
    """The same end as ever in a run in which notifications were held back."""

    name = "poke-is-a-hint"
    statement = "with every notification dropped, all work is still done, only later"
    groups = 0
    needs_ledger, needs_history, needs_rest = True, True, True

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._dropped = 0 if witness is None else witness.counts["poke_dropped"]

    def transaction(self, _: Transaction, __: Changes) -> None:
        """Only what is left at rest is looked at."""

    def conclude(self, rest: Rest) -> str | None:
        if not self._dropped or not rest.evidence.at_rest or rest.table is None:
            return None
        for row in rest.table.rows():
            self.checked += 1
            if row[self._c.status] in (RUNNABLE, EXECUTING):
                number = int(row[self._c.id] or b"0")
                self.findings.add(
                    f"row {number} is {text(row[self._c.status])} at rest, and {self._dropped} notifications "
                    "were held back",
                    [number],
                )
        return None


def _occupies(c: Columns) -> Callable[[Row | None, bytes | None], bytes | None]:
    """The correlation key that a row occupies at that status."""
    key, scope_place = c.correlation_key, c.correlation_scope
    cache: dict[bytes | None, frozenset[bytes]] = {}

    def occupies(row: Row | None, status: bytes | None) -> bytes | None:
        if row is None or row[key] is None:
            return None
        text_scope = row[scope_place]
        statuses = cache.get(text_scope)
        if statuses is None:
            statuses = cache[text_scope] = scope(text_scope)
        return row[key] if status in statuses else None

    return occupies
