"""Rate limits: what has waited for long enough, with nobody in its way, is let in.

What the rule leans on (picker.md §6, engine/limiter.py, engine/sql/limiter/):

1. Who holds all of a key's shards draws on them as on one counter.
2. A key without rows is cold, and full. Two admissions that meet a cold key at once are decided by a lock, of which
   there are few (`cold_lock`): an admission of another key may be in the way.
3. A sweep locks the rows of keys that nobody has drawn on for burst / rate, and no others.
4. A claim whose snapshot is older than another's commit locks the row that the other has claimed before it sees that
   it is no longer runnable, and keeps the lock to its end (docs/findings.md, "a claim that lost holds the row").
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from engine.limiter import cold_lock
from invariants.changes import CLAIMED, CONFIGS, STAYED, Changes, Columns, Policy, config_name
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.limits import GATE, RATE, TOLERANCE, Policies
from invariants.rates import Spending
from invariants.rules import Findings, Rest
from invariants.witness import Witness, lone


class Counter:
    """What a rate key surely holds, followed from grant to grant. `since_ns`: the end of the last one."""

    def __init__(self, policy: Policy) -> None:
        self._burst, self._rate = policy.capacity, policy.rate or 0.0
        self._tolerance = TOLERANCE * max(1.0, policy.capacity)
        self._held = policy.capacity
        # It was surely drawn on at that time or later.
        self._touched_ns: int | None = None
        self.since_ns: int | None = None
        # Whether there may be rows of it.
        self.made = False

    def level(self, at_ns: int) -> float:
        """At least that much, at that time."""
        return min(self._burst, self._refilled(at_ns))

    def has(self, weight: float, at_ns: int) -> bool:
        """Whether it surely holds that weight. A key that is surely full holds its whole burst."""
        refilled = self._refilled(at_ns)
        full = self.since_ns is None or refilled >= self._burst + self._tolerance
        return weight <= self._burst and (full or refilled >= weight + self._tolerance)

    def may_be_swept(self, at_ns: int) -> bool:
        """Whether it may have been left alone for long enough by then to be put away."""
        if self._touched_ns is None:
            return True
        return self._rate * ((at_ns - self._touched_ns) / 1e9 + TOLERANCE) >= self._burst

    def draw(self, weight: float, start_ns: int, end_ns: int) -> None:
        """A grant that held every shard, at a time between these."""
        self._held, self.since_ns = max(0.0, self.level(start_ns) - weight), end_ns
        self._touched_ns, self.made = start_ns, True

    def empty(self, at_ns: int, *, touched_ns: int | None = None) -> None:
        """Something was drawn, nobody knows how much of which shard; surely not before `touched_ns`, if it says so."""
        self._held, self.since_ns, self.made = 0.0, at_ns, True
        if touched_ns is not None:
            self._touched_ns = touched_ns

    def _refilled(self, at_ns: int) -> float:
        if self.since_ns is None:
            return self._held
        return self._held + self._rate * max(0.0, (at_ns - self.since_ns) / 1e9 - TOLERANCE)


class Spans:
    """Times at which something was under way, asked for those that meet another time."""

    def __init__(self, spans: Sequence[tuple[int, int | None]]) -> None:
        ordered = sorted(spans, key=lambda span: span[0])
        self._starts = [start for start, _ in ordered]
        self._ends: list[float] = []
        latest = float("-inf")
        for _, end in ordered:
            latest = max(latest, float("inf") if end is None else end)
            self._ends.append(latest)

    def meet(self, start_ns: int, end_ns: int) -> bool:
        """Whether one of them was under way at any time between these."""
        before = bisect_right(self._starts, end_ns)
        return before > 0 and self._ends[before - 1] >= start_ns


class RateLiveness:
    """What has waited for long enough, with nobody in its way, is let in.

    What a key surely holds is followed from grant to grant as if it were one counter. A grant beside other work may
    have drawn on some shards only; after it the key counts as empty, and every shard gets its part of the rate from
    there on. So a denied row that stood first for its key, and whose weight the key surely held, was denied wrongly.
    Judged only where nothing else was under way that could hold the key's counters or the row.
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
        self._sweeps = Spans(())
        self._rows_taken: dict[int, Spans] = {}
        self._anything_taken = Spans(())
        self._cold_locks: dict[int, list[Operation]] = {}
        self._claims: dict[str, list[Operation]] = {}

    def transaction(self, _: Transaction, changes: Changes) -> None:
        self._policies.observe(changes.configs)
        self._gates.observe(changes.configs)
        self._spending.observe(changes)

    def conclude(self, _: Rest) -> str | None:
        if self._witness is None:
            return None
        self._index_hindrances(self._witness)
        by_key: dict[str, list[Operation]] = {}
        for o in self._witness.limiters:
            if o.f != "admit":
                continue
            claim = o.value["claim"]
            for key in {key for row in o.value["ids"] for key in self._spending.rates(row, claim)}:
                by_key.setdefault(key, []).append(o)
        for key, operations in by_key.items():
            policy = self._policies.now.get(config_name(key))
            if policy is None or len(self._policies.ever[config_name(key)]) != 1:
                continue
            self._key(key, policy, sorted(operations, key=lambda o: o.start_ns))
        return None

    def _index_hindrances(self, witness: Witness) -> None:
        """What may hold the counters of an idle key, a claimed row, or the lock of a cold key."""
        sweeps: list[tuple[int, int | None]] = []
        locks: dict[int, list[Operation]] = defaultdict(list)
        for o in witness.limiters:
            if o.f == "sweep_buckets":
                sweeps.append((o.start_ns, witness.over_ns(o)))
            elif o.f == "admit":
                claim = o.value["claim"]
                names = {(RATE, key) for row in o.value["ids"] for key in self._spending.rates(row, claim)}
                names |= {(GATE, key) for row in o.value["ids"] for key in self._spending.gates(row, claim)}
                for lock in {cold_lock(kind, key) for kind, key in names}:
                    locks[lock].append(o)
        self._sweeps, self._cold_locks = Spans(sweeps), locks
        by_row: dict[int, list[tuple[int, int | None]]] = defaultdict(list)
        anything: list[tuple[int, int | None]] = []
        for o in witness.operations:
            if o.f == "heartbeat":
                for row, _claim in o.value["holds"]:
                    by_row[row].append((o.start_ns, witness.over_ns(o)))
            elif o.f in ("reap", "signal"):
                anything.append((o.start_ns, witness.over_ns(o)))
        self._rows_taken = {row: Spans(spans) for row, spans in by_row.items()}
        self._anything_taken = Spans(anything)
        claims: dict[str, list[Operation]] = defaultdict(list)
        for o in witness.named.get("claim", ()):
            claims[o.value["queue"]].append(o)
        self._claims = claims

    def _key(self, key: str, policy: Policy, operations: Sequence[Operation]) -> None:
        """All that bears on one key, in the order of its start."""
        assert self._witness is not None
        counter = Counter(policy)
        for o, unaccompanied in lone(operations):
            if o.type == "info" or o.end_ns is None:
                # Whether it drew is unknown, and when, until it is surely over.
                over_ns = self._witness.over_ns(o)
                if over_ns is None:
                    return
                counter.empty(over_ns)
                continue
            asked = [(row, self._spending.asked(row, o.value["claim"])) for row in o.value["ids"]]
            unclear = o.type != "ok" or any(
                entry is None and key in self._spending.rates(row, o.value["claim"]) for row, entry in asked
            )
            if unclear:
                counter.empty(o.end_ns)
                continue
            alone = unaccompanied and not self._is_hindered(key, o, counter)
            head = self._head(o, key)
            if alone and head is not None and counter.has(head[1], o.start_ns):
                self.checked += 1
                if head[0] in o.result["denied"] and not self._was_locked(head[0], o):
                    self._denied(key, policy, o, head, counter)
            let_in = {row for row, _shard in o.result["admitted"]}
            drawn = [entry[1] for row, entry in asked if entry and entry[0] == key and row in let_in]
            if drawn and alone:
                counter.draw(sum(drawn), o.start_ns, o.end_ns)
            elif drawn:
                counter.empty(o.end_ns, touched_ns=o.start_ns)

    def _is_hindered(self, key: str, o: Operation, counter: Counter) -> bool:
        """Whether a sweep, or an admission of another key, may have been in its way."""
        assert self._witness is not None
        assert o.end_ns is not None
        idle = counter.may_be_swept(o.end_ns)
        if counter.made and idle and self._sweeps.meet(o.start_ns, o.end_ns):
            return True
        if counter.made and not idle:
            return False
        return any(
            other is not o
            and other.start_ns <= o.end_ns
            and ((over_ns := self._witness.over_ns(other)) is None or over_ns >= o.start_ns)
            for other in self._cold_locks[cold_lock(RATE, key)]
        )

    def _was_locked(self, row: int, admit: Operation) -> bool:
        """Whether something else may have held the row: an admission passes over a row that a heartbeat renews."""
        assert admit.end_ns is not None
        mine = self._rows_taken.get(row)
        return (
            self._anything_taken.meet(admit.start_ns, admit.end_ns)
            or (mine is not None and mine.meet(admit.start_ns, admit.end_ns))
            or self._has_rivals(admit)
        )

    def _has_rivals(self, admit: Operation) -> bool:
        """Whether another claim of the queue, sent before the admission's own was answered, may not have been over."""
        assert self._witness is not None
        assert admit.end_ns is not None
        own = self._witness.claims.get(admit.value["claim"])
        if own is None or own.end_ns is None:
            return True
        return any(
            other is not own
            and other.start_ns < own.end_ns
            and ((over_ns := self._witness.over_ns(other)) is None or over_ns >= admit.start_ns)
            for other in self._claims.get(own.value["queue"], ())
        )

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
