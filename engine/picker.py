"""The picker: jobs in, claims out, outcomes committed. Every operation of picker.md §3 that this schema version has.

Rules (picker.md §4, §6, §7):

1. A row is owned exactly while `status = 'executing'`, by the claim named in `locked_by`. A claim's name is unique: no
   two claims share one, even when one worker makes both.
2. Whatever ends a claim carries the guard `locked_by = claim AND status = 'executing'`. Where the guard fails, nothing
   changes, and the outcome is stale.
3. Where two sessions race, a constraint decides. The loser's statement fails whole; it is tried again against what the
   winner committed, a bounded number of times, and what is left then is a smaller batch, never an error.
4. Only the server's clock decides: eligibility, leases and back-off are computed by `now()` there.

Each function returns an `Operation` for `engine.operation`'s drivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any, Literal

from psycopg import errors

from engine.operation import Call, Operation, Row, call
from engine.statements import Catalogue
from engine.values import UnstorableValue, check_instant, check_key, check_text, to_json_object

# How often a claim that lost a race is tried again before it answers with nothing (picker.md §3).
CLAIM_RETRIES = 3

Status = Literal["runnable", "executing", "awaiting_signal", "awaiting_children", "done", "failed"]
STATUSES: tuple[Status, ...] = (
    "runnable", "executing", "awaiting_signal", "awaiting_children", "done", "failed",
)  # fmt: skip
LIVE: tuple[Status, ...] = STATUSES[:4]
TERMINAL: tuple[Status, ...] = STATUSES[4:]

SMALLINT = range(-(2**15), 2**15)
INTEGER = range(-(2**31), 2**31)
# Rows that one claim or sweep may take.
BATCH = range(100_001)
# A hundred years; an interval of much more would overflow the timestamp.
MAX_LEASE_MS = 100 * 365.25 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is inserted: one instance, at the first step of its machine.

    `priority`: smaller is more urgent. `eligible_at`: None means now; must carry a time zone. `correlation_key`: the
    business identity, unique among rows whose status is in `correlation_scope`; the scope must hold `runnable`, for an
    identity is taken at insert or never, and it is given up for good when the row first leaves its scope.
    Raises UnstorableValue for what Postgres cannot hold.
    """

    fsm: str
    step: str
    state: Mapping[str, Any] = field(default_factory=dict)
    fsm_version: int = 1
    queue: str = "default"
    priority: int = 0
    eligible_at: datetime | None = None
    concurrency_key: str | None = None
    correlation_key: str | None = None
    correlation_scope: tuple[Status, ...] = LIVE
    rate_limit: str | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_text("fsm", self.fsm)
        check_text("step", self.step)
        check_key("queue", self.queue)
        if self.concurrency_key is not None:
            check_key("concurrency_key", self.concurrency_key)
        if self.correlation_key is not None:
            check_key("correlation_key", self.correlation_key)
        if self.rate_limit is not None:
            check_text("rate_limit", self.rate_limit)
        _check_range("priority", self.priority, SMALLINT)
        _check_range("fsm_version", self.fsm_version, INTEGER)
        if self.eligible_at is not None:
            check_instant("eligible_at", self.eligible_at)
        _check_weight(self.weight)
        for status in self.correlation_scope:
            if status not in STATUSES:
                raise UnstorableValue(f"correlation_scope holds {status!r}, which is not a status")
        if self.correlation_scope and "runnable" not in self.correlation_scope:
            raise UnstorableValue(
                "correlation_scope must hold 'runnable': an identity is taken at insert or never"
            )

    def columns(self) -> tuple[object, ...]:
        """The twelve arguments of `picker/insert`, in order."""
        scope = self.correlation_scope if self.correlation_key is not None else ()
        return (
            self.fsm,
            self.fsm_version,
            self.step,
            to_json_object("state", self.state),
            self.queue,
            self.priority,
            self.eligible_at,
            self.concurrency_key,
            self.rate_limit,
            float(self.weight),
            self.correlation_key,
            "{" + ",".join(scope) + "}",
        )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A row under a claim. `state` is JSON text; `claim` is the fence that every later statement carries."""

    id: int
    fsm: str
    fsm_version: int
    step: str
    state: str
    attempt: int
    queue: str
    priority: int
    concurrency_key: str | None
    concurrency_shard: int | None
    rate_limit: str | None
    weight: float
    claim: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A row and the claim it is held under."""

    id: int
    claim: str


