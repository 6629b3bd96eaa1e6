"""The Hypothesis machine that holds the picker on a real server against the pure model, after every step.

Every step is one operation of the engine in one of several sessions, or something that happens around them: time
passes, another session takes row locks or lets them go. After each, the answer and the whole tables must be what
the model predicts. Claims that were lost are kept and used again, so that stale outcomes, heartbeats and releases are
as common as good ones.

`TableMachine` is what this machine and that of `models.coordination_machine` have in common.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    multiple,
    precondition,
    rule,
)

from engine.picker import Claimed, Commit, Ended, Hold, Job, Picker
from engine.statements import Catalogue
from models import outcomes
from models import picker as model
from models.canonical import canonical_text
from models.sessions import PLANNERS, Seen, Sessions, Stored
from models.strategies import START, crowded_jobs, crowded_queues

# Inserts stop at about this many rows.
MAX_ROWS = 12

OUTCOMES: tuple[Mapping[str, Any], ...] = (
    {"kind": "next"},
    {"kind": "next", "step": "other", "state": '{"n": 1e3}'},
    {"kind": "next", "step": "", "state": "{}"},
    {"kind": "retry"},
    {"kind": "retry", "error": "once more"},
    {"kind": "retry", "delay_ms": 30_000.0, "error": "it failed: '\\u0000' \"{}\""},
    {"kind": "retry", "delay_ms": 0.0005},
    {"kind": "retry", "delay_ms": -1.5},
    {"kind": "done"},
    {"kind": "done", "result": "null"},
    {"kind": "done", "result": '"\\\\u0000"', "state": '{"": []}'},
    {"kind": "stop", "error": ""},
    {"kind": "stop", "error": "it failed"},
)


class OutOfTime(BaseException):
    """The budget is spent. No Exception, so that Hypothesis lets it through at once, as it does a Ctrl-C."""


@dataclass
class Tally:
    """What a fuzzing run counts, and the shortest failing run of steps it has seen, shrunk to the end or not.

    `deadline` and `first_failure` are readings of `time.monotonic()`; `shrink_seconds` is the most that may pass
    between the two.
    """

    deadline: float = float("inf")
    shrink_seconds: float = float("inf")
    out_of_time: bool = False
    examples: int = 0
    steps: int = 0
    shortest_failure: list[str] = field(default_factory=list)
    first_failure: float | None = None

    def note_failure(self, steps: list[str], error: Exception) -> None:
        if self.first_failure is None:
            self.first_failure = time.monotonic()
            self.deadline = min(self.deadline, self.first_failure + self.shrink_seconds)
        if not self.shortest_failure or len(steps) + 1 < len(self.shortest_failure):
            self.shortest_failure = [*steps, f"{type(error).__name__}: {error}"]


def picker_machine(
    sessions: Sessions, tally: Tally, catalogue: Catalogue | None = None
) -> type[RuleBasedStateMachine]:
    """The machine bound to a server's sessions and a catalogue of statements."""
    return type(
        "PickerMachine",
        (PickerMachine,),
        {"sessions": sessions, "tally": tally, "picker": Picker(catalogue), "__doc__": PickerMachine.__doc__},
    )


