"""The picker: jobs in, claims out, outcomes committed, signals delivered: the operations of picker.md §3.

Rules (picker.md §4, §6, §7):

1. A row is owned exactly while `status = 'executing'`, by the claim named in `locked_by`. A claim's name is unique: no
   two claims share one, even when one worker makes both.
2. Whatever ends a claim carries the guard `locked_by = claim AND status = 'executing'`. Where the guard fails, nothing
   changes, and the outcome is stale.
3. Where two sessions race, a constraint decides. The loser's statement fails whole; it is tried again against what the
   winner committed, a bounded number of times, and what is left then is a smaller batch, never an error.
4. Only the server's clock decides: eligibility, leases and back-off are computed by `now()` there.
5. A flush takes its locks first, in id order, own rows and parents together; then it inserts children, in key order;
   then it changes rows, and from there on waits for nobody. Its riders act on what its guarded update returned, never
   on what they read again (picker.md §4).
6. Whoever writes an inbox holds the lock of the row that it belongs to.

Each function returns an `Operation` for `engine.operation`'s drivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import isfinite
from typing import Any, Literal, NamedTuple

import msgspec
from psycopg import errors

from engine import operation
from engine.limits import Slot
from engine.operation import Begin, Call, Operation, Row, call
from engine.statements import Catalogue, array_literal
from engine.values import UnstorableValue, check_instant, check_key, check_text, to_json, to_json_object

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
BIGINT = range(-(2**63), 2**63)
# How long a flush that spawns waits for one lock: a child's identity may be held by a stranger's open transaction.
SPAWN_PATIENCE_MS = 500
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


class Claimed(msgspec.Struct, frozen=True, gc=False):
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
    # What the step that parked the row waited for; kept until a step goes on.
    awaits: tuple[str, ...] | None = None
    # How often this claim has gone on inline.
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Signal:
    """A pending signal. `payload` is JSON text."""

    id: int
    name: str
    payload: str


@dataclass(frozen=True, slots=True)
class Child:
    """A child as it stood when its parent was enriched. `state` and `result` are JSON text."""

    id: int
    fsm: str
    status: Status
    state: str
    result: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a step is handed beside its row: its whole inbox and all its children, oldest first."""

    signals: tuple[Signal, ...] = ()
    children: tuple[Child, ...] = ()


