"""The plan of faults is a pure function of its seed, and never leaves the swarm without a node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stress.faults import FAULTS, PlannedFault, plan_faults

names = st.lists(st.sampled_from(sorted(FAULTS)), unique=True).map(tuple)
runs = st.fixed_dictionaries(
    {
        "names": names,
        "seed": st.integers(0, 2**31),
        "seconds": st.floats(1, 300),
        "nodes": st.integers(1, 8),
        "lease_s": st.floats(0.1, 5),
    }
)


def plan(run: dict[str, object]) -> tuple[PlannedFault, ...]:
    arguments = dict(run)
    return plan_faults(arguments.pop("names"), **arguments)  # type: ignore[arg-type]


@given(runs)
def test_one_seed_gives_one_plan(run: dict[str, object]) -> None:
    assert plan(run) == plan(run)


@given(runs)
def test_no_place_suffers_two_faults_at_once_and_one_of_several_nodes_is_left_alone(
    run: dict[str, object],
) -> None:
    planned = plan(run)
    for fault in planned:
        at_once = [other for other in planned if other.at_s <= fault.at_s < other.at_s + other.lasts_s]
        assert len({other.place for other in at_once}) == len(at_once)
        assert run["nodes"] == 1 or len(at_once) < run["nodes"]  # type: ignore[operator]


@given(runs)
def test_every_fault_is_healed_before_the_load_ends(run: dict[str, object]) -> None:
    assert all(fault.at_s >= 0 and fault.at_s + fault.lasts_s <= run["seconds"] for fault in plan(run))  # type: ignore[operator]


def test_a_run_of_twenty_seconds_has_every_kind_of_fault_with_any_of_many_seeds() -> None:
    for seed in range(200):
        planned = plan_faults(tuple(FAULTS), seed=seed, seconds=20.0, nodes=4, lease_s=1.5)
        assert {fault.name for fault in planned} == set(FAULTS)
