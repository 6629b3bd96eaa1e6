"""The Hypothesis machine that holds signals, children, continuations and maintenance against their models.

A drawn intention becomes an outcome as the scheduler would make it: a step is handed its inbox and its children after
its claim, and after each continuation; what it presents and consumes is what it was handed, or, now and then, less or
more. Executions that lost their row are kept and come back with stale outcomes, alone and among good ones. Names,
dedup keys and payloads are drawn odd, and each example has few of them, so that they meet.

Two operations may meet at one row: another session holds its lock, they queue up behind it, and it lets go. They take
effect one after the other, so the outcome is determined; but the second has read the world before the first changed it.
That is where the races are that one session alone cannot show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count, cycle, product
from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from psycopg import errors

from engine.limits import PROVISIONAL_SHARD
from engine.maintenance import EVER, Maintenance, Place
from engine.operation import Operation
from engine.picker import PROGRESSES, Commit, Hold, Job, Picker, Surroundings
from engine.statements import Catalogue
from models import inbox, maintenance, outcomes
from models import picker as model
from models.canonical import canonical_text
from models.intentions import Intention, continuations, ends, intentions, leases_ms, parks, spawns
from models.machine import TableMachine, Tally, same, same_ends
from models.sessions import PLANNERS, Sessions
from models.strategies import (
    CROWDED_IDENTITIES,
    CROWDED_QUEUES,
    START,
    coordinated_jobs,
    crowded_queues,
    json_values,
    keys,
)

# Inserts stop at about this many rows, and children at exactly this many.
MAX_ROWS = 16
NODES = ("a", "a-1", "%")
GATES = ("g",)
NO_ROW = 999


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one step: its claim and turn, what it awaited, and (id, name) of each signal it was handed."""

    hold: Hold
    turn: int
    awaits: tuple[str, ...]
    handed: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Errand:
    """An operation that waits for a row: how the engine does it, and how the model."""

    text: str
    locks: frozenset[int]
    operation: Callable[[], Operation[Any]]
    model: Callable[[model.Table], tuple[model.Table, Any]]
    compare: Callable[[Any, Any], None]
    commits: tuple[Commit, ...] = ()


payloads = st.sampled_from((None, 0, [], {"n": 1})) | json_values


def coordination_machine(
    sessions: Sessions,
    tally: Tally,
    catalogue: Catalogue | None = None,
    picker: Callable[[Catalogue | None], Picker] = Picker,
) -> type[RuleBasedStateMachine]:
    """The machine bound to a server's sessions and a catalogue of statements; `picker` makes the picker of it."""
    bound = {
        "sessions": sessions,
        "tally": tally,
        "picker": picker(catalogue),
        "maintenance": Maintenance(catalogue),
        "__doc__": CoordinationMachine.__doc__,
    }
    return type("CoordinationMachine", (CoordinationMachine,), bound)


