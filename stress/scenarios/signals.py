"""The scenario `signals`: conversations, each with a machine that waits for its client."""

from __future__ import annotations

from random import Random

from engine.policy import QueuePolicy
from stress.scenarios.mailbox import Mailbox, conversation
from stress.scenarios.scenario import Operation, Scenario

EXERCISES = ("signal-dedup", "no-lost-wakeup", "no-lost-signal", "no-spin", "identity-unique")


def next_operation(random: Random, _window: int) -> Operation:
    """One conversation."""
    return conversation(random)


SIGNALS = Scenario(
    name="signals",
    summary="conversations: signals by id and by identity, early, twice, with time-outs and noise",
    machines=(Mailbox,),
    queues=(QueuePolicy(name="default", concurrency=32, prefetch=32),),
    next_operation=next_operation,
    clients=16,
    pause_ms=2.0,
    max_backlog=1_500,
    exercises=EXERCISES,
)
