"""A standby takes the place of its primary: at its address, with all that was acknowledged, and with the ledger."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from engine.errors import InfrastructureError
from engine.operation import perform
from engine.picker import Job, Picker
from engine.postgres import Server, provision
from engine.postgres.standby import Standby
from engine.schema import migrate
from invariants.ledger.process import RecorderProcess

PAUSE_S = 0.02


class Client:
    """Inserts without a pause to speak of, whoever answers at the address, until it is told to stop."""

    def __init__(self, server: Server) -> None:
        self.acknowledged: set[int] = set()
        self.lost = 0
        self._dsn = server.dsn
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    while not self._over.wait(PAUSE_S):
                        row = perform(connection, Picker().insert(Job(fsm="f", step="s")))
                        assert row is not None
                        self.acknowledged.add(row)
            except psycopg.OperationalError:
                self.lost += 1
                self._over.wait(PAUSE_S)


@pytest.mark.slow("15 s")
def test_a_standby_takes_over_with_all_that_was_acknowledged_and_the_ledger_goes_on(
    tmp_path: Path,
) -> None:
    with provision(profile="durable") as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            migrate(connection)
        with RecorderProcess(server.dsn, tmp_path, "ledger", failover=True) as recorder:
            client = Client(server)
            standby = Standby(server)
            try:
                standby.build()
                standby.take_over()
            finally:
                standby.remove()
            client.stop()
            ended = recorder.stop()
        with psycopg.connect(server.dsn) as connection:
            there = {row for (row,) in connection.execute("SELECT id FROM gen_durable")}
    assert client.lost >= 1
    assert client.acknowledged <= there
    assert ended["complete"], ended["reason"]
    assert ended["differences"] == 0


def test_a_server_that_the_harness_did_not_start_gets_no_standby(server: Server) -> None:
    with pytest.raises(InfrastructureError, match="the harness started"):
        Standby(replace(server, control=None))
