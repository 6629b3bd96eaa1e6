"""docs/known-bugs.md accounts for every entry by something that exists: a mutant, a constraint, a statement, a test."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from engine.statements import AREAS, Catalogue, load_migrations
from invariants.mutants import PLANS, REGISTRY
from results.plans import shapes
from stress.faults import FAULTS
from tests.integration.broken_picker import NAMES as FORMS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "known-bugs.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("|")
]
# By group, the numbers of its entries.
ENTRIES = {
    "DX": (1, 3, 4, 5, 6), "LJ": (2, 3, 4, 5, 6, 7, 8), "OB": (1, 2, 3), "LW": (1, 2, 4, 5, 7, 8),
    "OF": (2, 3, 4, 5, 6, 7, 8), "MK": (2, 3, 4, 5, 6, 7), "RL": (1, 2, 3), "DU": (1, 2, 4, 5, 6, 7, 8),
    "OP": (1, 2, 3), "CA": (1, 2, 3, 4), "TM": (1, 2, 4), "DL": (1, 2, 3, 4, 5), "PR": (1, 3, 4, 5, 6, 7),
    "PL": (1, 2, 3, 5, 6, 7, 8, 10, 11), "RC": (1, 2, 3), "CH": (1, 2, 3, 4, 5, 6, 7),
}  # fmt: skip
BUGS = {row[0]: row[2] for row in ROWS if re.fullmatch(r"[A-Z]{2}\d+", row[0])}
OWN_HISTORY = {row[0].strip("`") for row in ROWS if len(row) == 2 and row[0].startswith("`")}


@cache
def sql() -> str:
    migrations = [migration.text for area in AREAS for migration in load_migrations(area)]
    return "\n".join([*migrations, *(statement.text for statement in Catalogue.load().values())])


def exists(name: str) -> bool:
    """Whether the page may name it."""
    path, _, test = name.partition("::")
    if test:
        text = (ROOT / path).read_text("utf-8")
        return re.search(rf"^(async )?def {test}\(", text, re.MULTILINE) is not None
    known = {*REGISTRY, *PLANS, *FORMS, *FAULTS, *Catalogue.load()}
    return name in known or name in sql() or f"    {name} " in (shapes.__doc__ or "")


def test_every_public_bug_has_its_line() -> None:
    assert set(BUGS) == {f"{group}{number}" for group, numbers in ENTRIES.items() for number in numbers}


def test_the_history_and_the_plans_are_mutants_by_their_own_names() -> None:
    assert set(PLANS) <= OWN_HISTORY
    assert {*REGISTRY, *PLANS} >= OWN_HISTORY
    assert len(OWN_HISTORY - set(PLANS)) == 27


@pytest.mark.parametrize("bug", BUGS)
def test_what_stands_for_it_exists(bug: str) -> None:
    named = re.findall(r"`([^`]+)`", BUGS[bug])
    assert named
    assert [name for name in named if not exists(name)] == []


def test_there_are_sixty_mutants_and_more() -> None:
    assert len(REGISTRY) >= 60
