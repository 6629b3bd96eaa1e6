"""The scenario `children`: families, whose parents wait for all their children; some fail, and some never land."""

from __future__ import annotations

from random import Random

from engine.policy import QueuePolicy
from stress.scenarios.family import Family, family
from stress.scenarios.scenario import Insert, Operation, Scenario

EXERCISES = ("join-exact", "identity-unique")


def next_operation(random: Random, _window: int) -> Operation:
    """One family."""
    return Insert(family(random))


CHILDREN = Scenario(
    name="children",
    summary="families of up to three generations, rounds of children, failures, twins of which one lands",
    machines=(Family,),
    queues=(QueuePolicy(name="default", concurrency=32, prefetch=32),),
    next_operation=next_operation,
    clients=8,
    pause_ms=20.0,
    max_backlog=1_500,
    exercises=EXERCISES,
)
