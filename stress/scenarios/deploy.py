"""The scenario `deploy`: two rolling restarts while the load goes on, each with other limits.

1. A roll replaces node after node: the old one is asked to stop and drains while the new one boots beside it. So nodes
   of two releases are at work at once, each having written down limits of its own; whoever booted last is right.
2. Capacities, rates, bursts and shards go up and down. `bytes` stays as it is.
3. A node that is started anew in between, because a fault ended it, is of the release that its place had: the limits of
   the old release come back for a while. What is granted meanwhile is held against whichever was written down.

A mutant that it catches and `mixed`, whose limits never change, cannot: `surplus-credited`, which was found here. Those
of a single change (`lowered-capacity-forgotten`, `shards-grow-unhealed`) may need more luck than a short run has.
"""

from __future__ import annotations

from random import Random

from engine.limiter import Gate, RateLimit
from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import Insert, Operation, Planned, Scenario
from stress.scenarios.script import InlineScript, Script, expected_end, initial_state

EXERCISES = ("gate-cap", "slot-conservation", "rate-budget", "quiet-limiter", "shards-whole")
BYTES = RateLimit("bytes", rate=60.0, burst=9.5)
LIMITS = (
    Gate("narrow", 2),
    Gate("wide", 9, shards=3),
    RateLimit("calls", rate=80.0, burst=12.0, shards=2),
    BYTES,
)
RELEASES = (
    (
        Gate("narrow", 4, shards=2),
        Gate("wide", 4),
        RateLimit("calls", rate=120.0, burst=8.0, shards=3),
        BYTES,
    ),
    (Gate("narrow", 1), Gate("wide", 12, shards=5), RateLimit("calls", rate=60.0, burst=20.0), BYTES),
)
# What asks for a rate asks for no more than the smallest burst.
WEIGHTS = (0.5, 1.0, 1.0, 3.0, 7.0)
GATE_KEYS = ("narrow:a", "narrow:b", "wide:a", "wide:b", "wide:c")
RATE_KEYS = ("calls:a", "calls:b", "bytes")
GATED = (("sleep:10", "done"), ("sleep:30", "done"), ("sleep:3", "next", "done"), ("retry:1", "done"))
SHARES = (("plain", 0.4), ("gated", 0.35), ("rated", 0.15), ("chains", 0.10))


def next_operation(random: Random, _window: int) -> Operation:
    """One job, without a limit, with a gate, with a rate, or a chain that hands its slot on."""
    queue = random.choices([name for name, _ in SHARES], [share for _, share in SHARES])[0]
    fsm, weight = Script.name, 1.0
    script: tuple[str, ...] = ("next", "done")
    key = rate = None
    match queue:
        case "gated":
            script, key = random.choice(GATED), random.choice(GATE_KEYS)
        case "rated":
            script, rate, weight = ("done",), random.choice(RATE_KEYS), random.choice(WEIGHTS)
        case "chains":
            fsm, key = InlineScript.name, random.choice((None, *GATE_KEYS))
            script = ("next", f"key:{random.choice(GATE_KEYS)}", "sleep:5", "key:", "done")
    status, result = expected_end(script)
    job = Job(
        fsm=fsm,
        step="odd",
        state=initial_state(script),
        queue=queue,
        concurrency_key=key,
        rate_limit=rate,
        weight=weight,
    )
    return Insert(Planned(job, status, result))


DEPLOY = Scenario(
    name="deploy",
    summary="rolling restarts under load; each release changes capacities, rates, bursts and shards",
    machines=(Script, InlineScript),
    queues=tuple(QueuePolicy(name=name, concurrency=12, prefetch=4) for name, _ in SHARES),
    next_operation=next_operation,
    clients=8,
    pause_ms=25.0,
    max_backlog=400,
    exercises=EXERCISES,
    limits=LIMITS,
    releases=RELEASES,
    max_in_queue={"gated": 80, "rated": 60, "chains": 60},
)
