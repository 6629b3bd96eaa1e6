"""Rate limits: no window sees more than its budget, and what has waited for long enough is let in.

What the rules lean on (picker.md §3, §6, engine/limiter.py):

1. A rate limit is spent by the rows that an admission was told it let in. Times are those of the operations: a grant
   happened somewhere between its invoke and its completion, and every bound is taken on the lenient side.
2. Who holds all of a key's shards draws on them as on one counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter

import msgspec

from invariants.changes import CLAIMED, CONFIGS, STAYED, Changes, Columns, Policy, config_name, string
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Row, Transaction
from invariants.limits import GATE, RATE, TOLERANCE, Policies
from invariants.rules import Findings, Rest
from invariants.witness import Witness, lone


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What one admission spent of one rate key."""

    weight: float
    start_ns: int
    end_ns: int
    row: int
    operation: Operation


class Spending:
    """Which weight each claimed row asks of which rate key, as its row said.

    A row that is continued in line may ask for something else, or for nothing, under the same claim, and what an
    admission was asked cannot be told from its ids. Such a row counts with no weight, and is no witness of liveness.
    """

    def __init__(self, columns: Columns) -> None:
        self._rate, self._weight, self._claim = columns.rate_limit, columns.weight, columns.locked_by
        self._key = columns.concurrency_key
        self._step = itemgetter(*columns.only("step", "state", "turn"))
        self._asked: dict[tuple[int, str], tuple[str, float, str | None]] = {}
        self._unclear: set[tuple[int, str]] = set()

    def observe(self, changes: Changes) -> None:
        """Follow claims and continuations."""
        rate = self._rate
        for t in changes.claimed:
            if t.new is not None and t.new[rate] is not None:
                row = t.new
                self._asked[self._name(t.id, row)] = (
                    string(row[rate]) or "",
                    float(row[self._weight] or 1),
                    string(row[self._key]),
                )
        for t in changes.stayed:
            assert t.old is not None
            assert t.new is not None
            if t.new[rate] is None and t.old[rate] is None:
                continue
            if self._step(t.old) != self._step(t.new):
                name = self._name(t.id, t.new)
                self._asked.pop(name, None)
                self._unclear.add(name)

    def _name(self, number: int, row: Row) -> tuple[int, str]:
        return number, string(row[self._claim]) or ""

    def asked(self, row: int, claim: str) -> tuple[str, float, str | None] | None:
        """Rate key, weight and concurrency key; None for a row without a rate, and for one that is unclear."""
        return self._asked.get((row, claim))

    def unclear(self, row: int, claim: str) -> bool:
        """Whether it may have spent something of some rate."""
        return (row, claim) in self._unclear


class RateBudget:
    """No window sees more weight than the burst and what the rate brings in its length."""

    name = "rate-budget"
    statement = "per rate key, the weight granted in any window of w seconds is at most burst + rate * w"
    groups = CLAIMED | STAYED | CONFIGS
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness
        self._spending = Spending(columns)
        self._policies = Policies(RATE)

    def transaction(self, _: Transaction, changes: Changes) -> None:
        self._policies.observe(changes.configs)
        self._spending.observe(changes)

    def conclude(self, _: Rest) -> str | None:
        if self._witness is None:
            return None
        granted: dict[str, list[Grant]] = {}
        for o in self._witness.limiters:
            if o.f != "admit" or o.type != "ok" or o.end_ns is None:
                continue
            for row, _shard in o.result["admitted"]:
                asked = self._spending.asked(row, o.value["claim"])
                if asked is not None:
                    granted.setdefault(asked[0], []).append(Grant(asked[1], o.start_ns, o.end_ns, row, o))
        for key, grants in granted.items():
            policies = self._policies.ever.get(config_name(key))
            if policies:
                rate = max(policy.rate or 0.0 for policy in policies)
                self._windows(key, grants, rate, max(policy.capacity for policy in policies))
        return None

    def _windows(self, key: str, grants: list[Grant], rate: float, burst: float) -> None:
        self.checked += len(grants)
        window = worst_window(grants, rate, burst)
        if window is not None:
            self.findings.add(
                window.describe(key, rate, burst),
                [one.row for one in window.grants][-3:],
                None,
                window.operations[-3:],
                [(RATE, key)],
            )


