"""The transport's invariants (claims.md): one consumer a group, first in first out, and every message gets its turn.

1. A group's row is its lease. Whoever wants to change it locks it, so the ledger shows the leases of a group in the
   order in which they were given.
2. Times in a row are the server's, and the ledger has the server's time of each commit, which is later than any time
   that a statement of the transaction could have read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from invariants.changes import Changes, Columns
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Rest, Watcher
from invariants.stored import LEASED, QUEUED, Lease, Leased
from invariants.witness import Witness, is_undecided

# Since when a group waits is known when its publisher commits; others that began earlier and commit later come before
# it, and claims that overtake it may be under way: by so many a round may be longer than the number of the others.
ROUND_SLACK: Final = 32
# Transactions that may have begun, and have an xid, before one of a lower xid commits.
UNDER_WAY: Final = 64
# More than any round.
MAX_OVERTAKINGS: Final = 100_000


def about(group: str) -> list[tuple[str, str]]:
    """Evidence of a group."""
    return [("group", group)]


class Ack(msgspec.Struct, frozen=True):
    """One message's acknowledgement. `done` is what was told, None where nobody was told anything."""

    group: str
    seq: int
    token: str
    done: bool | None
    operation: Operation


def acks_of(operations: Iterable[Operation]) -> list[Ack]:
    """The acknowledgements of these operations, each of which has one or several."""
    acks: list[Ack] = []
    for operation in operations:
        several = "messages" in operation.value
        items = operation.value["messages"] if several else [operation.value]
        told: list[bool | None] = [None] * len(items)
        if operation.type == "ok":
            told = operation.result if several else [operation.result]
        elif operation.type == "fail" and not is_undecided(operation):
            told = [False] * len(items)
        acks += [
            Ack(item["group"], item["seq"], item["token"], done, operation)
            for item, done in zip(items, told, strict=True)
        ]
    return acks


def handed_of(claims: Iterable[Operation]) -> dict[tuple[str, str], tuple[int, Operation]]:
    """Which message a claim was handed, by group and token. A token that was used twice tells nothing."""
    handed: dict[tuple[str, str], tuple[int, Operation]] = {}
    twice: set[tuple[str, str]] = set()
    for claim in claims:
        if claim.type != "ok" or not claim.result:
            continue
        for message in claim.result if isinstance(claim.result, list) else [claim.result]:
            key = (message["group"], claim.value["token"])
            if key in handed:
                twice.add(key)
            handed[key] = (message["seq"], claim)
    return {key: message for key, message in handed.items() if key not in twice}


def _published(operation: Operation) -> list[tuple[str, int]]:
    """Groups and numbers of the messages that a publish was told are there."""
    if operation.type != "ok":
        return []
    if "messages" not in operation.value:
        return [(operation.value["group"], operation.result["seq"])]
    groups = [group for group, _ in operation.value["messages"]]
    return list(zip(groups, operation.result["seqs"], strict=True))


def taken(leased: Leased) -> bool:
    """Whether a consumer got the group by that change."""
    after, before = leased.after, leased.before
    return (
        after is not None and after.holder is not None and (before is None or before.holder != after.holder)
    )


class GroupExclusive(Watcher):
    """A lease ends by its holder's will or by its time, and never otherwise."""

    name = "group-exclusive"
    statement = "a group has at most one consumer at a time"
    groups = QUEUED | LEASED

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        stored = changes.stored
        published = {queued.group for queued in stored.queued if queued.born}
        for leased in stored.leased:
            self.checked += 1
            before, after = leased.before, leased.after
            if before is None or before.holder is None:
                continue
            if leased.group in published and (
                after is None or (after.holder, after.expiry, after.priority) != _told(before)
            ):
                self._add(transaction, leased.group, f"a publish ended the lease of {before.holder}")
            elif taken(leased) and before.expiry is not None:
                left = before.expiry - transaction.committed_us / 1e6
                if left > 0:
                    self._add(
                        transaction,
                        leased.group,
                        f"{after.holder if after else None} takes it while {before.holder} holds it for "
                        f"{left:.6f} s more",
                    )

    def _add(self, transaction: Transaction, group: str, problem: str) -> None:
        self.findings.add(f"group {group}: {problem}", (), transaction.number, (), about(group))


def _told(lease: Lease) -> tuple[str | None, float | None, int]:
    return lease.holder, lease.expiry, lease.priority


