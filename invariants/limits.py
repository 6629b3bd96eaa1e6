"""Gates and rate limits: what the counters promise, held against what was admitted.

What the rules lean on (picker.md §3, §6, engine/limiter.py):

1. A claim of a gated key carries a provisional shard (0, as documented, or a negative one) and is admitted by nobody
   yet. The admission draws a shard, debits it and stamps the row, all in one transaction. So a row counts as admitted
   from the transaction that changed a bucket of its key and touched the row while it went on executing, until its
   claim ends or changes key.
2. A slot is freed by the end of a claim and credited later, so a counter may lag behind the truth, never lead it.
3. A rate limit is spent by the rows that an admission was told it let in. Times are those of the operations:
   a grant happened somewhere between its invoke and its completion, and every bound is taken on the lenient side.
4. A configured capacity may change while rows hold the old one; until the key's shards add up to the new capacity,
   the old one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from invariants.changes import (
    BUCKETS,
    CLAIMED,
    CONFIGS,
    ENDED,
    GONE,
    STAYED,
    Bucket,
    Changes,
    Columns,
    Config,
    Level,
    Policy,
    Transition,
    config_name,
    string,
)
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Row, Transaction
from invariants.rules import Findings, Rest
from invariants.witness import Witness, error_of

GATE, RATE = "conc", "rate"
# Counters are doubles: sums in another order differ in the last digits.
TOLERANCE: Final = 1e-6


class Policies:
    """The configured gates or rate limits of one kind, and all that they were."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.now: dict[str, Policy] = {}
        self.ever: dict[str, list[Policy]] = {}

    def observe(self, configs: Sequence[Config]) -> None:
        """Follow the configuration."""
        for config in configs:
            if config.kind != self._kind:
                continue
            if config.policy is None:
                self.now.pop(config.name, None)
            else:
                self.now[config.name] = config.policy
                self.ever.setdefault(config.name, []).append(config.policy)


class Admitted:
    """Which executing rows were admitted to which shard of which gate."""

    def __init__(self, columns: Columns) -> None:
        self._key, self._shard = columns.concurrency_key, columns.concurrency_shard
        self.rows: dict[int, tuple[str, int]] = {}
        self.by_key: dict[str, set[int]] = {}
        self.by_shard: dict[tuple[str, int], int] = {}

    def observe(self, changes: Changes) -> set[str]:
        """Follow one transaction; the keys of what it admitted."""
        for group in (changes.ended, changes.gone):
            for t in group:
                if t.id in self.rows:
                    self._leave(t.id)
        if not changes.stayed:
            return set()
        drawn = {bucket.key for bucket in changes.buckets if bucket.kind == GATE}
        entered: set[str] = set()
        for t in changes.stayed:
            assert t.old is not None
            assert t.new is not None
            key, shard = t.new[self._key], t.new[self._shard]
            if t.id in self.rows and (key is None or shard is None or self._changed_key(t)):
                self._leave(t.id)
            if key is not None and shard is not None and int(shard) >= 0 and string(key) in drawn:
                name = string(key) or ""
                self._leave(t.id)
                self.rows[t.id] = (name, int(shard))
                self.by_key.setdefault(name, set()).add(t.id)
                self.by_shard[name, int(shard)] = self.by_shard.get((name, int(shard)), 0) + 1
                entered.add(name)
        return entered

    def _changed_key(self, t: Transition) -> bool:
        assert t.old is not None
        assert t.new is not None
        return t.old[self._key] != t.new[self._key]

    def _leave(self, row: int) -> None:
        found = self.rows.pop(row, None)
        if found is None:
            return
        rows = self.by_key[found[0]]
        rows.discard(row)
        if not rows:
            del self.by_key[found[0]]
        self.by_shard[found] -= 1
        if not self.by_shard[found]:
            del self.by_shard[found]


class Levels:
    """The buckets of one kind by key and shard."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.now: dict[str, dict[int, Level]] = {}

    def observe(self, buckets: Sequence[Bucket]) -> set[str]:
        """Follow one transaction; the keys that it touched."""
        touched: set[str] = set()
        for bucket in buckets:
            if bucket.kind != self._kind:
                continue
            touched.add(bucket.key)
            shards = self.now.setdefault(bucket.key, {})
            if bucket.new is None:
                shards.pop(bucket.shard, None)
                if not shards:
                    del self.now[bucket.key]
            else:
                shards[bucket.shard] = bucket.new
        return touched

    def capacity(self, key: str) -> float:
        """What the key's shards add up to."""
        return sum(level.capacity for level in self.now.get(key, {}).values())


