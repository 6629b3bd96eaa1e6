"""The scenario `quiet`: a trickle of jobs, and nodes that have next to nothing to do.

1. Before the load the nodes run alone for a while: what they ask of the server then is the cost of waiting, in
   statements and transactions per node and second.
2. Then one client inserts a job about three times a second. How long each waits for its first step, and for its end,
   is what a user sees of an idle queue: it is made of poll intervals, not of work.

Nothing races here, so no mutant is caught that another scenario does not catch better. What holds must hold all the
same: with nobody about, a claim that leaves behind what it had room for (`pick-order`) has no excuse.
"""

from __future__ import annotations

from random import Random

from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scenarios.scenario import Insert, Operation, Planned, Scenario
from stress.scenarios.script import Script, expected_end, initial_state

SCRIPTS = (("done",), ("next", "done"), ("sleep:5", "done"))


def next_operation(random: Random, _window: int) -> Operation:
    """One job."""
    script = random.choice(SCRIPTS)
    status, result = expected_end(script)
    job = Job(fsm=Script.name, step="odd", state=initial_state(script))
    return Insert(
        Planned(job, status, result, kind=f"{len(script)} steps" if len(script) > 1 else "one step")
    )


QUIET = Scenario(
    name="quiet",
    summary="a trickle: how long a job waits in an idle queue, and what idle nodes cost",
    machines=(Script,),
    queues=(QueuePolicy(name="default", concurrency=8, prefetch=8),),
    next_operation=next_operation,
    clients=1,
    pause_ms=300.0,
    max_backlog=100,
    idle_s=5.0,
)
