"""Jobs that fail whatever is done with them: read, stepped or committed."""

from __future__ import annotations

from random import Random
from typing import Any

from engine.picker import Job
from stress.scenarios.scenario import Planned
from stress.scenarios.script import Script, initial_state

# First in every pick.
PRIORITY = -(2**15)
# Machine, state, and what is wrong: nobody knows it; it is not its machine's; its last step is what the state cannot
# tell; the result cannot be stored.
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nobodys_machine", {"script": ["done"], "sum": 0}),
    (Script.name, {}),
    (Script.name, {"script": ["next", "done"], "sum": "seven"}),
    (Script.name, {"script": [], "sum": 1}),
    (Script.name, initial_state(("unstorable",))),
)


def poisonous(random: Random, queue: str) -> Planned:
    """One of them."""
    machine, state = random.choice(KINDS)
    job = Job(fsm=machine, step="odd", state=state, queue=queue, priority=PRIORITY)
    return Planned(job, "failed", None)
