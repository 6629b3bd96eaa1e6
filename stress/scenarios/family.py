"""A machine that has children, which may have children, and fail; the result says what became of each of them.

The state is `{"n": int, "rounds": [[child's state, …], …], "end": "done" | "stop" | "raise"}`. Each round is spawned
and joined before the next; then the machine ends as it is told to. Its result folds, over all its children, the
result of one that is done and the number of one that failed. So a child that is lost, spawned twice, or not waited for
changes the result.

Twins are two children of one identity, of which one lands.
"""

from __future__ import annotations

from random import Random
from typing import Any

from engine.machine import Child, Done, Machine, Outcome, ScheduleChildren, Step, Stop
from engine.picker import Job
from stress.scenarios.scenario import Planned

MODULUS = 2**31 - 1
MAX_DEPTH = 3
FAILED_FACTOR = 7

Plan = dict[str, Any]


class FamilyFailure(Exception):
    """What a child's `raise` raises."""


class Family(Machine):
    """See the module."""

    name = "family"

    async def grow(self, step: Step) -> Outcome:
        """Spawn the next round, or end."""
        rounds: list[list[Plan]] = step.state["rounds"]
        if rounds:
            jobs = [
                Job(
                    fsm=Family.name,
                    step="grow",
                    state={key: value for key, value in child.items() if key != "identity"},
                    queue=step.queue,
                    correlation_key=child.get("identity"),
                )
                for child in rounds[0]
            ]
            return ScheduleChildren(jobs, "grow", {**step.state, "rounds": rounds[1:]})
        match step.state["end"]:
            case "stop":
                return Stop("told to stop")
            case "raise":
                raise FamilyFailure("told to raise")
            case _:
                total = step.state["n"]
                for child in step.children:
                    total = (total + _contribution(child)) % MODULUS
                return Done({"sum": total * 31 % MODULUS})


def _contribution(child: Child) -> int:
    if child.status == "done":
        result: int = child.result["sum"]
        return result
    return FAILED_FACTOR * int(child.state["n"])


def expected_sum(plan: Plan) -> int:
    """The result of a plan that ends well."""
    total: int = plan["n"]
    seen: set[str] = set()
    for children in plan["rounds"]:
        for child in children:
            identity = child.get("identity")
            if identity is not None and identity in seen:
                continue
            if identity is not None:
                seen.add(identity)
            part = expected_sum(child) if child["end"] == "done" else FAILED_FACTOR * child["n"]
            total = (total + part) % MODULUS
    return total * 31 % MODULUS


def plan_family(random: Random, depth: int = 0) -> Plan:
    """A tree of a few dozen members at most."""
    rounds: list[list[Plan]] = []
    if depth < MAX_DEPTH and random.random() < (1.0, 0.35, 0.25)[depth]:
        for _ in range(random.choice((1, 1, 2)) if depth == 0 else 1):
            children = [plan_family(random, depth + 1) for _ in range(random.randint(1, 4 - depth))]
            if random.random() < 0.2:
                children[0]["identity"] = f"twin-{random.getrandbits(64):016x}"
                children.append(dict(children[0]))
            rounds.append(children)
    end = "done" if depth == 0 else random.choice(("done", "done", "done", "stop", "raise"))
    return {"n": random.randrange(1000), "rounds": rounds, "end": end}


def family(random: Random, queue: str = "default") -> Planned:
    """A job at the root of a family."""
    plan = plan_family(random)
    return Planned(
        Job(fsm=Family.name, step="grow", state=plan, queue=queue), "done", {"sum": expected_sum(plan)}
    )
