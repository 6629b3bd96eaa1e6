"""Gates, and the counters of both kinds of limit: what they promise, held against what was admitted.

What the rules lean on (picker.md §3, §6, engine/limiter.py):

1. A claim of a gated key carries a provisional shard (0, as documented, or a negative one) and is admitted by nobody
   yet. The admission draws a shard, debits it and stamps the row, all in one transaction. So a row counts as admitted
   from the transaction that changed a bucket of its key and touched the row while it went on executing, until its
   claim ends or changes key.
2. A slot is freed by the end of a claim and credited later, so a counter may lag behind the truth, never lead it.
3. A configured capacity may change while rows hold the old one; until the key's shards add up to the new capacity,
   the old one counts.
4. A slot that a node gave back for a transaction which a failover has lost was given back twice (`Echoes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from invariants.changes import (
    BUCKETS,
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
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Findings, Rest
from invariants.witness import Echoes, Witness, error_of, lone

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

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._echoes = Echoes() if witness is None else witness.echoes
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
            if len(rows) > limit + self._echoes.slots_of(key):
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

    def __init__(self, columns: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._echoes = Echoes() if witness is None else witness.echoes
        self._admitted = Admitted(columns)
        self._levels = Levels(GATE)

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        entered = self._admitted.observe(changes)
        touched = self._levels.observe(changes.buckets)
        for key in entered | touched:
            for shard, level in self._levels.now.get(key, {}).items():
                self.checked += 1
                taken = self._admitted.by_shard.get((key, shard), 0)
                # Below zero a level cannot go, also where more execute than a lowered capacity has room for.
                free = max(0.0, level.capacity - taken) + self._echoes.slots.get((key, shard), 0)
                if not -TOLERANCE <= level.available <= free + TOLERANCE:
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