class GroupFifo(Watcher):
    """No message is handed out or goes while an older one of its group stays: older in its number and in its commit."""

    name = "group-fifo"
    statement = "the messages of a group are consumed first in, first out"
    groups = QUEUED | LEASED

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._waiting: dict[str, dict[int, None]] = {}
        self._handed = handed_of(self.named("transport.claim"))

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        for queued in changes.stored.queued:
            waiting = self._waiting.setdefault(queued.group, {})
            if queued.born:
                waiting[queued.seq] = None
                continue
            self.checked += 1
            older = _older(waiting, queued.seq)
            if older is not None:
                self._add(
                    transaction,
                    queued.group,
                    f"message {queued.seq} goes before message {older}, published earlier",
                )
            waiting.pop(queued.seq, None)
            if not waiting:
                del self._waiting[queued.group]
        for leased in changes.stored.leased:
            if taken(leased) and leased.after is not None:
                self._hand_out(transaction, leased.group, leased.after.holder or "")

    def _hand_out(self, transaction: Transaction, group: str, token: str) -> None:
        handed = self._handed.get((group, token))
        if handed is None:
            return
        self.checked += 1
        seq, operation = handed
        waiting = self._waiting.get(group, {})
        if seq not in waiting:
            self._add(transaction, group, f"message {seq} is handed out, and is gone", [operation])
        elif (older := _older(waiting, seq)) is not None:
            problem = f"message {seq} is handed out before message {older}, published earlier"
            self._add(transaction, group, problem, [operation])

    def _add(
        self, transaction: Transaction, group: str, problem: str, operations: Sequence[Operation] = ()
    ) -> None:
        self.findings.add(f"group {group}: {problem}", (), transaction.number, operations, about(group))


def _older(waiting: Iterable[int], seq: int) -> int | None:
    """A message that was committed earlier and has a smaller number. One of the two is not enough: publishers that
    were at work at the same time need not agree on who was first."""
    for each in waiting:
        if each == seq:
            return None
        if each < seq:
            return each
    return None


class LeaseFenced(Watcher):
    """Whoever was told that an ack, a nack or a renewal took effect held the group when it did. A token that two claims
    carry tells nobody which of them that is."""

    name = "lease-fenced"
    statement = "an old lease changes nothing: an ack or nack takes effect only for the group's holder"
    groups = QUEUED | LEASED
    needs_history = True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._acks: dict[tuple[str, int], list[Ack]] = {}
        for ack in acks_of(self.named("transport.ack")):
            self._acks.setdefault((ack.group, ack.seq), []).append(ack)
        # By group and holder, how often a lease was given back, and how often it stayed and was written.
        self._returned: Counter[tuple[str, str]] = Counter()
        self._renewed: Counter[tuple[str, str]] = Counter()
        self._deleted: set[tuple[str, int]] = set()

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        stored = changes.stored
        holders: dict[str, str | None] = {}
        acked = {queued.group for queued in stored.queued if not queued.born}
        for leased in stored.leased:
            holder = None if leased.before is None else leased.before.holder
            holders.setdefault(leased.group, holder)
            if holder is not None and leased.after is not None and leased.group not in acked:
                kept = leased.after.holder == holder
                if kept or leased.after.holder is None:
                    (self._renewed if kept else self._returned)[leased.group, holder] += 1
        for queued in stored.queued:
            if queued.born:
                continue
            key = (queued.group, queued.seq)
            self._deleted.add(key)
            acks = self._acks.get(key, [])
            if not acks:
                continue
            holder = holders[queued.group] if queued.group in holders else _holder(changes, queued.group)
            problem = _unfenced(acks, holder)
            if problem is not None:
                self.findings.add(
                    f"group {queued.group}: message {queued.seq} goes while {holder or 'nobody'} holds the group: "
                    f"{problem}",
                    (), transaction.number, [ack.operation for ack in acks], about(queued.group),
                )  # fmt: skip

    def conclude(self, _: Rest) -> str | None:
        for (group, seq), acks in self._acks.items():
            self.checked += len(acks)
            told = [ack.operation for ack in acks if ack.done]
            if told and (group, seq) not in self._deleted:
                self._add(
                    group,
                    f"an ack of message {seq} was told that it took effect, and the message stayed",
                    told,
                )
        self._hold_against("transport.nack", "nack", self._returned)
        self._hold_against("transport.extend", "renewal", self._renewed)
        self._find_twins()
        return None

    def _hold_against(self, name: str, what: str, done: Counter[tuple[str, str]]) -> None:
        """Whoever was told that it took effect must have been the holder as often."""
        told: dict[tuple[str, str], list[Operation]] = {}
        for operation in self.named(name):
            self.checked += 1
            if operation.type == "ok" and operation.result:
                told.setdefault((operation.value["group"], operation.value["token"]), []).append(operation)
        for (group, token), operations in told.items():
            if len(operations) > done[group, token]:
                problem = f"a {what} of {token}, who did not hold it, took effect"
                self._add(group, problem, operations)

    def _find_twins(self) -> None:
        claims: dict[str, list[Operation]] = {}
        for claim in self.named("transport.claim"):
            if claim.type == "ok" and claim.result:
                claims.setdefault(claim.value["token"], []).append(claim)
        for token, twins in claims.items():
            if len(twins) > 1:
                self.findings.add(f"{len(twins)} claims carry the token {token}", (), None, twins)

    def _add(self, group: str, problem: str, operations: list[Operation]) -> None:
        self.findings.add(f"group {group}: {problem}", (), None, operations, about(group))


