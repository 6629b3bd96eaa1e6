"""The scenario `hot-key`: one concurrency key with a backlog that never ends, and everybody else's jobs around it.

1. Jobs of the key run one at a time, however many nodes there are: its throughput is what a claim, a step and a flush
   take, one after the other.
2. Most rows of the queue are the key's. Who claims must neither run two of them, nor leave the queue's other jobs, nor
   those of another queue, waiting behind them. How long each kind waits stands at the end of the run.
3. Some chains take the key on half-way and give it up again, so that it is not only claims that compete for it.

The races of `guard-only-no-arbiter` and `claim-without-key-lock` are here at every claim; in `mixed` no key is as hot.
"""

from __future__ import annotations

from random import Random

from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import Insert, Operation, Planned, Scenario
from stress.scenarios.script import InlineScript, Script, expected_end, initial_state

EXERCISES = ("k1-exclusion",)
KEY = "hot:0"
# A queue of the hot key and its company, and one that the key is not in.
CROWDED, CALM = "crowded", "calm"
SCRIPTS = (("done",), ("done",), ("next", "done"), ("sleep:5", "done"), ("retry:1", "done"))
CHAINS = (("next", f"key:{KEY}", "done"), (f"key:{KEY}", "next", "key:", "done"), ("key:", "next", "done"))


def next_operation(random: Random, _window: int) -> Operation:
    """One job: of the key, beside it in its queue, or away from it."""
    draw = random.random()
    if draw < 0.45:
        return _planned("the hot key", CROWDED, random.choice(SCRIPTS), KEY)
    if draw < 0.55:
        return _planned(
            "chains", CROWDED, random.choice(CHAINS), random.choice((None, KEY)), InlineScript.name
        )
    kind, queue = ("beside it", CROWDED) if draw < 0.80 else ("elsewhere", CALM)
    key = f"cool:{random.randrange(200)}" if random.random() < 0.2 else None
    return _planned(kind, queue, random.choice(SCRIPTS), key)


def _planned(
    kind: str, queue: str, script: tuple[str, ...], key: str | None, fsm: str = Script.name
) -> Insert:
    status, result = expected_end(script)
    job = Job(fsm=fsm, step="odd", state=initial_state(script), queue=queue, concurrency_key=key)
    return Insert(Planned(job, status, result, kind=kind))


HOT_KEY = Scenario(
    name="hot-key",
    summary="one key with a backlog, one job of it at a time, and the jobs of others that must not wait for it",
    machines=(Script, InlineScript),
    queues=tuple(QueuePolicy(name=name, concurrency=16, prefetch=16) for name in (CROWDED, CALM)),
    next_operation=next_operation,
    clients=8,
    pause_ms=12.0,
    max_backlog=400,
    exercises=EXERCISES,
    max_in_queue={CROWDED: 60},
)
