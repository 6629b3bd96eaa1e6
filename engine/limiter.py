"""The Postgres limiter: gates (at most K at once) and rate limits (tokens per second, a burst), in sharded rows.

Rules (picker.md §3, §6, §7):

1. A key's counters are its shards: all that the configuration asks for, or none. A key without rows is full; whoever
   draws on it first makes its shards already debited. So nothing is made at insert, and a sweep may drop what is full.
2. Who draws holds the shards that nobody else holds, and pays only for rows that pass all their limits. A lone picker
   holds every shard, and the key behaves like one counter.
3. Locks: an instance row, then shards. Both are skipped where another holds them. Only `credit` waits, for shards, in
   order, and before it has changed one; only the making of a cold key may wait at an index, and only for transactions
   with a younger snapshot. So nothing here can be part of a cycle.
4. A violated constraint is a lost race: computed anew, at most 3 times, then everything is denied. Without a concurrent
   writer none is ever violated: what is written is clamped.
5. Slots are conserved: per key, `available` + slots held <= capacity at every commit. A slot is given back once: by the
   credit, or by the count of `reconcile` that saw the row's end first. The shard keeps the snapshot of its last count,
   the credit names the transaction that freed the slot, and one of the two is true: the count saw it, or it did not.
6. The legal configurations are those for which the arithmetic stays far from the ends of float8: see RATES, BURSTS and
   MAX_FILL_S. What is written is exact where rates, bursts and weights are dyadic and shards a power of two, else to
   one part in 10^15 a draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from msgspec import structs
from psycopg import errors

from engine.limits import Admission, Refusal, Slot
from engine.operation import Begin, Commit, Operation, call
from engine.picker import BATCH, Claimed, Job
from engine.statements import Catalogue
from engine.values import UnstorableValue, check_key

# How often an admission that lost a race is tried again before it denies everything (picker.md §3).
ADMIT_RETRIES = 3

# Tokens per second, and tokens.
RATES: Final = (1e-9, 1e12)
BURSTS: Final = (1e-9, 1e12)
# The time from empty to full, burst / rate: a hundred years. Beyond it rounding would lose a microsecond's refill.
MAX_FILL_S = 100 * 365.25 * 86_400
MAX_CAPACITY = 2**31 - 1
# A pick locks every shard of the keys it meets.
MAX_SHARDS = 1_024
# How long a gate that a sweep found unused is kept. An admission that takes it for cold would have to be older.
IDLE_GATE_MS = 60_000.0
# Keys that one transaction counts; it holds all of their shards meanwhile.
COUNTED_KEYS = 200


def cold_lock(kind: str, key: str) -> int:
    """Which of the 4,096 locks decides who makes the shards of a cold key (`limiter/admit`)."""
    return int(hashlib.sha256(f"{kind} {key}".encode()).hexdigest()[:3], 16)


class InvalidLimit(ValueError):
    """A limit that cannot be configured; the message names it and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Gate:
    """At most `capacity` rows of one concurrency key execute at once.

    A key belongs to the gate that is named before its first colon, and each key has a capacity of its own. `shards`:
    counters per key; as many as nodes contend for it, and no more than the capacity. Raises InvalidLimit.
    """

    name: str
    capacity: int
    shards: int = 1

    def __post_init__(self) -> None:
        _check_name("gate", self.name)
        _check_integer(f"gate {self.name!r}: capacity", self.capacity, MAX_CAPACITY)
        _check_integer(f"gate {self.name!r}: shards", self.shards, MAX_SHARDS)
        if self.shards > self.capacity:
            raise InvalidLimit(
                f"gate {self.name!r}: shards must be at most the capacity, {self.capacity}, not {self.shards}: "
                "a shard without a slot is of no use"
            )


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`rate` tokens a second, of which up to `burst` are saved.

    A job draws on `name` or on a partition of it, "name:partition", which has a bucket of its own. Its weight may be up
    to `burst`, also where that is more than one of the `shards` holds. Raises InvalidLimit.
    """

    name: str
    rate: float
    burst: float
    shards: int = 1

    def __post_init__(self) -> None:
        _check_name("rate limit", self.name)
        _check_number(f"rate limit {self.name!r}: rate", self.rate, RATES)
        _check_number(f"rate limit {self.name!r}: burst", self.burst, BURSTS)
        _check_integer(f"rate limit {self.name!r}: shards", self.shards, MAX_SHARDS)
        if self.burst / self.rate > MAX_FILL_S:
            raise InvalidLimit(
                f"rate limit {self.name!r}: at {self.rate} tokens a second a burst of {self.burst} takes more than a "
                "hundred years to fill"
            )


Limit = Gate | RateLimit


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a pass over the gates did: keys counted; shards corrected, made and dropped."""

    counted: int = 0
    corrected: int = 0
    made: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of the rate limits did: keys dropped; shards made and cut after a change of configuration."""

    dropped: int = 0
    made: int = 0
    cut: int = 0


def check_limits(limits: Sequence[Limit]) -> None:
    """Raises InvalidLimit where two limits of one kind share a name. A gate and a rate limit may."""
    seen: set[tuple[str, str]] = set()
    for limit in limits:
        kind = "gate" if isinstance(limit, Gate) else "rate limit"
        if (kind, limit.name) in seen:
            raise InvalidLimit(f"{kind} {limit.name!r} is configured twice")
        seen.add((kind, limit.name))


def check_job(job: Job, limits: Sequence[Limit]) -> None:
    """Raises UnstorableValue, naming the job, where its rate limit is not configured or can never pay its weight."""
    if job.rate_limit is not None:
        check_rate(f"job {job.fsm!r} at step {job.step!r}", job.rate_limit, job.weight, limits)


def check_rate(what: str, rate_limit: str, weight: float, limits: Sequence[Limit]) -> None:
    """The same for a step: `what` names it in the error."""
    check_key("rate_limit", rate_limit)
    name = rate_limit.partition(":")[0]
    known = {limit.name: limit for limit in limits if isinstance(limit, RateLimit)}
    if name not in known:
        raise UnstorableValue(
            f"{what} asks for rate limit {rate_limit!r}; configured are: {', '.join(sorted(known)) or 'none'}"
        )
    if weight > known[name].burst:
        raise UnstorableValue(
            f"{what} has weight {weight}, above the burst of {known[name].burst} of rate limit {name!r}: "
            "it could never start"
        )


class PostgresLimiter:
    """The operations, bound to the configured limits and to one catalogue of statements. Raises InvalidLimit."""

    def __init__(self, limits: Sequence[Limit] = (), catalogue: Catalogue | None = None) -> None:
        check_limits(limits)
        self._limits = tuple(limits)
        self._sql = Catalogue.load() if catalogue is None else catalogue

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self._limits

    @property
    def gates(self) -> tuple[str, ...]:
        """The names that `Picker.claim` takes as its gates."""
        return tuple(limit.name for limit in self._limits if isinstance(limit, Gate))

    def admit(self, rows: Sequence[Claimed]) -> Operation[Admission]:
        """Draw a slot for each row that has a gate, tokens for each that has a rate. One statement, or none.

        A row that is no longer its claim's is denied. A row whose `concurrency_key` is None needs no slot, even where
        the stored row has a key. After ADMIT_RETRIES lost races every limited row is denied.
        """
        limited = [row for row in rows if _wants_slot(row) or row.rate_limit is not None]
        if not limited:
            return Admission(tuple(rows), ())
        contended = 0
        answers: dict[int, tuple[bool, int | None, str | None]] = {}
        while contended <= ADMIT_RETRIES:
            try:
                found = yield call(
                    self._sql["limiter/admit"],
                    [row.id for row in limited],
                    [row.claim for row in limited],
                    [_wants_slot(row) for row in limited],
                )
            except (errors.CheckViolation, errors.UniqueViolation, errors.DeadlockDetected):
                contended += 1
            else:
                answers = {row_id: (admitted, shard, why) for row_id, admitted, shard, why in found}
                break
        return _admission(rows, {row.id for row in limited}, answers, contended)

    def credit(self, slots: Sequence[Slot], freed_by: int) -> Operation[tuple[Slot, ...]]:
        """Give back slots freed by the transaction of that id. Returns the shards that took any.

        Once: a slot credited by two calls is given twice.
        """
        if not slots:
            return ()
        rows = yield call(
            self._sql["limiter/credit"],
            [slot.key for slot in slots],
            [slot.shard for slot in slots],
            str(freed_by),
        )
        return tuple(sorted(Slot(row[0], row[1]) for row in rows))

    def renew(self, slots: Sequence[Slot]) -> Operation[None]:  # noqa: ARG002  # a slot here lives as long as its row's lease
        """Nothing to be done: a slot is held by an executing row, and `reconcile` counts those."""
        yield from ()

    def sync_config(self) -> Operation[tuple[tuple[str, str], ...]]:
        """Store the limits. Returns (kind, name) of those that were new or changed.

        Others are left as they are: another node, older or newer, may still use them.
        """
        if not self._limits:
            return ()
        columns = zip(*(columns_of(limit) for limit in self._limits), strict=True)
        rows = yield call(self._sql["limiter/sync_config"], *(list(column) for column in columns))
        return tuple(sorted((row[0], row[1]) for row in rows))

    def reconcile(self, limit: int = COUNTED_KEYS, idle_ms: float = IDLE_GATE_MS) -> Operation[Reconciled]:
        """Count every gate's slots anew, `limit` keys in a transaction; gates unused for `idle_ms` are dropped."""
        if limit not in BATCH or limit < 1:
            raise ValueError(f"limit must be within 1 and {BATCH.stop - 1}, not {limit}")
        done = Reconciled()
        after = ""
        while True:
            keys = [row[0] for row in (yield call(self._sql["limiter/reconcile_page"], after, limit))]
            if not keys:
                return done
            yield Begin()
            locked = yield call(self._sql["limiter/reconcile_lock"], keys[0], keys[-1])
            if locked:
                (counts,) = yield call(
                    self._sql["limiter/reconcile"],
                    [row[0] for row in locked],
                    [row[1] for row in locked],
                    float(idle_ms),
                )
                done = Reconciled(
                    done.counted + counts[0],
                    done.corrected + counts[1],
                    done.made + counts[2],
                    done.dropped + counts[3],
                )
            yield Commit()
            if len(keys) < limit:
                return done
            after = keys[-1]

    def sweep_buckets(self, limit: int = 1_000) -> Operation[Swept]:
        """Drop up to `limit` rate keys that are full or no longer configured, mend those whose shards were changed."""
        if limit not in BATCH:
            raise ValueError(f"limit must be within 0 and {BATCH.stop - 1}, not {limit}")
        try:
            ((dropped, made, cut),) = yield call(self._sql["limiter/sweep_buckets"], limit)
        except errors.UniqueViolation:
            # Another sweep has mended a key since the snapshot. The next one sees it.
            return Swept()
        return Swept(dropped, made, cut)


