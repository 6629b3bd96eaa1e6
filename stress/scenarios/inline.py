"""The scenario `inline`: chains of steps under one claim, that keep, drop and change their concurrency keys."""

from __future__ import annotations

from random import Random

from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import Insert, Operation, Planned, Scenario
from stress.scenarios.script import InlineScript, Script, expected_end, initial_state

EXERCISES = ("k1-exclusion",)
HOT_KEYS = 5
MAX_WORDS = 6
ENDS = ("done", "done", "done", "done", "stop", "raise", "unstorable")


def chain(random: Random, queue: str = "default") -> Planned:
    """A job of several steps in line. A new key of no gate ends the line: the row is queued anew."""
    script = (*(_word(random) for _ in range(random.randint(1, MAX_WORDS))), random.choice(ENDS))
    status, result = expected_end(script)
    key = f"hot:{random.randrange(HOT_KEYS)}" if random.random() < 0.3 else None
    return Planned(
        Job(
            fsm=InlineScript.name,
            step="odd",
            state=initial_state(script),
            queue=queue,
            concurrency_key=key,
        ),
        status,
        result,
    )


def _word(random: Random) -> str:
    draw = random.random()
    if draw < 0.55:
        return "next"
    if draw < 0.65:
        return "retry:1"
    if draw < 0.75:
        return f"sleep:{random.choice((1, 5, 20))}"
    if draw < 0.85:
        return "key:"
    return f"key:hot:{random.randrange(HOT_KEYS)}"


def next_operation(random: Random, _window: int) -> Operation:
    """One chain."""
    return Insert(chain(random))


INLINE = Scenario(
    name="inline",
    summary="chains of steps under one claim; their concurrency keys are kept, dropped and handed on",
    machines=(InlineScript, Script),
    queues=(QueuePolicy(name="default", concurrency=24, prefetch=24),),
    next_operation=next_operation,
    clients=12,
    pause_ms=6.0,
    max_backlog=1_500,
    exercises=EXERCISES,
)
