"""A node whose clock is off sees another time of day in all its modules, and the monotonic clock as it is."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import time, datetime as module
from datetime import datetime, UTC
from time import time as now
import engine.values, engine.statements
from stress.swarm.clock import set_clock_off
before, monotonic, true = now(), time.monotonic(), datetime
set_clock_off(3600.0)
assert 3600 <= time.time() - before < 3660, "time.time"
assert 3600 <= now() - before < 3660, "a name of its own"
assert 3600 <= time.time_ns() / 1e9 - before < 3660
assert 3600 <= datetime.now(UTC).timestamp() - before < 3660
assert 3600 <= module.datetime.now(UTC).timestamp() - before < 3660
assert 3600 <= engine.values.datetime.now(UTC).timestamp() - before < 3660
assert time.monotonic() - monotonic < 60
assert isinstance(true.now(UTC), datetime), "what libraries in C return is an instant too"
assert engine.statements._scalar(true(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00+00:00"
"""


def test_a_clock_that_is_off_is_off_in_every_module_and_takes_every_instant() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
