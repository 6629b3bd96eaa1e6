"""How a run begins: what is in the tables before, when the nodes start, and what they cost while they are alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import psycopg

from engine.operation import perform
from stress.config import RunConfig
from stress.idle import BASE_S, IdleServer
from stress.recording import Recording
from stress.scenarios import SCENARIOS, Scenario
from stress.swarm.herd import held
from stress.swarm.mutation import picker_for
from stress.swarm.swarm import Swarm
from stress.waits import IDLE

TOGETHER_TIMEOUT_S = 40.0


class Opening(Protocol):
    """What is needed of a run. `tick_until` does what is due meanwhile and raises when the time is up."""

    @property
    def config(self) -> RunConfig: ...
    @property
    def connections(self) -> list[psycopg.Connection[Any]]: ...
    @property
    def recording(self) -> Recording: ...
    @property
    def swarm(self) -> Swarm: ...

    def tick_until(
        self, done: Callable[[], bool], *, timeout_s: float = ..., otherwise: str = ...
    ) -> None: ...


def open_run(run: Opening) -> None:
    """Start nodes and clients as the scenario asks for."""
    scenario = SCENARIOS[run.config.scenario]
    if not isinstance(scenario, Scenario):
        # Locust takes longest to come up.
        run.swarm.start_load()
        run.swarm.start_nodes()
        return
    _preload(run, scenario)
    if scenario.idle_s:
        _idle(run, scenario.idle_s)
        run.swarm.start_load()
        return
    run.swarm.start_load()
    if scenario.herd:
        _start_together(run)
    else:
        run.swarm.start_nodes()


def _preload(run: Opening, scenario: Scenario) -> None:
    """On record as a client's inserts."""
    if scenario.preload is None:
        return
    picker, notes = picker_for(run.config.mutant), run.recording.notes
    for batch in scenario.preload(Random(f"preload/{run.config.seed}")):
        token = notes.invoke("insert_many", {"jobs": [planned.described() for planned in batch.planned]})
        ids = perform(run.connections[0], picker.insert_many([planned.job for planned in batch.planned]))
        notes.complete(token, "ok", {"ids": ids})


def _start_together(run: Opening) -> None:
    """Nodes of a herd are let go when all have come up."""
    with held(run.connections[0]) as waiting:
        run.swarm.start_nodes()
        run.tick_until(
            lambda: waiting() >= run.config.nodes,
            timeout_s=TOGETHER_TIMEOUT_S,
            otherwise="the nodes did not come up together in time",
        )


def _idle(run: Opening, seconds: float) -> None:
    """The nodes alone, as soon as all are up: what they ask of the server then is the cost of waiting."""

    def wait(wait_s: float) -> None:
        until = time.monotonic() + wait_s
        run.tick_until(lambda: time.monotonic() >= until)

    server, notes = IdleServer(run.connections[0], run.swarm), run.recording.notes
    base, base_s = server.counted(wait, BASE_S)
    run.swarm.start_nodes()
    run.tick_until(
        server.has_all_nodes, timeout_s=TOGETHER_TIMEOUT_S, otherwise="the nodes did not come up in time"
    )
    token = notes.invoke(IDLE, {"nodes": run.config.nodes})
    counted, taken_s = server.counted(wait, seconds)
    notes.complete(token, "ok", {"transactions": round(counted - base / base_s * taken_s)})
