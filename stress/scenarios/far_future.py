"""The scenario `far-future`: thousands of rows that are not due for weeks, ahead of those that are due now.

1. What is far away has the most urgent priorities of the queue, so that it stands before what is due in every scan that
   does not know the time. None of it may start, and all of it is there at the end: that is not lost.
2. Around it timers of every kind run out all the time: jobs that are due in a moment, retries with a delay, waits for
   signals that come late.

It has no mutant of its own. A claim that reads past what is not due is found by `nox -s plans`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.mailbox import Mailbox, conversation
from stress.scenarios.scenario import Insert, InsertMany, Operation, Planned, Scenario
from stress.scenarios.script import Script, expected_end, initial_state

EXERCISES = ("identity-unique",)
QUEUE, OTHER = "default", "other"
PRELOADED, BATCH = 3_000, 500
AHEAD_OF_ALL = (-20, -10, 0)
DAYS = (20.0, 4_000.0)
SOON_MS = (20, 900)
SCRIPTS = (("done",), ("next", "done"), ("retry:1", "done"), ("next", "retry:2", "next", "done"))


def next_operation(random: Random, _window: int) -> Operation:
    """One job that is due now, soon or much later, or a conversation."""
    draw = random.random()
    if draw < 0.12:
        return Insert(far(random))
    if draw < 0.30:
        return conversation(random, OTHER)
    due = datetime.now(UTC) + timedelta(milliseconds=random.randint(*SOON_MS)) if draw < 0.65 else None
    script = random.choice(SCRIPTS)
    status, result = expected_end(script)
    job = Job(
        fsm=Script.name,
        step="odd",
        state=initial_state(script),
        queue=random.choice((QUEUE, QUEUE, OTHER)),
        priority=random.choice((-5, 0, 5)),
        eligible_at=due,
    )
    return Insert(Planned(job, status, result, kind="due now" if due is None else "due soon"))


def far(random: Random) -> Planned:
    """A job that no run will see start. Its end is planned all the same: one that started would be held against it."""
    script = ("next", "done")
    status, result = expected_end(script)
    job = Job(
        fsm=Script.name,
        step="odd",
        state=initial_state(script),
        queue=random.choice((QUEUE, QUEUE, OTHER)),
        priority=random.choice(AHEAD_OF_ALL),
        eligible_at=datetime.now(UTC) + timedelta(days=random.uniform(*DAYS)),
        concurrency_key=f"far:{random.randrange(100)}" if random.random() < 0.2 else None,
    )
    return Planned(job, status, result, kind="far away")


def preload(random: Random) -> Sequence[InsertMany]:
    """What is far away, in batches."""
    return [InsertMany(tuple(far(random) for _ in range(BATCH))) for _ in range(PRELOADED // BATCH)]


FAR_FUTURE = Scenario(
    name="far-future",
    summary="thousands of rows that are due in weeks, ahead of those that are due now, and timers of every kind",
    machines=(Script, Mailbox),
    queues=tuple(QueuePolicy(name=name, concurrency=24, prefetch=24) for name in (QUEUE, OTHER)),
    next_operation=next_operation,
    clients=8,
    pause_ms=8.0,
    max_backlog=1_000,
    exercises=EXERCISES,
    preload=preload,
    knobs={"expire_interval_ms": 50.0},
)
