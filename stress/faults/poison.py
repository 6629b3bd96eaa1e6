"""Rows that nobody can run: each batch of claims gets some, and its other rows must not notice."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from typing_extensions import override

from engine.operation import perform
from engine.sessions import describe_error
from stress.faults.ground import Fault

PAUSE_S = 0.15


class Poison(Fault):
    """Inserts, as a client does and on record, what the subject calls poison, until it is healed."""

    @override
    def begin(self) -> None:
        self._connection: psycopg.Connection[Any] | None = None
        self._last = 0.0
        self.tick()

    @override
    def tick(self) -> None:
        if self.ground.down or time.monotonic() - self._last < PAUSE_S:
            return
        self._last = time.monotonic()
        poison = self.ground.subject.poison
        assert poison is not None
        described, operation = poison(self.random, self.ground.scenario)
        token = self.ground.notes.invoke("insert_many", described)
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self.ground.connect(self.server)
            ids = perform(self._connection, operation)
        except psycopg.Error as error:
            unknown = self._connection is not None and self._connection.closed
            self.ground.notes.complete(token, "info" if unknown else "fail", describe_error(error))
        else:
            self.ground.notes.complete(token, "ok", {"ids": ids})
            self.did["bad rows inserted"] += len(ids)

    @override
    def heal(self) -> None:
        if self._connection is not None:
            self._connection.close()
