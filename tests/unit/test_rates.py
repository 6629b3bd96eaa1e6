"""The rate rules' arithmetic, held against the slow way to compute it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invariants.changes import Policy
from invariants.liveness import Counter
from invariants.rates import PrefixSums

SECOND_NS = 1_000_000_000


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_the_greatest_sum_up_to_a_place_is_that_of_the_places_put(
    entries: list[tuple[int, int]], random: object
) -> None:
    sums, put = PrefixSums(len(entries)), set()
    order = list(range(len(entries)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for place in order:
        put.add(place)
        sums.put(place, *entries[place])
        assert sums.greatest == max(
            sum(entries[before][0] for before in put if before <= at) + entries[at][1] for at in put
        )


def test_a_counter_fills_up_to_its_burst_and_holds_what_a_draw_left() -> None:
    counter = Counter(Policy(rate=2.0, capacity=8.0, shards=4))
    assert counter.has(8.0, 0)
    assert not counter.has(8.5, 0)
    counter.draw(5.0, 0, SECOND_NS)
    assert counter.level(2 * SECOND_NS) == pytest.approx(5.0, abs=1e-5)
    assert not counter.has(5.1, 2 * SECOND_NS)
    assert counter.level(9 * SECOND_NS) == 8.0


def test_a_counter_that_was_drawn_on_in_part_is_empty_and_fills_from_there() -> None:
    counter = Counter(Policy(rate=2.0, capacity=8.0, shards=4))
    counter.empty(SECOND_NS)
    assert not counter.has(1.0, SECOND_NS)
    assert counter.has(1.9, 2 * SECOND_NS)


def test_a_rate_of_nothing_never_refills() -> None:
    counter = Counter(Policy(rate=0.0, capacity=8.0, shards=1))
    counter.draw(7.5, 0, 0)
    assert not counter.has(1.0, 10**18)
    assert counter.has(0.4, 10**18)
