"""The plan of faults is a pure function of its seed, and never leaves the swarm without a node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UsageError
from stress.config import RunConfig, checked
from stress.faults import FAULTS, PlannedFault, plan_faults
from stress.faults.acts import ACTS
from stress.faults.plan import ENOUGH, NODE, SETTLE_S, is_left_out


@dataclass(frozen=True)
class Asked:
    names: tuple[str, ...]
    seed: int
    seconds: float
    nodes: int
    lease_s: float

    def plan(self) -> tuple[PlannedFault, ...]:
        return plan_faults(
            self.names, seed=self.seed, seconds=self.seconds, nodes=self.nodes, lease_s=self.lease_s
        )


runs = st.builds(
    Asked,
    names=st.lists(st.sampled_from(sorted(FAULTS)), unique=True).map(tuple),
    seed=st.integers(0, 2**31),
    seconds=st.floats(1, 120),
    nodes=st.integers(1, 8),
    lease_s=st.floats(0.1, 5),
)


def at_the_time_of(fault: PlannedFault, planned: tuple[PlannedFault, ...]) -> list[PlannedFault]:
    return [other for other in planned if other.at_s <= fault.at_s < other.ends_s]


@given(runs)
def test_one_seed_gives_one_plan(run: Asked) -> None:
    assert run.plan() == run.plan()


@given(runs)
def test_no_place_suffers_two_faults_at_once_and_one_of_several_nodes_is_left_alone(run: Asked) -> None:
    planned = run.plan()
    for fault in planned:
        places = [other.place for other in at_the_time_of(fault, planned) if other.place is not None]
        assert len(set(places)) == len(places)
        assert run.nodes == 1 or len(places) < run.nodes


@given(runs)
def test_of_the_faults_of_one_site_other_than_a_node_one_is_in_force_at_a_time(run: Asked) -> None:
    planned = run.plan()
    for fault in planned:
        sites = [FAULTS[other.name].site for other in at_the_time_of(fault, planned)]
        assert max(Counter(site for site in sites if site != NODE).values(), default=1) == 1


@given(runs)
def test_what_is_done_to_a_node_has_a_place_and_nothing_else_has(run: Asked) -> None:
    assert all((fault.place is not None) == (FAULTS[fault.name].site == NODE) for fault in run.plan())


@given(runs)
def test_every_fault_is_healed_before_the_load_ends(run: Asked) -> None:
    assert all(fault.at_s >= 0 and fault.ends_s <= run.seconds for fault in run.plan())


def test_a_run_of_twenty_seconds_has_every_kind_of_fault_with_any_of_many_seeds() -> None:
    for seed in range(100):
        planned = Asked(config("all").faults, seed, 20.0, 4, 1.5).plan()
        assert {fault.name for fault in planned} == set(config("all").faults)


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_of_ten_seconds_has_the_one_fault_that_it_is_asked_for(name: str) -> None:
    assert all(Asked((name,), seed, 10.0, 4, 1.5).plan() for seed in range(20))


def test_a_late_fault_is_left_out_where_there_were_two_of_its_kind() -> None:
    fault = PlannedFault(10.0, "kill", 0, 1.0, 1)
    assert is_left_out(fault, 13.0, 2)
    assert not is_left_out(fault, 11.0, 2)
    assert not is_left_out(fault, 60.0, 1)


@given(runs)
def test_a_fault_that_is_to_be_alone_has_nothing_beside_it_until_it_has_settled(run: Asked) -> None:
    planned = run.plan()
    for fault in planned:
        if fault.alone:
            others = [other for other in planned if other is not fault]
            assert not [
                other
                for other in others
                if other.at_s < fault.ends_s + SETTLE_S - 1e-9 and fault.at_s < other.ends_s
            ]


@pytest.mark.parametrize(("seconds", "least"), [(30.0, 1), (120.0, 4), (420.0, 15)])
def test_the_longer_a_load_the_more_kinds_of_fault_have_a_time_by_themselves(
    seconds: float, least: int
) -> None:
    everything = config("all").faults
    for seed in range(20):
        alone = [fault.name for fault in Asked(everything, seed, seconds, 4, 1.5).plan() if fault.alone]
        assert len(set(alone)) == len(alone) >= least


def test_a_short_load_has_its_faults_together() -> None:
    assert not [fault for fault in Asked(config("all").faults, 1, 20.0, 4, 1.5).plan() if fault.alone]


def test_a_run_of_two_minutes_has_every_kind_of_fault_twice() -> None:
    for seed in range(20):
        everything = config("all").faults
        fired = Counter(fault.name for fault in Asked(everything, seed, 120.0, 6, 1.5).plan())
        assert min(fired[name] for name in everything) >= ENOUGH


def test_every_fault_that_can_be_planned_can_be_carried_out() -> None:
    assert set(ACTS) == set(FAULTS)


def config(faults: str, pg: str = "embedded") -> RunConfig:
    return checked(
        pg=[pg],
        seconds=5,
        nodes=2,
        seed=7,
        faults=faults,
        scenario="mixed",
        subject="reference",
        mutant=None,
    )


def test_all_faults_are_all_that_lose_nothing_where_the_harness_starts_the_server() -> None:
    assert config("all").faults == tuple(name for name in FAULTS if name != "failover-async")
    assert config("failover-async").faults == ("failover-async",)
    assert config("all").left_out == ()
    assert config("none").faults == ()


@pytest.mark.parametrize("name", [name for name, kind in FAULTS.items() if kind.own_server])
def test_a_fault_that_a_users_server_cannot_have_is_refused_by_name_and_left_out_of_all_with_a_sentence(
    name: str,
) -> None:
    users = "dsn:postgresql://u@db.example/app"
    with pytest.raises(UsageError, match=f"'{name}' needs a server that the harness started"):
        config(f"kill,{name}", users)
    everything = config("all", users)
    assert name not in everything.faults
    assert "kill" in everything.faults
    assert any(f"'{name}'" in sentence for sentence in everything.left_out) != FAULTS[name].loses


def test_a_failover_that_loses_commits_is_for_the_picker_alone() -> None:
    with pytest.raises(UsageError, match="needs a scenario of the picker"):
        checked(
            pg=["embedded"], seconds=5, nodes=2, seed=7, faults="failover-async", scenario="store",
            subject="reference", mutant=None,
        )  # fmt: skip