class TableMachine(RuleBasedStateMachine):
    """Sessions, a clock and the model's table, and operations that are performed on both."""

    sessions: ClassVar[Sessions]
    tally: ClassVar[Tally]
    picker: ClassVar[Picker]

    planners = st.sampled_from(tuple(PLANNERS))
    leases_ms = st.sampled_from((30_000.0, 1_000.0, 0.0, 0.001, -1.0, -60_000.0))
    # Which of those that there are, in turn.
    picks = st.integers(0, 11)

    can_lock = precondition(lambda self: self.table.rows and not self.locked)

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.table = model.Table()
        self.locked: frozenset[int] = frozenset()
        self.claims_made = 0
        self.has_held = False
        self.steps: list[str] = []
        self.sessions.reset(START)

    def teardown(self) -> None:
        self.sessions.let_go()
        # One that was cut short proves nothing.
        self.tally.examples += not self.tally.out_of_time

    def _insert(self, planner: str, job: Job) -> None:
        with self._step(f"insert({planner}, {job})"):
            self.table, expected = model.insert(self.table, self.now, job)
            same("insert", expected, self.sessions.perform(planner, self.picker.insert(job)))

    def _insert_many(self, planner: str, jobs: list[Job]) -> None:
        with self._step(f"insert_many({planner}, {jobs})"):
            self.table, expected = model.insert_many(self.table, self.now, jobs)
            same("insert_many", expected, self.sessions.perform(planner, self.picker.insert_many(jobs)))

    def _claim(
        self, planner: str, name: str, queue: str, batch: int, lease_ms: float, gates: tuple[str, ...]
    ) -> list[Hold]:
        with self._step(
            f"claim({planner}, {queue!r}, batch={batch}, {name!r}, lease_ms={lease_ms}, {gates})"
        ):
            operation = self.picker.claim(
                queue=queue, batch=batch, claim=name, lease_ms=lease_ms, gates=gates
            )
            answer = self.sessions.perform(planner, operation)
            self.table, expected = model.claim(
                self.table,
                self.now,
                queue=queue,
                batch=batch,
                claim=name,
                lease_ms=lease_ms,
                gates=gates,
                locked=self.locked,
                preferred={row.id for row in answer.rows},
            )
            same(
                "claim",
                [_as_claimed(row, name) for row in expected],
                [_canonical(row) for row in answer.rows],
            )
            same("races lost by a lone claim", 0, answer.contended)
            self.has_held |= bool(expected)
            return [Hold(row.id, name) for row in expected]

    def _flush(self, planner: str, commits: list[Commit]) -> tuple[Hold, ...]:
        """All but what would wait for a lock that is held. The claims that committed."""
        going = [commit for commit in commits if not outcomes.flush_locks(self.table, [commit]) & self.locked]
        with self._step(f"flush({planner}, {going})"):
            self.table, expected = outcomes.flush(self.table, self.now, going)
            same_ends("flush", expected, self.sessions.perform(planner, self.picker.flush(going)))
            return expected.holds

    def _heartbeat(self, planner: str, held: list[Hold], lease_ms: float) -> None:
        with self._step(f"heartbeat({planner}, {held}, lease_ms={lease_ms})"):
            self.table, expected = model.heartbeat(self.table, self.now, held, lease_ms, self.locked)
            answer = self.sessions.perform(planner, self.picker.heartbeat(held, lease_ms))
            same("heartbeat", expected, tuple(sorted(answer, key=lambda hold: hold.id)))

    def _release(self, planner: str, held: list[Hold]) -> None:
        free = [hold for hold in held if not model.release_locks(self.table, [hold]) & self.locked]
        with self._step(f"release({planner}, {free})"):
            self.table, expected = model.release(self.table, self.now, free)
            same_ends("release", expected, self.sessions.perform(planner, self.picker.release(free)))

    def _reap(self, planner: str, limit: int) -> None:
        with self._step(f"reap({planner}, {limit})"):
            self.table, expected = model.reap(self.table, self.now, limit, self.locked)
            same_ends("reap", expected, self.sessions.perform(planner, self.picker.reap(limit)))

    @precondition(lambda self: self.has_held)
    @rule(passed=st.sampled_from((timedelta(microseconds=1), timedelta(seconds=31), timedelta(days=2), None)))
    def pass_time(self, passed: timedelta | None) -> None:
        """By that much; None: to the next instant at which a row becomes eligible, or a lease or a wait runs out."""
        self._pass_time(passed)

    def _pass_time(self, passed: timedelta | None) -> None:
        with self._step(f"pass_time({passed!r})"):
            edges = [instant for instant in _edges(self.table) if instant > self.now]
            self.now = self.now + passed if passed is not None else min(edges, default=self.now)
            self.sessions.set_time(self.now)

    @can_lock
    @rule(which=st.lists(picks, min_size=1, max_size=3))
    def lock(self, which: list[int]) -> None:
        ids = sorted(self.table.rows)
        chosen = frozenset(ids[pick % len(ids)] for pick in which)
        with self._step(f"lock({sorted(chosen)})"):
            self.sessions.hold(chosen)
            self.locked = chosen

    @precondition(lambda self: self.locked)
    @rule()
    def let_go(self) -> None:
        with self._step("let_go()"):
            self.sessions.let_go()
            self.locked = frozenset()

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        if time.monotonic() > self.tally.deadline:
            self.tally.out_of_time = True
            raise OutOfTime
        self.tally.steps += 1
        self.steps.append(text)
        try:
            yield
            _same_tables(self.table, self.sessions.stored())
        except Exception as error:
            self.tally.note_failure(self.steps, error)
            raise


