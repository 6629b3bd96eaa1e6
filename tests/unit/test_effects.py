"""What became of faults is counted from the history: what was unknown, and how it was resolved."""

from __future__ import annotations

from collections import Counter
from typing import Any

from invariants.history.operations import Operation
from stress.effects import by_fault, effects

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
