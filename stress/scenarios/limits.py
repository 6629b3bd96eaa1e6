"""The scenario `limits`: gates that are full most of the time, rate limits that bite, and rows that need both.

1. A gate's keys are few and their steps take long, so that most claims find it full and late credits matter.
2. A rate limit's burst is small against what is asked, in weights that do not divide it.
3. A part of the rate-limited jobs has a partition of its own, so that in a crowd too there are admissions of a lone
   picker to a full key.
4. Chains in line hand a slot on: to another key of a gate, to no key, to a key of no gate.

A limited job is in a queue of its own, for what a full gate holds back fills the window of its queue's picks.
"""

from __future__ import annotations

from random import Random

from engine.limiter import Gate, RateLimit
from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import Insert, Operation, Planned, Scenario
from stress.scenarios.script import InlineScript, Script, expected_end, initial_state

EXERCISES = (
    "gate-cap", "slot-conservation", "rate-budget", "rate-liveness", "quiet-limiter", "shards-whole", "k1-exclusion",
)  # fmt: skip
LIMITS = (
    Gate("narrow", 2),
    Gate("wide", 7, shards=3),
    RateLimit("calls", rate=60.0, burst=12.0, shards=2),
    RateLimit("bytes", rate=40.0, burst=9.5),
)
GATE_KEYS = ("narrow:a", "narrow:b", "wide:a", "wide:b", "wide")
RATES = ("calls:a", "calls:b", "bytes")
SHARE_OF_OWN_PARTITIONS = 0.2
WEIGHTS = (0.5, 1.0, 1.0, 2.5, 7.0)
OTHER_KEYS = ("hot:0", "hot:1")


def opening(random: Random) -> tuple[Operation, ...]:
    """A job whose rate key nobody else uses: a lone picker meets it full."""
    return (Insert(_planned("rated", ("done",), rate=_own_partition(random), weight=random.choice(WEIGHTS))),)


def limited(random: Random) -> Planned:
    """One job of a gate, of a rate limit, of both, or a chain that hands its slot on."""
    draw = random.random()
    if draw < 0.40:
        return _planned("gated", _steps(random), random.choice(GATE_KEYS))
    if draw < 0.60:
        return _planned("rated", ("done",), rate=_rate(random), weight=random.choice(WEIGHTS))
    if draw < 0.70:
        key = random.choice(GATE_KEYS)
        return _planned("both", ("sleep:5", "done"), key, _rate(random), random.choice(WEIGHTS))
    return _planned("chains", _handoffs(random), random.choice((None, *GATE_KEYS)), fsm=InlineScript.name)


def next_operation(random: Random, _window: int) -> Operation:
    """One limited job."""
    return Insert(limited(random))


def _rate(random: Random) -> str:
    if random.random() < SHARE_OF_OWN_PARTITIONS:
        return _own_partition(random)
    return random.choice(RATES)


def _own_partition(random: Random) -> str:
    return f"calls:{random.getrandbits(32):08x}"


def _steps(random: Random) -> tuple[str, ...]:
    return random.choice((("sleep:10", "done"), ("sleep:3", "next", "done"), ("retry:1", "done"), ("raise",)))


def _handoffs(random: Random) -> tuple[str, ...]:
    words: list[str] = []
    for _ in range(random.randint(1, 4)):
        draw = random.random()
        if draw < 0.35:
            words.append(f"key:{random.choice(GATE_KEYS)}")
        elif draw < 0.5:
            words.append("key:")
        elif draw < 0.6:
            words.append(f"key:{random.choice(OTHER_KEYS)}")
        elif draw < 0.7:
            words.append(f"rate:{random.choice(WEIGHTS[:3])}:{_rate(random)}")
        else:
            words.append(random.choice(("next", "sleep:5")))
    return (*words, "done")


def _planned(
    queue: str,
    script: tuple[str, ...],
    key: str | None = None,
    rate: str | None = None,
    weight: float = 1.0,
    fsm: str = Script.name,
) -> Planned:
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
    return Planned(job, status, result)


LIMITED = Scenario(
    name="limits",
    summary="full gates of one shard and of several, biting rate limits, both at once, slots handed on in line",
    machines=(Script, InlineScript),
    queues=tuple(
        QueuePolicy(name=name, concurrency=12, prefetch=4) for name in ("gated", "rated", "both", "chains")
    ),
    next_operation=next_operation,
    opening=opening,
    clients=6,
    pause_ms=60.0,
    max_backlog=150,
    exercises=EXERCISES,
    limits=LIMITS,
)
