"""Each mutant that is a race is caught by exploring that race, and the engine holds under the same budget."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from invariants.mutants import REGISTRY
from stress.schedules.catches import HISTORY, MAX_STEPS
from stress.schedules.coverage import CAUGHT_BY_RACE
from stress.schedules.lab import Lab
from stress.schedules.pairs import PAIRS
from stress.schedules.race import Race
from stress.schedules.races import ALL
from stress.schedules.search import Choice, Exhaustive
from stress.schedules.stored_pairs import STORED_PAIRS
from stress.schedules.worker import Task, Worker, races, take

# Found after some thousand schedules; the schedule itself is taken here.
RARE = {
    "flush-locks-late": "claimer node node flusher claimer flusher claimer flusher",
}
# For a budget of schedules, not of time.
FOREVER_S = 600.0
# Runs for the sound engine, each.
SOUND_RUNS = 6


@pytest.mark.parametrize("mutant", sorted(set(CAUGHT_BY_RACE) - set(RARE)))
def test_the_mutant_is_caught_by_exploring_its_race(
    mutant: str, open_mutant_lab: Callable[[str], Lab]
) -> None:
    looked = Worker(open_mutant_lab(mutant), REGISTRY[mutant], "", shrinking_s=FOREVER_S)
    found = looked.turn(Task(CAUGHT_BY_RACE[mutant], "generic", 0, Exhaustive(), 500), FOREVER_S)
    assert found.schedule is not None
    assert found.confirmed, found.unknown
    assert set(found.schedule.violated) & set(REGISTRY[mutant].caught_by)
    # What the picker's history knows shows in few steps.
    assert mutant not in HISTORY or found.steps <= MAX_STEPS, found.rows


@pytest.mark.parametrize(
    "race", ["gates-from-both-ends", "lowered-gate-credited", "reaped-row-goes-on", "late-spawn-meets-join"]
)
def test_the_sound_engine_holds_in_every_schedule_of(race: str, lab: Lab) -> None:
    task = Task(race, "generic", 0, Exhaustive(), 500)
    found = Worker(lab, None, "").turn(task, FOREVER_S)
    assert task.search.exhausted
    assert found.schedule is None, found.schedule
    assert found.unknown is None


@pytest.mark.parametrize("mutant", RARE)
def test_the_mutant_is_caught_by_the_schedule(mutant: str, open_mutant_lab: Callable[[str], Lab]) -> None:
    choices = tuple(Choice(word) for word in RARE[mutant].split())
    judged = take(open_mutant_lab(mutant), ALL[CAUGHT_BY_RACE[mutant]], "generic", choices)
    assert judged is not None
    assert set(judged.violated) & set(REGISTRY[mutant].caught_by)


@pytest.mark.parametrize(
    ("mutant", "race"),
    [
        ("park-without-recheck", "lost-wakeup"),
        ("children-without-parent-lock", "pair:flush-childs+reap"),
        ("outcome-unguarded", "stale-outcome"),
    ],
)
def test_what_a_reduced_search_leaves_out_would_have_shown_nothing_else(
    mutant: str, race: str, open_mutant_lab: Callable[[str], Lab]
) -> None:
    lab = open_mutant_lab(mutant)
    seen = []
    for reduce in (True, False):
        search, runs = Exhaustive(reduce=reduce), []
        while not search.exhausted:
            runs.append((races()[race], lab.run(races()[race], "generic", search)))
        judged = [one for one in lab.judged(runs) if one.run.complete]
        seen.append((len(judged), {(one.outcome, one.violated) for one in judged}))
    (few, reduced), (many, whole) = seen
    assert reduced == whole
    assert few < many


@pytest.mark.parametrize("race", sorted(ALL))
def test_the_sound_engine_holds_in_the_first_schedules_of(race: str, lab: Lab) -> None:
    found = Worker(lab, None, "").turn(Task(race, "generic", 0, Exhaustive(), SOUND_RUNS), 30.0)
    assert found.runs > 0
    assert found.schedule is None, found.schedule
    assert found.unknown is None


@pytest.mark.parametrize(
    "race",
    [*PAIRS[:: len(PAIRS) // 8], *STORED_PAIRS[:: len(STORED_PAIRS) // 8]],
    ids=lambda race: race.name,
)
def test_the_sound_engine_holds_in_every_schedule_of_a_pair_that_meets_where_it_says_so(
    race: Race, lab: Lab
) -> None:
    task = Task(race.name, "generic", 0, Exhaustive(), 100)
    found = Worker(lab, None, "").turn(task, 30.0)
    assert task.search.exhausted
    assert found.schedule is None, found.schedule
    assert (found.blocked > 0 or len(found.answers) > 1) == race.contends
