"""The picker's machine finds every broken form within its budget, and holds the sound engine under the same one."""

from __future__ import annotations

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from engine.statements import Catalogue
from models.fuzz import Finding, Profile, fuzz
from tests.integration.broken_picker import NAMES, broken

# Rounds are the budget, for they are the same on every machine; the seconds end only what hangs.
ROUNDS = 8
BUDGET_S = 120
SEED = 1
PROFILE = Profile(seconds=BUDGET_S, round_examples=50, example_steps=30)


@pytest.fixture(autouse=True)
def _hypothesis_at_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


def fuzzed(database: str, catalogue: Catalogue | None) -> Finding:
    return fuzz(
        "picker",
        database,
        seconds=BUDGET_S,
        seed=SEED,
        profile=PROFILE,
        catalogue=catalogue,
        shrink_seconds=0.5,
        rounds=ROUNDS,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_form_is_found(database: str, name: str) -> None:
    finding = fuzzed(database, broken(name))

    assert finding.verdict == "violated", finding
    assert finding.evidence


def test_the_sound_engine_holds(database: str) -> None:
    finding = fuzzed(database, None)

    assert finding.verdict == "held", finding
    assert finding.examples > 20
    assert finding.steps > 200