def _holder(changes: Changes, group: str) -> str | None:
    """Who holds a group that the transaction left alone. The row's second column is the holder's."""
    row = changes.find("transport_groups", group.encode())
    return None if row is None or row[1] is None else row[1].decode(errors="replace")


def _unfenced(acks: list[Ack], holder: str | None) -> str | None:
    """What is wrong with a message's end, given all acknowledgements of it."""
    told = [ack.token for ack in acks if ack.done]
    strange = [token for token in told if token != holder]
    if strange:
        return f"{strange[0]} was told that its ack took effect"
    maybe = [ack.token for ack in acks if ack.done is None]
    if not told and holder not in maybe:
        return "every ack was told that it changed nothing"
    return None


class NoLostMessage(Watcher):
    """A message is there until it is acknowledged, and while it is there its group has a row that a claim can find."""

    name = "no-lost-message"
    statement = (
        "nothing that was published vanishes: it is consumed, and while it waits a claim can find its group"
    )
    groups = QUEUED | LEASED
    needs_rest = True

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._waiting: dict[str, set[int]] = {}
        self._rows: set[str] = set()
        self._last = 0
        self._published: set[int] = set()
        acks = acks_of(self.named("transport.ack"))
        self._acked = {(ack.group, ack.seq) for ack in acks if ack.done is not False}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        stored = changes.stored
        touched: dict[str, None] = {}
        for queued in stored.queued:
            self.checked += 1
            touched[queued.group] = None
            if queued.born:
                self._waiting.setdefault(queued.group, set()).add(queued.seq)
                if self.witness is not None:
                    self._published.add(queued.seq)
                continue
            waiting = self._waiting.get(queued.group, set())
            waiting.discard(queued.seq)
            if not waiting:
                self._waiting.pop(queued.group, None)
            if self._acked and (queued.group, queued.seq) not in self._acked:
                self._add(
                    transaction, queued.group, f"message {queued.seq} is gone, and nobody acknowledged it"
                )
        for leased in stored.leased:
            touched[leased.group] = None
            if leased.after is None:
                self._rows.discard(leased.group)
            else:
                self._rows.add(leased.group)
        for group in touched:
            if group not in self._rows and group in self._waiting:
                self._add(
                    transaction,
                    group,
                    f"{len(self._waiting[group])} messages wait, and no claim can find them",
                )

    def conclude(self, rest: Rest) -> str | None:
        # What a ledger that ends early does not show may have come after its end.
        for publish in self.named("transport.publish") if rest.summary.complete else ():
            for group, seq in _published(publish):
                if seq not in self._published:
                    self.findings.add(
                        f"group {group}: message {seq} was told published, and never was",
                        (), None, [publish], about(group),
                    )  # fmt: skip
        if rest.evidence.at_rest and rest.summary.complete:
            for group, waiting in self._waiting.items():
                self._add(None, group, f"at rest {len(waiting)} messages wait, the first is {min(waiting)}")
        return None

    def _add(self, transaction: Transaction | None, group: str, problem: str) -> None:
        number = None if transaction is None else transaction.number
        self.findings.add(f"group {group}: {problem}", (), number, (), about(group))


