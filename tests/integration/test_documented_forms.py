"""Documented and once broken forms of the coordinating statements: each loses what the sound form keeps."""

from __future__ import annotations

import pytest

from invariants.mutants import REGISTRY
from invariants.mutants.protocol import picker_of
from stress.scripts.forms import FORMS
from stress.scripts.race import Race


@pytest.mark.parametrize("name", FORMS)
def test_the_sound_form_keeps_what_would_be_lost_by(name: str, race: Race) -> None:
    assert FORMS[name].script(race, race.picker) == FORMS[name].sound


@pytest.mark.parametrize("name", FORMS)
def test_it_is_lost_by(name: str, race: Race) -> None:
    assert FORMS[name].script(race, picker_of(REGISTRY[name])) == FORMS[name].broken
