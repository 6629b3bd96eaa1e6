"""Which tables grow without bound, told from their sizes between the rounds of a soak."""

from __future__ import annotations

from collections.abc import Sequence

from stress.growth import MIN_ROUNDS, TableSize, growths

MB = 2**20
WRITTEN = 20_000


def samples(sizes_mb: Sequence[float], written: Sequence[int] | None = None) -> list[dict[str, TableSize]]:
    """One table over time; each round writes as much as the one before."""
    counts = [WRITTEN * number for number in range(len(sizes_mb))] if written is None else written
    return [
        {"public.jobs": TableSize(round(size * MB), 0, 0, 0, count, 0)}
        for size, count in zip(sizes_mb, counts, strict=True)
    ]


def test_a_table_that_never_uses_space_again_is_found() -> None:
    [found] = growths(samples([10.0 * number for number in range(13)])).values()
    assert (
        "public.jobs grew by 50.0 MB in 5 of the last 6 rounds, in which 100,000 row versions were written"
        in found
    )


def test_a_table_that_grows_until_its_space_is_used_again_is_not() -> None:
    assert growths(samples([0, 10, 20, 30, 38, 41, 43, 44, 44, 45, 45, 45, 45])) == {}


def test_a_larger_round_late_is_no_growth_without_bound() -> None:
    sizes = [0, 10, 20, 25, 25, 25, 25, 25, 25, 25, 25, 35, 35]
    assert growths(samples(sizes)) == {}


def test_a_table_that_is_cut_off_and_grows_again_does_not_grow_without_bound() -> None:
    assert growths(samples([0, 10, *(12.0 if number % 2 else 0.0 for number in range(12))])) == {}
    assert growths(samples([0, 10, *(0.0 if number % 2 else 12.0 for number in range(12))])) == {}


def test_of_a_round_whose_counters_were_set_back_only_what_was_written_since_is_known() -> None:
    sizes = [10.0 * number for number in range(13)]
    crashed = [WRITTEN * (number % 4) for number in range(13)]
    assert growths(samples(sizes, crashed))
    # Where nothing else is known, nothing is said.
    assert growths(samples(sizes, [5 - number for number in range(13)])) == {}


def test_few_rounds_and_little_traffic_tell_nothing() -> None:
    assert growths(samples([100.0 * number for number in range(MIN_ROUNDS)])) == {}
    assert growths(samples([10.0 * number for number in range(13)], list(range(13)))) == {}


def test_a_few_pages_more_are_no_growth() -> None:
    assert growths(samples([0.1 * number for number in range(13)])) == {}
