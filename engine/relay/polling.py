"""Polling: a tick again and again, at once while there is work, ever more rarely while there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg

from engine.observer import Observer
from engine.sessions import OutcomeUnknown, Unavailable
from engine.store.execution import CommitOutcomeUnknown

# What says nothing of the loop's own work, which is done again.
FAILURES = (psycopg.Error, OutcomeUnknown, Unavailable, CommitOutcomeUnknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How long an idle or failing loop waits: from `min_interval_ms`, `growth` times as long each time, up to
    `max_interval_ms`."""

    min_interval_ms: float = 20.0
    max_interval_ms: float = 1_000.0
    growth: float = 1.5

    def __post_init__(self) -> None:
        if not (0 < self.min_interval_ms <= self.max_interval_ms < float("inf")) or self.growth < 1:
            raise ValueError("intervals must be above 0 and rising, and growth at least 1")

    def next(self, wait_ms: float) -> float:
        """The wait after one of `wait_ms`."""
        return min(max(wait_ms * self.growth, self.min_interval_ms), self.max_interval_ms)


async def poll(
    tick: Callable[[], Awaitable[int]], stop: asyncio.Event, polling: Polling, observer: Observer
) -> None:
    """Tick until `stop` is set. A tick answers how much it did; what the database refuses is told and tried again."""
    wait_ms = 0.0
    while not stop.is_set():
        try:
            done = await tick()
        except FAILURES:
            observer.count("tick_failed")
            done = 0
        wait_ms = 0.0 if done else polling.next(wait_ms)
        if wait_ms:
            try:
                await asyncio.wait_for(stop.wait(), wait_ms / 1_000)
            except TimeoutError:
                continue
