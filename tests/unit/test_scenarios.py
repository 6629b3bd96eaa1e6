"""What a scenario says a job comes to is what its machine makes of it, played without a node."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from engine.machine import Await, Child, Done, Next, Outcome, ScheduleChildren, Signal, Step, Stop
from invariants.areas import AREAS
from stress.scenarios import SCENARIOS, Converse, Insert, InsertMany, StoreScenario
from stress.scenarios.family import Family, FamilyFailure, family
from stress.scenarios.mailbox import Mailbox, conversation

SEEDS = range(40)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_declares_invariants_that_exist(name: str) -> None:
    areas = [AREAS[area] for area in SCENARIOS[name].subject.areas]
    known = {rule.name for area in areas for rule in area.rules}
    assert set(SCENARIOS[name].exercises) <= known - {rule for area in areas for rule in area.always}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_makes_operations_from_its_random_source_alone(name: str) -> None:
    scenario = SCENARIOS[name]
    first, again = Random(1), Random(1)
    for _ in range(50):
        if isinstance(scenario, StoreScenario):
            assert scenario.next_acts(first, 7) == scenario.next_acts(again, 7)
            continue
        act, same = (scenario.next_operation(random, 7) for random in (first, again))
        assert isinstance(act, Insert | InsertMany | Converse)
        assert type(act) is type(same)
    assert first.getstate() == again.getstate()


def run(machine: Any, name: str, state: dict[str, Any], **named: Any) -> Outcome:
    step = Step(1, machine.name, 1, name, 0, "default", None, state, **named)
    outcome: Outcome = asyncio.run(machine.steps()[name](step))
    return outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_a_conversation_ends_as_planned_however_its_signals_arrive(seed: int) -> None:
    act = conversation(Random(seed))
    inbox: list[Signal] = []
    state = dict(act.planned.job.state)
    pending = list(act.sends)
    for _ in range(100):
        outcome = run(Mailbox(), "ask", state, signals=tuple(inbox))
        match outcome:
            case Await(_, _, new, _):
                state = dict(new or {})
                send = pending.pop(0)
                inbox.append(Signal(len(inbox) + 1, send.name, send.payload))
            case Next(_, new):
                state = dict(new or {})
            case Done(result):
                assert result == act.planned.result
                return
    pytest.fail("the conversation did not end")


def play(state: dict[str, Any]) -> tuple[str, Any]:
    """A family as nodes would run it: a child of an identity that is taken does not land."""
    children: list[Child] = []
    taken: set[str] = set()
    while True:
        try:
            outcome = run(Family(), "grow", state, children=tuple(children))
        except FamilyFailure:
            return "failed", None
        match outcome:
            case ScheduleChildren(jobs, _, new):
                for job in jobs:
                    if job.correlation_key in taken:
                        continue
                    if job.correlation_key is not None:
                        taken.add(job.correlation_key)
                    status, result = play(dict(job.state))
                    number = len(children) + 1
                    children.append(Child(number, Family.name, status, dict(job.state), result, None))  # type: ignore[arg-type]
                state = dict(new or {})
            case Done(result):
                return "done", result
            case Stop():
                return "failed", None
            case _:
                pytest.fail(f"a family does not do {outcome}")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_family_comes_to_what_is_planned(seed: int) -> None:
    planned = family(Random(seed))
    assert play(dict(planned.job.state)) == (planned.status, planned.result)
