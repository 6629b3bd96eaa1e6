"""Mutants of the transport, the relay and the sweeper: each loses what the sound form keeps."""

from __future__ import annotations

import pytest

from invariants.mutants import TRANSPORT_MUTANTS
from stress.scripts.courier import Courier
from stress.scripts.transport import QUESTIONS

MUTANTS = {mutant.name: mutant for mutant in TRANSPORT_MUTANTS}


def test_every_mutant_has_a_script() -> None:
    assert set(QUESTIONS) == set(MUTANTS)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_sound_form_keeps_what_would_be_lost_by(name: str, courier: Courier) -> None:
    script, right = QUESTIONS[name]
    assert script(courier) == right


@pytest.mark.parametrize("name", QUESTIONS)
def test_it_is_lost_by(name: str, courier: Courier) -> None:
    courier.break_by(MUTANTS[name])
    script, right = QUESTIONS[name]
    assert script(courier) != right