class GateCap:
    """No more admitted rows than the gate lets in."""

    name = "gate-cap"
    statement = (
        "at every commit at most K executing, admitted rows per configured gate key, whatever crashes, "
        "reconciles, re-shards and late credits happen"
    )
    groups = STAYED | ENDED | GONE | BUCKETS | CONFIGS
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._policies = Policies(GATE)
        self._admitted = Admitted(columns)
        self._levels = Levels(GATE)

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        self._policies.observe(changes.configs)
        entered = self._admitted.observe(changes)
        self._levels.observe(changes.buckets)
        for key in entered:
            limit = self._limit(key)
            if limit is None:
                continue
            self.checked += 1
            rows = self._admitted.by_key.get(key, set())
            if len(rows) > limit:
                self.findings.add(
                    f"gate {key} lets {limit:g} rows in and {len(rows)} are executing: {sorted(rows)}",
                    sorted(rows),
                    transaction.number,
                    (),
                    [(GATE, key)],
                )

    def _limit(self, key: str) -> float | None:
        policy = self._policies.now.get(config_name(key))
        if policy is None:
            return None
        spread = self._levels.capacity(key)
        earlier = [former.capacity for former in self._policies.ever[config_name(key)]]
        lasting = [capacity for capacity in earlier if abs(capacity - spread) <= TOLERANCE]
        return max([policy.capacity, *lasting])

    def conclude(self, _: Rest) -> str | None:
        return None


class SlotConservation:
    """A gate's shard never has more free slots than its capacity leaves; at rest it has exactly those."""

    name = "slot-conservation"
    statement = (
        "at rest, available = capacity - executing on every gate shard; no interleaving makes it larger"
    )
    groups = STAYED | ENDED | GONE | BUCKETS
    needs_ledger, needs_history, needs_rest = True, False, True

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._admitted = Admitted(columns)
        self._levels = Levels(GATE)

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        entered = self._admitted.observe(changes)
        touched = self._levels.observe(changes.buckets)
        for key in entered | touched:
            for shard, level in self._levels.now.get(key, {}).items():
                self.checked += 1
                taken = self._admitted.by_shard.get((key, shard), 0)
                if level.available + taken > level.capacity + TOLERANCE or level.available < -TOLERANCE:
                    self.findings.add(
                        f"shard {shard} of gate {key} has {level.available:g} of {level.capacity:g} slots free "
                        f"while {taken} admitted rows execute on it",
                        sorted(r for r, held in self._admitted.rows.items() if held == (key, shard)),
                        transaction.number,
                        (),
                        [(GATE, key)],
                    )

    def conclude(self, rest: Rest) -> str | None:
        if not rest.evidence.at_rest:
            return None
        for key, shards in self._levels.now.items():
            for shard, level in shards.items():
                self.checked += 1
                taken = self._admitted.by_shard.get((key, shard), 0)
                if abs(level.available + taken - level.capacity) > TOLERANCE:
                    self.findings.add(
                        f"at rest shard {shard} of gate {key} has {level.available:g} of {level.capacity:g} slots "
                        f"free, and {taken} rows execute on it",
                        (),
                        None,
                        (),
                        [(GATE, key)],
                    )
        return None


class ShardsWhole:
    """A bucket key has all of its shards or none."""

    name = "shards-whole"
    statement = (
        "at every commit a bucket key has all its configured shards or none (a change of `shards` heals at "
        "the next sweep)"
    )
    groups = BUCKETS | CONFIGS
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, _: Columns, __: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._policies = {kind: Policies(kind) for kind in (GATE, RATE)}
        self._levels = {kind: Levels(kind) for kind in (GATE, RATE)}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        for kind in (GATE, RATE):
            self._policies[kind].observe(changes.configs)
            for key in self._levels[kind].observe(changes.buckets):
                wanted = {policy.shards for policy in self._policies[kind].ever.get(config_name(key), ())}
                shards = set(self._levels[kind].now.get(key, {}))
                if not wanted:
                    continue
                self.checked += 1
                if shards and not any(shards == set(range(count)) for count in wanted):
                    self._broken(kind, key, shards, max(wanted), transaction.number)

    def _broken(self, kind: str, key: str, shards: set[int], wanted: int, number: int | None) -> None:
        self.findings.add(
            f"{kind} bucket {key} has the shards {sorted(shards)}, and {wanted} are configured",
            (),
            number,
            (),
            [(kind, key)],
        )

    def conclude(self, rest: Rest) -> str | None:
        """A change of `shards` has healed when the sweeps have run."""
        if not rest.evidence.at_rest:
            return None
        for kind in (GATE, RATE):
            for key, shards in self._levels[kind].now.items():
                policy = self._policies[kind].now.get(config_name(key))
                if policy is None:
                    continue
                self.checked += 1
                if set(shards) != set(range(policy.shards)):
                    self._broken(kind, key, set(shards), policy.shards, None)
        return None


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
        """The window that exceeds its budget by most, in one pass: with S the running sum, a window from i to j holds
        S(j) - S(i-1), and its budget is burst + rate * (end(j) - begin(i)), where begin(i) is the earliest start of
        all that ended at i or later."""
        grants.sort(key=lambda grant: grant.end_ns)
        begins = [0] * len(grants)
        earliest = 2**63
        for place in range(len(grants) - 1, -1, -1):
            earliest = min(earliest, grants[place].start_ns)
            begins[place] = earliest
        total, best, best_from = 0.0, float("-inf"), 0
        origin = begins[0]
        for place, grant in enumerate(grants):
            self.checked += 1
            open_here = rate * (begins[place] - origin) / 1e9 - total
            if open_here > best:
                best, best_from = open_here, place
            total += grant.weight
            excess = total - rate * (grant.end_ns - origin) / 1e9 + best - burst
            if excess > TOLERANCE * max(1.0, burst):
                window = grants[best_from : place + 1]
                seconds = (grant.end_ns - begins[best_from]) / 1e9
                spent = sum(one.weight for one in window)
                self.findings.add(
                    f"rate {key} granted a weight of {spent:g} within {seconds:.6f} s; its burst of {burst:g} and "
                    f"its rate of {rate:g} a second allow {burst + rate * seconds:g}",
                    [one.row for one in window][-3:],
                    None,
                    list({id(one.operation): one.operation for one in window}.values())[-3:],
                    [(RATE, key)],
                )
                return