OutcomeKind = Literal["next", "retry", "done", "stop"]
KINDS: tuple[OutcomeKind, ...] = ("next", "retry", "done", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One outcome, ready to be sent: `state` and `result` are JSON text; None keeps what the row has.

    Raises UnstorableValue for what would fail the whole batch on the server. That the JSON is what `jsonb` takes is for
    `engine.values.to_json` to see to, which made it.
    """

    id: int
    claim: str
    kind: OutcomeKind
    step: str | None = None
    state: str | None = None
    result: str | None = None
    error: str | None = None
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnstorableValue(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        for name in ("claim", "step", "state", "result", "error"):
            if (value := getattr(self, name)) is not None:
                check_text(name, value)
        if not isfinite(self.delay_ms):
            raise UnstorableValue(f"delay_ms must be finite, not {self.delay_ms}")


@dataclass(frozen=True, slots=True)
class Ended:
    """The claims that a statement ended. `xid` names the transaction, None when there were none."""

    holds: tuple[Hold, ...]
    xid: int | None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim brought: the rows in pick order, and how many times the race for a key was lost on the way."""

    rows: tuple[Claimed, ...]
    contended: int


class Picker:
    """The operations, bound to one catalogue of statements."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._sql = Catalogue.load() if catalogue is None else catalogue

    def insert(self, job: Job) -> Operation[int | None]:
        """Insert one job. Returns its id, or None when its identity is occupied."""
        rows = yield call(self._sql["picker/insert"], *job.columns())
        return int(rows[0][0]) if rows else None

    def insert_many(self, jobs: Sequence[Job]) -> Operation[list[int | None]]:
        """Insert a batch in one statement. Returns an id per job, None where the identity was occupied."""
        if not jobs:
            return []
        columns = zip(*(job.columns() for job in jobs), strict=True)
        rows = yield call(self._sql["picker/insert_many"], *(list(column) for column in columns))
        return [row[1] for row in rows]

    def claim(
        self, *, queue: str, batch: int, claim: str, lease_ms: float, gates: Sequence[str] = ()
    ) -> Operation[Claim]:
        """Claim up to `batch` rows of one queue, most urgent first.

        `claim` must be a name that no other claim has used. A race for a key that is lost more than `CLAIM_RETRIES`
        times answers with no rows. Raises UnstorableValue for names and numbers that the server would refuse.
        """
        check_key("queue", queue)
        check_text("claim", claim)
        _check_range("batch", batch, BATCH)
        _check_lease(lease_ms)
        attempt = 0
        while True:
            try:
                rows = yield self._claim_call(queue, batch, claim, lease_ms, gates)
            except (errors.UniqueViolation, errors.DeadlockDetected):
                # Deadlocks are ruled out by the key locks that the statement tries; if one came all the same, from
                # other people's statements, its loser is still only a loser.
                attempt += 1
                if attempt > CLAIM_RETRIES:
                    return Claim((), attempt)
            else:
                ranked = sorted(rows, key=lambda row: int(row[0]))
                return Claim(tuple(Claimed(*(*row[1:], claim)) for row in ranked), attempt)

    def _claim_call(self, queue: str, batch: int, claim: str, lease_ms: float, gates: Sequence[str]) -> Call:
        return call(self._sql["picker/claim"], queue, batch, claim, float(lease_ms), list(gates))

    def flush(self, commits: Sequence[Commit]) -> Operation[Ended]:
        """Commit a batch of outcomes in one transaction. An outcome whose claim is not in the result was stale.

        Raises what the server says of a value it refuses; the batch is then whole and uncommitted.
        """
        if not commits:
            return Ended((), None)
        if len({(commit.id, commit.claim) for commit in commits}) < len(commits):
            raise ValueError("a claim ends once: two outcomes of one claim are in the batch")
        rows = yield call(
            self._sql["picker/flush"],
            [c.id for c in commits],
            [c.claim for c in commits],
            [c.kind for c in commits],
            [c.step for c in commits],
            [c.state for c in commits],
            [c.result for c in commits],
            [c.error for c in commits],
            [c.delay_ms for c in commits],
        )
        return _ended(rows)

    def heartbeat(self, holds: Sequence[Hold], lease_ms: float) -> Operation[tuple[Hold, ...]]:
        """Extend the leases of claims still held. Returns those extended; a row locked at that moment is not."""
        _check_lease(lease_ms)
        if not holds:
            return ()
        rows = yield call(self._sql["picker/heartbeat"], *_columns(holds), float(lease_ms))
        return tuple(Hold(row[0], row[1]) for row in rows)

    def release(self, holds: Sequence[Hold]) -> Operation[Ended]:
        """Give claims back: runnable at once, attempt and place in the queue kept. An identity whose scope ended with
        the claim stays given up."""
        if not holds:
            return Ended((), None)
        return _ended((yield call(self._sql["picker/release"], *_columns(holds))))

    def reap(self, limit: int) -> Operation[Ended]:
        """Take back up to `limit` claims whose lease has run out."""
        _check_range("limit", limit, BATCH)
        return _ended((yield call(self._sql["picker/reap"], limit)))


def _columns(holds: Sequence[Hold]) -> tuple[list[int], list[str]]:
    return [hold.id for hold in holds], [hold.claim for hold in holds]


def _ended(rows: list[Row]) -> Ended:
    return Ended(tuple(Hold(row[0], row[1]) for row in rows), int(rows[0][2]) if rows else None)


def _check_range(name: str, value: object, allowed: range) -> None:
    # True is a number to Python and "t" on the wire; 1.0 is in the range and no integer on the wire.
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnstorableValue(f"{name} must be an integer, not {value!r}")
    if value not in allowed:
        raise UnstorableValue(f"{name} must be within {allowed.start} and {allowed.stop - 1}, not {value}")


def _check_lease(lease_ms: float) -> None:
    if not -MAX_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
        raise UnstorableValue(f"lease_ms must be finite and at most a hundred years, not {lease_ms}")


def _check_weight(weight: object) -> None:
    try:
        if isinstance(weight, int | float) and 0 < float(weight) < float("inf"):
            return
    except OverflowError:
        pass
    raise UnstorableValue(f"weight must be a positive, finite number, not {weight!r:.40}")
