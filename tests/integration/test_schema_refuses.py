"""Every constraint of the schema refuses what it is there for, and every one is tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from engine.schema import migrate
from engine.statements import AREAS
from stress.mutants.ablation import CONSTRAINTS
from stress.mutants.refusals import REFUSED, first_taken, outcomes


@pytest.fixture
def whole(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A database with every area's schema."""
    with psycopg.connect(database, autocommit=True) as connection:
        for area in AREAS:
            migrate(connection, area)
        yield connection


def test_each_change_is_refused_by_the_constraint_that_it_breaks(whole: psycopg.Connection[Any]) -> None:
    for name, text, error in outcomes(whole):
        assert error is not None, text
        told = error.diag
        assert name in (told.constraint_name, f"{told.table_name}.{told.column_name}"), (text, str(error))


def test_every_constraint_and_every_unique_index_is_tried(whole: psycopg.Connection[Any]) -> None:
    unique = whole.execute(
        "SELECT i.indexrelid::regclass::text FROM pg_index AS i WHERE i.indisunique AND i.indrelid::regclass::text "
        "NOT LIKE 'pg%' AND (SELECT relnamespace FROM pg_class WHERE oid = i.indrelid) = 'public'::regnamespace"
    ).fetchall()
    rows = whole.execute(CONSTRAINTS.encode()).fetchall()
    constraints = {text.split()[0] for _, kind, text, _ in rows if kind == "constraint"}
    assert set(REFUSED) == constraints | {name for (name,) in unique}


def test_without_a_constraint_something_is_taken(whole: psycopg.Connection[Any]) -> None:
    taken = first_taken(whole, ("ALTER TABLE gen_durable_buckets DROP CONSTRAINT gen_durable_buckets_check",))
    assert taken == "taken: UPDATE gen_durable_buckets SET available = -0.5"
