"""What a run does about its faults when several are due at once."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typing_extensions import override

from stress import run as run_module
from stress.config import checked
from stress.faults import PlannedFault
from stress.faults.ground import Fault, Ground
from stress.run import Run


class Stops(Fault):
    """As a crash does."""

    @override
    def begin(self) -> None:
        self.ground.down = True

    @override
    def heal(self) -> None:
        self.ground.down = False


class Asks(Fault):
    """Needs the server when it begins."""

    @override
    def begin(self) -> None:
        assert not self.ground.down, "it would wait for the server, and the server's heal for it"


def disturbed(monkeypatch: pytest.MonkeyPatch, *planned: PlannedFault) -> Run:
    """A run with these faults due, and no server."""
    config = checked(
        pg=["embedded"], seconds=60, nodes=2, seed=1, faults="crash,vacuum", scenario="mixed", subject="reference",
        mutant=None,
    )  # fmt: skip
    monkeypatch.setattr(run_module, "ACTS", {"crash": Stops, "vacuum": Asks})
    server = cast(Any, SimpleNamespace(name="server"))
    swarm = cast(Any, SimpleNamespace(nodes={}))
    ground = Ground(swarm, (server,), cast(Any, None), None, cast(Any, None))
    monkeypatch.setattr(Ground, "connect", lambda *_: SimpleNamespace(close=lambda: None))
    recording = cast(Any, SimpleNamespace(fault=lambda *_: 0, healed=lambda *_: None))
    display = cast(Any, None)
    rolls = cast(Any, None)
    connection = cast(Any, SimpleNamespace(close=lambda: None))
    gauges = cast(Any, None)
    run = Run(
        config,
        (server,),
        Path(),
        display,
        swarm,
        recording,
        [connection],
        ground,
        list(planned),
        rolls,
        gauges,
    )
    run.phase, run.load_began = "load", time.monotonic() - 30.0
    return run


def due(name: str, *, lasts_s: float = 60.0, alone: bool = False) -> PlannedFault:
    return PlannedFault(29.0, name, None, lasts_s, 1, alone)


def test_what_is_due_with_a_crash_waits_until_the_server_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run = disturbed(monkeypatch, due("crash", lasts_s=0.0), due("vacuum"))
    run._disturb()
    assert [active.planned.name for active in run.active] == ["crash"]
    run._disturb()
    assert not run.ground.down
    assert [active.planned.name for active in run.active] == ["vacuum"]
    assert run.planned == []


def test_nothing_begins_beside_a_fault_that_is_to_be_alone_nor_before_it_has_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = disturbed(monkeypatch, due("vacuum", lasts_s=0.0, alone=True), due("crash"))
    run._disturb()
    assert [active.planned.name for active in run.active] == ["vacuum"]
    run._disturb()
    assert run.active == []
    assert [planned.name for planned in run.planned] == ["crash"]
    run.settled_at = time.monotonic()
    run._disturb()
    assert [active.planned.name for active in run.active] == ["crash"]


def test_a_fault_that_is_to_be_alone_waits_for_what_is_in_force_and_what_is_due_later_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = disturbed(monkeypatch, due("vacuum"), due("vacuum", alone=True), due("crash"))
    run._disturb()
    assert [active.planned.name for active in run.active] == ["vacuum"]
    assert [planned.name for planned in run.planned] == ["vacuum", "crash"]
