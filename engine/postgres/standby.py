"""A streaming replica of a started server, which can take its place: synchronous, at the same address, with the slots
of logical replication that are marked for failover.

Theory of operation:

1. The copy is made by `pg_basebackup` into a lodging of its own, so that a crash of the harness leaves nothing behind.
2. Once it streams, the primary is told to wait for it with every commit (`synchronous_standby_names`) and to decode for
   logical readers only what it has (`synchronized_standby_slots`). It is `ready` when it has all that was acknowledged
   before, and the slots. On a server where nothing is written that takes half a minute: its worker looks rarely then.
3. A failover stops the primary at once, promotes the copy where it runs, stops it in order, and starts it again as the
   primary's own data: who reconnects finds the same address, and every acknowledged commit.

Needs Postgres 17, from which on slots can be synchronised.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from engine.errors import InfrastructureError
from engine.postgres import records
from engine.postgres.cleanup import uninterrupted
from engine.postgres.cluster import Cluster
from engine.postgres.deadline import until
from engine.postgres.server import Server

OLDEST: Final = 17
NAME: Final = "pgreferee_standby"
COPY_TIMEOUT_S: Final = 60
READY_TIMEOUT_S: Final = 30.0
PROMOTE_TIMEOUT_S: Final = 30
_STATE: Final = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s"
_SETTINGS: Final = {
    "hot_standby_feedback": "on",
    "sync_replication_slots": "on",
    "wal_receiver_status_interval": "1s",
}


class Standby:
    """Of one server. `build`, then `take_over`; `remove` in any case. Raises InfrastructureError and psycopg.Error."""

    def __init__(self, server: Server) -> None:
        if not isinstance(server.control, Cluster) or server.major < OLDEST:
            raise InfrastructureError(
                f"a standby needs a server of this machine that the harness started, of Postgres {OLDEST} or newer"
            )
        self._primary = server.control
        self._database = server.database
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
            for setting in ("synchronous_standby_names", "synchronized_standby_slots"):
                primary.execute(f"ALTER SYSTEM SET {setting} = '{NAME}'".encode())
            primary.execute("SELECT pg_reload_conf()")
            self._await_state(primary, "sync_state = 'sync'")
            (position,) = self._one(primary, "SELECT pg_current_wal_lsn()::text")
            self._await_state(primary, f"flush_lsn >= '{position}'")
            self._await_slots(primary)

    def take_over(self) -> None:
        """Stop the primary as a crash does; be it from now on."""
        self._primary.stop("immediate")
        with self._connect(self._copy) as standby:
            (promoted,) = self._one(standby, f"SELECT pg_promote(true, {PROMOTE_TIMEOUT_S})")
            if not promoted:
                raise InfrastructureError(f"the standby was not promoted within {PROMOTE_TIMEOUT_S} s")
        self._copy.stop("fast")
        self._primary.adopt(self._lodging.data_dir)
        self._primary.start()

    def remove(self) -> None:
        """Stop the copy, where it still is one, and remove what is left of it. May be repeated."""
        self._copy.remove()

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
        descriptor = os.open(self._lodging.data_dir / "postgresql.auto.conf", os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(f"{name} = '{value}'\n" for name, value in _SETTINGS.items()))

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
