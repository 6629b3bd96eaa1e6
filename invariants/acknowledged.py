"""The clients' view against the database's: what was acknowledged is in the ledger.

1. An answer says what a transaction did, and some say which one it was. So each answer is taken apart into changes that
   the ledger must show: a row born, claimed, held on to, ended in that transaction; a signal, a version, a message.
2. Answers of unknown outcome ask for nothing. Neither does what was acknowledged before the end of a failover that may
   have lost it (`invariants.witness.may_lose`).
3. Some changes are asked for as often as somebody was told of them: every heartbeat writes the lease anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias

from invariants.changes import (
    BORN,
    CLAIMED,
    ENDED,
    GONE,
    HELD,
    MOVED,
    PARKED,
    RUNNABLE,
    SIGNALS,
    STAYED,
    Changes,
)
from invariants.commits import about
from invariants.deliveries import delivered
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Row, Transaction
from invariants.rules import Rest, Watcher, text
from invariants.stored import FORKED, LEASED, QUEUED, SAVED, SENT
from invariants.transport import acks_of
from invariants.witness import MASK, committed

# A change that an answer asks for: what happened, and to what.
Fact: TypeAlias = tuple[Any, ...]


class ToldIsDone(Watcher):
    """Asks the ledger for everything that anybody was told."""

    name = "told-is-done"
    statement = (
        "what was acknowledged is in the ledger, in the transaction that the answer names where it names one"
    )
    groups = (
        BORN | CLAIMED | HELD | STAYED | ENDED | MOVED | GONE | SIGNALS | SAVED | SENT | FORKED | QUEUED | LEASED
    )  # fmt: skip
    needs_history = True

    @cached_property
    def _asked(self) -> dict[Fact, list[Operation]]:
        """What is still to be seen, and who was told of it, each as often as it was told."""
        asked: dict[Fact, list[Operation]] = {}
        witness, since = self.witness, -1
        if witness is not None and witness.losses:
            since = max(2**63 if loss.end_ns is None else loss.end_ns for loss in witness.losses)
        for o in () if witness is None else witness.operations:
            if o.type == "ok" and o.start_ns > since:
                for fact in _facts(o):
                    self.checked += 1
                    asked.setdefault(fact, []).append(o)
        return asked

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        for fact in _seen(transaction, changes):
            asked = self._asked.get(fact)
            if asked is None:
                continue
            if fact[0] in _COUNTED and len(asked) > 1:
                asked.pop()
            else:
                del self._asked[fact]

    def conclude(self, rest: Rest) -> str | None:
        if not rest.summary.complete:
            return None
        for fact, asked in self._asked.items():
            for o in asked if fact[0] in _COUNTED else asked[:1]:
                self.findings.add(
                    f"{o.process} was told that its {o.f} {_said(fact)}, and the ledger shows no such thing",
                    _rows(fact), None, [o], _subjects(fact),
                )  # fmt: skip
        return None


_COUNTED = ("held", "stamped")


def _facts(o: Operation) -> Iterator[Fact]:
    """What the ledger must show for that answer."""
    match o.f:
        case "insert" | "insert_many":
            for row in [o.result["id"]] if o.f == "insert" else o.result["ids"]:
                if row is not None:
                    yield "born", row
        case "claim":
            for row in o.result["ids"]:
                yield "claimed", row, o.value["claim"]
        case "flush" | "release" | "reap" | "reclaim":
            for row, claim in committed(o):
                yield "ended", row, claim, int(o.result["xid"]) & MASK
        case "heartbeat":
            named = dict(o.value["holds"])
            once = len(named) == len(o.value["holds"])
            for row in o.result["ids"] if once else ():
                yield "held", row, named.get(row)
        case "admit":
            for row, shard in o.result["admitted"]:
                if shard is not None:
                    yield "stamped", row, o.value["claim"]
        case "signal":
            if o.result["outcome"] == "delivered":
                yield "signal", o.result["signal"], o.result["target"]
        case "expire":
            for row in o.result["ids"]:
                yield "expired", row, int(o.result["xid"]) & MASK
        case "gc":
            for row in o.result["ids"]:
                yield "gone", row
        case _ if "." in o.f:
            yield from _facts_of_store(o)


def _facts_of_store(o: Operation) -> Iterator[Fact]:
    match o.f:
        case "store.commit":
            yield "version", o.value["execution"], o.result["version"]
        case "transport.publish":
            for seq in [o.result["seq"]] if "seq" in o.result else o.result["seqs"]:
                yield "queued", seq
        case "transport.claim":
            for message in o.result if isinstance(o.result, list) else [o.result] if o.result else ():
                yield "leased", message["group"], o.value["token"]
        case "transport.ack":
            for ack in acks_of([o]):
                if ack.done:
                    yield "unqueued", ack.seq
        # A relay in steps says what it takes on, before it hands it over; one in a statement what it has removed.
        case "relay.deliver" if "seqs" not in o.value:
            for seq in delivered(o) or ():
                yield "unsent", seq
        case "relay.spawn" if "seqs" not in o.value:
            for seq in delivered(o) or ():
                yield "unforked", seq


def _seen(transaction: Transaction, changes: Changes) -> Iterator[Fact]:
    """What a transaction did, in the same words."""
    xid = transaction.xid
    for t in changes.born:
        yield "born", t.id
    for t in changes.claimed:
        yield "claimed", t.id, claim_of(changes, t.new)
    for t in changes.held:
        yield "held", t.id, claim_of(changes, t.old)
    for t in changes.stayed:
        claim = claim_of(changes, t.old)
        yield "ended", t.id, claim, xid
        # A delivery writes its target also where it changes nothing.
        if t.old != t.new or not changes.signals:
            yield "stamped", t.id, claim
    for t in changes.ended:
        yield "ended", t.id, claim_of(changes, t.old), xid
    for t in changes.moved:
        if t.before == PARKED and t.after == RUNNABLE:
            yield "expired", t.id, xid
    for t in changes.gone:
        yield "gone", t.id
    for signal in changes.signals:
        if signal.born:
            yield "signal", signal.id, signal.target
    stored = changes.stored
    for saved in stored.saved:
        if saved.after is not None:
            yield "version", saved.id, saved.after
    for queued in stored.queued:
        yield "queued" if queued.born else "unqueued", queued.seq
    for leased in stored.leased:
        if leased.after is not None and leased.after.holder is not None:
            yield "leased", leased.group, leased.after.holder
    for sent in stored.sent:
        if not sent.born:
            yield "unsent", sent.seq
    for forked in stored.forked:
        if not forked.born:
            yield "unforked", forked.seq


def claim_of(changes: Changes, row: Row | None) -> str:
    """Whose row it is, or was."""
    assert changes.columns is not None
    assert row is not None
    return text(row[changes.columns.locked_by])


def _said(fact: Fact) -> str:
    match fact:
        case ("born", row):
            return f"made row {row}"
        case ("claimed", row, claim):
            return f"took row {row} under claim {claim}"
        case ("ended", row, claim, xid):
            return f"changed row {row} under claim {claim} in transaction {xid}"
        case ("held", row, claim):
            return f"renewed the lease of row {row} under claim {claim}"
        case ("stamped", row, claim):
            return f"let row {row} under claim {claim} into its gate"
        case ("signal", signal, target):
            return f"put signal {signal} into the inbox of row {target}"
        case ("expired", row, xid):
            return f"ended the wait of row {row} in transaction {xid}"
        case ("gone", row):
            return f"deleted row {row}"
        case ("version", execution, version):
            return f"made version {version} of execution {execution}"
        case ("queued", seq):
            return f"published message {seq}"
        case ("leased", group, token):
            return f"leased group {group} under token {token}"
        case ("unqueued", seq):
            return f"took message {seq} out of its queue"
        case ("unsent", seq):
            return f"took row {seq} out of the outbox"
        case _:
            return f"took spawn {fact[1]} out of the spawns"


def _rows(fact: Fact) -> list[int]:
    if fact[0] == "signal":
        return [] if fact[2] is None else [fact[2]]
    return [fact[1]] if fact[0] in ("born", "claimed", "ended", "held", "stamped", "expired", "gone") else []


def _subjects(fact: Fact) -> list[tuple[str, str]]:
    match fact[0]:
        case "version":
            return about(fact[1])
        case "leased":
            return [("group", fact[1])]
        case "unsent":
            return [("outbox", str(fact[1]))]
    return []
