"""The limiter as a pure model: what an admission must answer, and what no limit may ever allow.

Rules:

1. Time is an argument. `elapsed` is the time that has really passed, whatever the clock was set to.
2. Levels are fractions, so the model does not round. The engine does: where a weight fits by less than TOLERANCE (of
   the burst), both answers are right, and the model goes on with the engine's.
3. A gate's slot is free, held by a row, on its way back (`Owed`), or lost with whoever held it, until it is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction

from engine.limiter import Gate, RateLimit

# Relative to the burst. A float8 is good for 2e-16; a shard is written a few hundred times in an example.
TOLERANCE = Fraction(1, 10**12)
# Below this a weight is raised to it.
LEAST_WEIGHT = Fraction(1e-12)


@dataclass(frozen=True, slots=True)
class Shard:
    """One counter of a rate: its level at `at`."""

    level: Fraction
    at: datetime


@dataclass(frozen=True, slots=True)
class Asking:
    """A claimed row: the gate key it wants a slot of, the rate it draws on, its place in the pick order."""

    id: int
    gate: str | None
    rate: str | None
    weight: float
    priority: int

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.id


def shares(capacity: int, shards: int) -> list[int]:
    """A gate's slots by shard: what is left over goes to the first."""
    return [capacity // shards + (shard < capacity % shards) for shard in range(shards)]


def refilled(limit: RateLimit, shard: Shard, now: datetime) -> Fraction:
    """A shard's level at `now`: never counted back, never above its share."""
    elapsed = Fraction(max(now - shard.at, timedelta(0)) // timedelta(microseconds=1), 10**6)
    share = Fraction(limit.burst) / limit.shards
    return min(share, shard.level + elapsed * Fraction(limit.rate) / limit.shards)


def charge(weight: float) -> Fraction:
    return max(Fraction(weight), LEAST_WEIGHT)


@dataclass(frozen=True, slots=True)
class Decision:
    """Who passes, in pick order, and whose weight fits or not by a hair."""

    passed: tuple[int, ...]
    refused: frozenset[int]


def decide(
    rows: Iterable[Asking],
    *,
    free: dict[str, int],
    tokens: dict[str, Fraction],
    bursts: dict[str, float],
    engine: Collection[int],
) -> Decision:
    """Let rows pass in pick order while slots (`free`, by gate key) and tokens (by rate key) last.

    `bursts`: of the rate keys whose name is configured. `engine`: the rows that the engine let pass; it decides where
    a weight fits by a hair.
    """
    places: dict[str, int] = {}
    drawn: dict[str, Fraction] = {}
    passed, refused = [], set()
    for row in sorted(rows, key=lambda row: row.order):
        if row.rate is not None and (row.rate not in bursts or row.weight > bursts[row.rate]):
            refused.add(row.id)
            continue
        if row.gate is not None:
            places[row.gate] = places.get(row.gate, 0) + 1
            if places[row.gate] > free.get(row.gate, 0):
                continue
        if row.rate is not None:
            # Whoever has the slots stands in the line for tokens, also when there are not enough: nobody overtakes.
            drawn[row.rate] = drawn.get(row.rate, Fraction(0)) + charge(row.weight)
            spare = tokens.get(row.rate, Fraction(0)) - drawn[row.rate]
            hair = TOLERANCE * Fraction(bursts[row.rate])
            if spare < -hair or (spare <= hair and row.id not in engine):
                continue
        passed.append(row.id)
    return Decision(tuple(passed), frozenset(refused))


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one rate key may ever have given out: one counter, refilled in real time, never above the burst.

    That it is never overdrawn is the same as: in every window of w seconds at most burst + rate x w were granted.
    """

    limit: RateLimit
    left: Fraction
    at: Fraction

    @classmethod
    def full(cls, limit: RateLimit, elapsed: Fraction) -> Budget:
        return cls(limit, Fraction(limit.burst), elapsed)

    def granted(self, weights: Sequence[float], elapsed: Fraction) -> Budget:
        """After these grants. Raises AssertionError where they are more than the limit allows."""
        burst = Fraction(self.limit.burst)
        level = min(burst, self.left + (elapsed - self.at) * Fraction(self.limit.rate))
        level -= sum((Fraction(weight) for weight in weights), Fraction(0))
        assert level >= -TOLERANCE * burst, f"{self.limit.name}: {float(-level)} tokens above the budget"
        return replace(self, left=max(level, Fraction(0)), at=elapsed)


def wait_for(limit: RateLimit, weight: float) -> timedelta:
    """The time within which a lone row of that weight is admitted, rounded up to what a clock can tell."""
    microseconds = charge(weight) / Fraction(limit.rate) * 10**6
    return timedelta(microseconds=int(microseconds) + 2)


@dataclass(frozen=True, slots=True)
class Owed:
    """A slot that transaction `xid` freed and nobody has given back. `era`: counts of its gate when it was freed."""

    key: str
    shard: int
    xid: int
    era: int


def slots_at_rest(gate: Gate, executing: int) -> int:
    """What must be free once every gate has been counted."""
    return max(0, gate.capacity - executing)


def debts(gate: Gate, executing: Mapping[int | None, int]) -> list[float]:
    """By shard, how many of its next credits are kept: the rows too many may all end on that one, or elsewhere; and
    those beyond its own share have no place in it, whoever covers for them."""
    too_many = max(0, sum(executing.values()) - gate.capacity)
    return [
        float(max(0, executing.get(shard, 0) - share, min(executing.get(shard, 0), too_many)))
        for shard, share in enumerate(shares(gate.capacity, gate.shards))
    ]
