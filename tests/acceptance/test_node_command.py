"""`python -m engine node` runs machines of the user's own until it is told to stop, and says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.picker import Job
from tests.fixtures.node import Jobs

MACHINES = """
from engine.machine import Done, Machine, MappedMachine, Next

class Order(Machine):
    name = "order"

    def reserve(self, step):
        return Next("charge", {"item": step.state["item"]})

    async def charge(self, step):
        return Done({"charged": step.state["item"]})

class Echo(Machine):
    name = "echo"

    def say(self, step):
        return Done(step.state)

both = [Order, Echo()]
mapped = MappedMachine("mapped", {"say": lambda step: Done("mapped")})
not_a_machine = 7
"""
DEADLINE_S = 30.0


def start(arguments: list[str], folder: Path, dsn: str | None) -> subprocess.Popen[str]:
    """A node process that finds `shop.py` in its working directory."""
    (folder / "shop.py").write_text(MACHINES)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    if dsn is not None:
        environment["PGREFEREE_DSN"] = dsn
    return subprocess.Popen(
        [sys.executable, "-m", "engine", "node", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_runs_my_machines_and_stops_when_told(
    number: signal.Signals, jobs: Jobs, tmp_path: Path
) -> None:
    for fsm, step, queue in (
        ("order", "reserve", "default"),
        ("echo", "say", "slow"),
        ("mapped", "say", "default"),
    ):
        jobs.do(jobs.picker.insert(Job(fsm=fsm, step=step, queue=queue, state={"item": "tea"})))
    arguments = ["shop:both", "shop:mapped", "--queue", "default:4", "--queue", "slow", "--lease-ms", "3000"]
    node = start(arguments, tmp_path, jobs.dsn)
    deadline = time.monotonic() + DEADLINE_S
    while jobs.one("SELECT count(*) FROM gen_durable WHERE status = 'done'") < 3:
        assert node.poll() is None, node.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    node.send_signal(number)
    output, _ = node.communicate(timeout=DEADLINE_S)
    assert (node.returncode, output) == (0, "")
    results = jobs.rows("SELECT fsm, result FROM gen_durable ORDER BY fsm")
    assert results == [("echo", {"item": "tea"}), ("mapped", "mapped"), ("order", {"charged": "tea"})]


@pytest.mark.parametrize(
    ("arguments", "dsn", "status", "words"),
    [
        (["shop:both"], None, 2, "no database: set PGREFEREE_DSN"),
        (["shop"], "x", 2, "'shop' names no machine: write it as module:name"),
        (["shap:both"], "x", 2, "module 'shap' cannot be imported"),
        (["shop:not_a_machine"], "x", 2, "'shop:not_a_machine' is not a Machine class"),
        (["shop:both", "shop:both"], "x", 2, "machine 'order' version 1 is registered twice"),
        (["shop:both", "--queue", "a:0"], "x", 2, "queue 'a': concurrency must be 1 to 10000, not 0"),
        (["shop:both", "--lease-ms", "nan"], "x", 2, "lease_ttl_ms must be positive and finite, not nan"),
        (["shop:both"], "postgresql://me:s3cret@127.0.0.1:1/x", 3, "the database cannot be used"),
        (["shop:both"], "no dsn at all", 3, "the database cannot be used"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    arguments: list[str], dsn: str | None, status: int, words: str, tmp_path: Path
) -> None:
    node = start(arguments, tmp_path, dsn)
    output, _ = node.communicate(timeout=DEADLINE_S)
    assert node.returncode == status, output
    assert words in output
    assert len(output.splitlines()) == 1
    assert "s3cret" not in output
