"""The sweep over gates costs the same a key, whatever the planner knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.limiter import Gate, PostgresLimiter
from engine.statements import Catalogue
from tests.fixtures.node import Jobs

KEYS = 300
LIMITER = PostgresLimiter((Gate("g", 4, shards=2),))
# What one node of a plan may handle, in rows a shard of the page.
ROWS_PER_SHARD = 4
SHARDS = """
INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, counted)
SELECT 'conc', 'g:' || lpad(k::text, 6, '0'), s, 2, 2, pg_current_snapshot()
FROM generate_series(1, %s) AS k, generate_series(0, 1) AS s
"""
ROWS = """
INSERT INTO gen_durable (fsm, step, status, locked_by, lease_expires_at, concurrency_key, concurrency_shard)
SELECT 'f', 's', 'executing', 'w', 'infinity', 'g:' || lpad(k::text, 6, '0'), 0
FROM generate_series(1, %s) AS k
"""


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def handled(node: dict[str, Any]) -> float:
    """Rows that a node brought, and looked at in vain."""
    removed = sum(value for name, value in node.items() if name.startswith("Rows Removed"))
    rows: float = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return rows


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_no_part_of_a_sweep_looks_at_more_than_its_page(jobs: Jobs, mode: str, analyzed: bool) -> None:
    jobs.do(LIMITER.sync_config())
    jobs.connection.execute(SHARDS, (KEYS,))
    jobs.connection.execute(ROWS, (KEYS,))
    if analyzed:
        jobs.connection.execute("ANALYZE")
    jobs.connection.execute(f"SET plan_cache_mode = {mode}".encode())
    text = Catalogue.load()["limiter/reconcile"].text
    jobs.connection.execute(f"PREPARE sweep (text[], smallint[], double precision) AS {text}".encode())
    keys = ",".join(f"g:{number:06}" for number in range(1, KEYS + 1) for _ in (0, 1))
    shards = ",".join("0,1" for _ in range(KEYS))
    [plan] = jobs.one(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE sweep ('{{{keys}}}', '{{{shards}}}', 60000)")
    most = max(nodes(plan["Plan"]), key=handled)
    assert handled(most) <= ROWS_PER_SHARD * KEYS * 2, most
    assert not [node for node in nodes(plan["Plan"]) if "key = ANY" in node.get("Filter", "")]
