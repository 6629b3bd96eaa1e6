"""What an exploration says of its races, and in which order it works at them."""

from __future__ import annotations

from collections import Counter

from stress.schedules.explore import LARGE_ORDERS, PREEMPTIONS, Exploration, Request, Tally, _Queue
from stress.schedules.record import Schedule
from stress.schedules.search import Exhaustive, Pct
from stress.schedules.worker import Found, Task

RACE = "lost-wakeup"
CHECKED = Counter({"no-lost-wakeup": 1, "no-lost-signal": 1})


def request(*names: str, deaths: bool = False) -> Request:
    return Request(
        names=names or (RACE,),
        mutant=None,
        schedules=100,
        seconds=10.0,
        seed=1,
        workers=1,
        planners=("generic",),
        deaths=deaths,
    )


def found(**fields: object) -> Found:
    told = {"task": Task(RACE, "generic", 0, Exhaustive(), 10), "runs": 3, "checked": CHECKED, "blocked": 1}
    return Found(**(told | fields))  # type: ignore[arg-type]


def tally(*turns: Found) -> Tally:
    counted = Tally(RACE)
    for turn in turns:
        counted.add(turn)
    return counted


def schedule() -> Schedule:
    return Schedule(
        race=RACE, mutant=None, planner="generic", actions={}, choices=[], violated=["no-lost-wakeup"]
    )


def test_a_race_whose_schedules_all_held_is_held() -> None:
    assert tally(found()).verdict == "held"


def test_a_race_that_was_never_begun_is_unknown() -> None:
    assert tally().verdict == "unknown"
    assert Exploration(request(), {RACE: tally(), "other": tally(found())}).verdict == "unknown"


def test_a_race_in_which_nothing_was_subject_to_what_it_is_about_is_unknown() -> None:
    told = tally(found(checked=Counter({"no-lost-signal": 1})))
    assert told.reason == "nothing in it was subject to no-lost-wakeup"


def test_a_race_whose_sessions_never_meet_decides_nothing() -> None:
    told = tally(found(blocked=0, answers={"the same"}))
    told.exhausted = 1
    assert told.verdict == "unknown"
    assert "never met" in (told.reason or "")


def test_a_failing_schedule_is_a_violation_only_when_it_could_be_repeated() -> None:
    assert tally(found(schedule=schedule(), confirmed=True)).verdict == "violated"
    uncontrolled = tally(found(schedule=schedule()))
    assert (uncontrolled.verdict, (uncontrolled.reason or "")[:12]) == ("unknown", "uncontrolled")
    assert tally(found(schedule=schedule()), found(schedule=schedule(), confirmed=True)).verdict == "violated"


def test_an_interrupted_exploration_is_unknown_and_a_violation_stands() -> None:
    held = Exploration(request(), {RACE: tally(found())}, interrupted=True)
    assert held.verdict == "unknown"
    broken = Exploration(
        request(), {RACE: tally(found(schedule=schedule(), confirmed=True))}, interrupted=True
    )
    assert broken.verdict == "violated"


def test_a_race_that_failed_is_worked_at_no_more() -> None:
    queue = _Queue(request(deaths=True))
    task = queue.next()
    assert task is not None
    failed = found(task=task, schedule=schedule(), confirmed=True)
    queue.back(failed, tally(failed))
    assert queue.next() is None


def test_a_task_that_is_not_over_comes_back_after_the_others() -> None:
    queue = _Queue(request(RACE, "park-again"))
    first = queue.next()
    assert first is not None
    turn = found(task=first)
    queue.back(turn, tally(turn))
    second, third = queue.next(), queue.next()
    assert second is not None
    assert (second.race, third) == ("park-again", first)


def test_a_large_space_is_walked_with_a_bound_and_then_sampled() -> None:
    queue = _Queue(request())
    task = queue.next()
    assert task is not None
    task.orders = LARGE_ORDERS + 1
    turn = found(task=task)
    queue.back(turn, tally(turn))

    bounded = queue.next()
    assert bounded is not None
    assert isinstance(bounded.search, Exhaustive)
    assert bounded.search.bound == PREEMPTIONS
    bounded.search.exhausted = True
    turn = found(task=bounded)
    queue.back(turn, tally(turn))

    sampled = [queue.next(), queue.next()]
    assert all(one is not None and isinstance(one.search, Pct) for one in sampled)


def test_a_space_that_was_searched_whole_is_not_sampled() -> None:
    queue = _Queue(request())
    task = queue.next()
    assert task is not None
    task.search.exhausted = True
    turn = found(task=task)
    queue.back(turn, tally(turn))
    assert queue.next() is None
