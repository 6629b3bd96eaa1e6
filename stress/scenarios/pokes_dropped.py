"""The scenario `pokes-dropped`: everybody pokes, and no notification gets through.

Nodes and clients announce work as they do where pokes are on; each node hears, counts and forgets. What a node finds,
it finds by polling.
"""

from __future__ import annotations

from random import Random

from engine.policy import QueuePolicy
from stress.scenarios.family import Family, family
from stress.scenarios.mailbox import Mailbox, conversation
from stress.scenarios.mixed import QUEUES, plain
from stress.scenarios.scenario import Insert, Operation, Scenario
from stress.scenarios.script import Script, ThreadedScript

EXERCISES = ("poke-is-a-hint", "no-lost-wakeup", "join-exact")


def next_operation(random: Random, window: int) -> Operation:
    """What becomes runnable in each of the ways that are worth a poke: an insert, a signal, a join, an outcome."""
    draw = random.random()
    if draw < 0.70:
        return Insert(plain(random, window))
    queue = random.choice(QUEUES)
    return conversation(random, queue) if draw < 0.92 else Insert(family(random, queue))


POKES_DROPPED = Scenario(
    name="pokes-dropped",
    summary="jobs, conversations and families with pokes on, and every notification dropped",
    machines=(Script, ThreadedScript, Mailbox, Family),
    queues=tuple(QueuePolicy(name=name, concurrency=24, prefetch=24) for name in QUEUES),
    next_operation=next_operation,
    clients=8,
    pause_ms=10.0,
    max_backlog=1_500,
    exercises=EXERCISES,
    pokes="dropped",
)
