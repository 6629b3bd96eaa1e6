"""The database's view against the clients': every change in the ledger has an owner in the history.

1. An operation is on record before it is sent, whoever sends it: clients, nodes, relays, the harness itself and its
   faults. So a change that no operation may have made is the engine's, or somebody else's.
2. Who was told of a change owns it. So does an operation of unknown outcome that may have made it, whether anybody else
   may have or not; an insert of unknown outcome owns one row for each of its jobs.
3. What the harness does to the tables itself it says, with the transaction (`harness`), and owns whole.
4. Some changes ride on others of their transaction and have the same owner: children, inboxes, wakes by a child's end,
   what a commit writes beside its version.
5. Counters of limits are written by operations that do not say which: one that was under way must be there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from invariants.acknowledged import claim_of
from invariants.changes import (
    BORN,
    BUCKETS,
    CLAIMED,
    CONFIGS,
    ENDED,
    GONE,
    HELD,
    JOINING,
    MOVED,
    PARKED,
    RUNNABLE,
    SIGNALS,
    STAYED,
    Bucket,
    Changes,
    Columns,
    Signal,
    Transition,
)
from invariants.commits import about
from invariants.deliveries import delivered
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Row, Transaction
from invariants.rules import Rest, Watcher, text
from invariants.stored import FORKED, LEASED, MARKED, QUEUED, SAVED, SENT, TIMED, TRACED, event_id
from invariants.transport import acks_of
from invariants.witness import MASK, Witness, committed, is_undecided, is_unknown, signature_of

# What writes the counters of limits, and their configuration.
COUNTING: Final = ("admit", "credit", "renew", "reconcile", "sweep_buckets", "sync_config")


class DoneIsOwned(Watcher):
    """Looks for the owner of every change."""

    name = "done-is-owned"
    statement = (
        "every change in the ledger has an owner in the history: an operation that made it, or may have"
    )
    groups = (
        BORN | CLAIMED | HELD | STAYED | ENDED | MOVED | GONE | SIGNALS | BUCKETS | CONFIGS
        | SAVED | SENT | MARKED | TIMED | FORKED | TRACED | QUEUED | LEASED
    )  # fmt: skip
    needs_history = True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        # Changes of counters that nothing was under way for, by how much time it missed them.
        self._uncounted: list[tuple[float, int, Bucket]] = []

    @cached_property
    def _owners(self) -> Owners:
        assert self.witness is not None
        return Owners(self.witness)

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        if self.witness is None:
            return
        owners = self._owners
        if transaction.xid in owners.by_hand:
            self.checked += len(transaction.changes)
            return
        ridden = {t.id for group in (changes.ended, changes.stayed, changes.gone) for t in group}
        for t, problem in _of_jobs(owners, transaction, changes, ridden):
            self.checked += 1
            if problem is not None:
                self.findings.add(f"row {t.id} {problem}", [t.id], transaction.number)
        for signal in changes.signals:
            self.checked += 1
            owned = owners.delivers(signal) if signal.born else signal.target in ridden
            if not owned:
                what = "came into" if signal.born else "went from"
                self.findings.add(
                    f"signal {signal.id} {what} the inbox of row {signal.target} by nobody's doing",
                    [signal.target],
                    transaction.number,
                )
        if changes.buckets:
            self.checked += len(changes.buckets)
            off_us = owners.off_us(transaction.committed_us)
            if off_us > 0:
                self._uncounted.append((off_us, transaction.number, changes.buckets[0]))
        self._stored(owners, transaction, changes)

    def _stored(self, owners: Owners, transaction: Transaction, changes: Changes) -> None:
        for what, subjects, owned in _of_store(owners, changes):
            self.checked += 1
            if not owned:
                self.findings.add(f"{what} by nobody's doing", (), transaction.number, (), subjects)

    def conclude(self, rest: Rest) -> str | None:
        # Counters have owners by time only, and times can be held against each other only on one machine.
        slack_us = 1_000 * rest.evidence.clock_slack_ms
        for off_us, number, bucket in self._uncounted if rest.evidence.shares_clock else ():
            if off_us > slack_us:
                self.findings.add(
                    f"shard {bucket.shard} of {bucket.kind} {bucket.key} was changed {off_us / 1e6:.3f} s away from "
                    "any operation that changes counters",
                    (), number, (), [(bucket.kind, bucket.key)],
                )  # fmt: skip
        return None


class Owners:
    """Who may own what, from the history."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        # Keys are those of `_claims`; of what nobody was told, what there may have been.
        self.renewed: set[tuple[int, str]] = set()
        self.admitted: set[tuple[int, str]] = set()
        self.expired: set[tuple[int, int]] = set()
        self.by_hand: set[int] = set()
        self.collected: set[int] = set()
        self.signals: dict[int, Operation] = {}
        self.woken: set[int] = set()
        self.unsure: list[Operation] = []
        self.unknown: set[str] = set()
        self.jobs: Counter[tuple[str | None, ...]] = Counter(
            signature_of(insert.job) for insert in witness.unknown_inserts
        )
        self.published: set[int] = set()
        self.publishing: set[tuple[str, str]] = set()
        self.acked: set[int] = set()
        self.sent: set[int] = set()
        self.forked: set[int] = set()
        self.noted: set[str] = set()
        for o in witness.operations:
            self._index(o)
        self._times = _union(
            (o.start_ns + o.wall_offset_ns, None if over is None else over + o.wall_offset_ns)
            for o in witness.operations
            if o.f in COUNTING
            for over in (witness.over_ns(o),)
        )
        self._begins = [begin for begin, _ in self._times]

    def _index(self, o: Operation) -> None:
        unknown = is_unknown(o)
        if unknown:
            self.unknown.add(o.f)
        match o.f:
            case "heartbeat" if o.type == "ok" or unknown:
                told = set(o.result["ids"]) if o.type == "ok" else None
                self.renewed.update(
                    (row, claim) for row, claim in o.value["holds"] if told is None or row in told
                )
            case "admit":
                self.admitted.update((row, o.value["claim"]) for row in o.value["ids"])
            case "expire" if o.type == "ok" and o.result["xid"] is not None:
                self.expired.update((int(o.result["xid"]) & MASK, row) for row in o.result["ids"])
            case "harness" if o.type == "ok":
                self.by_hand.add(int(o.result["xid"]) & MASK)
            case "gc" if o.type == "ok":
                self.collected.update(o.result["ids"])
            case "signal" if o.type == "ok" and o.result["signal"] is not None:
                self.signals[o.result["signal"]] = o
                self.woken.add(o.result["target"])
            case "signal" if unknown:
                self.unsure.append(o)
            case _ if "." in o.f:
                self._index_stored(o)

    def _index_stored(self, o: Operation) -> None:
        match o.f:
            case "transport.publish":
                several = o.value.get("messages") or [(o.value.get("group"), o.value.get("event"))]
                if o.type == "ok":
                    self.published.update([o.result["seq"]] if "seq" in o.result else o.result["seqs"])
                elif is_undecided(o):
                    self.publishing.update((group, event) for group, event in several)
            case "transport.ack":
                self.acked.update(ack.seq for ack in acks_of([o]) if ack.done is not False)
            case "relay.deliver" | "relay.broadcast":
                self._told_seqs(o, self.sent)
            case "relay.spawn":
                self._told_seqs(o, self.forked)
            case "store.trace":
                self.noted.add(o.value["execution"])

    def _told_seqs(self, o: Operation, found: set[int]) -> None:
        seqs = delivered(o)
        if seqs is None:
            self.unknown.add(o.f)
        found.update(seqs or ())

    def off_us(self, at_us: int) -> float:
        """How far that moment is from any operation that writes counters; 0 where one was under way."""
        at_ns = at_us * 1_000
        place = bisect_right(self._begins, at_ns)
        before = float("inf") if place == 0 else max(0.0, at_ns - self._times[place - 1][1])
        after = self._begins[place] - at_ns if place < len(self._begins) else float("inf")
        return min(before, after) / 1_000

    def delivers(self, signal: Signal) -> bool:
        """Whether somebody put that into an inbox, or may have."""
        told = self.signals.get(signal.id)
        if told is not None:
            return told.result["target"] in (None, signal.target)
        return any(
            o.value["name"] == signal.name
            and o.value["dedup"] == signal.dedup
            and o.value["target"] in (None, signal.target)
            for o in self.unsure
        )

    def born(self, row: int, signature: tuple[str | None, ...]) -> bool:
        """Whether somebody inserted that job, or may have."""
        if row in self.witness.inserts:
            return True
        if not self.jobs[signature]:
            return False
        self.jobs[signature] -= 1
        return True

    def claimed(self, row: int, claim: str) -> bool:
        """Whether that claim is somebody's and may have taken the row."""
        operation = self.witness.claims.get(claim)
        return operation is not None and (operation.type != "ok" or row in operation.result["ids"])

    def flushed(self, xid: int, row: int, claim: str) -> bool:
        """Whether somebody ended that claim or went on under it, or may have."""
        ender = self.witness.enders.get(xid)
        if ender is not None:
            return (row, claim) in committed(ender)
        return (row, claim) in self.witness.unknown_flushes

    def ended(self, xid: int, t: Transition, claim: str) -> bool:
        """Whether somebody ended that claim, or may have; in which way exactly is for `single-owner` to say."""
        if xid in self.witness.enders or (t.id, claim) in self.witness.unknown_flushes:
            return self.flushed(xid, t.id, claim)
        if t.shape not in ("reap", "release"):
            return False
        return (t.id, claim) in self.witness.unknown_releases or bool(self.witness.unknown_reaps)


