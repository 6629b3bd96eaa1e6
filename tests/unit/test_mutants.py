from __future__ import annotations

import pytest

from engine.statements import Catalogue
from invariants.areas import RULES
from invariants.mutants import REGISTRY, DriftedPatchError, Mutant, Patch

CATALOGUE = Catalogue.load()


@pytest.mark.parametrize("name", REGISTRY)
def test_the_mutant_applies_and_changes_something(name: str) -> None:
    mutant = REGISTRY[name]
    patched = mutant.apply(CATALOGUE)
    changed = {statement for statement in CATALOGUE if patched[statement].text != CATALOGUE[statement].text}
    assert changed == set(mutant.statements)
    assert changed or mutant.alterations() or mutant.protocol


def test_a_function_is_replaced_by_its_patched_definition() -> None:
    [text] = REGISTRY["ack-without-token"].alterations()
    assert text.startswith("CREATE OR REPLACE FUNCTION transport_ack(")
    assert text.endswith("$$;\n")
    assert "item.holder" not in text


@pytest.mark.parametrize("name", REGISTRY)
def test_the_mutant_is_caught_by_a_known_invariant(name: str) -> None:
    assert REGISTRY[name].caught_by
    assert set(REGISTRY[name].caught_by) <= {rule.name for rule in RULES}


@pytest.mark.parametrize("old", ["no such text", "g"])
def test_a_patch_whose_text_has_drifted_fails(old: str) -> None:
    mutant = Mutant(
        name="x", summary="x", caught_by=("single-owner",), statements={"picker/claim": (Patch(old, ""),)}
    )
    with pytest.raises(DriftedPatchError, match="not once"):
        mutant.apply(CATALOGUE)


def test_a_mutant_leaves_the_catalogue_that_it_patches_alone() -> None:
    before = CATALOGUE["picker/flush"].text
    REGISTRY["outcome-unguarded"].apply(CATALOGUE)
    assert CATALOGUE["picker/flush"].text == before
