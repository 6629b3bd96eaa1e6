"""What the rounds of a soak are: drawn from its seed, each by its number alone. Pure.

So a soak that was interrupted goes on with the round that it would have come to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

# Of the rounds, those without a fault, and those with all; the others have some.
WITHOUT, WITH_ALL = 0.15, 0.2
SOME = (2, 6)


class Round(msgspec.Struct, frozen=True):
    """One round. `faults` in the order in which a run knows them."""

    number: int
    scenario: str
    faults: tuple[str, ...]
    seed: int


def draw_round(seed: int, number: int, possible: Mapping[str, Sequence[str]]) -> Round:
    """The round of that number. `possible`: the scenarios, each with the faults that it can have. Every scenario comes
    once before any comes twice."""
    names = sorted(possible)
    cycle, place = divmod(number, len(names))
    Random(f"soak/{seed}/cycle/{cycle}").shuffle(names)
    scenario = names[place]
    random = Random(f"soak/{seed}/round/{number}")
    draw, faults = random.random(), possible[scenario]
    if draw < WITHOUT:
        chosen: tuple[str, ...] = ()
    elif draw < WITHOUT + WITH_ALL:
        chosen = tuple(faults)
    else:
        drawn = set(random.sample(list(faults), min(len(faults), random.randint(*SOME))))
        chosen = tuple(name for name in faults if name in drawn)
    return Round(number, scenario, chosen, random.randrange(2**31))