def _union(spans: Iterable[tuple[int, int | None]]) -> list[tuple[int, int]]:
    """Spans that overlap as one, in order; one without an end lasts for ever."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted((b, 2**63 if e is None else e) for b, e in spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _of_jobs(
    owners: Owners, transaction: Transaction, changes: Changes, ridden: set[int]
) -> Iterator[tuple[Transition, str | None]]:
    """Each change of a job but mere ends of turns, and what is wrong with it; None where it has an owner."""
    c, xid = changes.columns, transaction.xid
    delivered_to = {signal.target for signal in changes.signals if signal.born}
    for t in changes.born:
        assert c is not None
        assert t.new is not None
        parent = t.new[c.parent_id]
        keys = (c.fsm, c.queue, c.priority, c.concurrency_key, c.correlation_key)
        signature = tuple(None if t.new[k] is None else text(t.new[k]) for k in keys)
        owned = owners.born(t.id, signature) if parent is None else int(parent) in ridden
        yield t, None if owned else "was inserted by nobody"
    for t in changes.claimed:
        claim = claim_of(changes, t.new)
        yield t, None if owners.claimed(t.id, claim) else f"was claimed under {claim} by nobody"
    for t in changes.held:
        claim = claim_of(changes, t.old)
        yield t, None if (t.id, claim) in owners.renewed else f"had its lease under {claim} renewed by nobody"
    for t in changes.stayed:
        claim = claim_of(changes, t.old)
        # A delivery writes its target also where it changes nothing.
        owned = (
            (t.old == t.new and t.id in delivered_to)
            or (t.id, claim) in owners.admitted
            or owners.flushed(xid, t.id, claim)
        )
        yield t, None if owned else f"was changed under claim {claim} by nobody"
    for t in changes.ended:
        claim = claim_of(changes, t.old)
        yield t, None if owners.ended(xid, t, claim) else f"had its claim {claim} ended by nobody"
    for t in changes.moved:
        yield t, None if _moves(owners, t, changes, xid, ridden) else f"was {_moved(t)} by nobody"
    for t in changes.gone:
        owned = t.id in owners.collected or "gc" in owners.unknown
        yield t, None if owned else "was deleted by nobody"


def _moved(t: Transition) -> str:
    return f"changed from {text(t.before)} to {text(t.after)}"


def _moves(owners: Owners, t: Transition, changes: Changes, xid: int, ridden: set[int]) -> bool:
    """Whether something moved a row that nobody held: a signal, the end of its wait, the end of a child or of
    its parent."""
    c = changes.columns
    assert c is not None
    if t.before == PARKED and t.after == RUNNABLE:
        # A park that looked at the inbox; a delivery; a sweep.
        return (
            t.id in ridden
            or any(signal.born and signal.target == t.id for signal in changes.signals)
            or (xid, t.id) in owners.expired
            or "expire" in owners.unknown
        )
    if t.before == JOINING:
        return any(_parent(c, other) == t.id for other in (*changes.ended, *changes.moved))
    return t.old is not None and t.old[c.parent_id] is not None and bool(changes.gone)


def _parent(c: Columns, t: Transition) -> int | None:
    row: Row | None = t.new
    return None if row is None or row[c.parent_id] is None else int(row[c.parent_id] or 0)


def _of_store(owners: Owners, changes: Changes) -> Iterator[tuple[str, Sequence[tuple[str, str]], bool]]:
    """Each change of the store and the transport, in words, what it is about, and whether it has an owner."""
    stored, witness = changes.stored, owners.witness
    written = {saved.id for saved in stored.saved if saved.after is not None}
    relayed = bool(stored.forked or stored.sent or stored.timed)
    for saved in stored.saved:
        if saved.after is None:
            yield f"execution {saved.id} was deleted", about(saved.id), False
            continue
        made = any(
            o.type == "ok" or is_undecided(o) for o in witness.commits.get((saved.id, saved.after), ())
        )
        born = saved.after == 1 and "relay.spawn" in witness.named
        yield f"version {saved.after} of execution {saved.id} was made", about(saved.id), made or born
    for sent in stored.sent:
        what = f"row {sent.seq} {'came into' if sent.born else 'went from'} the outbox"
        if sent.born:
            owned = bool(written) or (bool(stored.timed) and "relay.timers" in witness.named)
        else:
            owned = sent.seq in owners.sent or bool({"relay.deliver", "relay.broadcast"} & owners.unknown)
        yield what, [("outbox", str(sent.seq))], owned
    for marked in stored.marked:
        what = f"event {marked.event} of execution {marked.execution} was marked or unmarked"
        yield what, about(marked.execution), marked.execution in written
    for timed in stored.timed:
        what = f"timer {timed.path} of execution {timed.execution} was changed"
        yield what, about(timed.execution), timed.execution in written or "relay.timers" in witness.named
    for forked in stored.forked:
        owned = (
            forked.parent in written
            if forked.born
            else forked.seq in owners.forked or "relay.spawn" in owners.unknown
        )
        yield f"spawn {forked.seq} of execution {forked.parent} came or went", about(forked.parent), owned
    for traced in stored.traced:
        owned = traced.execution in written or not owners.noted or traced.execution in owners.noted
        yield f"the trace of execution {traced.execution} was changed", about(traced.execution), owned
    for queued in stored.queued:
        group = [("group", queued.group)]
        if queued.born:
            event = event_id(queued.event)
            owned = queued.seq in owners.published or (queued.group, event) in owners.publishing
            yield f"message {queued.seq} was published", group, owned or relayed or _relays_apart(owners)
        else:
            yield f"message {queued.seq} went", group, queued.seq in owners.acked
    for leased in stored.leased:
        token = None if leased.after is None else leased.after.holder
        if token is not None:
            yield (
                f"group {leased.group} was leased under token {token}",
                [("group", leased.group)],
                (token in witness.tokens),
            )


def _relays_apart(owners: Owners) -> bool:
    """Whether relays publish in transactions of their own, which say nothing of the rows that they hand over."""
    return any("seqs" in o.value for o in owners.witness.named.get("relay.deliver", ()))
