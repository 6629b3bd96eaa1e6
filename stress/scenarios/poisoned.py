"""The scenario `poison`: bad rows among good ones, in every batch, from the first to the last.

1. A bad row is of a machine that nobody knows, has a state that is none, raises, or comes to a result that cannot be
   stored: it fails when it is read, when it is run, or when it is committed (`stress/scenarios/poison.py`).
2. Half of the bad rows are first in every pick, the others stand in line with the good ones.
3. A good row that shares a claim, a batch of outcomes or a batch of inserts with bad ones ends as if they were not
   there. How long good and bad ones wait stands at the end of the run.

The chains in it are what `inline-unconfigured-key` lets abort the flush of their neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.inline import chain
from stress.scenarios.poison import poisonous
from stress.scenarios.scenario import Insert, InsertMany, Operation, Planned, Scenario
from stress.scenarios.script import InlineScript, Script, ThreadedScript, expected_end, initial_state

QUEUES = ("default", "other")
GOOD, BAD = "good", "bad"
SCRIPTS = (("done",), ("next", "done"), ("next", "next", "done"), ("sleep:5", "done"), ("retry:1", "done"))
FAILING = (("raise",), ("next", "raise"), ("stop",), ("unstorable",))
SHARE_OF_BAD = 0.3


def good(random: Random) -> Planned:
    """A job that ends well."""
    return _script(random, random.choice(SCRIPTS), GOOD)


def bad(random: Random) -> Planned:
    """A job that does not, ahead of the good ones or among them."""
    if random.random() < 0.4:
        return _script(random, random.choice(FAILING), BAD)
    planned = poisonous(random, random.choice(QUEUES))
    priority = random.choice((planned.job.priority, 0))
    return replace(planned, job=replace(planned.job, priority=priority), kind=BAD)


def either(random: Random) -> Planned:
    """Mostly a good one."""
    return bad(random) if random.random() < SHARE_OF_BAD else good(random)


def next_operation(random: Random, _window: int) -> Operation:
    """One job, a chain, or a batch of good and bad ones together."""
    draw = random.random()
    if draw < 0.15:
        mixture = (
            bad(random) if random.random() < SHARE_OF_BAD else good(random)
            for _ in range(random.randint(2, 15))
        )
        return InsertMany(tuple(mixture))
    if draw < 0.25:
        return Insert(replace(chain(random, random.choice(QUEUES)), kind="chains"))
    return Insert(either(random))


def _script(random: Random, script: tuple[str, ...], kind: str) -> Planned:
    status, result = expected_end(script)
    job = Job(
        fsm=random.choice((Script.name, ThreadedScript.name)),
        step="odd",
        state=initial_state(script),
        queue=random.choice(QUEUES),
    )
    return Planned(job, status, result, kind=kind)


POISON = Scenario(
    name="poison",
    summary="rows that fail when they are read, run or committed, among good ones that must not notice",
    machines=(Script, ThreadedScript, InlineScript),
    queues=tuple(QueuePolicy(name=name, concurrency=24, prefetch=24) for name in QUEUES),
    next_operation=next_operation,
    clients=10,
    pause_ms=8.0,
    max_backlog=1_000,
)
