"""The picker's invariants (claims.md), judged on the ledger at every commit and on the history at rest.

What the rules lean on (picker.md §4, §7, and engine/picker.py):

1. `locked_by` names one claim, never two: a claim is one statement, so its name appears in one transaction.
2. A claim ends in one of five shapes: `done`, `failed`, runnable by `next`, `retry` or `release`, and
   runnable by the reaper. Every end has an owner in the history: the flush, release or reap that was told the
   transaction's id, or one whose outcome is unknown and that could have done it.
3. The stream carries the primary key, so a row's way is known from its insert on.
4. The server's `now()` is at most its commit time, so what a statement required of `now()` its commit time
   satisfies.

Each class is one rule; `PICKER_RULES` lists them in the order of the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from invariants.ledger.pgoutput import Row, Transaction
from invariants.rules import Columns, Findings, Rest, Rule, Transition, microseconds, scope, text
from invariants.witness import Ender, Insert, Witness, ended, error_of

TABLE: Final = "gen_durable"
EXECUTING, RUNNABLE = b"executing", b"runnable"
TERMINAL: Final = frozenset((b"done", b"failed"))
LOST_RACES: Final = ("40P01", "40001", "55P03")
DEADLOCK: Final = "40P01"

END_OF_KIND: Final = {"next": RUNNABLE, "retry": RUNNABLE, "done": b"done", "stop": b"failed"}


class SingleOwner:
    """Who held a row, who ended the hold, and whether it was theirs to end."""

    name = "single-owner"
    statement = (
        "at every commit an instance has at most one owner; an outcome commits only for the owner that holds "
        "the row at that moment; a stale outcome changes nothing anywhere"
    )
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._locked_by = columns.locked_by
        self._attempt = columns.attempt
        self._shape = _shape(columns)
        self._witness = witness
        self._claims: dict[bytes, int] = {}
        self._seen: set[tuple[int, int]] = set()

    def transaction(self, transaction: Transaction, transitions: Sequence[Transition]) -> None:
        locked_by = self._locked_by
        for t in transitions:
            old, new = t.old, t.new
            if old is None:
                continue
            if t.before != EXECUTING:
                if t.after == EXECUTING and new is not None and t.before == RUNNABLE:
                    self._begin(transaction, t, new[locked_by])
                else:
                    self._unowned(transaction, t)
            elif t.after == EXECUTING and new is not None:
                self.checked += 1
                if old[locked_by] != new[locked_by]:
                    self.findings.add(
                        f"row {t.id} went from claim {text(old[locked_by])} to {text(new[locked_by])} "
                        f"without "
                        "the first one's end",
                        [t.id],
                        transaction.number,
                    )
            elif new is not None:
                self._end(transaction, t, old, new)

    def _begin(self, transaction: Transaction, t: Transition, claim: bytes | None) -> None:
        self.checked += 1
        name = claim or b""
        if self._claims.setdefault(name, transaction.number) != transaction.number:
            # Once for a claim, however many rows it took.
            self._claims[name] = transaction.number
            self.findings.add(
                f"row {t.id} was claimed under {text(claim)}, a name that an earlier claim has used: its "
                f"outcome and "
                "the earlier claim's cannot be told apart",
                [t.id],
                transaction.number,
            )
        if self._witness is None or not self._witness.names_claims:
            return
        operation = self._witness.claims.get(text(claim))
        if operation is None:
            self.findings.add(
                f"row {t.id} was claimed under {text(claim)}, which no process says it used",
                [t.id],
                transaction.number,
            )
        elif operation.type == "ok" and t.id not in operation.result["ids"]:
            self.findings.add(
                f"claim {text(claim)} took row {t.id} and was not told so",
                [t.id],
                transaction.number,
                [operation],
            )

    def _unowned(self, transaction: Transaction, t: Transition) -> None:
        self.checked += 1
        what = "deleted" if t.after is None else f"changed to {text(t.after)}"
        ender = None if self._witness is None else self._witness.enders.get(transaction.xid)
        self.findings.add(
            f"row {t.id} was {text(t.before)}, held by nobody, and was {what}"
            + (
                ""
                if ender is None
                else f" by an outcome of {ender.process}: a stale outcome changed something"
            ),
            [t.id],
            transaction.number,
            [] if ender is None else [ender],
        )

    def _end(self, transaction: Transaction, t: Transition, old: Row, new: Row) -> None:
        self.checked += 1
        witness = self._witness
        if witness is None:
            return
        claim = text(old[self._locked_by])
        shape = self._shape(old, new)
        ender = witness.ender(transaction.xid)
        if ender is None:
            if not self._unknown_could(witness, t.id, claim, shape, t.after):
                self.findings.add(
                    f"claim {claim} of row {t.id} was ended ({shape}) by nobody who says so",
                    [t.id],
                    transaction.number,
                )
            return
        self._seen.add((transaction.xid, t.id))
        problem = _wrong_end(ender, t.id, claim, shape, t.after)
        if problem is not None:
            self.findings.add(f"row {t.id}: {problem}", [t.id], transaction.number, [ender.operation])

    def _unknown_could(self, w: Witness, row: int, claim: str, shape: str, after: bytes | None) -> bool:
        if any(END_OF_KIND.get(kind) == after for _, kind in w.unknown_flushes.get((row, claim), ())):
            return True
        if shape == "release" and (row, claim) in w.unknown_releases:
            return True
        return shape == "reap" and bool(w.unknown_reaps)

    def conclude(self, rest: Rest) -> str | None:
        if self._witness is None:
            return None
        for (row, claim), times in self._witness.acknowledged.items():
            self.checked += 1
            if times > 1:
                self.findings.add(
                    f"claim {claim} of row {row} was told {times} times that its outcome committed", [row]
                )
        if not rest.summary.complete:
            return None
        for xid, operation in self._witness.enders.items():
            for row, claim in ended(operation):
                if (xid, row) not in self._seen:
                    self.findings.add(
                        f"{operation.process} was told that its {operation.f} ended claim {claim} of row "
                        f"{row} in "
                        f"transaction {xid}, which ended no claim of that row",
                        [row],
                        None,
                        [operation],
                    )
        return None


class ConcurrencyExclusion:
    """At most one executing row per ungated key."""

    name = "k1-exclusion"
    statement = "at every commit at most one executing row per concurrency key that is not a configured gate"
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._key, self._shard = columns.concurrency_key, columns.concurrency_shard
        self._executing: dict[bytes, set[int]] = {}

    def transaction(self, transaction: Transaction, transitions: Sequence[Transition]) -> None:
        touched: set[bytes] = set()
        for t in transitions:
            held = self._holds(t.before, t.old)
            holds = self._holds(t.after, t.new)
            if held == holds:
                continue
            if held is not None:
                rows = self._executing[held]
                rows.discard(t.id)
                if not rows:
                    del self._executing[held]
            if holds is not None:
                self._executing.setdefault(holds, set()).add(t.id)
                touched.add(holds)
        for key in touched:
            self.checked += 1
            rows = self._executing.get(key, set())
            if len(rows) > 1:
                self.findings.add(
                    f"concurrency key {text(key)} has {len(rows)} executing rows at once: {sorted(rows)}",
                    sorted(rows),
                    transaction.number,
                )

    def _holds(self, status: bytes | None, row: Row | None) -> bytes | None:
        return (
            row[self._key] if status == EXECUTING and row is not None and row[self._shard] is None else None
        )

    def conclude(self, _: Rest) -> str | None:
        return None


class IdentityUnique:
    """At most one row per occupied correlation key, recomputed from key, scope and status."""

    name = "identity-unique"
    statement = "at every commit at most one row occupies a correlation key"
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._occupies = _occupies(columns)
        self._occupied: dict[bytes, set[int]] = {}

    def transaction(self, transaction: Transaction, transitions: Sequence[Transition]) -> None:
        touched: set[bytes] = set()
        for t in transitions:
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
        "or "
        "executing at rest"
    )
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

    def transaction(self, transaction: Transaction, transitions: Sequence[Transition]) -> None:
        for t in transitions:
            if t.new is None:
                self._deleted.add(t.id)
            if self._watched:
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
        strangers: list[Row] = []
        for row in rest.table.rows() if rest.table is not None else ():
            self.checked += 1
            number = int(row[c.id] or b"0")
            known.add(number)
            if row[c.status] not in TERMINAL:
                self.findings.add(f"row {number} is {text(row[c.status])} at rest", [number])
            insert = witness.inserts.get(number)
            if insert is None:
                strangers.append(row)
            else:
                self._compare(row, insert)
        for number, insert in witness.inserts.items():
            if number not in known and number not in self._deleted:
                self.findings.add(
                    f"{insert.operation.process} was told that its job is row {number}, which never was",
                    [number], None, [insert.operation],
                )  # fmt: skip
        self._explain(strangers, witness)
        for insert in witness.refused:
            self._refusal(insert, rest.evidence.clock_slack_ms)
        return None

    def _compare(self, row: Row, insert: Insert) -> None:
        c, expect = self._c, insert.job.get("expect")
        if expect is None or row[c.status] not in TERMINAL:
            return
        status = text(row[c.status])
        result = None if row[c.result] is None else json.loads(row[c.result] or b"null")
        if status != expect["status"]:
            self.findings.add(
                f"row {text(row[c.id])} ended {status}, its machine prescribes {expect['status']}",
                [insert.id or 0], None, [insert.operation],
            )  # fmt: skip
        elif status == "done" and result != expect["result"]:
            self.findings.add(
                f"row {text(row[c.id])} ended with result {json.dumps(result)}, its machine prescribes "
                f"{json.dumps(expect['result'])}",
                [insert.id or 0], None, [insert.operation],
            )  # fmt: skip

    def _explain(self, strangers: Sequence[Row], witness: Witness) -> None:
        """Match rows that nobody was told of with inserts whose outcome is unknown, one to one."""
        c = self._c
        open_inserts: dict[tuple[str | None, ...], list[Insert]] = {}
        for insert in witness.unknown_inserts:
            open_inserts.setdefault(_signature(insert.job), []).append(insert)
        for row in strangers:
            keys = (c.fsm, c.queue, c.priority, c.concurrency_key, c.correlation_key)
            candidates = open_inserts.get(tuple(None if row[k] is None else text(row[k]) for k in keys))
            number = int(row[c.id] or b"0")
            if not candidates:
                self.findings.add(f"row {number} appeared, and no insert explains it", [number])
            else:
                candidates.pop()

    def _refusal(self, insert: Insert, slack_ms: float) -> None:
        self.checked += 1
        key, o = insert.job["correlation_key"], insert.operation
        slack_us = int(slack_ms * 1000)
        begun = (o.start_ns + o.wall_offset_ns) // 1000 - slack_us
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
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._shape = _shape(columns)
        held = ("status", "locked_by", "lease_expires_at", "concurrency_shard", "updated_at")
        told = (*held, "step", "state", "last_error")
        self._claim = itemgetter(*columns.all_but(*held, "correlation_scope"))
        self._heartbeat = itemgetter(*columns.all_but("lease_expires_at"))
        self._ends: dict[str, tuple[Callable[[Row], object], int | None]] = {
            "next": (itemgetter(*columns.all_but(*told, "attempt")), None),
            "retry": (itemgetter(*columns.all_but(*told, "attempt", "eligible_at")), 1),
            "reap": (itemgetter(*columns.all_but(*held, "attempt")), 1),
            "release": (itemgetter(*columns.all_but(*held)), 0),
            "done": (itemgetter(*columns.all_but(*told, "result")), 0),
            "failed": (itemgetter(*columns.all_but(*told)), 0),
        }

    def transaction(self, transaction: Transaction, transitions: Sequence[Transition]) -> None:
        for t in transitions:
            self.checked += 1
            problem = self._problem(t)
            if problem is not None:
                self.findings.add(f"row {t.id} {problem}", [t.id], transaction.number)

    def _problem(self, t: Transition) -> str | None:
        c, old, new = self._c, t.old, t.new
        if new is None:
            return f"was deleted while {text(t.before)}"
        if not (new[c.state] or b"").startswith(b"{"):
            return f"has a state that is no JSON object: {text(new[c.state])[:80]}"
        if (t.after == EXECUTING) != (new[c.locked_by] is not None):
            return f"is {text(t.after)} with locked_by {text(new[c.locked_by])}"
        if (new[c.locked_by] is None) != (new[c.lease_expires_at] is None):
            return "has an owner without a lease, or a lease without an owner"
        if old is None:
            fresh = t.after == RUNNABLE and new[c.attempt] == b"0" and new[c.result] is None
            return None if fresh else f"was born {text(t.after)} at attempt {text(new[c.attempt])}"
        if t.before == RUNNABLE and t.after == EXECUTING:
            return self._claimed(old, new)
        if t.before != EXECUTING:
            return f"went from {text(t.before)} to {text(t.after)}"
        if t.after == EXECUTING:
            same = self._heartbeat(old) == self._heartbeat(new)
            return None if same else f"changed while executing: {self._changed(old, new)}"
        shape = self._shape(old, new)
        if shape not in self._ends:
            return f"went from executing to {shape}: {self._changed(old, new)}"
        frozen, attempts = self._ends[shape]
        if frozen(old) != frozen(new):
            return f"changed more than a {shape} may: {self._changed(old, new)}"
        if attempts is not None and int(new[c.attempt] or 0) != int(old[c.attempt] or 0) + attempts:
            return f"went from attempt {text(old[c.attempt])} to {text(new[c.attempt])} by {shape}"
        return None

    def _claimed(self, old: Row, new: Row) -> str | None:
        if self._claim(old) != self._claim(new):
            return f"changed more than a claim may: {self._changed(old, new)}"
        before, after = old[self._c.correlation_scope], new[self._c.correlation_scope]
        if before != after and (after != b"{}" or EXECUTING in scope(before)):
            return f"had its scope changed from {text(before)} to {text(after)} by a claim"
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


class PickOrder:
    """In what order a claim hands out its rows, and when they were due."""

    name = "pick-order"
    statement = "one picker's claims come in (priority, eligible_at) order; nothing starts before eligible_at"
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness

    def transaction(self, transaction: Transaction, transitions: Sequence[Transition]) -> None:
        c = self._c
        claimed: dict[int, tuple[int, int]] = {}
        claim = b""
        for t in transitions:
            if t.after != EXECUTING or t.before == EXECUTING or t.new is None:
                continue
            self.checked += 1
            eligible_at = microseconds(t.new[c.eligible_at] or b"")
            claimed[t.id] = (int(t.new[c.priority] or 0), eligible_at)
            claim = t.new[c.locked_by] or b""
            if eligible_at > transaction.committed_us:
                self.findings.add(
                    f"row {t.id} started {(eligible_at - transaction.committed_us) / 1e6:.3f} s before it "
                    f"was eligible",
                    [t.id],
                    transaction.number,
                )
        if claimed and self._witness is not None:
            self._order(transaction, text(claim), claimed)

    def _order(self, transaction: Transaction, claim: str, claimed: dict[int, tuple[int, int]]) -> None:
        assert self._witness is not None
        operation = self._witness.claims.get(claim)
        if operation is None or operation.type != "ok":
            return
        told = [(claimed[row], row) for row in operation.result["ids"] if row in claimed]
        for (first, row), (second, after) in pairwise(told):
            if first > second:
                self.findings.add(
                    f"claim {claim} handed out row {row} (priority {first[0]}) before row {after} (priority "
                    f"{second[0]}), which comes first in pick order",
                    [row, after], transaction.number, [operation],
                )  # fmt: skip

    def conclude(self, _: Rest) -> str | None:
        return None


class LeaseRespect:
    """Nothing is taken back before its lease has run out."""

    name = "lease-respect"
    statement = (
        "a claim whose lease is renewed in time is never reaped or reclaimed, also with clashing worker "
        "prefixes"
    )
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._shape = _shape(columns)

    def transaction(self, transaction: Transaction, transitions: Sequence[Transition]) -> None:
        c = self._c
        for t in transitions:
            if t.before != EXECUTING or t.old is None:
                continue
            self.checked += 1
            if t.new is None or t.after != RUNNABLE or self._shape(t.old, t.new) != "reap":
                continue
            left_us = microseconds(t.old[c.lease_expires_at] or b"") - transaction.committed_us
            if left_us > 0:
                self.findings.add(
                    f"claim {text(t.old[c.locked_by])} of row {t.id} was taken back with {left_us / 1e6:.3f} "
                    f"s of its "
                    "lease left",
                    [t.id],
                    transaction.number,
                )

    def conclude(self, _: Rest) -> str | None:
        return None


class ContentionQuiet:
    """A lost race is a retry or a smaller batch."""

    name = "contention-quiet"
    statement = "a lost race surfaces as a retry or a smaller batch, never as an error to the caller"
    needs_ledger, needs_history, needs_rest = False, True, False

    def __init__(self, _: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness

    def transaction(self, _: Transaction, __: Sequence[Transition]) -> None:
        """Only the history is looked at."""

    def conclude(self, _: Rest) -> str | None:
        for o in self._witness.operations if self._witness is not None else ():
            if o.f in ("count", "phase", "fault", "step"):
                continue
            self.checked += 1
            sqlstate = error_of(o).get("sqlstate")
            if sqlstate is not None and (sqlstate[:2] == "23" or sqlstate in LOST_RACES):
                self.findings.add(
                    f"{o.f} of {o.process} ended with {error_of(o)['error']} ({sqlstate}): "
                    f"{error_of(o).get('message', '')}",
                    (), None, [o],
                )  # fmt: skip
        return None


class NoDeadlock:
    """No statement ends in `deadlock detected`, also none whose caller tries again and says nothing."""

    name = "no-deadlock"
    statement = (
        "no statement of the engine ever ends in `deadlock detected`, under any plan the planner may choose"
    )
    needs_ledger, needs_history, needs_rest = False, False, False

    def __init__(self, _: Columns | None, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness

    def transaction(self, _: Transaction, __: Sequence[Transition]) -> None:
        """The server's own figures are looked at, at rest."""

    def conclude(self, rest: Rest) -> str | None:
        for o in self._witness.operations if self._witness is not None else ():
            if error_of(o).get("sqlstate") == DEADLOCK:
                self.findings.add(
                    f"{o.f} of {o.process} ended in deadlock: {error_of(o).get('message', '')}", (), None, [o]
                )
        log = rest.evidence.server_log
        self.checked += len(log or ())
        logged = [line for line in log or () if "deadlock detected" in line or DEADLOCK in line]
        # A deadlock that a caller saw stands in the log too: only what is beyond those is news.
        for line in logged[self.findings.count :]:
            self.findings.add(f"the server logged: {line.strip()[:400]}")
        count = rest.evidence.deadlocks
        if count is not None:
            self.checked += 1
            if count > self.findings.count:
                self.findings.add(
                    f"the server counted {count} deadlocks in this database (pg_stat_database.deadlocks), of "
                    f"which "
                    f"{self.findings.count} surfaced elsewhere"
                )
        elif log is not None:
            self.checked += 1
        if count is None and log is None:
            return "neither the server's count of deadlocks nor its log was to be had"
        return None


