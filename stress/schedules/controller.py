"""The controller: takes one run of a race, step by step, and knows who waits for whom.

Rules:

1. A step is taken only when every session stands still: at a point, at a gate, blocked, finished or dead. So the order
   of steps is the order of events, and a schedule that is repeated is repeated exactly.
2. Who is blocked by whom is what `pg_blocking_pids` says, asked by a session of the controller's own. When to ask, the
   session that waits says itself, where its role may: the server tells it that it is "still waiting"
   (`log_lock_waits`) when it has waited for `deadlock_timeout`, 1 ms here, and has found no deadlock. So the last to
   wait in a circle is always the one that finds it. Elsewhere the controller asks now and then.
3. The controller holds the gates, so who is blocked by it stands at one; such a session has said so before.
   A deadlock is a finding, never a reason to go on: who waits in a circle is left to the server to end.
4. A session that dies is terminated by the server, as the loss of its process would have it, and counted as dead when
   its locks are gone.
5. Everything has a deadline; one that passes makes the run `Uncontrolled`.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import pq

from invariants.history.operations import Operation
from stress.schedules.gates import GATES
from stress.schedules.locks import awaited, circle, stood_at
from stress.schedules.search import Choice, Effect, Search
from stress.schedules.session import Session

DEADLINE_S: Final = 10.0
MAX_STEPS: Final = 400
STOPS: Final = "stops at its gate"
# How long a statement may take before the server is asked who is blocked, and between two such questions.
FIRST_LOOK_S: Final = 0.0008
NEXT_LOOK_S: Final = 0.0004
# Where sessions are told that they wait: one that was, and goes on waiting in a queue that has changed, is told nothing
# new.
TOLD_LOOK_S: Final = 0.02


_OPEN: Final = b"SELECT pg_advisory_unlock($1::integer, $2::integer)"
_CLOSE_AND_OPEN: Final = (
    b"SELECT pg_advisory_lock($1::integer, $3::integer), pg_advisory_unlock($1::integer, $2::integer)"
)
_BLOCKING: Final = b"SELECT pid, pg_blocking_pids(pid) FROM unnest($1::integer[]) AS asked (pid)"


class Uncontrolled(Exception):
    """A run did not go where the controller led it; the message says what it waited for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A session that the server says is blocked, by whom, and for which lock, where the run names them."""

    waiter: str
    holders: tuple[str, ...]
    lock: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step as it went.

    `what` was done, `came` what came of it; `statement` is the one that it began or went on with. `others`: what it set
    going again in other sessions. `committed`: the sessions that committed a change. `states`: everybody's state after
    it, and for whom it waits. `sql`: what was sent, where the run keeps that. `along`: the engine sends the statement
    in one message with the one before it. `waits`: who was found blocked in it, in that order; of a circle, too, which
    the server has broken by the end of the step.
    """

    choice: Choice
    what: str
    statement: str
    began: bool
    committed: tuple[str, ...]
    came: str
    others: tuple[tuple[str, str], ...]
    states: tuple[tuple[str, str, tuple[str, ...]], ...]
    sql: tuple[str, ...] = ()
    along: bool = False
    waits: tuple[Wait, ...] = ()


