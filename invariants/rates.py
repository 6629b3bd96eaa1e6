"""Rate limits: no window sees more than its budget.

A rate limit is spent by the rows that an admission was told it let in (picker.md §3, §6, engine/limiter.py). Times are
those of the operations: a grant happened somewhere between its invoke and its completion, and every bound is taken on
the lenient side.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import itemgetter

import msgspec

from invariants.changes import CLAIMED, CONFIGS, STAYED, Changes, Columns, config_name, string
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Row, Transaction
from invariants.limits import RATE, TOLERANCE, Policies
from invariants.rules import Findings, Rest
from invariants.stretches import stretches
from invariants.witness import Witness


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
    admission was asked cannot be told from its ids. Such a row counts with no weight, and is no witness of liveness;
    what it may have asked for is known, for an admission comes after the commit of what it is for.
    """

    def __init__(self, columns: Columns) -> None:
        self._rate, self._weight, self._claim = columns.rate_limit, columns.weight, columns.locked_by
        self._key = columns.concurrency_key
        self._step = itemgetter(*columns.only("step", "state", "turn"))
        self._asked: dict[tuple[int, str], tuple[str, float, str | None]] = {}
        self._rates: dict[tuple[int, str], set[str]] = {}
        self._gates: dict[tuple[int, str], set[str]] = {}

    def observe(self, changes: Changes) -> None:
        """Follow claims and continuations."""
        rate = self._rate
        for t in changes.claimed:
            if t.new is None:
                continue
            name = self._name(t.id, t.new)
            self._may_ask(name, t.new)
            if t.new[rate] is not None:
                self._asked[name] = (
                    string(t.new[rate]) or "",
                    float(t.new[self._weight] or 1),
                    string(t.new[self._key]),
                )
        for t in changes.stayed:
            assert t.old is not None
            assert t.new is not None
            name = self._name(t.id, t.new)
            self._may_ask(name, t.new)
            if (t.new[rate] is not None or t.old[rate] is not None) and self._step(t.old) != self._step(
                t.new
            ):
                self._asked.pop(name, None)

    def _may_ask(self, name: tuple[int, str], row: Row) -> None:
        for names, column in ((self._rates, self._rate), (self._gates, self._key)):
            if (key := string(row[column])) is not None:
                names.setdefault(name, set()).add(key)

    def _name(self, number: int, row: Row) -> tuple[int, str]:
        return number, string(row[self._claim]) or ""

    def asked(self, row: int, claim: str) -> tuple[str, float, str | None] | None:
        """Rate key, weight and concurrency key; None for a row without a rate, and for one that is unclear."""
        return self._asked.get((row, claim))

    def rates(self, row: int, claim: str) -> Collection[str]:
        """The rate keys that it may have asked for; more than it did where it was continued."""
        return self._rates.get((row, claim), ())

    def gates(self, row: int, claim: str) -> Collection[str]:
        """The concurrency keys that it may have asked for, those of no gate among them."""
        return self._gates.get((row, claim), ())


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
            for stretch in stretches(self._witness, RATE, config_name(key), policies) if policies else ():
                within = [
                    grant
                    for grant in grants
                    if stretch.from_ns <= grant.start_ns and grant.end_ns <= stretch.to_ns
                ]
                if within:
                    self._windows(key, within, stretch.rate, stretch.burst)
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