PICKER_RULES: Final[tuple[type[Rule], ...]] = (
    SingleOwner, ConcurrencyExclusion, IdentityUnique, NoLostJob, Lifecycle, PickOrder, LeaseRespect,
    ContentionQuiet, NoDeadlock,
)  # fmt: skip


def is_settled(columns: Columns) -> Callable[[Row], bool]:
    """Which rows are kept packed: terminal ones never change again."""
    status = columns.status
    return lambda row: row[status] in TERMINAL


def check_generated(row: dict[str, str | None]) -> str | None:
    """What is wrong with a row's generated columns, read from the table itself; None when nothing is."""
    key = row["concurrency_key"]
    name = None if key is None else key.split(":", 1)[0]
    if row["concurrency_name"] != name:
        return (
            f"row {row['id']}: concurrency_name is {row['concurrency_name']}, its key {key} makes it {name}"
        )
    occupied = (row["status"] or "").encode() in scope((row["correlation_scope"] or "{}").encode())
    guard = row["correlation_key"] if occupied else None
    if row["correlation_guard"] != guard:
        return (
            f"row {row['id']}: correlation_guard is {row['correlation_guard']}, key and scope make it {guard}"
        )
    return None


def _shape(c: Columns) -> Callable[[Row, Row], str]:
    """In which of its shapes a claim ended. `next` and `release` of a first attempt may look alike:
    `release`."""
    status, attempt, eligible_at = c.status, c.attempt, c.eligible_at
    told = itemgetter(
        *(place for place, name in enumerate(c.names) if name in ("step", "state", "last_error"))
    )

    def shape(old: Row, new: Row) -> str:
        after = new[status]
        if after != RUNNABLE:
            return text(after)
        untouched = told(old) == told(new)
        if new[attempt] == old[attempt] and untouched and new[eligible_at] == old[eligible_at]:
            return "release"
        if new[attempt] == b"0":
            return "next"
        return "reap" if untouched and new[eligible_at] == old[eligible_at] else "retry"

    return shape


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


def _signature(job: dict[str, Any]) -> tuple[str | None, ...]:
    names = ("fsm", "queue", "priority", "concurrency_key", "correlation_key")
    return tuple(None if job[name] is None else str(job[name]) for name in names)


def _wrong_end(ender: Ender, row: int, claim: str, shape: str, after: bytes | None) -> str | None:
    """What is wrong with an operation having ended that claim in that shape; None when nothing is."""
    o = ender.operation
    mine = ender.asked.get(row, ())
    kinds = [kind for asked, kind in mine if asked == claim]
    if not kinds:
        others = ", ".join(asked for asked, _ in mine) or "none of that row"
        return f"{o.f} of {o.process} carried claim {others} and ended claim {claim}, which was not its own"
    if (row, claim) not in ender.told:
        return f"{o.f} of {o.process} ended claim {claim} and was told that it did not"
    if o.f == "flush":
        if after not in [END_OF_KIND.get(kind or "") for kind in kinds]:
            return (
                f"outcome {'/'.join(kind or '?' for kind in kinds)} of {o.process} made the row {text(after)}"
            )
    elif (o.f == "reap" and shape != "reap") or (o.f == "release" and shape != "release"):
        return f"{o.f} of {o.process} had the effect of a {shape}"
    return None
