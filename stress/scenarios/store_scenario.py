"""The shape of a scenario of the store: what its clients do to executions, and which charts its nodes run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from engine.statechart import Chart
from stress.subjects.store import STORE
from stress.subjects.subject import Subject


@dataclass(frozen=True, slots=True)
class Start:
    """Save new executions, each with its start event in the outbox: (definition, id, context). `together`: in one
    batch, else one by one. `ends`: whether each comes to an end by itself. `waits`: the first does when all others are
    there."""

    executions: tuple[tuple[str, str, Mapping[str, Any]], ...]
    together: bool
    ends: bool
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Tell:
    """Publish an event to an execution's group, `copies` times under one id; `pause_ms`: how long to wait before."""

    target: str
    event_id: str
    kind: str
    payload: Mapping[str, Any]
    copies: int = 1
    pause_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Bump:
    """Load executions, count in each, and commit them, in one batch if they are several. Whoever loses a race reads and
    counts again, a few times. `emits`: to these; `arm` and `cancel`: timers by path, the former with its delay."""

    targets: tuple[str, ...]
    definition: str
    emits: tuple[str, ...] = ()
    arm: tuple[tuple[str, float], ...] = ()
    cancel: tuple[str, ...] = ()
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Page through all executions, or those of a status."""

    status: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class Note:
    """Append a step to an execution's trace, outside of any commit."""

    target: str


Act = Start | Tell | Bump | Listing | Note


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreScenario:
    """A named load of the store, the relay and the transport.

    `next_acts(random, window)` is what one client does next, in order; `window` counts quarter seconds and is the same
    for all clients at one time. `clients`, `pause_ms`, `exercises`: as of a picker's scenario. `max_backlog`: how
    much may be on its way (in the outbox, the spawns and the transport) before clients wait; each looks after
    `look_every` of its turns. `contenders`: how many loops of a node commit directly, as clients do.
    """

    name: str
    summary: str
    charts: tuple[Chart, ...]
    next_acts: Callable[[Random, int], tuple[Act, ...]]
    clients: int
    pause_ms: float
    max_backlog: int
    look_every: int = 10
    exercises: tuple[str, ...] = ()
    contenders: int = 0
    trace_max: int = 20
    subject: ClassVar[Subject] = STORE
