"""The scenario `thundering-herd`: all nodes begin at one moment, on a backlog that has waited for them.

1. As many sessions as there are nodes make the schema of an empty database at once; each node that boots looks after
   the schema again.
2. The nodes wait for each other and are let go together. Each writes down the same many limits, in an order of its own,
   so that those who lock rows in the order given meet each other; then all claim from the same backlog, whose gates
   are cold.
3. What is killed boots into the same, alone.

The races of `config-upsert-unordered` and `cold-keys-wait` are here for the moment in which all begin, which a run may
miss; in `mixed` all nodes have the same limits in the same order, and few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from engine.limiter import Gate, Limit, RateLimit
from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import Insert, InsertMany, Operation, Planned, Scenario
from stress.scenarios.script import Script, expected_end, initial_state

EXERCISES = ("gate-cap", "slot-conservation", "rate-budget", "quiet-limiter", "shards-whole", "k1-exclusion")
GATES, RATES = 40, 8
LIMITS: tuple[Limit, ...] = (
    *(Gate(f"gate-{number:02}", 4, shards=1 + number % 2) for number in range(GATES)),
    *(RateLimit(f"rate-{number}", rate=200.0, burst=40.0, shards=1 + number % 2) for number in range(RATES)),
)
QUEUES = ("first", "second", "gated")
PRELOADED, BATCH = 1_500, 250
SCRIPTS = (("done",), ("next", "done"), ("sleep:5", "done"))


def planned(random: Random, kind: str) -> Planned:
    """One job, of a key, a gate, a rate limit, or of none of these."""
    script = random.choice(SCRIPTS)
    status, result = expected_end(script)
    draw = random.random()
    gated = draw < 0.3
    key = (
        f"gate-{random.randrange(GATES):02}"
        if gated
        else f"key:{random.randrange(300)}"
        if draw < 0.6
        else None
    )
    job = Job(
        fsm=Script.name,
        step="odd",
        state=initial_state(script),
        queue="gated" if gated else random.choice(QUEUES[:2]),
        priority=random.choice((-5, 0, 5)),
        concurrency_key=key,
        rate_limit=f"rate-{random.randrange(RATES)}" if gated and random.random() < 0.3 else None,
    )
    return Planned(job, status, result, kind=kind)


def next_operation(random: Random, _window: int) -> Operation:
    """One job more."""
    return Insert(planned(random, "after the start"))


def preload(random: Random) -> Sequence[InsertMany]:
    """The backlog."""
    return [
        InsertMany(tuple(planned(random, "the backlog") for _ in range(BATCH)))
        for _ in range(PRELOADED // BATCH)
    ]


THUNDERING_HERD = Scenario(
    name="thundering-herd",
    summary="nodes that migrate, write down their limits and begin to claim at one moment, on a full backlog",
    machines=(Script,),
    queues=tuple(QueuePolicy(name=name, concurrency=24, prefetch=24) for name in QUEUES),
    next_operation=next_operation,
    clients=4,
    pause_ms=15.0,
    max_backlog=2_000,
    exercises=EXERCISES,
    limits=LIMITS,
    max_in_queue={"gated": 300},
    preload=preload,
    herd=True,
)
