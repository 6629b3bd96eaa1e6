"""What a run records of itself: the ledger's recorder process, and the harness's own history of phases and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from engine.postgres import InfrastructureError, Server
from invariants.evidence import Evidence
from invariants.folder import ledger_folder
from invariants.history import Recorder
from invariants.ledger.process import RecorderError, RecorderProcess
from invariants.ledger.reader import LedgerUnavailable

MAX_LOG_LINES = 1_000
SEVERITIES = ("ERROR:", "FATAL:", "PANIC:")
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@dataclass(frozen=True, slots=True)
class Progress:
    """What the recorder has seen so far. `rules`: by name, how often each was decided, and violated."""

    transactions: int
    violations: int
    rules: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class ServerRecording:
    """What is recorded of one server: its ledger, and its own evidence."""

    def __init__(self, server: Server, ledger: RecorderProcess | None, no_ledger: str | None) -> None:
        self._server = server
        self._ledger = ledger
        self._log_began = server.log_size() if server.has_log else 0
        self._deadlocks = _deadlocks(server)
        self.no_ledger = no_ledger
        self.evidence = Evidence(no_ledger=no_ledger)

    @classmethod
    @contextmanager
    def started(
        cls, server: Server, folder: Path, shard: int, shards: int, *, failover: bool = False
    ) -> Iterator[ServerRecording]:
        """Record within the block. A server that allows no ledger is recorded without one, and the reason kept.
        `failover`: the server may be followed by a standby."""
        if server.why_no_ledger is not None:
            yield cls(server, None, server.why_no_ledger)
            return
        try:
            # Slots belong to the whole server: the database's name keeps two runs on one server apart.
            ledger = RecorderProcess(server.dsn, folder, server.database, shard, shards, failover=failover)
        except LedgerUnavailable as error:
            yield cls(server, None, str(error))
            return
        except RecorderError as error:
            raise InfrastructureError(f"the ledger cannot be recorded: {error}") from None
        with ledger:
            yield cls(server, ledger, None)

    def progress(self) -> Progress:
        """As of the recorder's last word, at most a second ago."""
        if self._ledger is None:
            return Progress(0, 0)
        told = self._ledger.progress
        return Progress(told["transactions"], told["violations"], told.get("rules", {}))

    def check_alive(self) -> None:
        """Raises RecorderError when the recorder has ended by itself."""
        if self._ledger is not None:
            self._ledger.check_alive()

    def finish(self, connection: psycopg.Connection[Any], *, counters_lost: bool = False) -> None:
        """The run is at rest: record up to now, compare with the tables, and take the server's own evidence.

        `counters_lost`: a crash has set the server's counters back. Raises RecorderError.
        """
        if self._ledger is not None:
            self._ledger.stop()
        self.evidence = self._evidence(connection, at_rest=True, counters_lost=counters_lost)

    def abandon(self, reason: str) -> None:
        """The run ends early: have the recorder write what it has, and why there is no more."""
        if self._ledger is not None:
            self._ledger.abandon(reason)

    def _evidence(
        self, connection: psycopg.Connection[Any], *, at_rest: bool, counters_lost: bool
    ) -> Evidence:
        row = None if counters_lost else connection.execute(DEADLOCKS).fetchone()
        return Evidence(
            at_rest=at_rest,
            deadlocks=None if row is None or self._deadlocks is None else int(row[0]) - self._deadlocks,
            server_log=tuple(self._log_errors()) if self._server.has_log else None,
            no_ledger=self.no_ledger,
        )

    def _log_errors(self) -> Iterator[str]:
        marker = f"@{self._server.database}"
        kept = 0
        for line in self._server.log_lines(self._log_began):
            if marker in line and any(severity in line for severity in SEVERITIES) and kept < MAX_LOG_LINES:
                kept += 1
                yield line


def _deadlocks(server: Server) -> int | None:
    """As counted so far: a database may have had runs before."""
    try:
        with psycopg.connect(server.dsn) as connection:
            row = connection.execute(DEADLOCKS).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else int(row[0])


class Recording:
    """Everything that is written while a run goes on, but for what nodes and clients write themselves."""

    def __init__(self, servers: Sequence[ServerRecording], notes: Recorder) -> None:
        self.servers = tuple(servers)
        # The harness's own history.
        self.notes = notes

    @classmethod
    @contextmanager
    def started(
        cls, servers: Sequence[Server], folder: Path, *, failover: bool = False
    ) -> Iterator[Recording]:
        """Record all servers within the block, each ledger in its own folder (`invariants.folder.ledger_folder`)."""
        with ExitStack() as stack:
            notes = stack.enter_context(Recorder(folder, "harness"))
            recordings = []
            for shard, server in enumerate(servers):
                ledger = ledger_folder(folder, shard, len(servers))
                ledger.mkdir(exist_ok=True)
                recordings.append(
                    stack.enter_context(
                        ServerRecording.started(server, ledger, shard, len(servers), failover=failover)
                    )
                )
            yield cls(recordings, notes)

    def phase(self, name: str) -> None:
        """A phase begins."""
        self.notes.complete(self.notes.invoke("phase", {"phase": name}), "ok", {"phase": name})

    def did(self, name: str, act: Callable[[], object]) -> None:
        """The harness does something to the database itself."""
        token = self.notes.invoke(name, {})
        act()
        self.notes.complete(token, "ok", {})

    def fault(self, name: str, target: str, pid: int) -> int:
        """A fault begins; returns the token for `healed`."""
        return self.notes.invoke("fault", {"fault": name, "target": target, "pid": pid})

    def healed(self, token: int, did: Mapping[str, int]) -> None:
        """That fault has ended, and did so much."""
        self.notes.complete(token, "ok", {"did": dict(did)})

    def progress(self) -> Progress:
        """Of all servers."""
        each = [server.progress() for server in self.servers]
        rules: dict[str, tuple[int, int]] = {}
        for one in each:
            for name, (checked, violated) in one.rules.items():
                before = rules.get(name, (0, 0))
                rules[name] = (before[0] + checked, before[1] + violated)
        return Progress(sum(one.transactions for one in each), sum(one.violations for one in each), rules)

    def check_alive(self) -> None:
        """Raises RecorderError when a recorder has ended by itself."""
        for server in self.servers:
            server.check_alive()

    def finish(self, connections: Sequence[psycopg.Connection[Any]], *, counters_lost: bool = False) -> None:
        """As of each server, over a connection to it. Raises RecorderError."""
        for server, connection in zip(self.servers, connections, strict=True):
            server.finish(connection, counters_lost=counters_lost)

    def abandon(self, reason: str) -> None:
        """As of each server."""
        for server in self.servers:
            server.abandon(reason)