class RateLiveness:
    """What has waited for long enough, with nobody in its way, is let in.

    After t seconds without a grant every shard holds at least min(burst, rate * t) of its share, however the last
    grants were spread. So a denied row that stood first for its key, whose weight is at most the burst, and for
    whose key the last grant lies weight/rate seconds back, was denied wrongly. Judged only where nothing else was
    under way that could hold the key's counters or the row.
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
        last: int | None = None
        rate = policy.rate or 0.0
        for o, alone in lone(operations):
            if o.type == "info" or o.end_ns is None:
                # Whether and when it drew is unknown from here on.
                return
            if id(o) not in mine or o.type != "ok":
                last = o.end_ns if o.f == "admit" else last
                continue
            head = self._head(o, key)
            if alone and head is not None and head[1] <= policy.capacity:
                waited_s = float("inf") if last is None else (o.start_ns - last) / 1e9
                if last is None or (rate > 0 and waited_s >= head[1] / rate + TOLERANCE):
                    self.checked += 1
                    if head[0] in o.result["denied"] and not self._was_locked(head[0], o):
                        self._denied(key, policy, o, head, waited_s)
            admitted = {row for row, _ in o.result["admitted"]}
            if any(
                (entry := self._spending.asked(row, o.value["claim"])) and entry[0] == key for row in admitted
            ):
                last = o.end_ns

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
        self, key: str, policy: Policy, o: Operation, head: tuple[int, float], waited_s: float
    ) -> None:
        since = "ever" if waited_s == float("inf") else f"for {waited_s:.3f} s"
        self.findings.add(
            f"row {head[0]} asks {head[1]:g} of rate {key} (burst {policy.capacity:g}, {policy.rate:g} a second), "
            f"stood first, and was denied though nothing was granted {since}",
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


class QuietLimiter:
    """A limiter's statement that nobody races with breaks no constraint, and need not be tried again."""

    name = "quiet-limiter"
    statement = (
        "without a concurrent writer no limiter statement violates a constraint, for every legal config and "
        "weight"
    )
    groups = 0
    needs_ledger, needs_history, needs_rest = False, True, False

    def __init__(self, _: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness

    def transaction(self, _: Transaction, __: Changes) -> None:
        """Only the history is looked at."""

    def conclude(self, _: Rest) -> str | None:
        for o, alone in lone([] if self._witness is None else self._witness.limiters):
            if not alone:
                continue
            self.checked += 1
            sqlstate = error_of(o).get("sqlstate") or ""
            result: dict[str, Any] = o.result if o.type == "ok" and isinstance(o.result, dict) else {}
            again = result.get("contended", 0)
            if sqlstate[:2] in ("22", "23"):
                what = f"ended with {error_of(o)['error']} ({sqlstate}): {error_of(o).get('message', '')}"
            elif again:
                what = f"violated a constraint {again} times before it came through"
            else:
                continue
            self.findings.add(f"{o.f} of {o.process}, with no other writer about, {what}", (), None, [o])
        return None


def lone(operations: Sequence[Operation]) -> Iterator[tuple[Operation, bool]]:
    """Each operation, and whether none of the others was under way with it. They come sorted by their start."""
    busy_until = -1
    for place, o in enumerate(operations):
        end = 2**63 if o.end_ns is None else o.end_ns
        following = operations[place + 1].start_ns if place + 1 < len(operations) else 2**63
        yield o, o.start_ns > busy_until and (following > end or place + 1 == len(operations))
        busy_until = max(busy_until, end)
