"""A failing schedule made small: fewest sessions, then fewest deaths, steps and switches. Pure: it asks a `Probe`.

A candidate is a choice of actions and an order. The probe runs it, with what is not open left out, and answers with the
schedule that came of it where that fails in the same way, else with None. A smaller one that fails takes its place,
until nothing helps or the probes are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from stress.schedules.search import Choice

Actions = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Which actions each session has, by their place in the race, and the order of steps."""

    actions: Actions
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Failing:
    """A candidate that was run and fails. `steps`: how many there are when a stop that nobody uses is none."""

    candidate: Candidate
    steps: int

    @property
    def size(self) -> tuple[int, int, int, int, int]:
        """What is made small, in the order of importance."""
        choices = self.candidate.choices
        switches = sum(one.session != other.session for one, other in pairwise(choices))
        return (
            sum(bool(kept) for kept in self.candidate.actions.values()),
            sum(choice.dies for choice in choices),
            sum(len(kept) for kept in self.candidate.actions.values()),
            self.steps,
            switches,
        )


Probe = Callable[[Candidate], Failing | None]


def shrink(first: Failing, probe: Probe, probes: int) -> Failing:
    """The smallest that was found with at most so many probes."""
    best = first
    tried: set[tuple[object, ...]] = {_key(first.candidate)}
    while True:
        for candidate in _smaller(best.candidate):
            key = _key(candidate)
            if key in tried:
                continue
            if probes <= 0:
                return best
            tried.add(key)
            probes -= 1
            found = probe(candidate)
            if found is not None and found.size < best.size:
                best = found
                break
        else:
            return best


def _key(candidate: Candidate) -> tuple[object, ...]:
    return (tuple(sorted(candidate.actions.items())), candidate.choices)


def _smaller(candidate: Candidate) -> Iterator[Candidate]:
    """Simpler candidates, the boldest first."""
    actions, choices = candidate.actions, candidate.choices
    living = [session for session, kept in actions.items() if kept]
    if len(living) > 1:
        for session in living:
            without = tuple(choice for choice in choices if choice.session != session)
            yield Candidate({**actions, session: ()}, without)
    for place, choice in enumerate(choices):
        if choice.dies:
            yield Candidate(actions, choices[:place] + choices[place + 1 :])
    for session in living:
        kept = actions[session]
        for place in range(len(kept) - 1, -1, -1):
            if len(kept) > 1:
                yield Candidate({**actions, session: kept[:place] + kept[place + 1 :]}, choices)
    blocks = [tuple(group) for _, group in groupby(choices, key=lambda choice: choice.session)]
    for place in range(len(blocks)):
        # A block joined with the next one of its session, or with the one before.
        yield from (Candidate(actions, joined) for joined in _joined(blocks, place))


def _joined(blocks: Sequence[tuple[Choice, ...]], place: int) -> Iterator[tuple[Choice, ...]]:
    session = blocks[place][0].session
    rest = [*blocks[:place], *blocks[place + 1 :]]
    for other in (place + 1, place - 1):
        if 0 <= other < len(blocks):
            after = next((p for p in range(place + 1, len(blocks)) if blocks[p][0].session == session), None)
            before = next((p for p in range(place - 1, -1, -1) if blocks[p][0].session == session), None)
            target = (
                (after - 1 if after is not None else len(rest))
                if other > place
                else (before + 1 if before is not None else 0)
            )
            yield tuple(
                choice for block in [*rest[:target], blocks[place], *rest[target:]] for choice in block
            )
