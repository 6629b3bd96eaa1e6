"""A rolling restart replaces node after node, leaves out what a fault is being done to, and says how many it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from invariants.history import Recorder, merge_folder
from stress.swarm.roll import Rolls, roll_times


class Nodes:
    """What a roll needs of a swarm: places with nodes, which leave when they are told, and others that come."""

    def __init__(self, count: int) -> None:
        self.config = SimpleNamespace(nodes=count)
        self.nodes = {place: SimpleNamespace(name=f"node-{place + 1}.0") for place in range(count)}
        self.leaving: list[Any] = []
        self.releases: dict[int, int] = {}
        self.replaced: list[tuple[int, int]] = []

    def replace_node(self, place: int) -> Any:
        self.leaving.append(self.nodes[place])
        self.nodes[place] = SimpleNamespace(name=f"node-{place + 1}.{len(self.replaced) + 1}")
        self.replaced.append((place, self.releases[place]))
        return self.nodes[place]


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path, "harness") as recorder:
        yield recorder


def test_the_next_node_waits_for_the_last_one_to_have_left_and_its_successor_to_have_come(
    notes: Recorder, tmp_path: Path
) -> None:
    nodes, asked = Nodes(2), []
    ready: set[str] = set()

    def sessions(prefix: str) -> int:
        asked.append(prefix)
        return int(prefix in ready)

    rolls = Rolls(nodes, [1.0], notes, sessions)  # type: ignore[arg-type]
    rolls.tick(0.5, ())
    assert nodes.replaced == []
    rolls.tick(1.0, ())
    rolls.tick(1.0, ())
    assert nodes.replaced == [(0, 1)]
    nodes.leaving.clear()
    rolls.tick(1.0, ())
    assert nodes.replaced == [(0, 1)]
    ready.add("swarm@node-1.1#")
    rolls.tick(1.0, ())
    assert nodes.replaced == [(0, 1), (1, 1)]
    assert not rolls.over
    nodes.leaving.clear()
    ready.add("swarm@node-2.2#")
    rolls.tick(1.0, ())
    assert rolls.over
    [roll] = merge_folder(tmp_path)
    assert (roll.value, roll.result) == ({"release": 1}, {"did": {"nodes replaced": 2}})


def test_a_node_to_which_a_fault_is_done_is_left_for_later(notes: Recorder) -> None:
    nodes = Nodes(3)
    rolls = Rolls(nodes, [0.0], notes, lambda _: 1)  # type: ignore[arg-type]
    del nodes.nodes[1]
    for _ in range(5):
        rolls.tick(0.0, {0, 1})
        nodes.leaving.clear()
    assert nodes.replaced == [(2, 1)]
    rolls.tick(0.0, {1})
    assert nodes.replaced == [(2, 1), (0, 1)]


def test_a_roll_that_is_ended_says_how_far_it_came(notes: Recorder, tmp_path: Path) -> None:
    rolls = Rolls(Nodes(3), [0.0, 9.0], notes, lambda _: 1)  # type: ignore[arg-type]
    rolls.tick(0.0, ())
    rolls.end()
    assert not rolls.over
    assert [roll.result for roll in merge_folder(tmp_path)] == [{"did": {"nodes replaced": 1}}]


def test_rolls_are_spread_over_the_load() -> None:
    assert roll_times(0, 10.0) == []
    first, second = roll_times(2, 10.0)
    assert 0 < first < second < 10.0