@dataclass(slots=True)
class Run:
    """One run of a race. `complete` is False for one that the search ended as a repetition. `told`: settings of single
    sessions. `start`: the number of the run whose set-up it began with; None: it had its own."""

    steps: list[Step] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    complete: bool = True
    keeps_sql: bool = False
    setup: list[str] = field(default_factory=list)
    told: dict[str, dict[str, str]] = field(default_factory=dict)
    start: int | None = None
    deadlocks: int = 0
    answers: dict[str, list[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The schedule."""
        return tuple(step.choice for step in self.steps)

    @property
    def signature(self) -> tuple[object, ...]:
        """What must be the same when the schedule is taken again: who did what, what came of it, and who was blocked by
        whom then."""
        return tuple((step.choice, step.what, step.came, step.others, step.states) for step in self.steps)

    @property
    def blocked(self) -> bool:
        """Whether anybody ever waited for another."""
        return any(waits for step in self.steps for _, _, waits in step.states)


class Controller:
    """Takes runs on open links. `control` is a session of its own that holds every gate."""

    def __init__(self, control: psycopg.Connection[Any], *, told: bool) -> None:
        """`told`: sessions are told that they wait."""
        self._control = control
        self._told = told
        self._pid = control.info.backend_pid
        self._prepared: dict[bytes, bytes] = {}
        # Of each gate, the lock that somebody was let through last.
        self._open: dict[int, int] = {}
        # Of the step that is being taken: who was found blocked, by which processes, for which lock.
        self._found: list[tuple[Session, tuple[int, ...], str]] = []
        self._names_locks = False

    def close_gate(self, number: int) -> None:
        """From now on whoever comes to that gate waits there."""
        for lock in (2 * number, 2 * number + 1):
            self._control.execute("SELECT pg_advisory_lock(%s, %s)", (GATES, lock), prepare=True)

    def run(self, sessions: Sequence[Session], search: Search, run: Run, *, deaths: int = 0) -> Run:
        """Take a run to its end, or to where the search ends it. `deaths`: how many sessions may die.

        Raises Uncontrolled, and Diverged from the search; the sessions are then at rest all the same.
        """
        search.begin()
        self._names_locks = run.keeps_sql
        by_pid = {session.link.pid: session.name for session in sessions}
        try:
            while choices := _open(sessions, deaths):
                choice = search.choose(choices)
                if choice is None:
                    run.complete = False
                    break
                if len(run.steps) >= MAX_STEPS:
                    raise Uncontrolled(f"the run has more than {MAX_STEPS} steps")
                deaths -= choice.dies
                self._step(sessions, choice, by_pid, run, search)
            else:
                stuck = [session.name for session in sessions if session.state == "blocked"]
                if stuck:
                    raise Uncontrolled(f"{', '.join(stuck)} wait for somebody outside of the race")
        finally:
            self._rest(sessions)
            run.deadlocks = sum(session.deadlocks for session in sessions)
            run.answers = {session.name: session.answers for session in sessions}
        search.end()
        return run

    def _step(
        self, sessions: Sequence[Session], choice: Choice, by_pid: Mapping[int, str], run: Run, search: Search
    ) -> None:
        session = next(one for one in sessions if one.name == choice.session)
        for one in sessions:
            one.effect = Effect()
            one.lines = []
            one.committed = False
            one.circle = None
            one.sent = [] if run.keeps_sql else None
        self._found = []
        run.counts[session.name] = run.counts.get(session.name, 0) + 1
        at_gate = session.state == "gate"
        what, statement, along = "dies" if choice.dies else session.what, session.statement, False
        if choice.dies:
            self._end(session)
        elif at_gate:
            self._open_gate(session)
        else:
            session.send()
            if session.state == "running":
                what, statement, along = session.what, session.statement, session.along
        self._settle(sessions)
        effect = Effect()
        for one in sessions:
            effect |= one.effect
        search.took(effect)
        others = tuple(
            (one.name, "; ".join(one.lines)) for one in sessions if one is not session and one.lines
        )
        came = "; ".join(session.lines)
        if session.state == "gate":
            came = f"{came}; {STOPS}" if came else STOPS
        elif session.state == "blocked":
            came = f"{came}; waits" if came else "waits"
        # Who stands at a gate is let on by the controller; what kept it before it came there is over.
        states = tuple(
            (
                one.name,
                one.state,
                tuple(sorted(by_pid.get(pid, "?") for pid in one.blockers)) if one.state == "blocked" else (),
            )
            for one in sessions
        )
        committed = tuple(one.name for one in sessions if one.committed)
        sent = tuple(session.sent or ())
        began = not at_gate
        waits = tuple(
            Wait(one.name, tuple(sorted(by_pid.get(pid, "?") for pid in pids)), lock)
            for one, pids, lock in self._found
        )
        waits += self._circles(sessions, waits, by_pid)
        run.steps.append(
            Step(choice, what, statement, began, committed, came, others, states, sent, along, waits)
        )

    def _circles(
        self, sessions: Sequence[Session], known: Sequence[Wait], by_pid: Mapping[int, str]
    ) -> tuple[Wait, ...]:
        """The waits that closed a circle: the server breaks it before anybody can ask who is blocked."""
        pairs = {(wait.waiter, holder) for wait in known for holder in wait.holders}
        return tuple(
            Wait(one.name, (by_pid.get(holder, "?"),), self._stood_at(one.circle[1]))
            for one in sessions
            if one.circle is not None
            for waiter, holder in circle(one.circle[0])
            if waiter == one.link.pid and (one.name, by_pid.get(holder, "?")) not in pairs
        )

    def _stood_at(self, context: str) -> str:
        return stood_at(self._control, context) if self._names_locks else ""

    def _open_gate(self, session: Session) -> None:
        lock = session.link.at_lock
        assert lock is not None
        session.passed()
        behind = self._open.get(session.link.gate)
        self._open[session.link.gate] = lock
        if behind is None:
            self._ask(_OPEN, str(GATES), str(lock))
        else:
            assert behind != lock, session.name
            self._ask(_CLOSE_AND_OPEN, str(GATES), str(lock), str(behind))

    def _end(self, session: Session) -> None:
        self._control.execute("SELECT pg_terminate_backend(%s)", (session.link.pid,))
        deadline = time.monotonic() + DEADLINE_S
        # The server says farewell first, then gives the locks back, then closes the connection.
        while session.link.is_open():
            if time.monotonic() > deadline:
                raise Uncontrolled(f"{session.name} does not die")
        session.died()

    def _settle(self, sessions: Sequence[Session]) -> None:
        """Wait until everybody stands still."""
        deadline = time.monotonic() + DEADLINE_S
        patience = FIRST_LOOK_S
        while True:
            moving = {
                session.link.pgconn.socket: session for session in sessions if session.state == "running"
            }
            if not moving:
                if not self._wake(sessions):
                    return
                patience = FIRST_LOOK_S
                continue
            readable, _, _ = select.select(list(moving), [], [], TOLD_LOOK_S if self._told else patience)
            for socket in readable:
                moving[socket].read()
            if self._told:
                # Of a statement that was told nothing yet it is not known whether it has looked for a deadlock.
                heard = [session for session in moving.values() if session.link.told]
                self._look([one for one in heard if one.link.waits or not readable], sessions)
            elif not readable:
                patience = NEXT_LOOK_S
                self._look(list(moving.values()), sessions)
            if time.monotonic() > deadline:
                names = ", ".join(session.name for session in moving.values())
                raise Uncontrolled(f"{names} neither answers nor waits for a lock")

    def _look(self, asked: Sequence[Session], sessions: Sequence[Session]) -> None:
        """Ask who of the running is blocked. Who is part of a circle goes on running: the server will end it, unless
        one of those who were blocked before has what it waited for by now."""
        running = [session for session in asked if session.state == "running"]
        for session, blockers in self._blocking(running):
            session.link.waits = False
            if not blockers or blockers == (self._pid,):
                continue
            session.blockers = blockers
            lock = awaited(self._control, session.link.pid) if self._names_locks else ""
            self._found.append((session, blockers, lock))
            if _circle(session, sessions):
                self._wake(sessions)
            else:
                session.waits()

    def _wake(self, sessions: Sequence[Session]) -> bool:
        """Whether somebody who was blocked is so no more. The answer lasts where it is asked when nobody moves."""
        blocked = [session for session in sessions if session.state == "blocked"]
        woken = False
        for session, blockers in self._blocking(blocked):
            # Of whom waits for another now than before it is not known yet whether it has looked for a deadlock.
            if blockers != session.blockers or _circle(session, sessions):
                session.state = "running"
                woken = True
            session.blockers = blockers
        return woken

    def _blocking(self, asked: Sequence[Session]) -> list[tuple[Session, tuple[int, ...]]]:
        if not asked:
            return []
        result = self._ask(_BLOCKING, "{" + ",".join(str(session.link.pid) for session in asked) + "}")
        found = {}
        for place in range(result.ntuples):
            pid, blockers = result.get_value(place, 0), result.get_value(place, 1)
            named = (blockers or b"{}").decode().strip("{}")
            found[int(pid or 0)] = tuple(sorted({int(one) for one in named.split(",") if one}))
        return [(session, found.get(session.link.pid, ())) for session in asked]

    def _ask(self, query: bytes, *arguments: str) -> pq.abc.PGresult:
        """A question that nobody can hold up; asked many times in every run, so without the way through a cursor."""
        pgconn = self._control.pgconn
        name = self._prepared.get(query)
        if name is None:
            name = self._prepared[query] = f"ask{len(self._prepared)}".encode()
            pgconn.prepare(name, query)
        result = pgconn.exec_prepared(name, [argument.encode() for argument in arguments])
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
        return result

    def _rest(self, sessions: Sequence[Session]) -> None:
        """Bring every session out of its statement and its transaction."""
        under_way = [session for session in sessions if session.state in ("gate", "running", "blocked")]
        for session in under_way:
            self._control.execute("SELECT pg_cancel_backend(%s)", (session.link.pid,))
        for session in sessions:
            if session.state != "dead":
                if session in under_way and not session.link.drained(DEADLINE_S):
                    raise Uncontrolled(f"{session.name} cannot be stopped")
                if session.link.in_transaction():
                    session.link.execute(b"ROLLBACK")
                session.abandon()


def _open(sessions: Sequence[Session], deaths: int) -> list[Choice]:
    still = [session for session in sessions if session.state in ("ready", "gate")]
    choices = [Choice(session.name) for session in still]
    if deaths and choices:
        choices += [
            Choice(session.name, True)
            for session in sessions
            if session.state in ("ready", "gate", "blocked")
        ]
    return choices


def _circle(session: Session, sessions: Sequence[Session]) -> bool:
    """Whether the session waits, in the end, for itself."""
    waits = {one.link.pid: one.blockers for one in sessions if one.state == "blocked" or one is session}
    reached: set[int] = set()
    todo = list(session.blockers)
    while todo:
        pid = todo.pop()
        if pid == session.link.pid:
            return True
        if pid not in reached:
            reached.add(pid)
            todo += waits.get(pid, ())
    return False
