"""A claim's cost does not grow with what is leased, parked, ready or queued."""

from __future__ import annotations

from typing import Any

import pytest

from stress.scripts.courier import Courier

GROUPS = 100_000
# Pages that one claim may touch, two index descents a step and a page of candidates among them.
PAGES = 150


def pages_of_a_claim(courier: Courier, min_priority: int = 0) -> int:
    [(plan,)] = courier.rows(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM transport_claim(1, 't', 30, %s, 100)",
        min_priority,
    )
    root: dict[str, Any] = plan[0]["Plan"]
    assert root["Actual Rows"] == 1
    return int(root["Shared Hit Blocks"]) + int(root["Shared Read Blocks"])


@pytest.mark.slow(6)
@pytest.mark.parametrize("analyzed", [False, True])
def test_a_claim_touches_the_same_few_pages_among_a_hundred_thousand_groups(
    courier: Courier, analyzed: bool
) -> None:
    courier.rows("ALTER TABLE transport_groups SET (autovacuum_enabled = off)")
    courier.rows("ALTER TABLE transport_messages SET (autovacuum_enabled = off)")
    courier.publish("warm", "e", now=0.0)
    courier.rows("VACUUM ANALYZE transport_groups, transport_messages")
    # Plans are made now, for tables of one row, and kept.
    for _ in range(10):
        pages_of_a_claim(courier)
        courier.rows("UPDATE transport_groups SET lock_expiry = 0")
    # A third is leased or parked, a third ready, a third ready below the floor; one group has most of the messages.
    courier.rows(
        "INSERT INTO transport_groups (group_id, locked_by, lock_expiry, priority)"
        " SELECT 'g' || n, CASE n %% 3 WHEN 0 THEN 'x' END, CASE n %% 3 WHEN 0 THEN 1000 ELSE 1 END + n * 1e-6,"
        " CASE n %% 3 WHEN 1 THEN 4 ELSE 0 END FROM generate_series(1, %s) n",
        GROUPS,
    )
    courier.rows(
        "INSERT INTO transport_messages (group_id, event) SELECT 'g0', 'e' FROM generate_series(1, %s)",
        GROUPS,
    )
    courier.rows(
        "INSERT INTO transport_messages (group_id, event) SELECT 'g' || n, 'e' FROM generate_series(1, %s) n",
        GROUPS,
    )
    if analyzed:
        courier.rows("ANALYZE transport_groups, transport_messages")
    for min_priority in (0, 0, 4):
        assert pages_of_a_claim(courier, min_priority) <= PAGES
