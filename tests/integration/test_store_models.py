"""The machines of the store and of the transport find every broken form within their budget, and hold the sound engine
under the same one."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from engine.statements import Catalogue
from invariants.mutants import REGISTRY
from models.fuzz import Finding, Profile, fuzz
from models.machine import Tally
from models.store_machine import on_sqlite
from models.strategies import REFUSED_DOCUMENTS

# Rounds are the budget, for they are the same on every machine; the seconds end only what hangs.
ROUNDS = 6
BUDGET_S = 240
SEED = 1
PROFILE = Profile(seconds=BUDGET_S, round_examples=25, example_steps=30)

# Races apart, which one session after the other cannot have.
BROKEN = (
    ("store", "cas-without-version"),
    ("store", "first-save-raises"),
    ("store", "conflict-without-found"),
    ("store", "dedupe-before-load"),
    ("store", "ring-one-longer"),
    ("store", "sweep-deletes-any"),
    ("store-sharded", "cas-without-version"),
    ("transport", "ack-without-token"),
    ("transport", "nack-without-token"),
    ("transport", "extend-without-token"),
    ("transport", "ack-any-message"),
    ("transport", "publish-clears-lease"),
    ("transport", "new-groups-first"),
    ("transport", "ack-keeps-turn"),
)


@pytest.fixture(autouse=True)
def _hypothesis_at_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


def fuzzed(machine: str, database: str, mutant: str | None, rounds: int) -> Finding:
    broken = None if mutant is None else REGISTRY[mutant]
    return fuzz(
        machine,
        database,
        seconds=BUDGET_S,
        seed=SEED,
        profile=PROFILE,
        catalogue=None if broken is None else broken.apply(Catalogue.load()),
        schema=() if broken is None else broken.alterations(),
        shrink_seconds=0.5,
        rounds=rounds,
    )


@pytest.mark.parametrize("where", ["context", "payload", "spawn", "trace"])
def test_the_machine_can_tell_of_every_document_that_is_refused(where: str) -> None:
    with on_sqlite("", None, ()) as bound:
        tally = Tally(deadline=monotonic() + BUDGET_S)
        machine: Any = bound(tally)()
        place = machine.draft("e", {"definition_id": "d"})
        for document in REFUSED_DOCUMENTS:
            machine.refuse(0, place, where, document)
        assert tally.steps == 1 + len(REFUSED_DOCUMENTS)


@pytest.mark.parametrize(("machine", "mutant"), BROKEN)
def test_a_broken_form_is_found(database: str, machine: str, mutant: str) -> None:
    finding = fuzzed(machine, database, mutant, ROUNDS)

    assert finding.verdict == "violated", finding
    assert finding.evidence


@pytest.mark.parametrize("machine", ["store", "store-sqlite", "store-sharded", "transport"])
def test_the_sound_engine_holds(database: str, machine: str) -> None:
    finding = fuzzed(machine, database, None, 1)

    assert finding.verdict == "held", finding
    assert finding.examples > 10
    assert finding.steps > 100
