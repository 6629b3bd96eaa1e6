"""Searches over toy spaces whose schedules can be counted by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from stress.schedules.search import (
    Choice,
    Diverged,
    Effect,
    Exhaustive,
    Fixed,
    Pct,
    Search,
    dependent,
    interleavings,
)


def table(name: str) -> frozenset[str]:
    return frozenset((name,))


def using(name: str) -> Effect:
    return Effect(used=table(name))


def ending(name: str) -> Effect:
    return Effect(used=table(name), ended=table(name))


class Toy:
    """Sessions whose steps touch what they are said to touch; `locks` are held from a step to the session's end."""

    def __init__(self, sessions: Mapping[str, Sequence[Effect]], deaths: int = 0) -> None:
        self.sessions = sessions
        self.deaths = deaths

    def run(self, search: Search) -> tuple[str, ...] | None:
        """One schedule; None where the search ended it."""
        left = {name: list(steps) for name, steps in self.sessions.items()}
        deaths, order = self.deaths, []
        search.begin()
        while choices := [Choice(name) for name, steps in left.items() if steps]:
            if deaths:
                choices += [Choice(name, True) for name, steps in left.items() if steps]
            choice = search.choose(choices)
            if choice is None:
                search.end()
                return None
            order.append(choice.session + ("!" if choice.dies else ""))
            if choice.dies:
                deaths -= 1
                left[choice.session] = []
                search.took(Effect(ended=table("t")))
            else:
                search.took(left[choice.session].pop(0))
        search.end()
        return tuple(order)

    def all(self, search: Search) -> list[tuple[str, ...]]:
        """Every complete schedule."""
        found = []
        while not search.exhausted:
            one = self.run(search)
            if one is not None:
                found.append(one)
        return found


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 2), (2, 2, 2), (4, 1, 1)])
def test_without_reduction_every_order_is_run_once(counts: tuple[int, ...]) -> None:
    toy = Toy({f"s{n}": [using("t")] * count for n, count in enumerate(counts)})
    found = toy.all(Exhaustive(reduce=False))
    expected = math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
    assert len(found) == len(set(found)) == expected == interleavings(counts)


@pytest.mark.parametrize("counts", [(2, 2), (3, 2), (2, 2, 2)])
def test_sessions_that_share_nothing_have_one_schedule(counts: tuple[int, ...]) -> None:
    toy = Toy({f"s{n}": [using(f"t{n}")] * count for n, count in enumerate(counts)})
    assert len(toy.all(Exhaustive())) == 1


def test_steps_that_depend_are_run_in_every_order() -> None:
    toy = Toy({"a": [using("t")] * 2, "b": [using("t")] * 2})
    assert len(toy.all(Exhaustive())) == 6


def test_of_schedules_that_differ_in_independent_neighbours_one_is_run() -> None:
    # Only the last steps meet: the orders of those two are what is to be seen.
    toy = Toy({"a": [using("x"), using("t")], "b": [using("y"), using("t")]})
    search = Exhaustive()
    found = toy.all(search)
    assert {order.index("a") for order in found} <= {0, 1, 2}
    assert len(found) == 2
    assert search.runs == 2


def test_a_reduced_search_sees_every_outcome_that_the_whole_one_sees() -> None:
    steps = {
        "a": [Effect(saw=table("t")), using("t"), ending("t")],
        "b": [Effect(saw=table("t")), ending("t")],
        "c": [using("u"), ending("u")],
    }

    def trace(order: tuple[str, ...]) -> frozenset[tuple[str, int, str, int]]:
        """Which dependent steps stand before which: what tells schedules apart."""
        numbered = [(name, order[:place].count(name)) for place, name in enumerate(order)]
        return frozenset(
            (*first, *second)
            for place, first in enumerate(numbered)
            for second in numbered[place + 1 :]
            if first[0] != second[0] and dependent(steps[first[0]][first[1]], steps[second[0]][second[1]])
        )

    whole = {trace(order) for order in Toy(steps).all(Exhaustive(reduce=False))}
    reduced = [trace(order) for order in Toy(steps).all(Exhaustive())]
    assert set(reduced) == whole
    assert len(reduced) == len(whole)


def test_two_ends_depend_whatever_they_touched() -> None:
    assert dependent(Effect(ended=table("a")), Effect(ended=table("b")))
    assert not dependent(Effect(used=table("a")), Effect(ended=table("b")))


def test_a_snapshot_depends_on_what_is_committed_and_not_on_what_is_only_changed() -> None:
    snapshot = Effect(saw=table("t"))
    assert dependent(snapshot, Effect(ended=table("t")))
    assert not dependent(snapshot, using("t"))


@pytest.mark.parametrize(("bound", "count"), [(0, 2), (1, 2 + 2 * 2), (99, 20)])
def test_a_bound_on_preemptions_leaves_the_schedules_with_no_more_of_them(bound: int, count: int) -> None:
    # With one preemption: leave the first session after its first or second step, and end the other first.
    toy = Toy({"a": [using("t")] * 3, "b": [using("t")] * 3})
    assert len(toy.all(Exhaustive(bound))) == count


def test_every_session_may_die_at_every_step_and_only_as_often_as_allowed() -> None:
    toy = Toy({"a": [using("t")] * 2}, deaths=1)
    assert set(toy.all(Exhaustive())) == {("a", "a"), ("a!",), ("a", "a!")}


def test_a_path_that_cannot_be_repeated_is_said_to_diverge_and_can_be_skipped() -> None:
    search = Exhaustive()
    toy = Toy({"a": [using("t")] * 2, "b": [using("t")]})
    toy.run(search)
    search.begin()
    with pytest.raises(Diverged, match="b"):
        search.choose([Choice("b")])
    search.skip()
    assert search.skipped == 1
    toy.all(search)
    assert search.exhausted


def test_a_random_search_is_repeated_by_its_seed_and_ends() -> None:
    toy = Toy({"a": [using("t")] * 3, "b": [using("t")] * 3, "c": [using("t")] * 3})
    runs = [toy.all(Pct("7", 30, 3, 9)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 30
    assert len(set(runs[0])) > 10


def test_a_random_search_without_moments_of_change_lets_one_session_run_at_a_time() -> None:
    toy = Toy({"a": [using("t")] * 3, "b": [using("t")] * 3})
    assert set(toy.all(Pct("1", 20, 0, 6))) == {
        ("a", "a", "a", "b", "b", "b"),
        ("b", "b", "b", "a", "a", "a"),
    }


def test_a_random_search_with_deaths_ends_one_session_in_every_other_run() -> None:
    toy = Toy({"a": [using("t")] * 3, "b": [using("t")] * 3}, deaths=1)
    dead = [any(step.endswith("!") for step in order) for order in toy.all(Pct("1", 20, 1, 6, deaths=True))]
    assert dead[::2] == [False] * 10
    assert any(dead[1::2])


def test_a_fixed_schedule_is_followed_and_what_is_not_open_left_out() -> None:
    toy = Toy({"a": [using("t")] * 2, "b": [using("t")]})
    search = Fixed([Choice("b"), Choice("b"), Choice("a")])
    assert toy.run(search) == ("b", "a", "a")
    assert not search.followed
