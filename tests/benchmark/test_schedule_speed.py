"""How many schedules of a race a lab runs and judges: from emptied tables to the verdict."""

from __future__ import annotations

from typing import Any

from stress.schedules.lab import Lab
from stress.schedules.search import Exhaustive
from stress.schedules.worker import Task, Worker

RUNS = 60
TURN_S = 30.0


def test_schedules_of_a_race(benchmark: Any, lab: Lab) -> None:
    worker = Worker(lab, None, "")
    wanted = RUNS if benchmark.enabled else 1

    def search() -> int:
        task = Task("siblings-end", "generic", 0, Exhaustive(), wanted)
        while not task.over:
            found = worker.turn(task, TURN_S)
            assert found.schedule is None
        return task.runs

    runs = benchmark.pedantic(search, rounds=3 if benchmark.enabled else 1)
    assert runs > 0
    if benchmark.stats is not None:
        benchmark.extra_info["schedules_per_second"] = round(runs / benchmark.stats.stats.min)
