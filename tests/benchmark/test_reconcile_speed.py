"""How long a sweep over 20,000 gate keys takes, each with two shards and an executing row. Target: 2 s on one core,
whatever the plan; before a page was a range of keys it was 9 s under generic plans, and 80 s on Postgres 13.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.limiter import Gate, PostgresLimiter
from tests.fixtures.node import Jobs

KEYS = 20_000
LIMITER = PostgresLimiter((Gate("g", 4, shards=2),))
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


@pytest.mark.slow("10 s each")
@pytest.mark.parametrize("page", [200, 1_000])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_sweep_over_gates(benchmark: Any, jobs: Jobs, mode: str, page: int) -> None:
    jobs.do(LIMITER.sync_config())
    jobs.connection.execute(SHARDS, (KEYS,))
    jobs.connection.execute(ROWS, (KEYS,))
    jobs.connection.execute(f"SET plan_cache_mode = {mode}".encode())
    done = benchmark.pedantic(lambda: jobs.do(LIMITER.reconcile(page)), rounds=3, warmup_rounds=1)
    assert done.counted == KEYS