class Window(msgspec.Struct, frozen=True):
    """Grants that no budget covers, in the order of their ends."""

    grants: tuple[Grant, ...]

    @property
    def operations(self) -> list[Operation]:
        """Their admissions, each once."""
        return list({id(one.operation): one.operation for one in self.grants}.values())

    def describe(self, key: str, rate: float, burst: float) -> str:
        """What was granted, and what would have been allowed."""
        spent = sum(grant.weight for grant in self.grants)
        seconds = (self.grants[-1].end_ns - min(grant.start_ns for grant in self.grants)) / 1e9
        return (
            f"rate {key} granted a weight of {spent:g} within {seconds:.6f} s; its burst of {burst:g} and "
            f"its rate of {rate:g} a second allow {burst + rate * seconds:g}"
        )


def worst_window(grants: Sequence[Grant], rate: float, burst: float) -> Window | None:
    """The window that exceeds its budget by most, if one does. A grant lies in a window that begins before the
    grant's admission did and ends after it: grants that merely overlap the window are left out."""
    grants = sorted(grants, key=lambda grant: grant.end_ns)
    origin = min(grant.start_ns for grant in grants)
    sums = PrefixSums(len(grants))
    most, begin_ns = float("-inf"), origin
    for place in sorted(range(len(grants)), key=lambda place: -grants[place].start_ns):
        grant = grants[place]
        sums.put(place, grant.weight, -rate * (grant.end_ns - origin) / 1e9)
        excess = sums.greatest + rate * (grant.start_ns - origin) / 1e9 - burst
        if excess > most:
            most, begin_ns = excess, grant.start_ns
    if most <= TOLERANCE * max(1.0, burst):
        return None
    grants = [grant for grant in grants if grant.start_ns >= begin_ns]
    spent = list(accumulate(grant.weight for grant in grants))
    last = max(
        range(len(grants)), key=lambda place: spent[place] - rate * (grants[place].end_ns - begin_ns) / 1e9
    )
    return Window(tuple(grants[: last + 1]))


class PrefixSums:
    """Weights at places, put in any order: the greatest of all sums up to a place that has one, its handicap added.

    A tree over the places; a node holds the sum of its weights, and the greatest sum within it.
    """

    def __init__(self, places: int) -> None:
        self._first = 1 << (places - 1).bit_length()
        self._sums = [0.0] * (2 * self._first)
        self._greatest = [float("-inf")] * (2 * self._first)

    @property
    def greatest(self) -> float:
        """Minus infinity while there is none."""
        return self._greatest[1]

    def put(self, place: int, weight: float, handicap: float) -> None:
        """Put a weight at a place that has none."""
        node = self._first + place
        self._sums[node], self._greatest[node] = weight, weight + handicap
        while node > 1:
            node //= 2
            left, right = 2 * node, 2 * node + 1
            self._sums[node] = self._sums[left] + self._sums[right]
            self._greatest[node] = max(self._greatest[left], self._sums[left] + self._greatest[right])


class Counter:
    """What a rate key surely holds, followed from grant to grant. `since_ns`: the end of the last one."""

    def __init__(self, policy: Policy) -> None:
        self._burst, self._rate = policy.capacity, policy.rate or 0.0
        self._tolerance = TOLERANCE * max(1.0, policy.capacity)
        self._held = policy.capacity
        self.since_ns: int | None = None

    def level(self, at_ns: int) -> float:
        """At least that much, at that time."""
        return min(self._burst, self._refilled(at_ns))

    def has(self, weight: float, at_ns: int) -> bool:
        """Whether it surely holds that weight. A key that is surely full holds its whole burst."""
        refilled = self._refilled(at_ns)
        full = self.since_ns is None or refilled >= self._burst + self._tolerance
        return weight <= self._burst and (full or refilled >= weight + self._tolerance)

    def draw(self, weight: float, start_ns: int, end_ns: int) -> None:
        """A grant that held every shard, at a time between these."""
        self._held, self.since_ns = max(0.0, self.level(start_ns) - weight), end_ns

    def empty(self, at_ns: int) -> None:
        """Something was drawn, nobody knows how much of which shard."""
        self._held, self.since_ns = 0.0, at_ns

    def _refilled(self, at_ns: int) -> float:
        if self.since_ns is None:
            return self._held
        return self._held + self._rate * max(0.0, (at_ns - self.since_ns) / 1e9 - TOLERANCE)


