from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from invariants.history.order import Waited, overtakers, waits
from tests.fixtures.recordings import recording

TIMES = st.integers(0, 20)
JOBS = st.builds(
    lambda priority, inserted, begin, took: Waited(priority, inserted, begin, begin + took),
    st.integers(0, 3), TIMES, TIMES, st.integers(0, 5),
)  # fmt: skip


@given(st.lists(JOBS, max_size=12))
def test_who_overtook_is_who_was_claimed_before_a_more_urgent_job_that_waited(jobs: list[Waited]) -> None:
    expected = sum(
        any(a.priority < b.priority and a.inserted_ns < b.begin_ns and a.begin_ns > b.end_ns for a in jobs)
        for b in jobs
    )
    assert overtakers(jobs) == expected


def test_the_waits_of_a_run_are_those_of_its_claimed_jobs() -> None:
    run = recording("mixed")
    figures = waits(run.operations)
    inserted = {o.result["id"] for o in run.named("insert")}
    inserted |= {row for o in run.named("insert_many") for row in o.result["ids"]}
    claimed = {row for o in run.named("claim") for row in o.result["ids"]} & inserted
    assert sum(queue["claimed"] for queue in figures.values()) == len(claimed)
    for queue in figures.values():
        assert sum(each["count"] for each in queue["wait_ms"].values()) == queue["claimed"]
        assert all(0 <= each["p50"] <= each["p99"] <= each["max"] for each in queue["wait_ms"].values())
