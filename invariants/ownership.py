"""Who holds a job, who may end that, and in what order jobs are handed out.

What the rules lean on (picker.md §4, §7, and engine/picker.py):

1. `locked_by` names one claim, never two: a claim is one statement, so its name appears in one transaction.
2. A claim ends in one of these shapes: `done`, `failed`, parked on signals, parked on children, runnable by
   `next`, `retry` or `release`, and runnable by the reaper or a reclaim. Every end has an owner in the history:
   the flush, release, reap or reclaim that was told the transaction's id, or one whose outcome is unknown and
   that could have done it. A `continue` is an outcome that ends nothing.
3. What nobody holds changes in few ways: a wake and an expiry (parked on signals → runnable), a child's end
   (parked on children → the same, or runnable), the deletion of a parent, the collection of a terminal row.
4. The stream carries the primary key, so a row's way is known from its insert on.
5. The server's `now()` is at most its commit time, so what a statement required of `now()` its commit time
   satisfies.
"""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import Final

from invariants.changes import (
    BORN,
    CLAIMED,
    CONFIGS,
    ENDED,
    EXECUTING,
    GONE,
    HELD,
    JOINING,
    MOVED,
    PARKED,
    RUNNABLE,
    SIGNALS,
    STAYED,
    TERMINAL,
    Changes,
    Columns,
    Transition,
    config_name,
)
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Row, Transaction
from invariants.rules import Findings, Rest, microseconds, text
from invariants.witness import REMARKS, Ender, Witness, committed, error_of

# To which statuses an outcome's kind may lead. Children of which none landed do not park their parent.
ENDS_OF_KIND: Final = {
    "next": (RUNNABLE,),
    "retry": (RUNNABLE,),
    "done": (b"done",),
    "stop": (b"failed",),
    "await": (PARKED,),
    "childs": (JOINING, RUNNABLE),
    "continue": (EXECUTING,),
}
TAKEN_BACK: Final = ("reap", "reclaim")
# How many claims that came short are held against the whole table.
MAX_SHORT_CLAIMS: Final = 50


