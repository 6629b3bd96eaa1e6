"""Faults of the way between a node and the server, and between some clients and it, done by the proxies in between."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from typing_extensions import override

from stress.faults.ground import Fault
from stress.faults.proxy import BOTH, CLEAR, Direction, Place, Weather

HELD: tuple[frozenset[Direction], ...] = (
    frozenset(BOTH), frozenset(("to server",)), frozenset(("to client",)),
)  # fmt: skip
# Commits whose answer a partition loses in the first part of its time, before it holds everything: what has become of
# them can still be found out.
LOST_ANSWERS = 2
LOSING_SHARE = 0.4
CUT_SHARE = 0.5
# Of the connections of one process of clients.
CLIENTS_SHARE = 0.5
DELAYS_MS = (0.0, 5.0, 40.0, 120.0)


class Network(Fault):
    """Done by their proxies to a node, and to some connections of a process of clients, where there is one; what they
    count meanwhile is what it did."""

    @override
    def begin(self) -> None:
        self.proxies = self.ground.proxies
        assert self.proxies
        # As a node, a process of clients suffers one at a time.
        free = sorted(set(self.ground.client_places) - self.ground.clients_taken)
        self._clients = {self.random.choice(free)} if free else set()
        self.ground.clients_taken |= self._clients
        self.places: tuple[Place, ...] = (self.place, *self._clients)
        self._before = self._counted()

    @override
    def tick(self) -> None:
        self.did = self._counted() - self._before

    @override
    def heal(self) -> None:
        self.change(CLEAR)
        Network.tick(self)
        self.ground.clients_taken -= self._clients

    def change(self, weather: Weather) -> None:
        """On the way to every server."""
        for each in self.proxies:
            for place in self.places:
                share = weather.share if place == self.place else CLIENTS_SHARE
                each.set_weather(place, weather if weather is CLEAR else replace(weather, share=share))

    def lose_answers(self, count: int) -> None:
        """From every server."""
        for each in self.proxies:
            for place in self.places:
                each.lose_commit_answers(place, count)

    def _counted(self) -> Counter[str]:
        return sum((each.did(place) for each in self.proxies for place in self.places), Counter())


class Partition(Network):
    """First the answer to a COMMIT or two is lost; then nothing goes through any more. Heal: what was held arrives
    late, or is cut off for good."""

    @override
    def begin(self) -> None:
        super().begin()
        self._holding = False
        self.lose_answers(LOST_ANSWERS)

    @override
    def tick(self) -> None:
        super().tick()
        if not self._holding and time.monotonic() - self.began > self.planned.lasts_s * LOSING_SHARE:
            self._holding = True
            self.lose_answers(0)
            self.change(Weather(held=self.random.choice(HELD)))

    @override
    def heal(self) -> None:
        self.lose_answers(0)
        if self.random.random() < CUT_SHARE:
            for each in self.proxies:
                for place in self.places:
                    each.cut(place)
        super().heal()


class Slow(Network):
    """Each chunk comes late, by another time to the server than to the client."""

    @override
    def begin(self) -> None:
        super().begin()
        to_server, to_client = self.random.sample(DELAYS_MS, 2)
        self.change(Weather(delay_ms=(to_server, to_client)))
