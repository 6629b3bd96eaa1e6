"""Histories of several hosts come to one time line that never says more of an order than their clocks do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from invariants.evidence import Evidence
from invariants.folder import FolderError, judge_folder
from invariants.history import merge_folder
from invariants.history.clocks import (
    MOST_DRIFT,
    ClockError,
    Clocks,
    HostClock,
    Sample,
    TimeLine,
    write_clocks,
)
from invariants.history.events import _HEADER as HEADER
from invariants.history.events import _LENGTH as LENGTH
from invariants.history.events import MAGIC, VERSION, Clock, Event, history_path
from tests.fixtures.recordings import recording

MS = 1_000_000
HOUR = 3_600_000 * MS
# A host's clock: its reading at a moment of the harness's.
There = Callable[[int], int]


def clock(offset_ns: int, drift: float) -> There:
    return lambda at: at + offset_ns + round(drift * at)


def asked(there: There, trips: Sequence[tuple[int, int, int]]) -> list[Sample]:
    """Samples of round trips that began at some moment and took so long there and back."""
    return [Sample(at, there(at + out), at + out + back) for at, out, back in trips]


TRIPS = st.lists(
    st.tuples(st.integers(0, 60_000 * MS), st.integers(0, 50 * MS), st.integers(0, 50 * MS)),
    min_size=1,
    max_size=30,
)


@given(
    TRIPS,
    st.integers(-HOUR, HOUR),
    st.floats(-0.9 * MOST_DRIFT, 0.9 * MOST_DRIFT),
    st.lists(st.integers(-1_000 * MS, 61_000 * MS), min_size=2, max_size=10),
)
def test_a_moment_lies_where_its_reading_is_placed_and_readings_keep_their_order(
    trips: list[tuple[int, int, int]], offset_ns: int, drift: float, moments: list[int]
) -> None:
    there = clock(offset_ns, drift)
    line = TimeLine(asked(there, trips))
    for at in moments:
        assert line.earliest_ns(there(at)) - 2 <= at <= line.latest_ns(there(at)) + 2
    placed = [(line.earliest_ns(there(at)), line.latest_ns(there(at))) for at in sorted(moments)]
    assert placed == sorted(placed)
    assert [latest for _, latest in placed] == sorted(latest for _, latest in placed)


def test_the_shortest_round_trip_bounds_the_error_of_all_that_is_near_it() -> None:
    there = clock(HOUR, 0.0)
    trips = [(at * 250 * MS, 20 * MS, 20 * MS) for at in range(40)]
    assert TimeLine(asked(there, trips)).error_ms == pytest.approx(20.0, abs=0.2)
    trips[20] = (20 * 250 * MS, MS // 2, MS // 2)
    line = TimeLine(asked(there, trips))
    near = there(20 * 250 * MS + 100 * MS)
    assert line.latest_ns(near) - line.earliest_ns(near) == pytest.approx(1.2 * MS, abs=0.01 * MS)
    assert line.offset_ms == pytest.approx(-HOUR / MS, abs=1)


@pytest.mark.parametrize("jump_ns", [-30 * MS, 30 * MS, HOUR])
def test_a_clock_that_was_set_has_no_place(jump_ns: int) -> None:
    def there(at: int) -> int:
        return at + HOUR + (jump_ns if at > 5_000 * MS else 0)

    with pytest.raises(ClockError):
        TimeLine(asked(there, [(at * 250 * MS, MS, MS) for at in range(40)]))


def recorded(folder: Path, process: str, machine: str, operations: Sequence[tuple[Any, ...]]) -> None:
    """A history with these operations: name, start and end, in nanoseconds of its own clock, value and result."""
    encode = msgspec.msgpack.encode
    frames = [encode(Clock(process, 1, 10**18, 0, machine))]
    for index, (f, start, end, *told) in enumerate(operations):
        value, result = told or ({}, {})
        frames.append(encode(Event(process, index, "invoke", f, value, start)))
        frames.append(encode(Event(process, index, "ok", f, result, end)))
    data = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
    history_path(folder, process).write_bytes(HEADER.pack(MAGIC, VERSION) + data)


def place(folder: Path, samples: Sequence[Sample], machine: str = "far") -> None:
    host = HostClock(machine=machine, processes=("node",), samples=tuple(samples))
    write_clocks(folder, Clocks(machine="here", wall_offset_ns=7, hosts={"host-1": host}))


def test_operations_of_another_host_are_as_wide_as_its_error_and_on_the_harness_s_clock(
    tmp_path: Path,
) -> None:
    there = clock(HOUR, 0.0)
    place(tmp_path, asked(there, [(at * 100 * MS, MS, MS) for at in range(11)]))
    recorded(tmp_path, "harness", "here", [("phase", 100 * MS, 900 * MS)])
    recorded(tmp_path, "node", "far", [("claim", there(500 * MS), there(510 * MS))])
    phase, claim = merge_folder(tmp_path)
    assert (phase.start_ns, phase.end_ns, phase.error_ns) == (100 * MS, 900 * MS, 0)
    assert claim.machine == phase.machine == "here"
    assert claim.wall_offset_ns == 7
    assert 498.9 * MS < claim.start_ns < 500 * MS < 510 * MS < (claim.end_ns or 0) < 511.1 * MS
    assert claim.latest_start_ns == pytest.approx(501 * MS, abs=0.1 * MS)
    assert claim.latency_ms == pytest.approx(10.0, abs=0.2)


def test_a_host_that_reads_the_harness_s_own_clock_is_not_moved(tmp_path: Path) -> None:
    place(tmp_path, asked(clock(0, 0.0), [(0, 5 * MS, 5 * MS)]), machine="here")
    recorded(tmp_path, "node", "here", [("claim", 7 * MS, 8 * MS)])
    [claim] = merge_folder(tmp_path)
    assert (claim.start_ns, claim.end_ns, claim.error_ns, claim.machine) == (7 * MS, 8 * MS, 0, "here")


def test_a_copy_of_the_harness_s_machine_is_moved_though_it_has_its_name(tmp_path: Path) -> None:
    there = clock(-HOUR, 0.0)
    place(tmp_path, asked(there, [(0, MS, MS)]), machine="here")
    recorded(tmp_path, "node", "here", [("claim", there(7 * MS), there(8 * MS))])
    [claim] = merge_folder(tmp_path)
    assert 5 * MS < claim.start_ns < 7 * MS


@pytest.mark.parametrize(("apart_ms", "found"), [(0.5, 0), (0.9, 0), (1.1, 1)])
def test_an_order_within_the_error_of_a_clock_is_held_against_nobody(
    apart_ms: float, found: int, tmp_path: Path
) -> None:
    """A row that has ended on one host is claimed on another so much later by its clock, known to 1 ms."""
    there, begin = clock(HOUR, 0.0), 510 * MS + round(apart_ms * MS)
    place(tmp_path, asked(there, [(at * 100 * MS, MS, MS) for at in range(11)]))
    row = {"queue": "default", "batch": 1}
    ended: list[tuple[Any, ...]] = [
        ("claim", 400 * MS, 410 * MS, {**row, "claim": "a"}, {"ids": [1], "contended": 0}),
        ("flush", 500 * MS, 510 * MS, {"outcomes": [[1, "a", "done"]]}, {"xid": 5, "committed": [[1, "a"]]}),
    ]
    recorded(tmp_path, "first", "here", ended)
    again = ("claim", there(begin), there(begin + MS), {**row, "claim": "b"}, {"ids": [1], "contended": 0})
    recorded(tmp_path, "node", "far", [again])
    report = judge_folder(tmp_path, Evidence(no_ledger="none"))
    [owner] = [each for each in report.judgements if each.invariant == "seen-single-owner"]
    assert owner.violated == found


@pytest.mark.parametrize("samples", [[], [Sample(0, 0, 1), Sample(10, 9_000, 11)]])
def test_histories_without_a_common_time_line_are_not_judged_together(
    samples: list[Sample], tmp_path: Path
) -> None:
    place(tmp_path, samples, machine="here")
    recorded(tmp_path, "harness", "here", [("phase", 0, 1)])
    recorded(tmp_path, "node", "here", [("claim", 0, 1)])
    assert len({o.machine for o in merge_folder(tmp_path)}) == 2
    report = judge_folder(tmp_path, Evidence(no_ledger="none"))
    assert report.verdict == "unknown"
    assert report.operations == 0
    assert {each.verdict for each in report.judgements if each.invariant.startswith("seen-")} == {
        "not_exercised"
    }


def test_a_file_of_clocks_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    recorded(tmp_path, "node", "here", [("claim", 0, 1)])
    (tmp_path / "clocks.json").write_text(json.dumps({"machine": 3}))
    with pytest.raises(FolderError, match=r"clocks\.json cannot be read"):
        judge_folder(tmp_path)


@pytest.mark.parametrize("name", ["mixed", "store", "limits"])
@pytest.mark.parametrize("most_ms", [20, 3_000])
def test_nothing_is_violated_by_what_clocks_leave_open(name: str, most_ms: int) -> None:
    """Of a recorded run each process is as unsure as its name has it, up to so much; the harness itself is sure."""
    run = recording(name)
    unsure_ns = {
        process: 0 if process == "harness" else most_ms * MS * (crc32(process.encode()) % 5) // 4
        for process in {o.process for o in run.operations}
    }
    wide = [
        msgspec.structs.replace(
            o,
            start_ns=o.start_ns - unsure_ns[o.process],
            end_ns=None if o.end_ns is None else o.end_ns + unsure_ns[o.process],
            error_ns=2 * unsure_ns[o.process],
        )
        for o in run.operations
    ]
    report = run.judge(sorted(wide, key=lambda o: (o.start_ns, o.process, o.index)))
    assert {each.verdict for each in report.judgements} <= {"held", "not_exercised", "unknown"}
    assert [each for each in report.judgements if each.verdict == "unknown"] == [
        each for each in run.judge().judgements if each.verdict == "unknown"
    ]
