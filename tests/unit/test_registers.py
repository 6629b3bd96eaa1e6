"""The checker of compare-and-set registers against one that tries every order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, permutations
from typing import Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from invariants.seen.registers import Act, contradiction

TIMES = st.integers(0, 12)


@st.composite
def acts(draw: st.DrawFn) -> Act:
    """One act, of a few versions and moments, so that many of them meet."""
    kind: Literal["write", "read"] = draw(st.sampled_from(("write", "read")))
    start = draw(TIMES)
    end = draw(st.one_of(st.none(), st.integers(start, 13)))
    return Act(kind, draw(st.integers(1 if kind == "write" else 0, 3)), start, end)


def explained(history: Sequence[Act]) -> bool:
    """Whether some order of all that ended, and of some writes that did not, explains every answer."""
    told = [act for act in history if act.end_ns is not None]
    unknown = [act for act in history if act.end_ns is None and act.kind == "write"]
    some = chain.from_iterable(combinations(unknown, count) for count in range(len(unknown) + 1))
    return any(_is_legal(order) for extra in some for order in permutations([*told, *extra]))


def _is_legal(order: Sequence[Act]) -> bool:
    version = 0
    for place, act in enumerate(order):
        if any(later.end_ns is not None and later.end_ns < act.start_ns for later in order[place + 1 :]):
            return False
        if act.kind == "write":
            if act.version != version + 1:
                return False
            version = act.version
        elif act.version != version:
            return False
    return True


@given(st.lists(acts(), max_size=5))
@settings(max_examples=300, deadline=None)
@example([Act("write", 1, 0, 1), Act("read", 0, 2, 3)])
@example([Act("write", 1, 0, None), Act("read", 0, 2, 3), Act("read", 1, 4, 5)])
@example([Act("write", 1, 4, None), Act("read", 1, 2, 3)])
@example([Act("write", 1, 0, None), Act("write", 1, 5, None), Act("write", 2, 1, 2)])
def test_the_checker_agrees_with_one_that_tries_every_order(history: list[Act]) -> None:
    assert (contradiction(history) is None) == explained(history)


@given(st.lists(acts(), max_size=4), st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_who_is_not_in_the_history_is_one_more_of_unknown_outcome(history: list[Act], version: int) -> None:
    unseen = Act("write", version, 0, None)
    assert (contradiction(history, written_unseen=[version]) is None) == explained([*history, unseen])


@given(st.lists(acts(), max_size=6))
@settings(deadline=None)
def test_the_acts_that_are_named_are_of_the_history(history: list[Act]) -> None:
    found = contradiction(history)
    assert found is None or (found.acts and all(act in history for act in found.acts))


def test_a_history_of_thousands_of_versions_is_one_pass() -> None:
    long = [Act("write", version, version * 2, version * 2 + 3) for version in range(1, 20_001)]
    assert contradiction(long) is None
    late = Act("read", 7, 10**6, 10**6 + 1)
    found = contradiction([*long, late])
    assert found is not None
    assert late in found.acts