NOTHING_AROUND = Surroundings()


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a signal. `target` is None for `no_target`, `signal` is set for `delivered` only; `woken` is the
    queue of the target where it was parked and is runnable now."""

    outcome: Literal["delivered", "duplicate", "no_target"]
    target: int | None = None
    signal: int | None = None
    woken: str | None = None


class Hold(NamedTuple):
    """A row and the claim it is held under."""

    id: int
    claim: str


OutcomeKind = Literal["next", "retry", "done", "stop", "await", "childs", "continue"]
KINDS: tuple[OutcomeKind, ...] = ("next", "retry", "done", "stop", "await", "childs", "continue")
ENDS: tuple[OutcomeKind, ...] = ("done", "stop")
# Outcomes that go on and so consume what their step saw of what it had awaited.
PROGRESSES: tuple[OutcomeKind, ...] = ("next", "childs", "continue")


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One outcome, ready to be sent: `state` and `result` are JSON text; None keeps what the row has.

    `turn`: the claim's, as it was claimed or last continued. `delay_ms`: of a retry. `timeout_ms`: of an await, None
    for none. `lease_ms`: of a continue. `sets_rate`: `rate_limit` and `weight` replace the row's. `sets_key`:
    `concurrency_key` does; `gated` says that it names a configured gate, which a continue needs of a new key.
    `presented`: of an await, the signals its step was handed. `consumed`: those to delete.
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
    turn: int = 0
    sets_rate: bool = False
    rate_limit: str | None = None
    weight: float = 1.0
    sets_key: bool = False
    concurrency_key: str | None = None
    gated: bool = False
    awaits: tuple[str, ...] | None = None
    timeout_ms: float | None = None
    lease_ms: float = 0.0
    presented: tuple[int, ...] = ()
    consumed: tuple[int, ...] = ()
    children: tuple[Job, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnstorableValue(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        check_text("claim", self.claim)
        if self.step is not None:
            check_text("step", self.step)
        if self.state is not None:
            check_text("state", self.state)
        if self.result is not None:
            check_text("result", self.result)
        if self.error is not None:
            check_text("error", self.error)
        if self.rate_limit is not None:
            check_text("rate_limit", self.rate_limit)
        if self.concurrency_key is not None:
            check_key("concurrency_key", self.concurrency_key)
        if self.kind == "continue" and self.sets_key and self.concurrency_key is not None and not self.gated:
            # It would enter the arbiter, and a sibling that executes would fail the batch (picker.md §4).
            raise UnstorableValue("an inline continuation may not go to a key that is not a configured gate")
        for signal_name in self.awaits or ():
            check_key("awaits", signal_name)
        if self.weight != 1.0:
            _check_weight(self.weight)
        _check_finite("delay_ms", self.delay_ms)
        _check_finite("lease_ms", self.lease_ms)
        if self.timeout_ms is not None:
            _check_finite("timeout_ms", self.timeout_ms)
        if (self.kind == "await") != (self.awaits is not None):
            raise UnstorableValue("an await, and nothing else, says what it awaits")
        if (self.kind == "childs") < bool(self.children) or (self.kind in PROGRESSES) < bool(self.consumed):
            raise UnstorableValue(f"an outcome of kind {self.kind} has no children, or consumes nothing")

    @property
    def milliseconds(self) -> float | None:
        """The one time that its kind has."""
        match self.kind:
            case "await":
                return self.timeout_ms
            case "continue":
                return self.lease_ms
            case _:
                return self.delay_ms

    def columns(self) -> tuple[object, ...]:
        """The arguments of `picker/flush`, in order, but the count of children."""
        return (
            self.id,
            self.claim,
            self.turn,
            self.kind,
            self.step,
            self.state,
            self.result,
            self.error,
            self.milliseconds,
            self.sets_rate,
            self.rate_limit,
            float(self.weight),
            self.sets_key,
            self.concurrency_key,
            self.gated,
            None if self.awaits is None else array_literal(self.awaits),
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """The claims that a transaction ended or, by a continue, moved on. `xid` names it, None when there were none.

    `freed`: the gate slots that its rows gave up. `woken`: queues, each once, that have work because of it other than
    that of its own rows: of parents that woke, of children, of parks that did not last.
    """

    holds: tuple[Hold, ...]
    xid: int | None
    freed: tuple[Slot, ...] = ()
    woken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expired:
    """The instances whose wait a sweep ended, and their queues, each once."""

    ids: tuple[int, ...]
    xid: int | None
    queues: tuple[str, ...] = ()


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
                return Claim(tuple(_claimed(row, claim) for row in ranked), attempt)

    def _claim_call(self, queue: str, batch: int, claim: str, lease_ms: float, gates: Sequence[str]) -> Call:
        return call(self._sql["picker/claim"], queue, batch, claim, float(lease_ms), list(gates))

    def flush(self, commits: Sequence[Commit]) -> Operation[Ended]:
        """Commit a batch of outcomes in one transaction. An outcome whose claim is not in the result was stale.

        One statement for outcomes without riders; at most eight, whatever the batch's size and what is in it.
        Raises what the server says of a value it refuses, and LockNotAvailable where a child's identity stays in
        somebody's open transaction for longer than SPAWN_PATIENCE_MS; the batch is then whole and uncommitted.
        """
        if not commits:
            return Ended((), None)
        if len({(commit.id, commit.claim) for commit in commits}) < len(commits):
            raise ValueError("a claim ends once: two outcomes of one claim are in the batch")
        if not any(_may_ride(commit) for commit in commits):
            return _ended((yield self._flush_call(commits, {})))
        landed: list[Row] = []
        if any(commit.children for commit in commits):
            landed = yield from self._spawn(commits)
            counts = Counter(row[0] for row in landed)
            rows = yield self._flush_call(commits, counts)
        else:
            _, rows = yield (Begin(), self._flush_call(commits, {}))
        ended = _ended(rows)
        woken = [row[2] for row in landed]
        calls, wakers = self._riders(commits, rows)
        answers = yield (*calls, operation.Commit())
        for index, column in wakers:
            woken += [row[column] for row in answers[index] if row[column] is not None]
        return replace(ended, woken=tuple(dict.fromkeys(woken)))

    def _flush_call(self, commits: Sequence[Commit], landed: Mapping[int, int]) -> Call:
        columns = zip(*((*commit.columns(), landed.get(commit.id, 0)) for commit in commits), strict=True)
        return call(self._sql["picker/flush"], *(list(column) for column in columns))

    def _spawn(self, commits: Sequence[Commit]) -> Operation[list[Row]]:
        """Begin, lock, and insert the children of the parents that are still owned. (parent, id, queue) per child."""
        _, _, owned = yield (
            Begin(),
            call(self._sql["picker/flush_patience"], SPAWN_PATIENCE_MS),
            call(
                self._sql["picker/flush_lock"],
                [c.id for c in commits],
                [c.claim for c in commits],
                [c.turn for c in commits],
                [c.kind for c in commits],
            ),
        )
        holds = {(row[0], row[1]) for row in owned}
        children = [
            (*job.columns(), commit.id)
            for commit in commits
            if (commit.id, commit.claim) in holds
            for job in commit.children
        ]
        if not children:
            return []
        columns = zip(*children, strict=True)
        rows: list[Row] = yield call(
            self._sql["picker/flush_children"], *(list(column) for column in columns)
        )
        return rows

    def _riders(
        self, commits: Sequence[Commit], rows: Sequence[Row]
    ) -> tuple[list[Call], list[tuple[int, int]]]:
        """The riders of what committed, and (index of the call, column) for those that answer with woken queues."""
        committed = {(row[0], row[1]) for row in rows}
        won = [commit for commit in commits if (commit.id, commit.claim) in committed]
        calls: list[Call] = []
        wakers: list[tuple[int, int]] = []
        if ends := [commit.id for commit in won if commit.kind in ENDS]:
            calls.append(call(self._sql["picker/flush_drop"], ends))
        if consumed := [(commit.id, signal) for commit in won for signal in commit.consumed]:
            targets, signals = zip(*consumed, strict=True)
            calls.append(call(self._sql["picker/flush_consume"], targets, signals))
        if parents := [row[5] for row in rows if row[5] is not None]:
            wakers.append((len(calls), 1))
            calls.append(call(self._sql["picker/flush_join"], parents))
        if parked := [commit.id for commit in won if commit.awaits]:
            presented = [signal for commit in won for signal in commit.presented]
            wakers.append((len(calls), 0))
            calls.append(call(self._sql["picker/flush_recheck"], parked, presented))
        return calls, wakers

    def signal(
        self, target: int | str, name: str, payload: object = None, dedup_key: str | None = None
    ) -> Operation[Delivery]:
        """Deliver a signal to a live instance, named by its id or by the identity that it occupies.

        `payload`: any JSON value but None, which stands for `{}`. A delivery of a `dedup_key` that this target was sent
        before is a `duplicate`, also when the first was consumed long ago; it wakes nobody. Raises UnstorableValue.
        """
        by_id = isinstance(target, int) and not isinstance(target, bool)
        if by_id:
            if target not in BIGINT:
                return Delivery("no_target")
        else:
            check_text("target", target)
        check_key("name", name)
        if dedup_key is not None:
            check_key("dedup_key", dedup_key)
        rows = yield call(
            self._sql["picker/signal"],
            target if by_id else None,
            None if by_id else target,
            name,
            to_json("payload", {} if payload is None else payload),
            dedup_key,
        )
        if not rows:
            return Delivery("no_target")
        [(found, signal, woken)] = rows
        return Delivery("duplicate" if signal is None else "delivered", found, signal, woken)

    def enrich(self, ids: Sequence[int]) -> Operation[dict[int, Surroundings]]:
        """The inbox and the children of each of these instances, read after their claim committed."""
        if not ids:
            return {}
        signals, children = yield (
            call(self._sql["picker/inbox"], list(ids)),
            call(self._sql["picker/children"], list(ids)),
        )
        found = dict.fromkeys(ids, NOTHING_AROUND)
        inboxes: dict[int, list[Signal]] = {}
        families: dict[int, list[Child]] = {}
        for row in signals:
            inboxes.setdefault(row[0], []).append(Signal(*row[1:]))
        for row in children:
            families.setdefault(row[0], []).append(Child(*row[1:]))
        for row_id in inboxes.keys() | families.keys():
            found[row_id] = Surroundings(tuple(inboxes.get(row_id, ())), tuple(families.get(row_id, ())))
        return found

    def expire_awaits(self, limit: int) -> Operation[Expired]:
        """Wake up to `limit` parked instances whose deadline has passed."""
        _check_range("limit", limit, BATCH)
        rows = yield call(self._sql["picker/expire_awaits"], limit)
        return Expired(
            tuple(sorted(row[0] for row in rows)),
            int(rows[0][2]) if rows else None,
            tuple(dict.fromkeys(row[1] for row in rows)),
        )

    def heartbeat(self, holds: Sequence[Hold], lease_ms: float) -> Operation[tuple[Hold, ...]]:
        """Extend the leases of claims still held. Returns those extended; a row locked at that moment is not."""
        _check_lease(lease_ms)
        if not holds:
            return ()
        rows = yield call(self._sql["picker/heartbeat"], *_columns(holds), float(lease_ms))
        return tuple(Hold(row[0], row[1]) for row in rows)

    def release(self, holds: Sequence[Hold]) -> Operation[Ended]:
        """Give claims back: runnable at once, attempt and place in the queue kept. An identity whose scope ended with
        the claim stays given up. `freed` holds the slots that the rows were stamped with."""
        if not holds:
            return Ended((), None)
        return _ended((yield call(self._sql["picker/release"], *_columns(holds))))

    def reap(self, limit: int) -> Operation[Ended]:
        """Take back up to `limit` claims whose lease has run out."""
        _check_range("limit", limit, BATCH)
        return _ended((yield call(self._sql["picker/reap"], limit)))


def _columns(holds: Sequence[Hold]) -> tuple[list[int], list[str]]:
    return [hold.id for hold in holds], [hold.claim for hold in holds]


def _claimed(row: Row, claim: str) -> Claimed:
    _, *columns, awaits = row
    return Claimed(*(*columns, claim, None if awaits is None else tuple(awaits)))


def _may_ride(commit: Commit) -> bool:
    return commit.kind in ENDS or bool(commit.awaits or commit.consumed or commit.children)


def _ended(rows: Sequence[Row]) -> Ended:
    freed = tuple(Slot(row[3], row[4]) for row in rows if len(row) > 4 and row[3] is not None)
    return Ended(tuple(Hold(row[0], row[1]) for row in rows), int(rows[0][2]) if rows else None, freed)


def _check_range(name: str, value: object, allowed: range) -> None:
    # True is a number to Python and "t" on the wire; 1.0 is in the range and no integer on the wire.
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnstorableValue(f"{name} must be an integer, not {value!r}")
    if value not in allowed:
        raise UnstorableValue(f"{name} must be within {allowed.start} and {allowed.stop - 1}, not {value}")


def _check_lease(lease_ms: float) -> None:
    if not -MAX_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
        raise UnstorableValue(f"lease_ms must be finite and at most a hundred years, not {lease_ms}")


def _check_finite(name: str, amount: float) -> None:
    if not isfinite(amount):
        raise UnstorableValue(f"{name} must be finite, not {amount}")


def _check_weight(weight: object) -> None:
    try:
        if isinstance(weight, int | float) and 0 < float(weight) < float("inf"):
            return
    except OverflowError:
        pass
    raise UnstorableValue(f"weight must be a positive, finite number, not {weight!r:.40}")
