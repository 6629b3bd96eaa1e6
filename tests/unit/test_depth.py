"""How much lay where: counted from the ledger, and of several servers together."""

from __future__ import annotations

from invariants.changes import Changes
from invariants.depth import MAX_SAMPLES, Depth, Depths, together
from invariants.ledger.pgoutput import Transaction
from tests.fixtures.traces import Trace

NOTHING = Changes(lambda _: None)


def test_jobs_are_counted_by_status_as_they_go_through_theirs() -> None:
    trace = Trace()
    trace.insert(1)
    trace.insert(2)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", "done", result="1")
    depths = trace.judge().depths
    assert [{name: count for name, count in depth.of.items() if count} for depth in depths] == [
        {"runnable": 1},
        {"runnable": 2},
        {"runnable": 1, "executing": 1},
        {"runnable": 1, "done": 1},
    ]
    assert [depth.at_us for depth in depths] == [each.committed_us for each in trace.transactions]


def test_samples_are_bounded_and_reach_to_the_end() -> None:
    depths = Depths()
    for second in range(5 * MAX_SAMPLES):
        depths.transaction(Transaction(second, second, second, second * 1_000_000, ()), NOTHING)
    assert MAX_SAMPLES / 4 < len(depths.samples) <= MAX_SAMPLES
    assert depths.samples[0].at_us == 0
    assert depths.samples[-1].at_us > 4 * MAX_SAMPLES * 1_000_000


def test_servers_are_summed_each_with_what_it_last_was() -> None:
    first = [Depth(1, {"runnable": 1}), Depth(5, {"runnable": 3})]
    second = [Depth(2, {"runnable": 10, "done": 1})]
    assert together([first, second]) == (
        Depth(1, {"runnable": 1}),
        Depth(2, {"runnable": 11, "done": 1}),
        Depth(5, {"runnable": 13, "done": 1}),
    )
