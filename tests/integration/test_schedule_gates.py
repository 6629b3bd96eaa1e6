"""Gates stop sessions, and leave plans as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from engine.schema import migrate
from engine.statements import Catalogue
from stress.schedules.gates import FUNCTIONS, gated, needs_call, triggers

CATALOGUE = Catalogue.load()
TABLES = ("gen_durable", "signals", "signal_receipts", "gen_durable_buckets", "gen_durable_bucket_configs")
STATEMENTS = sorted(name for name in CATALOGUE if name.split("/")[0] in ("picker", "maintenance", "limiter"))


@contextmanager
def prepared(connection: psycopg.Connection[Any], text: str) -> Iterator[str]:
    connection.execute(f"PREPARE it AS {text}".encode())
    try:
        yield "it"
    finally:
        connection.execute("DEALLOCATE it")


def shape(connection: psycopg.Connection[Any], name: str, catalogue: Catalogue) -> object:
    """The generic plan's nodes, without what estimates and gates put there."""
    statement = catalogue[name]
    nulls = ", ".join(["NULL"] * len(statement.types))
    with prepared(connection, statement.text):
        call = f"({nulls})" if nulls else ""
        row = connection.execute(f"EXPLAIN (FORMAT JSON, COSTS OFF) EXECUTE it{call}".encode()).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return nodes(plan[0]["Plan"])


def nodes(plan: dict[str, Any]) -> object:
    below = plan.get("Plans", [])
    if plan["Node Type"] == "Result" and "One-Time Filter" in plan:
        # What a gate adds: a plan of its own that calls it, and a node that looks at the answer before the scan.
        inner = [one for one in below if one.get("Parent Relationship") != "InitPlan"]
        if len(inner) == 1:
            return nodes(inner[0])
    kept = [nodes(one) for one in below if not (one["Node Type"] == "Result" and is_gate(one))]
    told = tuple(
        plan.get(key) for key in ("Node Type", "Index Name", "Relation Name", "Join Type", "Operation")
    )
    return (told, plan.get("Subplan Name") if "CTE" in plan.get("Subplan Name", "") else None, tuple(kept))


def is_gate(plan: dict[str, Any]) -> bool:
    return plan.get("Parent Relationship") == "InitPlan" and not plan.get("Plans")


@pytest.fixture(scope="module")
def plain(server: Any) -> Iterator[psycopg.Connection[Any]]:
    yield from connected(server, gates=False)


@pytest.fixture(scope="module")
def with_gates(server: Any) -> Iterator[psycopg.Connection[Any]]:
    yield from connected(server, gates=True)


def connected(server: Any, *, gates: bool) -> Iterator[psycopg.Connection[Any]]:
    from engine.postgres import fresh_database

    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        migrate(connection)
        if gates:
            connection.execute(FUNCTIONS.encode())
            connection.execute(triggers(TABLES).encode())
        connection.execute("SET plan_cache_mode = force_generic_plan")
        yield connection


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_plan_with_gates_has_the_shape_of_the_plan_without(
    name: str, plain: psycopg.Connection[Any], with_gates: psycopg.Connection[Any]
) -> None:
    assert shape(with_gates, name, gated(CATALOGUE)) == shape(plain, name, CATALOGUE)


def test_every_statement_that_locks_in_a_select_has_a_gate_in_its_text() -> None:
    assert sorted(name for name in STATEMENTS if needs_call(CATALOGUE[name])) == [
        "limiter/admit",
        "limiter/reconcile_lock",
        "limiter/sweep_buckets",
        "picker/flush_lock",
        "picker/signal",
    ]
