"""What became of faults is counted from the history: what was unknown, and how it was resolved."""

from __future__ import annotations

from collections import Counter
from typing import Any

from invariants.history.operations import Operation
from stress.effects import Back, by_fault, effects, recovered, told_orphans

LOST = {"error": "OperationalError", "sqlstate": None, "message": "server closed the connection"}


def flush(at: int, kind: Any, rows: list[int], result: Any) -> Operation:
    value = {"outcomes": [[row, "c", "done"] for row in rows], "turns": [0 for _ in rows]}
    return Operation("node", at, "flush", kind, value, result, at, at + 1)


def count(at: int, event: str, amount: int) -> Operation:
    return Operation("node", at, "count", "ok", {"event": event, "amount": amount}, None, at, at)


def test_an_outcome_of_unknown_fate_is_resolved_by_the_next_answer_and_else_left_to_the_reaper() -> None:
    found = effects(
        [
            flush(1, "info", [1, 2, 3], LOST),
            flush(3, "info", [1], LOST),
            flush(5, "ok", [1, 4], {"xid": 9, "committed": [[4, "c"]]}),
            flush(7, "ok", [2], {"xid": 10, "committed": [[2, "c"]]}),
            Operation("node", 8, "reap", "ok", {"limit": 9}, {"holds": [[3, "c"]], "xid": 11}, 9, 10),
        ]
    )
    assert found == {
        "claims reaped": 1,
        "flushes unknown": 2,
        "outcomes left to the reaper": 1,
        "outcomes resolved": 2,
    }


def test_what_was_refused_is_not_unknown() -> None:
    refused = {"error": "DataError", "sqlstate": "22P02", "message": "invalid input"}
    assert effects([flush(1, "fail", [1], refused)]) == {}


def test_stale_outcomes_reconnects_and_calls_of_clients_are_counted() -> None:
    found = effects(
        [
            count(1, "stale", 2),
            count(2, "reconnect", 1),
            count(3, "poke_reconnect", 1),
            count(4, "reaped", 5),
            Operation("client", 0, "insert", "info", {"job": {}}, LOST, 5, 6),
        ]
    )
    assert found == {"client calls unknown": 1, "outcomes stale": 2, "reconnects": 2}


def test_what_each_kind_of_fault_did_is_added_up() -> None:
    faults = [
        {"fault": "kill", "did": {"nodes killed": 1}},
        {"fault": "kill", "did": {"nodes killed": 1}},
        {"fault": "crash", "did": {}},
    ]
    assert by_fault(faults) == {"kill": (2, Counter({"nodes killed": 2})), "crash": (1, Counter())}


BOUNDS = {"taken_back_ms": 1_700.0, "run_again_ms": 2_200.0}


def recovery(name: str, throughput_ms: float | None = None, **orphans: Any) -> dict[str, Any]:
    none = {
        "orphans": 0, "taken_back_ms": None, "run_again_ms": None, "taken_back_late": 0, "run_again_late": 0,
        "still_waiting": 0,
    }  # fmt: skip
    throughput = {"throughput_ms": throughput_ms, "throughput_bound_ms": 2_900.0}
    return {"fault": name, "recovery": {**throughput, **none, **orphans}}


def test_times_to_recover_are_gathered_by_kind_beside_how_many_were_not_seen() -> None:
    faults = [recovery("kill", 900.0), recovery("kill"), recovery("kill", 300.0), recovery("crash")]
    assert recovered(faults) == {
        "kill": Back(times_ms=[300.0, 900.0], bounds_ms=[2_900.0, 2_900.0], unseen=1),
        "crash": Back(unseen=1),
    }


def test_orphans_are_told_beside_what_lease_and_sweeps_imply() -> None:
    late = recovery(
        "kill", orphans=3, taken_back_ms=1_600.0, run_again_ms=2_500.0, run_again_late=1, still_waiting=1
    )
    told = told_orphans([late, recovery("pause", orphans=2, taken_back_ms=1_000.0)], BOUNDS)
    assert told == (
        "orphans: 5, taken back within 1,600 ms (lease and sweeps imply 1,700 ms; 0 later), run again within 2,500 ms "
        "(lease and sweeps imply 2,200 ms; 1 later), 1 not seen to run again"
    )
    assert told_orphans([recovery("kill")], BOUNDS) is None
