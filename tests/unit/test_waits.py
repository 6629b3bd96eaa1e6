"""How long jobs wait, and what idle nodes cost, counted from the history."""

from __future__ import annotations

from typing import Any

from invariants.history.operations import Operation
from stress.waits import busiest_key, idle_cost, waits_ms

MS = 1_000_000
WALL_NS = 1_000_000_000_000


def operation(
    f: str, value: Any, result: Any, start_ms: float, end_ms: float, process: str = "node"
) -> Operation:
    return Operation(process, 0, f, "ok", value, result, round(start_ms * MS), round(end_ms * MS), WALL_NS)


def insert(row: int, at_ms: float, **job: Any) -> Operation:
    described = {"queue": "default", "concurrency_key": None, "eligible_at": None, **job}
    return operation("insert", {"job": described}, {"id": row}, at_ms - 1, at_ms, "client")


def step(row: int, at_ms: float) -> Operation:
    return operation("step", {"id": row}, {"kind": "done"}, at_ms, at_ms + 1)


def flush(at_ms: float, *rows: int, kind: str = "done") -> Operation:
    value = {"outcomes": [[row, "c", kind] for row in rows]}
    return operation("flush", value, {"xid": 1, "committed": [[row, "c"] for row in rows]}, at_ms - 1, at_ms)


def test_a_job_waits_from_its_insert_to_its_first_step_and_to_its_end() -> None:
    found = waits_ms([insert(1, 10), step(1, 14), step(1, 20), flush(15, 1, kind="next"), flush(30, 1)])
    assert found["default"]["started"] == {"count": 1, "p50": 4.0, "p90": 4.0, "p99": 4.0, "max": 4.0}
    assert found["default"]["ended"]["max"] == 20.0


def test_a_job_that_is_due_later_waits_from_then() -> None:
    eligible_at = (WALL_NS + 50 * MS) // MS
    found = waits_ms([insert(1, 10, eligible_at=eligible_at, kind="soon"), step(1, 53)])
    assert found["soon"]["started"]["max"] == 3.0
    assert "ended" not in found["soon"]


def test_the_busiest_key_is_the_one_that_ended_most() -> None:
    jobs = [insert(row, 1, concurrency_key=key) for row, key in ((1, "a"), (2, "a"), (3, "b"), (4, None))]
    assert busiest_key([*jobs, flush(9, 1, 2), flush(10, 3, 4)], 4.0) == 0.5
    assert busiest_key([insert(1, 1), flush(9, 1)], 4.0) is None


def test_idle_nodes_cost_what_they_asked_while_the_harness_says_that_they_were_alone() -> None:
    idle = operation("idle", {"nodes": 2}, {"transactions": 24}, 1_000, 5_000, "harness")
    asked = [operation("claim", {}, {}, at, at + 1) for at in (999, 1_000, 2_000, 4_999, 5_000)]
    noise = [operation("count", {}, None, 2_000, 2_000), operation("phase", {}, {}, 2_000, 2_000, "harness")]
    assert idle_cost([idle, *asked, *noise]) == {
        "seconds": 4.0, "nodes": 2, "statements_per_node": 0.375, "transactions_per_node": 3.0,
    }  # fmt: skip
    assert idle_cost(asked) == {}