class CoordinationMachine(TableMachine):
    """Not to be run as it is: `coordination_machine` binds it."""

    maintenance: ClassVar[Maintenance]

    planners = TableMachine.planners
    picks = TableMachine.picks
    names_picked = st.integers(0, 2)
    dedup_keys_picked = st.none() | st.integers(0, 1)
    limits = st.sampled_from((100, 100, 2, 1, 0))
    whiles = st.sampled_from((None, timedelta(microseconds=1), timedelta(seconds=30), timedelta(seconds=31)))

    some_current = precondition(lambda self: self._current())
    some_row = precondition(lambda self: self.table.rows)
    unlocked = precondition(lambda self: self.table.rows and not self.locked)

    def __init__(self) -> None:
        super().__init__()
        # Every execution ever, lost ones too.
        self.executions: list[Execution] = []
        self.names: tuple[str, ...] = ()
        self.dedup_keys: tuple[str, ...] = ()
        self.place: tuple[datetime, int] | None = None

    @initialize(
        planner=planners,
        jobs=st.lists(coordinated_jobs(START), min_size=2, max_size=5),
        odd=st.lists(keys, min_size=3, max_size=3, unique=True),
    )
    def begin(self, planner: str, jobs: list[Job], odd: list[str]) -> None:
        """Some jobs, most of them executing."""
        self.names = ("go", *odd[:2])
        self.dedup_keys = ("d", odd[2])
        self._insert_many(planner, jobs)
        self._claim_and_hand(planner, "a", CROWDED_QUEUES[0], 100, 30_000.0, GATES)

    # ---- rows and claims ---------------------------------------------------------------------------------------

    @rule(
        planner=planners,
        jobs=st.lists(coordinated_jobs(START), max_size=2),
        node=st.sampled_from(NODES),
        queue=st.one_of(st.just(CROWDED_QUEUES[0]), crowded_queues),
        batch=st.sampled_from((100, 100, 2, 1)),
        lease_ms=leases_ms,
        gates=st.sampled_from((GATES, GATES, ())),
        shard=st.sampled_from((None, 0, 1)),
    )
    def claim(
        self,
        planner: str,
        jobs: list[Job],
        node: str,
        queue: str,
        batch: int,
        lease_ms: float,
        gates: tuple[str, ...],
        shard: int | None,
    ) -> None:
        """Of old and of new jobs; with a shard, those that ask for a slot hold one of that shard from here on."""
        if jobs and len(self.table.rows) < MAX_ROWS:
            self._insert_many(planner, jobs)
        self._claim_and_hand(planner, node, queue, batch, lease_ms, gates)
        if shard is not None:
            self._admit(shard)

    def _claim_and_hand(
        self, planner: str, node: str, queue: str, batch: int, lease_ms: float, gates: tuple[str, ...]
    ) -> None:
        urgencies = [row.urgency for row in self.table.rows.values() if row.status == "runnable"]
        batch = _untied(batch, urgencies)
        self.claims_made += 1
        name = f"i:{queue}@{node}-{self.claims_made:x}"
        self._hand(planner, self._claim(planner, name, queue, batch, lease_ms, gates))

    def _hand(self, planner: str, holds: Sequence[Hold]) -> None:
        """The executions that begin: their inboxes and children are read, and must be what the model says."""
        if not holds:
            return
        self._enrich(planner, [*(hold.id for hold in holds), NO_ROW])
        for hold in holds:
            row = self.table.rows[hold.id]
            handed = tuple((signal.id, signal.name) for signal in self.table.inbox(hold.id))
            self.executions.append(Execution(hold, row.turn, row.awaits or (), handed))

    def _enrich(self, planner: str, ids: list[int]) -> None:
        with self._step(f"enrich({planner}, {ids})"):
            answer = self.sessions.perform(planner, self.picker.enrich(ids))
            expected = {row_id: inbox.surroundings(self.table, row_id) for row_id in ids}
            same("enrich", expected, {row_id: _canonical(around) for row_id, around in answer.items()})

    def _admit(self, shard: int) -> None:
        asking = [row for row in self.table.rows.values() if row.concurrency_shard == PROVISIONAL_SHARD]
        admitted = [row for row in asking if row.id not in self.locked]
        with self._step(f"admit({[row.id for row in admitted]}, {shard})"):
            for row in admitted:
                self.sessions.stamp(row.id, shard)
            self.table = self.table.changed(replace(row, concurrency_shard=shard) for row in admitted)

    @some_current
    @rule(
        planner=planners,
        extended=st.booleans(),
        which=st.lists(picks, min_size=1, max_size=3),
        lease_ms=leases_ms,
    )
    def lease(self, planner: str, extended: bool, which: list[int], lease_ms: float) -> None:
        """Leases are extended or given back."""
        if extended:
            self._heartbeat(planner, self._holds(which), lease_ms)
        else:
            self._release(planner, self._holds(which))

    # ---- outcomes ----------------------------------------------------------------------------------------------

    @some_current
    @rule(
        planner=planners,
        drawn=st.lists(st.tuples(picks, intentions), min_size=1, max_size=5),
        claims=st.booleans(),
    )
    def flush(self, planner: str, drawn: list[tuple[int, Intention]], claims: bool) -> None:
        """Outcomes of all kinds in one batch, good ones and stale ones."""
        commits: dict[Hold, Commit] = {}
        for pick, intention in drawn:
            execution = self._execution(pick)
            commits.setdefault(execution.hold, self._commit(execution, intention))
        self._flush_and_go_on(planner, list(commits.values()))
        if claims:
            self._claim_what_there_is(planner)

    # Hypothesis leaves out rules at random, so each of these gets somewhere by itself: who is outside comes in.

    @some_row
    @rule(
        planner=planners,
        rounds=st.lists(st.lists(intentions, min_size=1, max_size=4), min_size=1, max_size=3),
        late=st.none() | st.tuples(st.integers(9, 11), intentions),
    )
    def work(self, planner: str, rounds: list[list[Intention]], late: tuple[int, Intention] | None) -> None:
        """Rounds of outcomes for all that execute, perhaps a late one among them."""
        for drawn in rounds:
            commits = self._commits(self._current(), drawn)
            if late is not None and self.executions:
                execution = self._execution(late[0])
                if execution.hold not in {Hold(commit.id, commit.claim) for commit in commits}:
                    commits.append(self._commit(execution, late[1]))
            self._round(planner, commits)

    @some_current
    @rule(
        planner=planners,
        drawn=st.lists(spawns, min_size=1, max_size=2),
        pick=picks,
        ending=st.lists(ends, max_size=3),
    )
    def spawn(self, planner: str, drawn: list[Intention], pick: int, ending: list[Intention]) -> None:
        """One or two parents fan out, children among them; all children may end at once, in one batch."""
        current = self._current()
        first = pick % len(current)
        self._round(planner, self._commits(current[first : first + len(drawn)], drawn))
        if ending:
            self._round(planner, self._commits(self._children(), ending))

    @precondition(lambda self: self._children())
    @rule(planner=planners, drawn=st.lists(ends, min_size=1, max_size=3), spared=st.integers(0, 1))
    def end_children(self, planner: str, drawn: list[Intention], spared: int) -> None:
        """All children that execute, or all but one, end in one batch."""
        self._round(planner, self._commits(self._children()[spared:], drawn))

    @some_current
    @rule(
        planner=planners,
        drawn=st.lists(parks, min_size=1, max_size=3),
        pick=picks,
        arriving=st.lists(st.tuples(names_picked, dedup_keys_picked), max_size=2),
        goes_on=st.none() | intentions,
        again=st.booleans(),
    )
    def park(
        self,
        planner: str,
        drawn: list[Intention],
        pick: int,
        arriving: list[tuple[int, int | None]],
        goes_on: Intention | None,
        again: bool,
    ) -> None:
        """One park or a few; signals come before it that their steps are not handed.

        Whom they wake may go on; a sender whose answer was lost sends them once more.
        """
        current = self._current()
        first = pick % len(current)
        parking = current[first : first + len(drawn)]
        letters = list(product([each.hold.id for each in parking], arriving))
        for row_id, (name, dedup_key) in letters:
            self._deliver(planner, row_id, name, None, dedup_key)
        self._round(planner, self._commits(parking, drawn))
        if goes_on is not None:
            self._round(planner, self._commits(self._of(each.hold.id for each in parking), [goes_on]))
        if again:
            for row_id, (name, dedup_key) in letters:
                self._deliver(planner, row_id, name, None, dedup_key)

    @some_current
    @rule(
        planner=planners,
        drawn=st.tuples(continuations, intentions),
        pick=picks,
        goes_on=st.none() | intentions,
    )
    def send_twice(
        self, planner: str, drawn: tuple[Intention, Intention], pick: int, goes_on: Intention | None
    ) -> None:
        """A batch whose answer was lost is sent again, perhaps after what it let continue has gone on."""
        current = self._current()
        first = pick % len(current)
        commits = self._commits(current[first : first + len(drawn)], drawn)
        self._flush_and_go_on(planner, commits)
        if goes_on is not None:
            going = self._of(commit.id for commit in commits)
            self._flush_and_go_on(planner, self._commits(going, [goes_on]))
        self._flush_and_go_on(planner, commits)

    def _commits(self, executions: Sequence[Execution], drawn: Sequence[Intention]) -> list[Commit]:
        return [self._commit(each, end) for each, end in zip(executions, cycle(drawn), strict=False)]

    def _round(self, planner: str, commits: list[Commit]) -> None:
        if commits:
            self._flush_and_go_on(planner, commits)
        self._claim_what_there_is(planner)

    def _claim_what_there_is(self, planner: str) -> None:
        if any(row.status == "runnable" for row in self.table.rows.values()):
            node = NODES[self.claims_made % len(NODES)]
            self._claim_and_hand(planner, node, CROWDED_QUEUES[0], 100, 30_000.0, GATES)
            if any(row.concurrency_shard == PROVISIONAL_SHARD for row in self.table.rows.values()):
                self._admit(self.claims_made % 2)

    def _flush_and_go_on(self, planner: str, commits: list[Commit]) -> None:
        committed = self._flush(planner, _within_room(commits, MAX_ROWS - len(self.table.rows)))
        self._hand(planner, _continuing(commits, committed))

    def _commit(self, execution: Execution, intention: Intention) -> Commit:
        parks = intention.kind == "await"
        handed = [signal_id for signal_id, name in execution.handed if parks or name in execution.awaits]
        inbox_now = [signal.id for signal in self.table.inbox(execution.hold.id)]
        read = {
            "handed": handed,
            "less": handed[1:],
            "later": inbox_now[1:],
            "everything": sorted(self.table.signals),
        }[intention.reads]
        return Commit(
            id=execution.hold.id,
            claim=execution.hold.claim,
            turn=execution.turn,
            kind=intention.kind,
            awaits=tuple(self.names[name] for name in intention.names) if parks else None,
            presented=tuple(read) if parks else (),
            consumed=tuple(read) if intention.kind in PROGRESSES else (),
            children=intention.children,
            **intention.fields,
        )

    # ---- signals -----------------------------------------------------------------------------------------------

    @some_row
    @rule(
        planner=planners,
        address=st.one_of(st.sampled_from((*CROWDED_IDENTITIES, NO_ROW)), picks),
        name=names_picked,
        payload=payloads,
        dedup_key=dedup_keys_picked,
    )
    def signal(
        self, planner: str, address: int | str, name: int, payload: object, dedup_key: int | None
    ) -> None:
        """To an identity, to any row, ended ones too, or to none."""
        found = self._row(address).id if isinstance(address, int) and address != NO_ROW else address
        self._deliver(planner, found, name, payload, dedup_key)

    @some_row
    @rule(planner=planners, pick=picks, payload=payloads, dedup_key=dedup_keys_picked)
    def signal_to_who_waits(self, planner: str, pick: int, payload: object, dedup_key: int | None) -> None:
        """Where any row is parked, to one of those, and by a name that it awaits."""
        parked = [row for row in self.table.rows.values() if row.status == "awaiting_signal"] or [
            self._row(pick)
        ]
        row = parked[pick % len(parked)]
        name = self.names.index(row.awaits[pick % len(row.awaits)]) if row.awaits else 0
        self._deliver(planner, row.id, name, payload, dedup_key)

    def _deliver(
        self, planner: str, target: int | str, name: int, payload: object, dedup_key: int | None
    ) -> None:
        errand = self._delivery(target, name, payload, dedup_key)
        if not errand.locks & self.locked:
            self._perform(planner, errand)

    # ---- two at one row ----------------------------------------------------------------------------------------

    @unlocked
    @rule(
        pick=picks,
        firsts=st.tuples(st.sampled_from(("flush", "flush", "signal", "release")), intentions),
        seconds=st.tuples(st.sampled_from(("flush", "signal", "signal", "release")), intentions),
        name=names_picked,
        dedup_key=dedup_keys_picked,
        planners_used=st.permutations(tuple(PLANNERS)),
    )
    def meet(
        self,
        pick: int,
        firsts: tuple[str, Intention],
        seconds: tuple[str, Intention],
        name: int,
        dedup_key: int | None,
        planners_used: list[str],
    ) -> None:
        """Two operations wait for one row, the second with a snapshot from before the first took effect."""
        executing = self._current()
        row = self.table.rows[executing[pick % len(executing)].hold.id] if executing else self._row(pick)
        errands = [self._errand(row, *drawn, name, dedup_key) for drawn in (firsts, seconds)]
        meeting = errands[0].locks & errands[1].locks
        if meeting:
            self._queue(planners_used, max(meeting), errands)

    @unlocked
    @some_current
    @rule(
        pick=picks, parked=parks, signal_first=st.booleans(), planners_used=st.permutations(tuple(PLANNERS))
    )
    def signal_meets_park(
        self, pick: int, parked: Intention, signal_first: bool, planners_used: list[str]
    ) -> None:
        """A signal that a park awaits and the park wait for one row: whoever is first, the row does not stay parked."""
        current = self._current()
        execution = current[pick % len(current)]
        errands = [
            self._flushing([self._commit(execution, parked)]),
            self._delivery(execution.hold.id, parked.names[0] if parked.names else 0, None, None),
        ]
        self._queue(planners_used, execution.hold.id, errands[::-1] if signal_first else errands)

    @unlocked
    @some_current
    @rule(pick=picks, spawning=spawns, planners_used=st.permutations(tuple(PLANNERS)))
    def release_meets_spawn(self, pick: int, spawning: Intention, planners_used: list[str]) -> None:
        """A claim that is given back and a spawn by it wait for the parent: no child lands for a claim that is gone."""
        current = self._current()
        execution = current[pick % len(current)]
        spawned = _within_room([self._commit(execution, spawning)], MAX_ROWS - len(self.table.rows))
        errands = [self._releasing(execution.hold), self._flushing(spawned)]
        self._queue(planners_used, execution.hold.id, errands)

    @unlocked
    @precondition(lambda self: len(self._children()) > 1)
    @rule(pick=picks, ends=st.tuples(ends, ends), planners_used=st.permutations(tuple(PLANNERS)))
    def siblings_end(self, pick: int, ends: tuple[Intention, Intention], planners_used: list[str]) -> None:
        """Two children of one parent end in two flushes that wait for the parent."""
        siblings = self._children()
        first = siblings[pick % len(siblings)]
        parent = self.table.rows[first.hold.id].parent_id
        others = [
            each for each in siblings if each != first and self.table.rows[each.hold.id].parent_id == parent
        ]
        assert parent is not None
        if others:
            errands = [
                self._flushing([self._commit(each, end)])
                for each, end in zip((first, others[0]), ends, strict=True)
            ]
            self._queue(planners_used, parent, errands)

    def _children(self) -> list[Execution]:
        return [each for each in self._current() if self.table.rows[each.hold.id].parent_id is not None]

    def _errand(
        self, row: model.Row, what: str, intention: Intention, name: int, dedup_key: int | None
    ) -> Errand:
        mine = [each for each in self.executions if each.hold.id == row.id]
        if what == "signal" or not mine:
            return self._delivery(row.id, name, None, dedup_key)
        if what == "release":
            return self._releasing(mine[-1].hold)
        return self._flushing(
            _within_room([self._commit(mine[-1], intention)], MAX_ROWS - len(self.table.rows))
        )

    def _releasing(self, hold: Hold) -> Errand:
        return Errand(
            f"release({[hold]})",
            model.release_locks(self.table, [hold]),
            lambda: self.picker.release([hold]),
            lambda table: model.release(table, self.now, [hold]),
            lambda expected, answer: same_ends("release", expected, answer),
        )

    def _flushing(self, commits: list[Commit]) -> Errand:
        return Errand(
            f"flush({commits})",
            outcomes.flush_locks(self.table, commits),
            lambda: self.picker.flush(commits),
            lambda table: outcomes.flush(table, self.now, commits),
            lambda expected, answer: same_ends("flush", expected, answer),
            tuple(commits),
        )

    def _delivery(self, target: int | str, name: int, payload: object, dedup_key: int | None) -> Errand:
        key = None if dedup_key is None else self.dedup_keys[dedup_key]
        arguments = (target, self.names[name], payload, key)
        return Errand(
            f"signal{arguments!r}",
            inbox.delivery_locks(self.table, target),
            lambda: self.picker.signal(*arguments),
            lambda table: inbox.deliver(table, self.now, *arguments),
            lambda expected, answer: same("signal", expected, answer),
        )

    def _perform(self, planner: str, errand: Errand) -> None:
        with self._step(f"{planner}: {errand.text}"):
            answer = self.sessions.perform(planner, errand.operation())
            self.table, expected = errand.model(self.table)
            errand.compare(expected, answer)

    def _queue(self, planners: list[str], held: int, errands: Sequence[Errand]) -> None:
        queue = list(zip(planners[: len(errands)], errands, strict=True))
        text = "; ".join(f"{planner}: {errand.text}" for planner, errand in queue)
        going_on: list[Hold] = []
        with self._step(f"while row {held} is held: {text}"):
            answers = self.sessions.queue([held], [(planner, each.operation()) for planner, each in queue])
            for errand, answer in zip(errands, answers, strict=True):
                if isinstance(answer, errors.LockNotAvailable) and any(c.children for c in errand.commits):
                    continue  # a spawn waits for half a second and no longer; the machine was that busy
                self.table, expected = errand.model(self.table)
                if isinstance(answer, Exception):
                    raise answer
                errand.compare(expected, answer)
                if errand.commits:
                    going_on += _continuing(errand.commits, expected.holds)
        self._hand(planners[0], [hold for hold in going_on if self.table.owned(hold)])

    # ---- sweeps ------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(row.locked_by or row.await_deadline for row in self.table.rows.values()))
    @rule(planner=planners, waits_first=st.booleans(), on_time=st.booleans(), passed=whiles, limit=limits)
    def sweep(
        self, planner: str, waits_first: bool, on_time: bool, passed: timedelta | None, limit: int
    ) -> None:
        """Waits and leases that ran out, in either order; on time: in the instant in which the next wait does, or the
        next lease where nobody waits."""
        rows = self.table.rows.values()
        waits = [row.await_deadline for row in rows if row.await_deadline is not None]
        leases = [row.lease_expires_at for row in rows if row.lease_expires_at is not None]
        to_come = [instant for instant in (waits or leases) if instant > self.now]
        if on_time and to_come:
            self._pass_time(min(to_come) - self.now)
        elif passed is not None:
            self._pass_time(passed)
        if waits_first:
            self._expire_awaits(planner, limit)
        self._reap(planner, limit)
        if not waits_first:
            self._expire_awaits(planner, limit)

    @some_row
    @rule(
        planner=planners,
        ending=st.lists(ends, max_size=2),
        pick=picks,
        passed=whiles,
        retention_ms=st.sampled_from((0.0, 0.0, 31_000.0, 1_000.0)),
        limit=limits,
        anew=st.sampled_from((True, True, False)),
    )
    def collect(
        self,
        planner: str,
        ending: list[Intention],
        pick: int,
        passed: timedelta | None,
        retention_ms: float,
        limit: int,
        anew: bool,
    ) -> None:
        """A page, from the start or from where the last one ended, soon after some have ended, children perhaps."""
        current = (pick % 2 and self._children()) or self._current()
        if commits := self._commits(current[pick % len(current) :] if current else [], ending):
            self._flush_and_go_on(planner, commits[: len(ending)])
        if passed is not None:
            self._pass_time(passed)
        self._collect(planner, retention_ms, limit, None if anew else self.place)

    def _expire_awaits(self, planner: str, limit: int) -> None:
        limit = _untied(limit, [row.await_deadline for row in self.table.rows.values() if row.await_deadline])
        with self._step(f"expire_awaits({planner}, {limit})"):
            answer = self.sessions.perform(planner, self.picker.expire_awaits(limit))
            self.table, expected = inbox.expire_awaits(self.table, self.now, limit, self.locked)
            same("expire_awaits", tuple(row.id for row in expected), answer.ids)
            same("queues of ended waits", sorted({row.queue for row in expected}), sorted(answer.queues))
            same("expire_awaits names a transaction", bool(expected), answer.xid is not None)

    @some_current
    @rule(
        planner=planners,
        whose=st.sampled_from(NODES) | picks,
        queues=st.sampled_from((CROWDED_QUEUES, CROWDED_QUEUES[:1])),
        margin_ms=st.sampled_from((60_000.0, 60_000.0, 30_000.001, 30_000.0, 10_000.0, 0.0)),
        limit=limits,
        other=st.sampled_from((None, None, "2", "2", "1.3", "1-2")),
    )
    def reclaim(
        self,
        planner: str,
        whose: str | int,
        queues: Sequence[str],
        margin_ms: float,
        limit: int,
        other: str | None,
    ) -> None:
        """By process 1 of a node, a drawn one or one that holds a row.

        `other` names a session beside it: of process 2, of its own, of another node.
        """
        node = whose if isinstance(whose, str) else _node(self._execution(whose).hold)
        leases = [row.lease_expires_at for row in self.table.rows.values() if row.lease_expires_at]
        limit = _untied(limit, leases)
        with self._step(f"reclaim({planner}, {node!r}, {queues}, {margin_ms}, {limit}, {other!r})"):
            prefixes = [f"i:{queue}@{node}-" for queue in queues]
            sessions = f"s@{node}-"
            self.sessions.call_holder("" if other is None else sessions + other)
            operation = self.maintenance.reclaim(
                prefixes=prefixes, session=sessions + "1", sessions=sessions, margin_ms=margin_ms, limit=limit
            )
            answer = self.sessions.perform(planner, operation)
            self.sessions.call_holder("")
            self.table, expected = maintenance.reclaim(
                self.table,
                self.now,
                prefixes=prefixes,
                margin_ms=margin_ms,
                limit=limit,
                namesake=other == "2",
                locked=self.locked,
            )
            same_ends("reclaim", expected, answer)

    def _collect(
        self, planner: str, retention_ms: float, limit: int, after: tuple[datetime, int] | None
    ) -> None:
        with self._step(f"collect({planner}, {retention_ms}, {limit}, after={after})"):
            place = Place() if after is None else Place(*after)
            operation = self.maintenance.collect(retention_ms=retention_ms, limit=limit, after=place)
            answer = self.sessions.perform(planner, operation)
            self.table, expected = maintenance.collect(
                self.table, self.now, retention_ms=retention_ms, limit=limit, after=after, locked=self.locked
            )
            self.place = expected.place
            same("collect", expected.ids, answer.ids)
            same("collect names a transaction", bool(expected.ids), answer.xid is not None)
            same("rows looked at", expected.looked_at, answer.looked_at)
            same("the next page", expected.place or (EVER, 0), (answer.place.ended_at, answer.place.id))

    # ---- who is meant ------------------------------------------------------------------------------------------

    def _current(self) -> list[Execution]:
        """The executions that hold their row."""
        return [
            each
            for each in self.executions
            if (row := self.table.owned(each.hold)) is not None and row.turn == each.turn
        ]

    def _of(self, ids: Iterable[int]) -> list[Execution]:
        """The executions that hold one of these rows."""
        meant = set(ids)
        return [each for each in self._current() if each.hold.id in meant]

    def _execution(self, pick: int) -> Execution:
        """Mostly one that holds its row; one of those that lost it for the last picks."""
        current = self._current()
        lost = [each for each in self.executions if each not in current]
        pool = lost if lost and (pick > 8 or not current) else current
        return pool[pick % len(pool)]

    def _holds(self, which: Sequence[int]) -> list[Hold]:
        return list(dict.fromkeys(self._execution(pick).hold for pick in which))

    def _row(self, pick: int) -> model.Row:
        ids = sorted(self.table.rows)
        return self.table.rows[ids[pick % len(ids)]]


