"""Each mutant is caught by the invariants that it names, and the sound engine survives the same script."""

from __future__ import annotations

from dataclasses import replace

import pytest

from invariants.mutants import REGISTRY, STORE_MUTANTS, TRANSPORT_MUTANTS
from invariants.picker import PICKER_RULES
from stress.scripts import SCRIPTS, TO_REST
from stress.scripts.arena import of, verdicts
from tests.fixtures.scripts import OpenArena


def test_every_mutant_has_a_script() -> None:
    others = {mutant.name for mutant in (*STORE_MUTANTS, *TRANSPORT_MUTANTS)}
    assert set(SCRIPTS) == set(REGISTRY) - others


def test_every_rule_catches_a_mutant() -> None:
    caught = {invariant for mutant in REGISTRY.values() for invariant in mutant.caught_by}
    assert {rule.name for rule in PICKER_RULES} <= caught


@pytest.mark.parametrize("mutant", SCRIPTS)
def test_the_mutant_is_caught_by_the_invariant_that_it_names(mutant: str, open_arena: OpenArena) -> None:
    arena = open_arena(mutant)
    SCRIPTS[mutant](arena)
    report = arena.judge(at_rest=mutant in TO_REST)
    for invariant in REGISTRY[mutant].caught_by:
        assert of(report, invariant).verdict == "violated", verdicts(report)
    assert report.exit_code == 1


@pytest.mark.parametrize("mutant", SCRIPTS)
def test_the_sound_engine_holds_under_the_script_of(mutant: str, open_arena: OpenArena) -> None:
    arena = open_arena(None)
    SCRIPTS[mutant](arena)
    report = arena.judge(at_rest=mutant in TO_REST)
    found = {j.invariant: j.violations for j in report.judgements if j.verdict == "violated"}
    assert found == {}
    for invariant in REGISTRY[mutant].caught_by:
        assert of(report, invariant).verdict == "held", of(report, invariant)


def test_with_its_check_an_admission_that_leans_on_it_lets_nobody_in_twice(open_arena: OpenArena) -> None:
    arena = open_arena(replace(REGISTRY["no-check"], schema=()))
    SCRIPTS["no-check"](arena)
    report = arena.judge(at_rest=True)
    assert not {"gate-cap", "slot-conservation"} & {j.invariant for j in report.judgements if j.violated}
