"""The scenario `saturated-gate`: gates that are full from the first moment to the last, of one slot, few, and many.

1. Far more jobs ask for each gate than it lets in, so that nearly every claim is denied and given back, and slots are
   drawn in the moment in which they are credited.
2. Steps take about as long as a flush: rows end, are credited and counted by a sweep at the same time.
3. A queue of jobs without a gate runs beside them, and must not notice.

The races of `credit-after-count` and `no-check` are here all the time: a sweep beside many credits of one key.
"""

from __future__ import annotations

from random import Random

from engine.limiter import Gate
from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import Insert, Operation, Planned, Scenario
from stress.scenarios.script import InlineScript, Script, expected_end, initial_state

EXERCISES = ("gate-cap", "slot-conservation", "quiet-limiter", "shards-whole")
LIMITS = (Gate("one", 1), Gate("few", 3), Gate("spread", 8, shards=4))
FREE = "free"
SCRIPTS = (("sleep:10", "done"), ("sleep:3", "next", "done"), ("done",), ("retry:1", "done"), ("raise",))
# Most of a gate's backlog is denied at each claim; more of it would only make the drain longer.
MAX_IN_QUEUE = {"one": 25, "few": 60, "spread": 120, FREE: 200}
SHARES = (("one", 0.1), ("few", 0.25), ("spread", 0.45), (FREE, 0.2))


def next_operation(random: Random, _window: int) -> Operation:
    """One job, with a gate or without; now and then a chain from one gate to another."""
    queue = random.choices([name for name, _ in SHARES], [share for _, share in SHARES])[0]
    script: tuple[str, ...]
    fsm, script = Script.name, random.choice(SCRIPTS)
    if random.random() < 0.15:
        fsm, script = (
            InlineScript.name,
            ("next", f"key:{random.choice(LIMITS).name}", "sleep:3", "key:", "done"),
        )
    status, result = expected_end(script)
    job = Job(
        fsm=fsm,
        step="odd",
        state=initial_state(script),
        queue=queue,
        concurrency_key=None if queue == FREE else queue,
    )
    return Insert(Planned(job, status, result))


SATURATED_GATE = Scenario(
    name="saturated-gate",
    summary="gates of one slot, of few, and of many in shards, all of them full all the time, and jobs without a gate",
    machines=(Script, InlineScript),
    queues=tuple(QueuePolicy(name=name, concurrency=12, prefetch=8) for name, _ in SHARES),
    next_operation=next_operation,
    clients=8,
    pause_ms=15.0,
    max_backlog=400,
    exercises=EXERCISES,
    limits=LIMITS,
    max_in_queue=MAX_IN_QUEUE,
    knobs={"reconcile_interval_ms": 100.0},
)
