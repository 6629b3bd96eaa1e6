"""Rolling restarts: node after node is replaced by one of the next release.

1. The next node's turn comes when the last one that was replaced has ended and its successor has a session, or has had
   its time.
2. A node to which a fault is being done is left for later: it would get a successor that the fault knows nothing of.
3. The load goes on until the last roll is over, within bounds. One that its end overtakes all the same stays as it is,
   with nodes of two releases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import psycopg

from invariants.history import Recorder
from stress.swarm.configs import INSTANCE
from stress.swarm.swarm import Swarm

READY_WITHIN_S = 4.0
# What the last node of a roll brings is there when it has booted: it is worth a longer wait.
LAST_READY_WITHIN_S = 20.0
ROLLS_FROM, ROLLS_TO = 0.1, 0.8
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"


def roll_times(releases: int, seconds: float) -> list[float]:
    """When each roll of a load of so many seconds begins, at equal distances."""
    share = (ROLLS_TO - ROLLS_FROM) / max(1, releases)
    return [seconds * (ROLLS_FROM + share * number) for number in range(releases)]


def sessions_named(connection: psycopg.Connection[Any], prefix: str) -> int:
    """How many sessions' names begin like that."""
    row = connection.execute(SESSIONS, (prefix,)).fetchone()
    return 0 if row is None else int(row[0])


@dataclass(slots=True)
class Roll:
    """One that goes on. `left`: places whose turn is to come; `token`: its operation in the history."""

    left: list[int]
    token: int
    replaced: int = 0
    latest: str = ""
    deadline: float = 0.0


class Rolls:
    """Those of a run, at these seconds of its load. `sessions(prefix)`: how many sessions' names begin like that."""

    def __init__(
        self, swarm: Swarm, times: list[float], notes: Recorder, sessions: Callable[[str], int]
    ) -> None:
        self._swarm, self._notes, self._sessions = swarm, notes, sessions
        self._times = times
        self._release = 0
        self._roll: Roll | None = None

    @property
    def over(self) -> bool:
        """Whether all have come to their end."""
        return self._roll is None and not self._times

    def tick(self, loaded_s: float, disturbed: Collection[int]) -> None:
        """Begin one that is due, or replace the next node if it is time; not one in a place that is `disturbed`."""
        if self._roll is None and self._times and loaded_s >= self._times[0]:
            self._times.pop(0)
            self._release += 1
            token = self._notes.invoke("roll", {"release": self._release})
            self._roll = Roll(list(range(self._swarm.config.nodes)), token)
        roll = self._roll
        if roll is None or not self._may_go_on(roll):
            return
        if not roll.left:
            self.end()
            return
        place = next(
            (each for each in roll.left if each not in disturbed and each in self._swarm.nodes), None
        )
        if place is None:
            return
        roll.left.remove(place)
        self._swarm.releases[place] = self._release
        roll.latest = self._swarm.replace_node(place).name
        roll.deadline = time.monotonic() + (READY_WITHIN_S if roll.left else LAST_READY_WITHIN_S)
        roll.replaced += 1

    def end(self) -> None:
        """Nothing more is replaced in the roll that goes on, if one does."""
        if self._roll is not None:
            self._notes.complete(self._roll.token, "ok", {"did": {"nodes replaced": self._roll.replaced}})
            self._roll = None

    def _may_go_on(self, roll: Roll) -> bool:
        if not roll.latest or time.monotonic() > roll.deadline:
            return True
        return not self._swarm.leaving and self._sessions(f"{INSTANCE}@{roll.latest}#") > 0
