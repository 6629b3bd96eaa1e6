"""Faults of the server as a whole: it crashes and comes back, or a standby takes its place. What was acknowledged is
there in either case."""

from __future__ import annotations

import threading

import psycopg
from typing_extensions import override

from engine.errors import InfrastructureError
from engine.postgres.standby import Standby
from stress.faults.ground import Fault, FaultStuck

# A copy takes as long as it takes on a busy machine; the fault waits for it, and the load goes on meanwhile.
BUILD_TIMEOUT_S = 90.0
ABANDON_TIMEOUT_S = 20.0


class Crash(Fault):
    """An immediate stop, as a crash: no checkpoint, sessions gone in mid-statement. Heal: started again on the same
    data, at the same address, which recovers from the write-ahead log."""

    @override
    def begin(self) -> None:
        self.ground.down = True
        self.ground.crashes += 1
        self.server.stop("immediate")
        self.did["crashes"] = 1

    @override
    def heal(self) -> None:
        self.server.start()
        self.ground.down = False


class Failover(Fault):
    """A synchronous standby is made while the load goes on. Heal: the server crashes, and the standby takes its
    place."""

    @override
    def begin(self) -> None:
        self.ground.replicating = True
        self._failed: Exception | None = None
        self._standby = Standby(self.server)
        self._thread = threading.Thread(target=self._build, name="standby", daemon=True)
        self._thread.start()

    @property
    @override
    def ready(self) -> bool:
        return not self._thread.is_alive()

    @override
    def heal(self) -> None:
        self._thread.join(BUILD_TIMEOUT_S)
        if self._thread.is_alive() or self._failed is not None:
            raise FaultStuck(
                f"there was no standby to fail over to: {self._failed or 'it was not ready in time'}"
            )
        try:
            self.ground.down = True
            self.ground.crashes += 1
            self._standby.take_over()
            self.did["failovers"] = 1
        finally:
            self._standby.remove()
        self.ground.down = self.ground.replicating = False

    @override
    def abandon(self) -> None:
        # Whatever it was doing fails for want of its folder, and what it has started meanwhile goes as well.
        self._standby.remove()
        self._thread.join(ABANDON_TIMEOUT_S)
        self._standby.remove()

    def _build(self) -> None:
        try:
            self._standby.build()
        except (InfrastructureError, psycopg.Error, OSError) as error:
            self._failed = error
