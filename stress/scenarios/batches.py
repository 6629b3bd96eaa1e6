"""The scenario `batches`: clients that insert large batches of the same identities at the same time, each in an order
of its own.

A batch of the moment meets those of all other clients at the index of identities, hundreds of rows long: what lets two
of them wait for each other shows within seconds.
"""

from __future__ import annotations

from random import Random

from engine.picker import LIVE, Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import InsertMany, Operation, Planned, Scenario
from stress.scenarios.script import Script, expected_end, initial_state

IDENTITIES_PER_WINDOW = 400
BATCH = (150, 350)
DONE = ("done",)


def next_operation(random: Random, window: int) -> Operation:
    """A batch; most of its identities are another's too."""
    places = random.sample(range(IDENTITIES_PER_WINDOW), random.randint(*BATCH))
    return InsertMany(tuple(_planned(f"batch-{window}-{place}") for place in places))


def _planned(identity: str) -> Planned:
    status, result = expected_end(DONE)
    job = Job(
        fsm=Script.name,
        step="odd",
        state=initial_state(DONE),
        correlation_key=identity,
        correlation_scope=(*LIVE, "done"),
    )
    return Planned(job, status, result)


BATCHES = Scenario(
    name="batches",
    summary="large batches of the same identities, inserted by all clients at once in different orders",
    machines=(Script,),
    queues=(QueuePolicy(name="default", concurrency=24, prefetch=48),),
    next_operation=next_operation,
    clients=6,
    pause_ms=20.0,
    max_backlog=1_500,
    exercises=("identity-unique",),
)