class SingleOwner:
    """Who held a row, who ended the hold, and whether it was theirs to end; and that whatever rides on an
    outcome rides on one that took effect."""

    name = "single-owner"
    statement = (
        "at every commit an instance has at most one owner; an outcome commits only for the owner that holds "
        "the row at that moment; a stale outcome changes nothing anywhere"
    )
    groups = BORN | CLAIMED | HELD | STAYED | ENDED | MOVED | GONE | SIGNALS
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._locked_by = columns.locked_by
        # What an admission's stamp leaves alone.
        self._step = itemgetter(*columns.all_but("concurrency_shard", "updated_at"))
        self._turn = columns.only("turn")
        # Rows under the claims under which an admission stamped them.
        self._stamped: set[tuple[int, str]] = set()
        self._witness = witness
        self._claims: dict[bytes, int] = {}
        self._seen: set[tuple[int, int]] = set()

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        mask = changes.mask
        if mask & CLAIMED:
            for t in changes.claimed:
                self._begin(transaction, t)
        self.checked += len(changes.held)
        for t in changes.stayed:
            self._stay(transaction, t)
        for t in changes.ended:
            self._end(transaction, t)
        if mask & (MOVED | GONE):
            for t in (*changes.moved, *changes.gone):
                if not self._may_move(t):
                    self._unowned(transaction, t)
        parent = self._c.parent_id
        if mask & (MOVED | SIGNALS) or any(
            t.new is not None and t.new[parent] is not None for t in changes.born
        ):
            self._riders(transaction, changes)

    def _begin(self, transaction: Transaction, t: Transition) -> None:
        assert t.new is not None
        claim = t.new[self._locked_by]
        self.checked += 1
        name = claim or b""
        if self._claims.setdefault(name, transaction.number) != transaction.number:
            # Once for a claim, however many rows it took.
            self._claims[name] = transaction.number
            self.findings.add(
                f"row {t.id} was claimed under {text(claim)}, a name that an earlier claim has used: its "
                "outcome and the earlier claim's cannot be told apart",
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

    def _stay(self, transaction: Transaction, t: Transition) -> None:
        assert t.old is not None
        assert t.new is not None
        old, new = t.old[self._locked_by], t.new[self._locked_by]
        self.checked += 1
        if old != new:
            self.findings.add(
                f"row {t.id} went from claim {text(old)} to {text(new)} without the first one's end",
                [t.id],
                transaction.number,
            )
        elif self._witness is None:
            return
        elif self._step(t.old) != self._step(t.new):
            self._continued(transaction, t, text(old))
        else:
            self._stamped.add((t.id, text(old)))

    def _continued(self, transaction: Transaction, t: Transition, claim: str) -> None:
        witness = self._witness
        assert witness is not None
        ender = witness.ender(transaction.xid)
        if ender is None:
            if not self._unknown_could(witness, t.id, claim, "continue", t.after):
                self.findings.add(
                    f"row {t.id} was taken on under claim {claim} by nobody who says so",
                    [t.id],
                    transaction.number,
                )
            return
        self._seen.add((transaction.xid, t.id))
        problem = _wrong_end(ender, t.id, claim, "continue", t.after) or self._wrong_turn(ender, t, claim)
        if problem is not None:
            self.findings.add(f"row {t.id}: {problem}", [t.id], transaction.number, [ender.operation])

    def _may_move(self, t: Transition) -> bool:
        """Whether that may happen to a row that nobody holds; whether it was rightly done is for other rules."""
        self.checked += 1
        if t.new is None:
            return t.before in TERMINAL
        if t.before == PARKED:
            return t.after == RUNNABLE
        if t.before == JOINING and t.after in (JOINING, RUNNABLE):
            return True
        assert t.old is not None
        parent = self._c.parent_id
        orphaned = t.new[parent] is None and t.old[parent] is not None
        return orphaned and t.before == t.after

    def _unowned(self, transaction: Transaction, t: Transition) -> None:
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

    def _riders(self, transaction: Transaction, changes: Changes) -> None:
        """Inbox, parent and children change only with an outcome that commits in the same transaction."""
        parent = self._c.parent_id
        owned = {t.id for t in changes.ended} | {t.id for t in changes.stayed} | {t.id for t in changes.gone}
        for signal in changes.signals:
            if not signal.born and signal.target not in owned:
                self._rides_on_nothing(
                    transaction, f"signal {signal.id} of row {signal.target} was deleted", [signal.target]
                )
        for t in changes.born:
            assert t.new is not None
            if t.new[parent] is not None and int(t.new[parent] or 0) not in owned:
                self._rides_on_nothing(
                    transaction,
                    f"row {t.id} was born a child of row {text(t.new[parent])}",
                    [int(t.new[parent] or 0), t.id],
                )
        joined = [t for t in changes.moved if t.before == JOINING]
        if joined:
            ended = {
                int(row[parent] or 0)
                for t in (*changes.ended, *changes.moved)
                if t.after in TERMINAL and (row := t.new) is not None and row[parent] is not None
            }
            for t in joined:
                if t.id not in ended:
                    self._rides_on_nothing(transaction, f"row {t.id} had a child counted off", [t.id])

    def _rides_on_nothing(self, transaction: Transaction, what: str, rows: list[int]) -> None:
        ender = None if self._witness is None else self._witness.enders.get(transaction.xid)
        self.findings.add(
            f"{what} by a transaction in which no outcome that could do so took effect: a stale outcome changed "
            "something",
            rows,
            transaction.number,
            [] if ender is None else [ender],
        )

    def _end(self, transaction: Transaction, t: Transition) -> None:
        self.checked += 1
        witness = self._witness
        if witness is None:
            return
        assert t.old is not None
        claim = text(t.old[self._locked_by])
        shape = t.shape or ""
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
        problem = _wrong_end(ender, t.id, claim, shape, t.after) or self._wrong_turn(ender, t, claim)
        if problem is not None:
            self.findings.add(f"row {t.id}: {problem}", [t.id], transaction.number, [ender.operation])

    def _wrong_turn(self, ender: Ender, t: Transition, claim: str) -> str | None:
        """A claim goes on turn by turn: an outcome of an earlier one is stale though its claim still holds the row."""
        meant = ender.turns.get((t.id, claim))
        if meant is None or not self._turn:
            return None
        assert t.old is not None
        turn = int(t.old[self._turn[0]] or 0)
        if meant == turn:
            return None
        return (
            f"{ender.operation.f} of {ender.operation.process} carried an outcome of turn {meant} of claim {claim}, "
            f"which stood at turn {turn}: a stale outcome changed something"
        )

    def _unknown_could(self, w: Witness, row: int, claim: str, shape: str, after: bytes | None) -> bool:
        if any(after in ENDS_OF_KIND.get(kind, ()) for _, kind in w.unknown_flushes.get((row, claim), ())):
            return True
        if shape == "release" and (row, claim) in w.unknown_releases:
            return True
        if shape == "release" and any(o.f == "reclaim" for o in w.unknown_reaps):
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
        for operation in self._witness.limiters:
            if operation.f != "admit" or operation.type != "ok":
                continue
            claim = operation.value["claim"]
            for row, shard in operation.result["admitted"]:
                if shard is not None and (row, claim) not in self._stamped:
                    self.findings.add(
                        f"{operation.process} was told that row {row} may start under claim {claim} with a slot of "
                        f"shard {shard}, and no slot was stamped on it under that claim",
                        [row],
                        None,
                        [operation],
                    )
        for xid, operation in self._witness.enders.items():
            for row, claim in committed(operation):
                if (xid, row) not in self._seen:
                    self.findings.add(
                        f"{operation.process} was told that its {operation.f} ended claim {claim} of row "
                        f"{row} in transaction {xid}, which ended no claim of that row",
                        [row],
                        None,
                        [operation],
                    )
        return None


class ConcurrencyExclusion:
    """At most one executing row per ungated key. A shard on a row does not make its key a gate's: the configuration
    does."""

    name = "k1-exclusion"
    statement = "at every commit at most one executing row per concurrency key that is not a configured gate"
    groups = BORN | CLAIMED | STAYED | ENDED | GONE | CONFIGS
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._key, self._shard = columns.concurrency_key, columns.concurrency_shard
        self._executing: dict[bytes, set[int]] = {}
        # The key that a row is counted under, for gates may come while it executes.
        self._held: dict[int, bytes] = {}
        self._gates: set[str] = set()

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        touched: set[bytes] = set()
        key = self._key
        self._gates.update(config.name for config in changes.configs if config.kind == "conc")
        for group in (changes.born, changes.claimed, changes.stayed, changes.ended, changes.gone):
            for t in group:
                row = t.old if t.new is None else t.new
                assert row is not None
                if row[key] is None and (t.old is None or t.old[key] is None):
                    continue
                held = self._held.pop(t.id, None)
                holds = self._holds(t.after, t.new)
                if holds is not None:
                    self._held[t.id] = holds
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
        for name in touched:
            self.checked += 1
            rows = self._executing.get(name, set())
            if len(rows) > 1:
                self.findings.add(
                    f"concurrency key {text(name)} has {len(rows)} executing rows at once: {sorted(rows)}",
                    sorted(rows),
                    transaction.number,
                )

    def _holds(self, status: bytes | None, row: Row | None) -> bytes | None:
        if status != EXECUTING or row is None or (key := row[self._key]) is None:
            return None
        if row[self._shard] is None:
            return key
        # A ledger that names no gate at all cannot tell.
        return None if not self._gates or config_name(text(key)) in self._gates else key

    def conclude(self, _: Rest) -> str | None:
        return None


class PickOrder:
    """In what order a claim hands out its rows, when they were due, and that a claim which nothing disturbed
    leaves no row that it had room for."""

    name = "pick-order"
    statement = "one picker's claims come in (priority, eligible_at) order; nothing starts before eligible_at"
    groups = BORN | CLAIMED | STAYED | ENDED | MOVED | GONE
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness
        self._short = {} if witness is None else _short_claims(witness)
        if not self._short:
            self.groups = CLAIMED
        # Runnable rows by queue; kept only while a claim that came short is still to come.
        self._runnable: dict[bytes, dict[int, Row]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        c = self._c
        if self._short:
            self._follow(changes)
        if not changes.mask & CLAIMED:
            return
        claimed: dict[int, tuple[int, int]] = {}
        claim = b""
        for t in changes.claimed:
            assert t.new is not None
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
        if self._witness is not None:
            self._order(transaction, text(claim), claimed)
            if (operation := self._short.pop(text(claim), None)) is not None:
                self._left_behind(transaction, operation, len(claimed))

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

    def _follow(self, changes: Changes) -> None:
        queue = self._c.queue
        for group in (changes.born, changes.claimed, changes.ended, changes.moved, changes.gone):
            for t in group:
                if t.before == RUNNABLE and t.old is not None:
                    self._runnable.get(t.old[queue] or b"", {}).pop(t.id, None)
                if t.after == RUNNABLE and t.new is not None:
                    self._runnable.setdefault(t.new[queue] or b"", {})[t.id] = t.new

    def _left_behind(self, transaction: Transaction, operation: Operation, taken: int) -> None:
        """Rows without a key that were runnable, due and within the claim's window, and were not taken."""
        c = self._c
        waiting = self._runnable.get(operation.value["queue"].encode(), {})
        self.checked += 1
        if len(waiting) + taken > operation.value["batch"]:
            return
        left = [
            number
            for number, row in waiting.items()
            if row[c.concurrency_key] is None
            # Since before the claim began, by the server's clock alone: the claim's own time is its commit's.
            and microseconds(row[c.eligible_at] or b"") <= microseconds(row[c.updated_at] or b"")
            and microseconds(row[c.updated_at] or b"") < transaction.committed_us
        ]
        if left:
            self.findings.add(
                f"claim {operation.value['claim']} asked for {operation.value['batch']} rows, was disturbed by "
                f"nobody, took {taken} and left row {left[0]}, which was runnable, due and without a key",
                left[:3],
                transaction.number,
                [operation],
            )

    def conclude(self, _: Rest) -> str | None:
        return None


class LeaseRespect:
    """Nothing is taken back before its lease has run out."""

    name = "lease-respect"
    statement = (
        "a claim whose lease is renewed in time is never reaped or reclaimed, also with clashing worker "
        "prefixes"
    )
    groups = HELD | STAYED | ENDED
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._witness = witness

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        c = self._c
        self.checked += len(changes.held) + len(changes.stayed) + len(changes.ended)
        for t in changes.ended:
            if t.after != RUNNABLE:
                continue
            operation = None if self._witness is None else self._witness.enders.get(transaction.xid)
            reclaimed = operation is not None and operation.f == "reclaim"
            if t.shape != "reap" and not reclaimed:
                continue
            assert t.old is not None
            # A boot takes back what its own prefix no longer renews, without waiting for the whole lease.
            spare_us = self._spare_us(operation)
            left_us = microseconds(t.old[c.lease_expires_at] or b"") - transaction.committed_us
            if left_us > spare_us:
                self.findings.add(
                    f"claim {text(t.old[c.locked_by])} of row {t.id} was taken back with {left_us / 1e6:.3f} "
                    f"s of its lease left"
                    + (f", {spare_us / 1e6:.3f} s of which a reclaim may ignore" if spare_us else ""),
                    [t.id],
                    transaction.number,
                    [operation] if operation is not None and reclaimed else [],
                )
            elif reclaimed and left_us > 0:
                self._from_the_living(transaction, t, operation)

    def _from_the_living(self, transaction: Transaction, t: Transition, operation: Operation | None) -> None:
        """A boot's margin is for what a dead process left: whoever lives renews, by intervals of its own."""
        assert self._witness is not None
        assert operation is not None
        assert t.old is not None
        claim = text(t.old[self._c.locked_by])
        claimed = self._witness.outlived(claim, operation)
        if claimed is not None:
            self.findings.add(
                f"claim {claim} of row {t.id} was taken back by a boot of {operation.process} before its lease had "
                f"run out, and {claimed.process}, which made it, was at work afterwards",
                [t.id],
                transaction.number,
                [claimed, operation],
            )

    def _spare_us(self, operation: Operation | None) -> float:
        """How much of a lease may be left: a reclaim's margin, also that of one that nobody knows the end of."""
        if self._witness is None:
            return 0.0
        reclaims = self._witness.unknown_reaps if operation is None else [operation]
        return 1000 * max((o.value.get("margin_ms", 0.0) for o in reclaims if o.f == "reclaim"), default=0.0)

    def conclude(self, _: Rest) -> str | None:
        return None


class BatchIndependence:
    """A flush takes every outcome that is still owned, and a refused one costs its neighbours nothing. An outcome of
    another turn than the claim stands at is not: its own was taken before, or, after a failover, is lost."""

    name = "batch-independence"
    statement = "outcomes that share a flush are independent: whatever one outcome carries, the others commit"
    groups = STAYED | ENDED
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._locked_by = columns.locked_by
        self._turn = columns.only("turn")
        self._witness = witness
        # Outcomes that a flush did not take, and the transaction in which that flush committed the others.
        self._waiting: dict[tuple[int, str], int] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        witness = self._witness
        if witness is None:
            return
        operation = witness.enders.get(transaction.xid)
        if operation is not None and operation.f == "flush":
            self.checked += 1
            taken = operation.result["committed"]
            if len(taken) < len(operation.value["outcomes"]):
                kept = set(committed(operation))
                turns = operation.value.get("turns") or [None] * len(operation.value["outcomes"])
                for (row, claim, _), turn in zip(operation.value["outcomes"], turns, strict=True):
                    if (row, claim) not in kept and self._stands_at(changes.row(row), turn):
                        self._waiting[row, claim] = transaction.number
        if not self._waiting:
            return
        for t in changes.ended:
            assert t.old is not None
            claim = text(t.old[self._locked_by])
            missed = self._waiting.pop((t.id, claim), None)
            if missed is not None and missed < transaction.number:
                self.findings.add(
                    f"claim {claim} held row {t.id} until here, and yet the flush of commit {missed} left its "
                    "outcome out",
                    [t.id],
                    transaction.number,
                    [witness.stale[t.id, claim]],
                )

    def _stands_at(self, row: Row | None, turn: int | None) -> bool:
        """Whether its claim stands at that turn, or nobody says."""
        return turn is None or row is None or not self._turn or int(row[self._turn[0]] or 0) == turn

    def conclude(self, _: Rest) -> str | None:
        for o in self._witness.refused_flushes if self._witness is not None else ():
            sqlstate = error_of(o).get("sqlstate") or ""
            self.checked += 1
            if len(o.value["outcomes"]) > 1 and sqlstate[:2] == "23":
                self.findings.add(
                    f"a flush of {len(o.value['outcomes'])} outcomes of {o.process} was refused whole for what "
                    f"one of them carries: {error_of(o)['error']} ({sqlstate})",
                    [entry[0] for entry in o.value["outcomes"]][:3],
                    None,
                    [o],
                )
        return None


def _short_claims(witness: Witness) -> dict[str, Operation]:
    """Claims that brought less than was asked for while no other operation was under way, by name."""
    found: dict[str, Operation] = {}
    open_until, last = 0, None
    for o in witness.operations:
        if o.f in REMARKS:
            continue
        # Sorted by start: `o` overlaps what came before it, and whatever begins before it ends overlaps `o`.
        if last is not None and (last.end_ns is None or o.start_ns < last.end_ns):
            found.pop(last.value.get("claim", "") if last.f == "claim" else "", None)
        alone = o.start_ns >= open_until
        open_until = max(open_until, 2**63 if o.end_ns is None else o.end_ns)
        last = o
        if (
            o.f == "claim"
            and o.type == "ok"
            and alone
            and o.result["contended"] == 0
            and 0 < len(o.result["ids"]) < o.value["batch"]
        ):
            found[o.value["claim"]] = o
            if len(found) > MAX_SHORT_CLAIMS:
                return found
    return found


def _wrong_end(ender: Ender, row: int, claim: str, shape: str, after: bytes | None) -> str | None:
    """What is wrong with an operation having ended (or continued) that claim in that shape; None when nothing
    is."""
    o = ender.operation
    mine = ender.asked.get(row, ())
    kinds = [kind for asked, kind in mine if asked == claim]
    if not kinds:
        others = ", ".join(asked for asked, _ in mine) or "none of that row"
        return f"{o.f} of {o.process} carried claim {others} and ended claim {claim}, which was not its own"
    if (row, claim) not in ender.told:
        return f"{o.f} of {o.process} ended claim {claim} and was told that it did not"
    if o.f == "flush":
        if not any(after in ENDS_OF_KIND.get(kind or "", ()) for kind in kinds):
            return (
                f"outcome {'/'.join(kind or '?' for kind in kinds)} of {o.process} made the row {text(after)}"
            )
    elif (o.f in TAKEN_BACK and shape not in ("reap", "release")) or (
        o.f == "release" and shape != "release"
    ):
        return f"{o.f} of {o.process} had the effect of a {shape}"
    return None