def _node(hold: Hold) -> str:
    """Whose claim it is: `i:queue@node-number`."""
    return hold.claim.rpartition("@")[2].rpartition("-")[0]


def _untied(limit: int, places: Sequence[object]) -> int:
    """The limit, or one that all fit in where two places are equal.

    Where rows lie on disk would decide then, and Hypothesis must see the same run when it repeats one. Ties are for the
    picker's machine.
    """
    return limit if len(set(places)) == len(places) else 100


def _within_room(commits: Sequence[Commit], room: int) -> list[Commit]:
    """The commits with the first `room` of their children."""
    left = count(room, -1)
    return [
        msgspec.structs.replace(commit, children=tuple(job for job in commit.children if next(left) > 0))
        for commit in commits
    ]


def _continuing(commits: Sequence[Commit], committed: Sequence[Hold]) -> list[Hold]:
    holds = [Hold(commit.id, commit.claim) for commit in commits if commit.kind == "continue"]
    return [hold for hold in holds if hold in committed]


def _canonical(around: Surroundings) -> Surroundings:
    return Surroundings(
        tuple(replace(signal, payload=canonical_text(signal.payload)) for signal in around.signals),
        tuple(
            replace(
                child,
                state=canonical_text(child.state),
                result=None if child.result is None else canonical_text(child.result),
            )
            for child in around.children
        ),
    )
