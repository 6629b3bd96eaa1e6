"""The scenario `churn`: everything that sweeps does so all the time, in small batches, beside the work.

1. What has ended is kept for a tenth of a second. Collectors of all nodes meet at the same rows, at parents whose
   children have just ended, and at signals that are still on their way to them.
2. Reapers, expiries and counts of the gates run twenty times a second on every node; rate buckets fill, and are swept
   and made again, within the second.

For what `collects-beside-the-parent`, `collectors-wait` and `retention-from-birth` do wrong there is occasion all the
time.
"""

from __future__ import annotations

from random import Random

from engine.limiter import Gate, RateLimit
from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.family import Family, family
from stress.scenarios.mailbox import Mailbox, conversation
from stress.scenarios.scenario import Insert, Operation, Planned, Scenario
from stress.scenarios.script import Script, expected_end, initial_state

EXERCISES = ("gc-safe", "identity-unique", "shards-whole", "slot-conservation", "gate-cap", "quiet-limiter")
LIMITS = (Gate("brief", 3, shards=2), RateLimit("quick", rate=400.0, burst=20.0, shards=2))
RETENTION_MS = 100.0
OFTEN_MS = 50.0
QUEUE, LIMITED = "default", "limited"
SCRIPTS = (
    ("done",),
    ("next", "next", "done"),
    ("retry:1", "done"),
    ("sleep:60", "done"),
    ("stop",),
    ("sleep:400", "done"),
)


def next_operation(random: Random, _window: int) -> Operation:
    """One act: a plain job, a family, a conversation, or a job of a gate or a rate."""
    draw = random.random()
    if draw < 0.18:
        return Insert(family(random, QUEUE))
    if draw < 0.35:
        return conversation(random, QUEUE)
    script = random.choice(SCRIPTS)
    status, result = expected_end(script)
    # Many keys, so that buckets are made and dropped.
    place, limited = random.randrange(12), draw < 0.55
    job = Job(
        fsm=Script.name,
        step="odd",
        state=initial_state(script),
        queue=LIMITED if limited else QUEUE,
        concurrency_key=f"brief:{place}" if limited and place % 2 else None,
        rate_limit=f"quick:{place}" if limited and place % 2 == 0 else None,
        correlation_key=f"once-{random.randrange(2_000)}" if random.random() < 0.2 else None,
    )
    return Insert(Planned(job, status, result))


CHURN = Scenario(
    name="churn",
    summary="garbage collection, reapers, expiries and counts at full tilt, and next to no retention",
    machines=(Script, Mailbox, Family),
    queues=tuple(QueuePolicy(name=name, concurrency=24, prefetch=12) for name in (QUEUE, LIMITED)),
    next_operation=next_operation,
    clients=8,
    pause_ms=8.0,
    max_backlog=700,
    exercises=EXERCISES,
    limits=LIMITS,
    max_in_queue={LIMITED: 80},
    retention_ms=RETENTION_MS,
    knobs={
        "gc_interval_ms": OFTEN_MS, "gc_batch": 40, "reap_interval_ms": OFTEN_MS, "reap_batch": 20,
        "expire_interval_ms": OFTEN_MS, "expire_batch": 20, "reconcile_interval_ms": OFTEN_MS,
    },
)  # fmt: skip
