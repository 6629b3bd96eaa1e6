"""The limiter's machine finds mutants within its budget, and holds the sound engine under the same one."""

from __future__ import annotations

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from engine.statements import Catalogue
from invariants.mutants import REGISTRY
from models.fuzz import Finding, Profile, fuzz

# Rounds are the budget; the seconds end only what hangs. Most forms are found in the first few. What a round draws
# is not the seed's alone: Hypothesis also draws constants of the modules that happen to be loaded, so the budget
# leaves room for the unlucky.
ROUNDS = 30
BUDGET_S = 110
PROFILE = Profile(seconds=BUDGET_S, round_examples=50, example_steps=30)

# Without a concurrent writer; what only a race brings out is in test_limiter_races.
FOUND_ALONE = (
    "admit-doubles-shard",
    "burst-raised-wedges",
    "credit-after-count",
    "draws-in-order",
    "lowered-capacity-forgotten",
    "provisional-is-a-shard",
    "refill-counts-back",
)


@pytest.fixture(autouse=True)
def _hypothesis_at_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


def fuzzed(database: str, catalogue: Catalogue | None) -> Finding:
    return fuzz(
        "limiter",
        database,
        seconds=BUDGET_S,
        seed=1,
        profile=PROFILE,
        catalogue=catalogue,
        shrink_seconds=0.5,
        rounds=ROUNDS,
    )


@pytest.mark.parametrize("name", FOUND_ALONE)
def test_a_mutant_is_found(database: str, name: str) -> None:
    finding = fuzzed(database, REGISTRY[name].apply(Catalogue.load()))

    assert finding.verdict == "violated", finding
    assert finding.evidence


def test_the_sound_engine_holds(database: str) -> None:
    finding = fuzzed(database, None)

    assert finding.verdict == "held", finding
    assert finding.examples > 20
    assert finding.steps > 200