def _wants_slot(row: Claimed) -> bool:
    return row.concurrency_shard is not None and row.concurrency_key is not None


def _admission(
    rows: Sequence[Claimed],
    limited: set[int],
    answers: dict[int, tuple[bool, int | None, str | None]],
    contended: int,
) -> Admission:
    admitted, denied, refused = [], [], []
    for row in rows:
        if row.id not in limited:
            admitted.append(row)
            continue
        may_start, shard, why = answers.get(row.id, (False, None, None))
        if may_start:
            admitted.append(row if shard is None else structs.replace(row, concurrency_shard=shard))
        else:
            denied.append(row)
            if why is not None:
                refused.append(Refusal(row, _reason(row, why)))
    return Admission(tuple(admitted), tuple(denied), contended, tuple(refused))


def _reason(row: Claimed, why: str) -> str:
    subject = row.concurrency_key if why == "unknown gate" else row.rate_limit
    weight = f", weight {row.weight}" if why == "weight above burst" else ""
    return f"{why}: {subject!r:.200}{weight} (job {row.id}, {row.fsm!r:.100} at step {row.step!r:.100})"


def columns_of(limit: Limit) -> tuple[str, str, float | None, float, int]:
    """A limit as it is stored, and as a history has it: kind, name, rate, burst or capacity, shards."""
    if isinstance(limit, Gate):
        return "conc", limit.name, None, float(limit.capacity), limit.shards
    return "rate", limit.name, float(limit.rate), float(limit.burst), limit.shards


def _check_name(kind: str, name: object) -> None:
    try:
        text = check_key(f"the name of a {kind}", name)
    except UnstorableValue as error:
        raise InvalidLimit(str(error)) from None
    if not text:
        raise InvalidLimit(f"a {kind} needs a name")
    if ":" in text:
        raise InvalidLimit(f"{kind} {text!r}: a name ends at the first colon of a key, so it cannot hold one")


def _check_integer(what: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidLimit(f"{what} must be an integer, not {value!r:.40}")
    if not 1 <= value <= most:
        raise InvalidLimit(f"{what} must be within 1 and {most}, not {value!r:.40}")


def _check_number(what: str, value: object, between: tuple[float, float]) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidLimit(f"{what} must be a number, not {value!r:.40}")
    if isinstance(value, float) and not isfinite(value):
        raise InvalidLimit(f"{what} must be finite, not {value}")
    if not between[0] <= value <= between[1]:
        raise InvalidLimit(f"{what} must be within {between[0]} and {between[1]}, not {value!r:.40}")
