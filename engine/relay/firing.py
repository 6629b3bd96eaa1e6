"""Timers fired through a store's own contract: each by a commit that disarms it and emits its event.

Rules:

1. Whoever arms or cancels a timer makes a version of its execution, so the version is what tells one arming from the
   next; `fire_at` is not, for a deadline that is set again is the same instant (docs/findings.md, "the same instant").
2. An execution is loaded first and asked for its timers then. What is due now was armed at the loaded version or later;
   the commit is of the loaded version, so it fires what is armed or it is refused, and nothing happened.
3. The event is in the outbox when the timer is gone, and its id ends in the version that did it: a timer that is armed
   anew for the same instant fires anew, under another id.
4. Who is refused leaves its timers to the next sweep. So does an execution that is not there or that nobody can read;
   it hides nothing behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from engine.observer import Observer
from engine.relay.driving import Call, Steps, checked, told
from engine.store.encoding import MAX_ROWS, derived_id
from engine.store.execution import Commit, Emit, Event, Execution, StoreConflict, TimerOp
from engine.store.telling import outcome
from engine.values import UnstorableValue

Timer = tuple[str, str, float]


class Store(Protocol):
    """What is needed of a store; the answers may be awaitable."""

    def load(self, execution_id: str) -> Any: ...
    def due_timers(self, now: float, limit: int) -> Any: ...
    def commit(
        self,
        execution: Execution,
        emits: Sequence[Emit | tuple[str | None, Event]],
        *,
        timers: Sequence[TimerOp],
    ) -> Any: ...


def timer_event(execution: Execution, path: str, fire_at: float) -> Event:
    """The event of a timer that fires with the execution's next version."""
    return Event(
        id=derived_id("timer", execution.id, path, repr(fire_at), execution.version + 1),
        kind="timer",
        payload={"path": path, "fire_at": fire_at},
    )


def sweeping(store: Store, limit: int, now: float, observer: Observer) -> Steps[int]:
    """Fire up to `limit` timers that are due at `now`. Returns how many."""
    size = limit
    while True:
        due = yield partial(store.due_timers, now, limit=size)
        fired: list[Timer] = []
        if due:
            fired = yield from told(
                observer,
                "relay.timers",
                {},
                _firing(store, due, now, size, observer),
                lambda fired: {"fired": [list(each) for each in fired]},
            )
        if fired or len(due) < size or size == MAX_ROWS:
            return len(fired)
        size = min(size * 10, MAX_ROWS)


def _firing(
    store: Store, due: Sequence[Timer], now: float, size: int, observer: Observer
) -> Steps[list[Timer]]:
    ids = sorted({execution_id for execution_id, _, _ in due})
    loaded = checked((yield [partial(store.load, each) for each in ids]), ValueError, RecursionError)
    executions = {each.id: each for each in loaded if each is not None and not isinstance(each, Exception)}
    armed: dict[str, list[Timer]] = {}
    for timer in (yield partial(store.due_timers, now, limit=size)):
        if timer[0] in executions:
            armed.setdefault(timer[0], []).append(timer)
    commits = [_commit(executions[execution_id], timers) for execution_id, timers in armed.items()]
    tokens = [observer.invoke("store.commit", commit.told()) for commit in commits]
    answers = yield [_call(store, commit) for commit in commits]
    for token, commit, answer in zip(tokens, commits, answers, strict=True):
        observer.complete(token, *outcome(commit, answer))
    checked(answers, StoreConflict, UnstorableValue)
    return [
        timer
        for timers, answer in zip(armed.values(), answers, strict=True)
        if not isinstance(answer, Exception)
        for timer in timers
    ]


def _commit(execution: Execution, timers: Sequence[Timer]) -> Commit:
    return Commit(
        execution=execution,
        emits=[Emit(execution.id, timer_event(execution, path, fire_at)) for _, path, fire_at in timers],
        timers=[TimerOp("cancel", path) for _, path, _ in timers],
    )


def _call(store: Store, commit: Commit) -> Call:
    return partial(store.commit, commit.execution, commit.emits, timers=commit.timers)
