"""Faults of the way between a node and the server, done by the proxy in between."""

from __future__ import annotations

import time

from typing_extensions import override

from stress.faults.ground import Fault
from stress.faults.proxy import BOTH, CLEAR, Direction, Proxies, Weather

HELD: tuple[frozenset[Direction], ...] = (
    frozenset(BOTH), frozenset(("to server",)), frozenset(("to client",)),
)  # fmt: skip
# Commits whose answer a partition loses in the first part of its time, before it holds everything: what has become of
# them can still be found out.
LOST_ANSWERS = 2
LOSING_SHARE = 0.4
CUT_SHARE = 0.5
DELAYS_MS = (0.0, 5.0, 40.0, 120.0)


class Network(Fault):
    """Done to a node by its proxy; what the proxy counts meanwhile is what it did."""

    @override
    def begin(self) -> None:
        assert self.ground.proxies is not None
        self.proxies: Proxies = self.ground.proxies
        self._before = self.proxies.did(self.place)

    @override
    def tick(self) -> None:
        self.did = self.proxies.did(self.place) - self._before

    @override
    def heal(self) -> None:
        self.proxies.set_weather(self.place, CLEAR)
        Network.tick(self)


class Partition(Network):
    """First the answer to a COMMIT or two is lost; then nothing goes through any more. Heal: what was held arrives
    late, or is cut off for good."""

    @override
    def begin(self) -> None:
        super().begin()
        self._holding = False
        self.proxies.lose_commit_answers(self.place, LOST_ANSWERS)

    @override
    def tick(self) -> None:
        super().tick()
        if not self._holding and time.monotonic() - self.began > self.planned.lasts_s * LOSING_SHARE:
            self._holding = True
            self.proxies.lose_commit_answers(self.place, 0)
            self.proxies.set_weather(self.place, Weather(held=self.random.choice(HELD)))

    @override
    def heal(self) -> None:
        self.proxies.lose_commit_answers(self.place, 0)
        if self.random.random() < CUT_SHARE:
            self.proxies.cut(self.place)
        super().heal()


class Slow(Network):
    """Each chunk comes late, by another time to the server than to the client."""

    @override
    def begin(self) -> None:
        super().begin()
        to_server, to_client = self.random.sample(DELAYS_MS, 2)
        self.proxies.set_weather(self.place, Weather(delay_ms=(to_server, to_client)))