class _Overtaking(msgspec.Struct, frozen=True):
    """A claim of a group that became ready later: in which transaction, of which group, and the youngest xid then."""

    number: int
    group: str
    xid: int


class _Ready(msgspec.Struct):
    """A group that waits for a consumer: since which transaction, how long one round was then, and by which claims it
    was overtaken."""

    since: int
    round: int
    overtakings: list[_Overtaking] = msgspec.field(default_factory=list)


class GroupFairness(Watcher):
    """Counts for the group that has waited longest how often one that became ready later was taken before it.

    What counts is decided when it is taken itself: a claim that had it locked already, and committed later, was passed
    by, not waited for. So overtakings since that claim's transaction began are none.

    A claim may leave out groups below its floor: only those of at least the taken group's priority count. One that has
    waited less is overtaken no more often than the longest waiting of its priority, so that one is enough.
    """

    name = "group-fairness"
    statement = "no ready group waits for more than one round of the others"
    groups = QUEUED | LEASED

    def __init__(self, columns: Columns | None, witness: Witness | None) -> None:
        super().__init__(columns, witness)
        self._messages: dict[str, int] = {}
        self._leases: dict[str, Lease] = {}
        # By priority, in the order in which they became ready.
        self._ready: dict[int, dict[str, _Ready]] = {}
        self._youngest_xid = 0

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        stored = changes.stored
        self._youngest_xid = max(self._youngest_xid, transaction.xid)
        touched: dict[str, None] = {}
        for queued in stored.queued:
            count = self._messages.get(queued.group, 0) + (1 if queued.born else -1)
            if count > 0:
                self._messages[queued.group] = count
            else:
                self._messages.pop(queued.group, None)
            touched[queued.group] = None
        for leased in stored.leased:
            if leased.before is not None:
                ready = self._ready.get(leased.before.priority, {}).pop(leased.group, None)
                if ready is not None and taken(leased):
                    self._had_its_turn(leased.group, ready, transaction.xid - UNDER_WAY)
                    self._overtake(transaction, leased.group, ready, leased.before.priority)
            if leased.after is None:
                self._leases.pop(leased.group, None)
            else:
                self._leases[leased.group] = leased.after
            touched[leased.group] = None
        now = transaction.committed_us / 1e6
        for group in touched:
            self._settle(transaction, group, now)

    def _settle(self, transaction: Transaction, group: str, now: float) -> None:
        """A group is ready that nobody holds, that has a message, and that is not put off."""
        lease = self._leases.get(group)
        if lease is None:
            return
        ready = self._ready.setdefault(lease.priority, {})
        put_off = lease.expiry is not None and lease.expiry > now
        if lease.holder is None and not put_off and group in self._messages:
            if group not in ready:
                ready[group] = _Ready(transaction.number, len(self._leases))
        else:
            ready.pop(group, None)

    def _overtake(self, transaction: Transaction, group: str, taken_: _Ready, priority: int) -> None:
        self.checked += 1
        for floor, waiting in self._ready.items():
            longest = next(iter(waiting), None)
            if floor < priority or longest is None or waiting[longest].since >= taken_.since:
                continue
            ready = waiting[longest]
            if len(ready.overtakings) < MAX_OVERTAKINGS:
                ready.overtakings.append(_Overtaking(transaction.number, group, self._youngest_xid))

    def _had_its_turn(self, group: str, ready: _Ready, before_xid: float) -> None:
        counted = [each for each in ready.overtakings if each.xid < before_xid]
        if len(counted) > ready.round + ROUND_SLACK:
            self.findings.add(
                f"group {group} has been ready since commit {ready.since}, when there were {ready.round} groups, "
                f"and {len(counted)} claims went to groups that became ready later, the last to {counted[-1].group}",
                (), counted[-1].number, (), about(group),
            )  # fmt: skip

    def conclude(self, _: Rest) -> str | None:
        """Some never had their turn."""
        for waiting in self._ready.values():
            for group, ready in waiting.items():
                self._had_its_turn(group, ready, float("inf"))
        return None


TRANSPORT_RULES: Final[tuple[type[Watcher], ...]] = (
    GroupExclusive, GroupFifo, LeaseFenced, NoLostMessage, GroupFairness,
)  # fmt: skip

# What every run exercises that moves messages, whatever it declares.
TRANSPORT_ALWAYS: Final = frozenset(rule.name for rule in TRANSPORT_RULES)