class PickerMachine(TableMachine):
    """Not to be run as it is: `picker_machine` binds it."""

    # Every claim ever made, lost ones too.
    holds: Bundle[Hold] = Bundle("holds")

    # A bundle inside of another strategy does not keep its rule away while it is empty.
    some_hold = precondition(lambda self: self.has_held)
    # What comes too easily leaves too few steps for the rest.
    room_for_rows = precondition(lambda self: len(self.table.rows) < MAX_ROWS)

    planners = TableMachine.planners
    leases_ms = TableMachine.leases_ms

    @initialize(planner=planners, jobs=st.lists(crowded_jobs(START), min_size=1, max_size=8))
    def begin(self, planner: str, jobs: list[Job]) -> None:
        self._insert_many(planner, jobs)

    @room_for_rows
    @rule(planner=planners, job=crowded_jobs(START))
    def insert(self, planner: str, job: Job) -> None:
        self._insert(planner, job)

    @room_for_rows
    @rule(planner=planners, jobs=st.lists(crowded_jobs(START), max_size=6))
    def insert_many(self, planner: str, jobs: list[Job]) -> None:
        self._insert_many(planner, jobs)

    @rule(
        target=holds,
        planner=planners,
        queue=crowded_queues,
        batch=st.sampled_from((100, 3, 2, 1, 0)),
        lease_ms=leases_ms,
        gates=st.sampled_from(((), (), (), ("a",), ("", "1"))),
    )
    def claim(
        self, planner: str, queue: str, batch: int, lease_ms: float, gates: tuple[str, ...]
    ) -> MultipleResults[Hold]:
        self.claims_made += 1
        return multiple(*self._claim(planner, f"claim {self.claims_made}", queue, batch, lease_ms, gates))

    @some_hold
    @rule(
        planner=planners,
        ends=st.lists(
            st.tuples(holds, st.sampled_from(OUTCOMES)), max_size=5, unique_by=lambda outcome: outcome[0]
        ),
    )
    def flush(self, planner: str, ends: list[tuple[Hold, Mapping[str, Any]]]) -> None:
        self._flush(planner, [Commit(id=hold.id, claim=hold.claim, **outcome) for hold, outcome in ends])

    @precondition(lambda self: any(row.locked_by is not None for row in self.table.rows.values()))
    @rule(planner=planners, outcome=st.sampled_from(OUTCOMES))
    def flush_all_held(self, planner: str, outcome: Mapping[str, Any]) -> None:
        """Each row that is held, with one outcome: the claims drawn from all that ever were are mostly lost."""
        commits = [
            Commit(id=row.id, claim=row.locked_by, **outcome)
            for row in self.table.rows.values()
            if row.locked_by is not None
        ]
        self._flush(planner, commits)

    @some_hold
    @rule(planner=planners, held=st.lists(holds, max_size=5), lease_ms=leases_ms)
    def heartbeat(self, planner: str, held: list[Hold], lease_ms: float) -> None:
        self._heartbeat(planner, held, lease_ms)

    @some_hold
    @rule(planner=planners, held=st.lists(holds, min_size=1, max_size=5))
    def release(self, planner: str, held: list[Hold]) -> None:
        self._release(planner, held)

    @some_hold
    @rule(planner=planners, late=st.booleans(), limit=st.sampled_from((1, 2, 100, 0)))
    def reap(self, planner: str, late: bool, limit: int) -> None:
        """Late, when leases that began together have run out one after the other, there is an order to be kept."""
        if late:
            self._pass_time(timedelta(seconds=31))
        self._reap(planner, limit)


