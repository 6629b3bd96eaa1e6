"""Faults of the sessions of nodes and clients: ended, or their statements cancelled, by the server's own functions."""

from __future__ import annotations

from typing import Any

import psycopg
from typing_extensions import override

from stress.faults.ground import Fault

# How many ticks pass between two blows.
EVERY_TICKS = 3


class Blows(Fault):
    """Strikes one session at a time, drawn from those of nodes and clients; `only`: a condition on them."""

    only = ""
    blow = ""
    said = ""

    @override
    def begin(self) -> None:
        self._ticks = 0
        self._connection: psycopg.Connection[Any] | None = None
        self._strike()

    @override
    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % EVERY_TICKS == 0:
            self._strike()

    @override
    def heal(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _strike(self) -> None:
        if self.ground.down or self.ground.replicating:
            return
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self.ground.connect(self.server)
            found = sorted(
                pid for (pid,) in self._connection.execute((self.ground.sessions + self.only).encode())
            )
            if not found:
                return
            victim = self.random.choice(found)
            row = self._connection.execute(f"SELECT {self.blow}(%s)".encode(), (victim,)).fetchone()
            if row is not None and row[0]:
                self.did[self.said] += 1
        except psycopg.Error:
            pass


class Terminate(Blows):
    """`pg_terminate_backend`."""

    blow = "pg_terminate_backend"
    said = "sessions ended"


class Cancel(Blows):
    """`pg_cancel_backend` of what runs at that moment, if it still does."""

    only = " AND state = 'active'"
    blow = "pg_cancel_backend"
    said = "statements cancelled"
