"""The fault of the server as a whole: it crashes, and comes back with what it had acknowledged."""

from __future__ import annotations

from typing_extensions import override

from stress.faults.ground import Fault


class Crash(Fault):
    """An immediate stop, as a crash: no checkpoint, sessions gone in mid-statement. Heal: started again on the same
    data, at the same address, which recovers from the write-ahead log."""

    @override
    def begin(self) -> None:
        self.ground.down = True
        self.ground.crashes += 1
        self.ground.server.stop("immediate")
        self.did["crashes"] = 1

    @override
    def heal(self) -> None:
        self.ground.server.start()
        self.ground.down = False
