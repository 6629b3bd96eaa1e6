"""Failing schedules become as small as their failure allows."""

from __future__ import annotations

from itertools import pairwise

from stress.schedules.search import Choice
from stress.schedules.shrink import Candidate, Failing, shrink


def choices(text: str) -> tuple[Choice, ...]:
    """`a b! a`: b dies."""
    return tuple(Choice(word.rstrip("!"), word.endswith("!")) for word in text.split())


def words(candidate: Candidate) -> str:
    return " ".join(choice.session + ("!" if choice.dies else "") for choice in candidate.choices)


def small(first: Candidate, fails: object, probes: int = 500) -> Candidate:
    def probe(candidate: Candidate) -> Failing | None:
        kept = {name for name, actions in candidate.actions.items() if actions}
        ran = tuple(choice for choice in candidate.choices if choice.session in kept)
        taken = Candidate(candidate.actions, ran)
        return Failing(taken, len(ran)) if fails(taken) else None  # type: ignore[operator]

    return shrink(Failing(first, len(first.choices)), probe, probes).candidate


ALL = {"a": (0, 1), "b": (0,), "c": (0,)}


def test_a_session_that_the_failure_does_not_need_is_dropped() -> None:
    found = small(Candidate(ALL, choices("a c b c a")), lambda c: c.actions["a"] and c.actions["b"])
    assert not found.actions["c"]
    assert "c" not in words(found)


def test_an_action_that_the_failure_does_not_need_is_dropped() -> None:
    found = small(Candidate(ALL, choices("a b")), lambda c: 1 in c.actions["a"])
    assert found.actions == {"a": (1,), "b": (), "c": ()}


def test_a_death_that_the_failure_does_not_need_is_taken_back() -> None:
    found = small(
        Candidate(ALL, choices("a b c! a")), lambda c: c.actions["a"] and c.actions["b"] and c.actions["c"]
    )
    assert "!" not in words(found)


def test_switches_are_joined_as_far_as_the_failure_goes_on() -> None:
    def first_a_before_b_before_last_a(candidate: Candidate) -> bool:
        order = words(candidate).split()
        return "b" in order and "a" in order[: order.index("b")] and "a" in order[order.index("b") :]

    found = small(Candidate({"a": (0,), "b": (0,)}, choices("a b a b a b a")), first_a_before_b_before_last_a)
    switches = sum(one.session != other.session for one, other in pairwise(found.choices))
    assert switches == 2


def test_no_more_probes_are_used_than_allowed() -> None:
    asked: list[Candidate] = []

    def never(candidate: Candidate) -> bool:
        asked.append(candidate)
        return False

    small(Candidate(ALL, choices("a b c a b c")), never, probes=3)
    assert len(asked) == 3
