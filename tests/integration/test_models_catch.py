"""The machines find every broken form within their budget, and hold the sound engine under the same one."""

from __future__ import annotations

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from engine.picker import Picker
from engine.statements import Catalogue
from invariants.mutants import REGISTRY, Mutant
from invariants.mutants.protocol import picker_of
from models.fuzz import Finding, Profile, fuzz
from tests.integration.broken_coordination import COORDINATION_FORMS
from tests.integration.broken_picker import NAMES, broken, patched

# Rounds are the budget; the seconds end only what hangs, on a slow machine too. Each form is found in the first round
# more often than not; the picker's machine, whose rounds are quick, needs more of them for `reap-unordered`. What a
# round draws is not the seed's alone: Hypothesis also draws constants of the modules that happen to be loaded, so the
# budget leaves room for the unlucky.
ROUNDS = {"picker": 30, "coordination": 12}
BUDGET_S = 540
SEED = 1
PROFILE = Profile(seconds=BUDGET_S, round_examples=50, example_steps=30)
pytestmark = pytest.mark.timeout(BUDGET_S + 60)

# Those that break signals, children, continuations or maintenance, and that show where operations take effect one after
# the other, with two waiting for one row or not. `json-double-encoded` breaks a single insert, which is the picker's.
MUTANTS = (
    "children-after-update",
    "children-without-parent-lock",
    "collects-beside-the-parent",
    "consume-whole-inbox",
    "continue-credits-held-slot",
    "continue-unfenced",
    "dedup-forgets",
    "duplicate-wakes",
    "join-counts-a-batch-once",
    "outcome-unguarded",
    "park-without-recheck",
    "recheck-by-watermark",
    "recheck-ignores-presented",
    "reclaim-beside-the-living",
    "reclaim-by-bare-prefix",
    "reclaim-uncounted",
    "reclaim-without-margin",
    "retention-from-birth",
    "rider-reads-snapshot",
    "scope-reentered-by-a-wake",
    "signal-to-the-dead",
    "wake-filtered-in-where",
)


@pytest.fixture(autouse=True)
def _hypothesis_at_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


def fuzzed(
    machine: str,
    database: str,
    catalogue: Catalogue | None,
    schema: tuple[str, ...] = (),
    mutant: Mutant | None = None,
) -> Finding:
    return fuzz(
        machine,
        database,
        seconds=BUDGET_S,
        seed=SEED,
        profile=PROFILE,
        catalogue=catalogue,
        schema=schema,
        shrink_seconds=0.5,
        rounds=ROUNDS[machine],
        pickers=Picker if mutant is None else lambda _: picker_of(mutant),
    )


def assert_found(finding: Finding) -> None:
    assert finding.verdict == "violated", finding
    assert finding.evidence


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_form_of_the_picker_is_found(database: str, name: str) -> None:
    assert_found(fuzzed("picker", database, broken(name)))


@pytest.mark.parametrize("name", COORDINATION_FORMS)
def test_a_broken_form_of_coordination_is_found(database: str, name: str) -> None:
    assert_found(fuzzed("coordination", database, patched(COORDINATION_FORMS[name])))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_coordination_is_found(database: str, name: str) -> None:
    mutant = REGISTRY[name]

    assert_found(fuzzed("coordination", database, mutant.apply(Catalogue.load()), mutant.schema, mutant))


def test_a_state_that_is_encoded_twice_is_found(database: str) -> None:
    mutant = REGISTRY["json-double-encoded"]

    finding = fuzzed("picker", database, mutant.apply(Catalogue.load()), mutant.schema)

    assert_found(finding)
    assert "state: the model says" in finding.evidence


@pytest.mark.parametrize("machine", ["picker", "coordination"])
def test_the_sound_engine_holds(database: str, machine: str) -> None:
    finding = fuzzed(machine, database, None)

    assert finding.verdict == "held", finding
    assert finding.examples > 20
    assert finding.steps > 200