class RateLiveness:
    """What has waited for long enough, with nobody in its way, is let in.

    Shards are drawn on in proportion to what they hold, so who draws on all of them draws on one counter: what the key
    surely holds is followed from grant to grant as if it were one. A grant beside other work may have drawn on some
    shards only; after it the key counts as empty, and every shard gets its part of the rate from there on. So a denied
    row that stood first for its key, and whose weight the key surely held, was denied wrongly. Judged only where
    nothing else was under way that could hold the key's counters or the row.
    """

    name = "rate-liveness"
    statement = (
        "a lone picker sees the full burst: a step with weight ≤ burst, at the head of an idle queue, is "
        "admitted within weight/rate seconds, for every legal config"
    )
    groups = CLAIMED | STAYED | CONFIGS
    needs_ledger, needs_history, needs_rest = True, True, False

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness
        self._spending = Spending(columns)
        self._policies = Policies(RATE)
        self._gates = Policies(GATE)

    def transaction(self, _: Transaction, changes: Changes) -> None:
        self._policies.observe(changes.configs)
        self._gates.observe(changes.configs)
        self._spending.observe(changes)

    def conclude(self, _: Rest) -> str | None:
        if self._witness is None:
            return None
        by_key: dict[str, list[Operation]] = {}
        # What may draw on any key, or hold its shards.
        general: list[Operation] = []
        for o in self._witness.limiters:
            if o.f != "admit":
                if o.f not in ("credit", "reconcile"):
                    general.append(o)
                continue
            claim = o.value["claim"]
            if any(self._spending.unclear(row, claim) for row in o.value["ids"]):
                general.append(o)
                continue
            asked = {entry[0] for row in o.value["ids"] if (entry := self._spending.asked(row, claim))}
            for key in asked:
                by_key.setdefault(key, []).append(o)
        for key, operations in by_key.items():
            policy = self._policies.now.get(config_name(key))
            if policy is None or len(self._policies.ever[config_name(key)]) != 1:
                continue
            mine = {id(o) for o in operations}
            merged = sorted([*operations, *general], key=lambda o: o.start_ns)
            self._key(key, policy, merged, mine)
        return None

    def _key(self, key: str, policy: Policy, operations: Sequence[Operation], mine: set[int]) -> None:
        """All that bears on one key, in the order of its start."""
        counter = Counter(policy)
        for o, alone in lone(operations):
            if o.type == "info" or o.end_ns is None:
                # Whether it drew is unknown, and when, until it is surely over.
                over_ns = self._witness.over_ns(o) if self._witness is not None else None
                if over_ns is None:
                    return
                counter.empty(over_ns)
                continue
            if id(o) not in mine or o.type != "ok":
                if o.f == "admit":
                    counter.empty(o.end_ns)
                continue
            head = self._head(o, key)
            if alone and head is not None and counter.has(head[1], o.start_ns):
                self.checked += 1
                if head[0] in o.result["denied"] and not self._was_locked(head[0], o):
                    self._denied(key, policy, o, head, counter)
            claim = o.value["claim"]
            drawn = [
                asked[1]
                for row, _ in o.result["admitted"]
                if (asked := self._spending.asked(row, claim)) and asked[0] == key
            ]
            if drawn and alone:
                counter.draw(sum(drawn), o.start_ns, o.end_ns)
            elif drawn:
                counter.empty(o.end_ns)

    def _was_locked(self, row: int, admit: Operation) -> bool:
        """Whether something else may have held the row: an admission passes over a row that a heartbeat renews."""
        assert self._witness is not None
        for o in self._witness.operations:
            over = o.end_ns is not None and o.end_ns < admit.start_ns
            if over or o.start_ns > (admit.end_ns or 0) or o.f not in ("heartbeat", "reap", "signal"):
                continue
            if o.f != "heartbeat" or any(held == row for held, _ in o.value["holds"]):
                return True
        return False

    def _denied(
        self, key: str, policy: Policy, o: Operation, head: tuple[int, float], counter: Counter
    ) -> None:
        since = "ever" if counter.since_ns is None else f"for {(o.start_ns - counter.since_ns) / 1e9:.3f} s"
        self.findings.add(
            f"row {head[0]} asks {head[1]:g} of rate {key} (burst {policy.capacity:g}, {policy.rate:g} a second), "
            f"stood first, and was denied though the key held {counter.level(o.start_ns):g}: nothing was granted "
            f"{since}",
            [head[0]],
            None,
            [o],
            [(RATE, key)],
        )

    def _head(self, o: Operation, key: str) -> tuple[int, float] | None:
        """The first row of the admission that asks for the key, with its weight; None where a gate may deny it."""
        for row in o.value["ids"]:
            asked = self._spending.asked(row, o.value["claim"])
            if asked is not None and asked[0] == key:
                gated = asked[2] is not None and config_name(asked[2]) in self._gates.ever
                return None if gated else (row, asked[1])
        return None
