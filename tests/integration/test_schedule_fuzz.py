"""Schedules that Hypothesis chooses find a broken form, small, and hold for the engine with the same examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.postgres import Server, fresh_database
from invariants.mutants import REGISTRY, Mutant
from models.fuzz import Finding, Profile
from stress.schedules.fuzz import Chosen, fuzz_schedules
from stress.schedules.lab import open_lab
from stress.schedules.record import read_schedule
from stress.schedules.replay import replayed
from stress.schedules.search import Choice

RACES = ("lost-wakeup", "park-again")
EXAMPLES = Profile(seconds=600.0, round_examples=100, example_steps=0)


def fuzzed(server: Server, mutant: Mutant | None, out: Path) -> Finding:
    with fresh_database(server) as dsn:
        return fuzz_schedules(
            dsn,
            seconds=EXAMPLES.seconds,
            seed_=1,
            profile=EXAMPLES,
            mutant=mutant,
            names=RACES,
            rounds=1,
            out=out,
        )


def test_a_planted_mutant_is_found_told_and_replayed(server: Server, tmp_path: Path) -> None:
    found = fuzzed(server, REGISTRY["wake-filtered-in-where"], tmp_path)
    assert (found.verdict, found.reason) == ("violated", "no-lost-wakeup")
    assert found.examples <= EXAMPLES.round_examples * 10
    command, _, file = found.evidence.splitlines()[-1].rpartition(" ")
    assert command == "nox -s replay --"
    schedule = read_schedule(Path(file))
    # As small as it goes: one switch away from a session that could have gone on, and back.
    switches = sum(one != other for one, other in zip(schedule.choices, schedule.choices[1:], strict=False))
    assert switches == 2
    with open_lab(server, REGISTRY["wake-filtered-in-where"]) as lab:
        assert replayed(lab, schedule).violated == ("no-lost-wakeup",)


def test_the_sound_engine_holds_with_the_same_examples(server: Server, tmp_path: Path) -> None:
    found = fuzzed(server, None, tmp_path)
    assert (found.verdict, found.reason) == ("held", "")
    assert found.examples == EXAMPLES.round_examples
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("picks", "taken"),
    [([], "aaa"), ([0, 1], "abb"), ([1, 1, 1], "bab"), ([4, 3], "abb")],
)
def test_a_number_names_who_moves_next_and_none_the_one_that_moved_last(picks: list[int], taken: str) -> None:
    search, both = Chosen(picks, None), [Choice("a"), Choice("b")]
    search.begin()
    assert "".join(choice.session for _ in taken if (choice := search.choose(both))) == taken


def test_at_the_step_of_a_death_who_was_named_dies() -> None:
    search = Chosen([0, 1], 1)
    search.begin()
    everything = [Choice("a"), Choice("b"), Choice("a", True), Choice("b", True)]
    assert [search.choose(everything), search.choose(everything)] == [Choice("a"), Choice("b", True)]
