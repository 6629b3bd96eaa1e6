"""A rolling restart: node after node is replaced by one of the next release.

1. The next node's turn comes when the last one that was replaced has ended and its successor has a session, or has had
   its time.
2. A node to which a fault is being done is left for later: it would get a successor that the fault knows nothing of.
3. A roll that the load's end overtakes stays as it is, with nodes of two releases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from stress.swarm.configs import INSTANCE
from stress.swarm.swarm import Swarm

READY_WITHIN_S = 10.0
ROLLS_FROM, ROLLS_TO = 0.15, 0.85
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"


def roll_times(releases: int, seconds: float) -> list[float]:
    """When each roll of a load of so many seconds begins, at equal distances."""
    share = (ROLLS_TO - ROLLS_FROM) / max(1, releases)
    return [seconds * (ROLLS_FROM + share * number) for number in range(releases)]


class Roll:
    """One of them, to the given release. `sessions(prefix)`: how many sessions' names begin like that."""

    def __init__(self, swarm: Swarm, release: int, sessions: Callable[[str], int]) -> None:
        self.release = release
        self.replaced = 0
        self._swarm = swarm
        self._sessions = sessions
        self._left = list(range(swarm.config.nodes))
        self._latest = ""
        self._deadline = 0.0

    @property
    def over(self) -> bool:
        """Whether every node has been replaced."""
        return not self._left

    def tick(self, disturbed: Collection[int]) -> None:
        """Replace the next node if it is time; not one in a place that is `disturbed`."""
        if not self._may_go_on():
            return
        place = next((each for each in self._left if each not in disturbed), None)
        if place is None or place not in self._swarm.nodes:
            return
        self._left.remove(place)
        self._swarm.releases[place] = self.release
        self._latest = self._swarm.replace_node(place).name
        self._deadline = time.monotonic() + READY_WITHIN_S
        self.replaced += 1

    def _may_go_on(self) -> bool:
        if not self._latest or time.monotonic() > self._deadline:
            return True
        return not self._swarm.leaving and self._sessions(f"{INSTANCE}@{self._latest}#") > 0
