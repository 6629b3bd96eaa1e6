"""Each mutant of the store, the relay and the transport is caught by the invariant that it names, on a recorded ledger;
the sound engine survives the same script."""

from __future__ import annotations

import pytest

from invariants.mutants import REGISTRY, STORE_MUTANTS
from stress.scripts.depot import draft, emit
from stress.scripts.store import SCRIPTS, TO_REST
from tests.fixtures.scripts import OpenDepot

# What is shown below with a script of its own.
OF_ANOTHER_SCRIPT = frozenset(("execution-ends",))


def test_every_mutant_of_the_store_has_a_script() -> None:
    assert {mutant.name for mutant in STORE_MUTANTS} <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_sound_engine_survives(open_depot: OpenDepot, name: str) -> None:
    depot = open_depot(None)
    SCRIPTS[name](depot)
    report = depot.judge(at_rest=name in TO_REST)
    assert [(j.invariant, j.violations) for j in report.judgements if j.verdict == "violated"] == []
    for invariant in set(REGISTRY[name].caught_by) - OF_ANOTHER_SCRIPT:
        assert next(j for j in report.judgements if j.invariant == invariant).checked


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_mutant_is_caught(open_depot: OpenDepot, name: str) -> None:
    depot = open_depot(name)
    SCRIPTS[name](depot)
    report = depot.judge(at_rest=name in TO_REST)
    violated = {j.invariant for j in report.judgements if j.verdict == "violated"}
    assert violated & set(REGISTRY[name].caught_by), violated


@pytest.mark.parametrize(("mutant", "verdict"), [(None, "held"), ("relay-acks-first", "violated")])
def test_an_execution_whose_start_is_lost_never_ends(
    open_depot: OpenDepot, mutant: str | None, verdict: str
) -> None:
    depot = open_depot(mutant)
    one, execution = depot.client("one"), draft("a")
    one.commit(execution, [emit("a", "start")], ends=True)
    depot.courier("mortal").deliver(2)
    depot.courier("relay").deliver()
    message = depot.transport("worker").claim(token="t")
    if message is not None:
        execution.status = "DONE"
        one.commit(execution, event="start")
        depot.transport("acker").ack(message.group_id, message.seq, message.token)
    found = {j.invariant: j for j in depot.judge(at_rest=True).judgements}
    assert (found["execution-ends"].verdict, found["execution-ends"].checked) == (verdict, 1)