# Rows of the year 9999 are there to be ordered, not to be waited for.
_LAST_EDGE = datetime(9000, 1, 1, tzinfo=UTC)


def _edges(table: model.Table) -> list[datetime]:
    instants = [row.eligible_at for row in table.rows.values() if row.status == "runnable"]
    instants += [row.lease_expires_at for row in table.rows.values() if row.lease_expires_at is not None]
    instants += [row.await_deadline for row in table.rows.values() if row.await_deadline is not None]
    return [instant for instant in instants if instant < _LAST_EDGE]


def _as_claimed(row: model.Row, claim: str) -> Claimed:
    return Claimed(
        row.id,
        row.fsm,
        row.fsm_version,
        row.step,
        row.state,
        row.attempt,
        row.queue,
        row.priority,
        row.concurrency_key,
        row.concurrency_shard,
        row.rate_limit,
        row.weight,
        claim,
        row.awaits,
    )


def _canonical(claimed: Claimed) -> Claimed:
    values = {name: getattr(claimed, name) for name in Claimed.__struct_fields__}
    return Claimed(**{**values, "state": canonical_text(claimed.state)})


def same(what: str, expected: object, answer: object) -> None:
    """Raises AssertionError where the engine's answer is another than the model's."""
    assert answer == expected, f"{what}: the model says {expected!r}, the engine {answer!r}"


def same_ends(what: str, expected: model.Ended, answer: Ended) -> None:
    """Raises AssertionError where the engine ended, freed or woke something else than the model."""
    same(what, expected.holds, model.by_id(answer.holds))
    same(f"{what} names a transaction", bool(expected.holds), answer.xid is not None)
    same(f"slots freed by {what}", expected.freed, model.by_key(answer.freed))
    same(f"queues woken by {what}", sorted(expected.woken), sorted(answer.woken))


def _same_tables(expected: model.Table, stored: Stored) -> None:
    differences = []
    for row_id in sorted({*expected.rows, *stored.rows}):
        row, seen = expected.rows.get(row_id), stored.rows.get(row_id)
        if row is None or seen is None:
            where = "only the engine has" if row is None else "only the model has"
            differences.append(f"{where} row {row_id}")
        elif seen != Seen(row, row.concurrency_name, row.correlation_guard):
            differences += _column_differences(row, seen)
    if expected.signals != stored.signals:
        differences.append(f"signals: the model says {expected.signals!r}, the engine {stored.signals!r}")
    if expected.receipts != stored.receipts:
        differences.append(f"receipts: the model says {expected.receipts!r}, the engine {stored.receipts!r}")
    assert not differences, "the tables differ: " + "; ".join(differences)


def _column_differences(row: model.Row, seen: Seen) -> list[str]:
    pairs = {
        each.name: (getattr(row, each.name), getattr(seen.row, each.name))
        for each in fields(row)
        if each.compare
    }
    pairs["concurrency_name"] = (row.concurrency_name, seen.concurrency_name)
    pairs["correlation_guard"] = (row.correlation_guard, seen.correlation_guard)
    return [
        f"row {row.id}, {name}: the model says {expected!r}, the engine {stored!r}"
        for name, (expected, stored) in pairs.items()
        if expected != stored
    ]
