"""Faults of the server as a whole: it crashes and comes back, or a standby takes its place. What was acknowledged is
there afterwards, but for an asynchronous standby: what that had not got is recorded as lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import psycopg
from typing_extensions import override

from engine.errors import InfrastructureError
from engine.postgres.standby import Standby
from invariants.folder import ledger_folder
from invariants.forks import Fork, write_fork
from invariants.ledger.frames import FrameWriter
from invariants.ledger.pgoutput import parse_lsn
from invariants.ledger.reader import read_tail
from stress.faults.ground import Fault, FaultStuck

# A copy takes as long as it takes on a busy machine; the fault waits for it, and the load goes on meanwhile.
BUILD_TIMEOUT_S = 300.0
ABANDON_TIMEOUT_S = 20.0
# How long an asynchronous standby hears nothing before the crash, and how often the log's end is looked at meanwhile.
DEAF_S = (0.3, 0.8)
LOOK_S = 0.02
MAX_ENDS = 1_000
# After the recovery of a crashed server: up to where its log went.
END = "SELECT redo_lsn::text FROM pg_control_checkpoint()"


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

    synchronous = True

    @override
    def begin(self) -> None:
        self.ground.replicating = self.synchronous
        self._failed: Exception | None = None
        self._standby = Standby(self.server, synchronous=self.synchronous)
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
            self._fail_over()
            self.did["failovers"] = 1
        finally:
            self._standby.remove()
        self.ground.replicating = False

    def _fail_over(self) -> None:
        self.ground.down = True
        self.ground.crashes += 1
        self._standby.take_over()
        self.ground.down = False

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


class FailoverAsync(Failover):
    """The same with a standby that no commit waits for, and that hears nothing for the last moments. What is lost is
    read from the crashed server's log, and recorded beside the ledger as a fork of it (`invariants/forks.py`)."""

    synchronous = False

    @override
    def begin(self) -> None:
        # The log's end, and when it was read.
        self._ends: deque[tuple[int, int]] = deque(maxlen=MAX_ENDS)
        super().begin()

    @override
    def _fail_over(self) -> None:
        over_s = time.monotonic() + self.random.uniform(*DEAF_S)
        try:
            with self.ground.connect(self.server) as primary:
                self._look(primary)
                self._standby.deafen()
                while time.monotonic() < over_s:
                    self._look(primary)
                    time.sleep(LOOK_S)
            received = self._standby.received()
        except psycopg.Error as error:
            raise FaultStuck(f"the server could not be asked about its standby: {error}") from None
        if received is None:
            raise FaultStuck("the standby did not stream any more")
        stopped_ns, stopped_us = time.monotonic_ns(), time.time_ns() // 1000
        super()._fail_over()
        self._record(received, stopped_ns, stopped_us)

    def _look(self, primary: psycopg.Connection[Any]) -> None:
        """The position is read after the time: what was acknowledged by then lies before it."""
        now_ns = time.monotonic_ns()
        row = primary.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        self._ends.append((now_ns, parse_lsn(row[0])))

    def _record(self, received: str, stopped_ns: int, stopped_us: int) -> None:
        servers = self.ground.servers
        folder = ledger_folder(self.ground.swarm.folder, servers.index(self.server), len(servers))
        tail = f"lost-{len(list(folder.glob('lost-*.pgoutput'))) + 1}.pgoutput"
        try:
            with self._standby.former() as dsn:
                with psycopg.connect(dsn, autocommit=True) as former:
                    row = former.execute(END).fetchone()
                    assert row is not None
                frames = read_tail(dsn, self.server.database, self.server.database)
        except psycopg.Error as error:
            raise FaultStuck(f"what a failover lost could not be read: {error}") from None
        with FrameWriter(folder / tail) as writer:
            for lsn, message in frames:
                writer.append(lsn, message)
        known = [at_ns for at_ns, end in self._ends if end <= parse_lsn(received)]
        assert self._standby.fork is not None
        write_fork(
            folder,
            Fork(
                fork=self._standby.fork,
                end=str(row[0]),
                received=received,
                known_ns=max(known, default=None),
                stopped_ns=stopped_ns,
                gone_ns=self._standby.gone_ns,
                stopped_us=stopped_us,
                tail=tail,
            ),
        )
