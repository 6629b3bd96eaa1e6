"""A streaming replica of a started server, which can take its place: at the same address, with the slots of logical
replication that are marked for failover; synchronous or not.

Theory of operation:

1. The copy is made by `pg_basebackup` into a lodging of its own, so that a crash of the harness leaves nothing behind.
2. Once it streams, the primary is told to decode for logical readers only what it has (`synchronized_standby_slots`):
   a reader never sees a transaction that a failover undoes. A synchronous one is also waited for with every commit
   (`synchronous_standby_names`). It is `ready` when it has all that was acknowledged before, and the slots. On a server
   where nothing is written that takes half a minute: its worker looks rarely then.
3. A failover stops the primary at once, promotes the copy where it runs, stops it in order, and starts it again as the
   primary's own data: who reconnects finds the same address, and, of a synchronous one, every acknowledged commit.
4. What an asynchronous one had not got is lost, and the log forks where it stopped (`fork`). The primary's data are
   kept until `remove`: started alone where nobody else looks (`former`), they tell what was lost.

Needs Postgres 17, from which on slots can be synchronised.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from engine.errors import InfrastructureError
from engine.postgres import conninfo, records
from engine.postgres.cleanup import uninterrupted
from engine.postgres.cluster import Cluster
from engine.postgres.deadline import until
from engine.postgres.server import Server

OLDEST: Final = 17
NAME: Final = "pgreferee_standby"
COPY_TIMEOUT_S: Final = 120
READY_TIMEOUT_S: Final = 60.0
PROMOTE_TIMEOUT_S: Final = 60
_STATE: Final = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s"
_RECEIVED: Final = "SELECT max(flush_lsn)::text FROM pg_stat_replication WHERE application_name = %s"
_SETTINGS: Final = {
    "hot_standby_feedback": "on",
    "sync_replication_slots": "on",
    "wal_receiver_status_interval": "1s",
}


class Standby:
    """Of one server. `build`, then `take_over`; `remove` in any case. Raises InfrastructureError and psycopg.Error.

    `fork`: where the log of the two parted, as Postgres writes a position; of an asynchronous one, once it took over.
    `gone_ns`: when the primary was gone and the standby not there yet, on the monotonic clock.
    """

    def __init__(self, server: Server, *, synchronous: bool = True) -> None:
        if not isinstance(server.control, Cluster) or server.major < OLDEST:
            raise InfrastructureError(
                f"a standby needs a server of this machine that the harness started, of Postgres {OLDEST} or newer"
            )
        self._primary = server.control
        self._database = server.database
        self._synchronous = synchronous
        self.fork: str | None = None
        self.gone_ns = 0
        self._former: Cluster | None = None
        self._deaf: int | None = None
        with uninterrupted():
            account = self._primary.account
            self._lodging = records.new_lodging(account)
            self._copy = Cluster(self._primary.installation, self._lodging, account, {}, tcp=False)
            self._copy.password = self._primary.password

    def build(self) -> None:
        """Copy, start, and wait until it is ready."""
        self._base_backup()
        self._copy.start()
        with self._connect(self._primary) as primary:
            self._await_state(primary, "state = 'streaming'")
            waits = ("synchronous_standby_names",) if self._synchronous else ()
            for setting in (*waits, "synchronized_standby_slots"):
                primary.execute(f"ALTER SYSTEM SET {setting} = '{NAME}'".encode())
            primary.execute("SELECT pg_reload_conf()")
            self._await_state(primary, f"sync_state = '{'sync' if self._synchronous else 'async'}'")
            (position,) = self._one(primary, "SELECT pg_current_wal_lsn()::text")
            self._await_state(primary, f"flush_lsn >= '{position}'")
            self._await_slots(primary)

    def deafen(self) -> None:
        """Freeze what receives the log, until it takes over: it never gets what is written from now on."""
        with self._connect(self._copy) as standby:
            (receiver,) = self._one(standby, "SELECT max(pid) FROM pg_stat_wal_receiver")
        if receiver is not None:
            self._deaf = int(receiver)
            os.kill(self._deaf, signal.SIGSTOP)

    def received(self) -> str | None:
        """The position up to which it has told the primary that it has the log; None where it streams no more."""
        with self._connect(self._primary) as primary:
            row = primary.execute(_RECEIVED, (NAME,)).fetchone()
        return None if row is None or row[0] is None else str(row[0])

    def take_over(self) -> None:
        """Stop the primary as a crash does; be it from now on."""
        self._primary.stop("immediate")
        self.gone_ns = time.monotonic_ns()
        if self._deaf is not None:
            # What is on its way to it is lost, as it is with a machine.
            os.kill(self._deaf, signal.SIGTERM)
            os.kill(self._deaf, signal.SIGCONT)
        with self._connect(self._copy) as standby:
            (promoted,) = self._one(standby, f"SELECT pg_promote(true, {PROMOTE_TIMEOUT_S})")
            if not promoted:
                raise InfrastructureError(f"the standby was not promoted within {PROMOTE_TIMEOUT_S} s")
        self._copy.stop("fast")
        if not self._synchronous:
            self.fork = _fork(self._lodging.data_dir)
            with uninterrupted():
                former = records.new_lodging(self._primary.account)
                self._former = Cluster(
                    self._primary.installation, former, self._primary.account, {}, tcp=False
                )
                self._former.password = self._primary.password
                self._primary.data_dir.rename(former.data_dir)
        self._primary.adopt(self._lodging.data_dir)
        self._primary.start()

    @contextmanager
    def former(self) -> Iterator[str]:
        """The DSN of the primary as it was when it crashed, started alone, where only who has this DSN finds it."""
        former = self._former
        if former is None:
            raise InfrastructureError("a synchronous standby keeps nothing of the server that it replaced")
        alone = {
            "listen_addresses": "",
            "unix_socket_directories": str(former.lodging.folder),
            "synchronized_standby_slots": "",
            "autovacuum": "off",
        }
        _configure(former.data_dir, alone)
        former.start()
        try:
            yield conninfo.to_uri({**former.params, "dbname": self._database})
        finally:
            former.stop("immediate")

    def remove(self) -> None:
        """Stop the copy, where it still is one, and remove what is left of it, and of the primary. May be repeated."""
        self._copy.remove()
        if self._former is not None:
            self._former.remove()

    def _base_backup(self) -> None:
        passwords = self._lodging.folder / "passwords"
        self._primary.write_private(passwords, f"*:*:*:*:{self._primary.password}\n")
        params = {key: value for key, value in self._primary.params.items() if key != "password"}
        conninfo = " ".join(f"{key}={value}" for key, value in {**params, "application_name": NAME}.items())
        command: list[str | Path] = [
            *(self._primary.installation.program("pg_basebackup"), "--pgdata", self._lodging.data_dir),
            *("--dbname", f"{conninfo} passfile={passwords}", "--write-recovery-conf", "--no-password"),
            *("--wal-method", "stream", "--checkpoint", "fast", "--create-slot", "--slot", NAME, "--no-sync"),
        ]
        try:
            result = subprocess.run(
                command,
                cwd=self._lodging.folder,
                env=dict(self._primary.account.environment(self._lodging.folder)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COPY_TIMEOUT_S,
                **self._primary.account.popen_arguments(),
            )
        except subprocess.TimeoutExpired:
            raise InfrastructureError(f"pg_basebackup did not finish within {COPY_TIMEOUT_S} s") from None
        except OSError as error:
            raise InfrastructureError(f"{command[0]} cannot be run: {error.strerror}") from None
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["no reason given"]
            raise InfrastructureError(f"pg_basebackup failed: {lines[-1]}")
        _configure(self._lodging.data_dir, _SETTINGS)

    def _await_state(self, primary: psycopg.Connection[Any], condition: str) -> None:
        for _ in until(READY_TIMEOUT_S):
            if primary.execute(f"{_STATE} AND {condition}".encode(), (NAME,)).fetchone() is not None:
                return
        raise InfrastructureError(f"the standby did not come to {condition} within {READY_TIMEOUT_S:.0f} s")

    def _await_slots(self, primary: psycopg.Connection[Any]) -> None:
        """Until the copy has every slot that is to survive. A slot can be kept from a consistent point on, and those
        are rare on a primary unless it is asked for one."""
        wanted = {
            name for (name,) in primary.execute("SELECT slot_name FROM pg_replication_slots WHERE failover")
        }
        with self._connect(self._copy) as standby:
            for _ in until(READY_TIMEOUT_S):
                primary.execute("SELECT pg_log_standby_snapshot()")
                found = standby.execute(
                    "SELECT slot_name FROM pg_replication_slots WHERE synced AND NOT temporary"
                ).fetchall()
                if wanted <= {name for (name,) in found}:
                    return
                time.sleep(0.1)
        raise InfrastructureError(f"the standby did not get the slots within {READY_TIMEOUT_S:.0f} s")

    def _connect(self, cluster: Cluster) -> psycopg.Connection[Any]:
        # The copy has the primary's configuration, and so its folder of sockets; the port is its own.
        where = {**cluster.params, "host": str(self._primary.lodging.folder), "dbname": self._database}
        parameters: dict[str, Any] = {**where, "connect_timeout": 10}
        return psycopg.connect(**parameters, autocommit=True, application_name="pgreferee fault")

    @staticmethod
    def _one(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row


def _configure(data_dir: Path, settings: Mapping[str, str]) -> None:
    """Over all that a stopped server is configured to."""
    descriptor = os.open(data_dir / "postgresql.auto.conf", os.O_WRONLY | os.O_APPEND)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("".join(f"{name} = '{value}'\n" for name, value in settings.items()))


def _fork(data_dir: Path) -> str:
    """Where the newest time line of a promoted server left the one before: the last entry of its history file."""
    histories = sorted((data_dir / "pg_wal").glob("*.history"))
    lines = [line for line in histories[-1].read_text().splitlines() if line.strip()] if histories else []
    if not lines:
        raise InfrastructureError("the promoted standby has no history of its time line")
    return lines[-1].split("\t")[1]
