"""How long recovery took is measured where a fault can be told from others, and not said where it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from invariants.history import Operation
from invariants.recovery import Bounds, Recovery, recoveries

BOUNDS = Bounds(taken_back_ms=1_700.0, run_again_ms=2_200.0)
LOAD_S = 60.0
LOST = {"error": "OperationalError", "sqlstate": None, "message": "server closed the connection"}


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def did(
    f: str, begin_s: float, end_s: float | None, value: Any, result: Any, kind: Any = "ok", process: str = "n"
) -> Operation:
    end_ns = None if end_s is None else ns(end_s)
    return Operation(process, 0, f, kind, value, result, ns(begin_s), end_ns)


def load() -> list[Operation]:
    return [
        did("phase", 0, 0, {"phase": "load"}, {"phase": "load"}),
        did("phase", LOAD_S, LOAD_S, {"phase": "drain"}, {"phase": "drain"}),
    ]


def fault(name: str, begin_s: float, end_s: float | None, target: str = "n") -> Operation:
    value = {"fault": name, "target": target, "pid": 1}
    return did(
        "fault", begin_s, end_s, value, None if end_s is None else {"did": {}}, "ok" if end_s else "info"
    )


def work(gaps: Iterable[tuple[float, float]] = ()) -> list[Operation]:
    """A flush of two outcomes every tenth of a second, but in the gaps."""
    return [
        did(
            "flush", at / 10 - 0.01, at / 10, {"outcomes": []}, {"xid": at, "committed": [[1, "c"], [2, "c"]]}
        )
        for at in range(1, round(LOAD_S * 10))
        if not any(begin <= at / 10 < end for begin, end in gaps)
    ]


def of(*operations: Operation) -> list[Recovery]:
    return recoveries(sorted(operations, key=lambda o: o.start_ns), BOUNDS)


def test_throughput_is_back_with_the_first_window_that_holds_as_much_as_before() -> None:
    [found] = of(*load(), *work([(20.0, 24.0)]), fault("crash", 20.0, 22.0))
    assert found.not_seen is None
    assert found.throughput_ms == pytest.approx(3_900, abs=200)


def test_what_never_fell_was_back_at_once() -> None:
    [found] = of(*load(), *work(), fault("vacuum", 20.0, 22.0))
    assert (found.throughput_ms, found.not_seen) == (0.0, None)


def test_work_that_was_not_acknowledged_is_none() -> None:
    lost = [did("flush", 21.0, 21.5, {"outcomes": [[1, "c", "done"]] * 99}, LOST, "info")]
    [found] = of(*load(), *work([(20.0, 24.0)]), *lost, fault("crash", 20.0, 22.0))
    assert found.throughput_ms == pytest.approx(3_900, abs=200)


@pytest.mark.parametrize(
    ("others", "gap", "why"),
    [
        ([fault("xmin", 15.0, 21.0)], (20.0, 24.0), "xmin was in force before"),
        ([fault("kill", 18.0, 18.5, "m")], (20.0, 24.0), "kill was in force before"),
        ([fault("pause", 22.0, 25.0, "m")], (20.0, 24.0), "pause came first"),
        ([fault("stats", 22.0, None)], (20.0, 21.0), None),
        ([], (20.0, 59.9), "the load ended first"),
        ([], (15.0, 24.0), "nothing was done before"),
    ],
)
def test_no_number_is_said_where_another_fault_or_the_end_of_the_load_is_in_the_way(
    others: list[Operation], gap: tuple[float, float], why: str | None
) -> None:
    faults = sorted([fault("crash", 20.0, 20.5), *others], key=lambda o: o.start_ns)
    found = of(*load(), *work([gap]), *faults)
    [mine] = [each for o, each in zip(faults, found, strict=True) if o.value["fault"] == "crash"]
    assert mine.not_seen == why
    assert (mine.throughput_ms is None) == (why is not None)


def test_a_fault_at_the_very_beginning_of_the_load_has_nothing_to_be_compared_with() -> None:
    [found] = of(*load(), *work(), fault("crash", 1.0, 2.0))
    assert found.not_seen == "the load had just begun"


def claim(name: str, at_s: float, *rows: int, process: str = "n") -> Operation:
    return did(
        "claim",
        at_s - 0.01,
        at_s,
        {"queue": "q", "batch": 9, "claim": name},
        {"ids": list(rows)},
        process=process,
    )


def reap(at_s: float, *holds: tuple[int, str]) -> Operation:
    return did(
        "reap", at_s - 0.01, at_s, {"limit": 9}, {"xid": 5, "holds": [list(h) for h in holds]}, process="m"
    )


def flush(at_s: float, *holds: tuple[int, str], kind: Any = "ok") -> Operation:
    told = {"xid": 7, "committed": [list(hold) for hold in holds]}
    value = {"outcomes": [[*hold, "done"] for hold in holds]}
    return did("flush", at_s - 0.01, at_s, value, told if kind == "ok" else LOST, kind)


def test_orphans_are_what_the_victim_held_and_did_not_end_and_wait_until_another_claims_them() -> None:
    [found] = of(
        *load(),
        claim("a", 19.0, 1, 2, 3, 4),
        flush(19.5, (1, "a")),
        flush(19.99, (2, "a"), kind="info"),
        claim("other", 19.0, 9, process="m"),
        fault("kill", 20.0, 21.0),
        reap(21.5, (3, "a"), (4, "a")),
        claim("b", 21.75, 3, process="m"),
        claim("c", 23.0, 4, process="m"),
    )
    assert found.orphans == 2
    assert found.taken_back_ms == pytest.approx(1_500)
    assert found.run_again_ms == pytest.approx(3_000)
    assert (found.taken_back_late, found.run_again_late, found.still_waiting) == (0, 1, 0)


def test_an_orphan_that_is_taken_back_late_or_never_is_counted() -> None:
    [found] = of(*load(), claim("a", 19.0, 1, 2), fault("pause", 20.0, 23.0), reap(22.0, (1, "a")))
    assert (found.orphans, found.taken_back_late, found.still_waiting) == (2, 1, 2)
    assert found.run_again_ms is None


def test_what_another_has_had_meanwhile_and_what_a_frozen_node_ends_itself_is_no_orphan() -> None:
    [found] = of(
        *load(),
        claim("a", 17.0, 1, 2),
        claim("b", 19.0, 1, process="m"),
        fault("pause", 20.0, 23.0),
        flush(23.5, (2, "a")),
    )
    assert found.orphans == 0


def test_faults_of_other_kinds_orphan_nothing() -> None:
    [found] = of(*load(), claim("a", 19.0, 1), fault("slow", 20.0, 21.0))
    assert found.orphans == 0
