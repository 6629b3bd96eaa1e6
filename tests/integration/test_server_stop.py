"""A server that stops at once, with synced commits, in the middle of a commit, a delivery or a sweep: all or nothing is
there when it is back, and the work goes on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from engine.operation import perform
from engine.postgres import Server, fresh_database, provision
from engine.sessions import connect
from engine.store import CommitOutcomeUnknown, PostgresStore
from stress.scripts.courier import Courier, install
from stress.scripts.race import Race
from tests.fixtures.stores import ALL, NOTHING, do, effects, execution, full
from tests.integration.test_relay import GATES, check_whole, finish, inventory, prepare, work
from tests.integration.test_store_postgres import NAME, TABLES, Gate

TIMEOUT_S = 20


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """A server of these tests' own, whose commits are on disk when they are answered."""
    with provision("embedded", profile="durable") as server:
        yield server


def stop_and_start(server: Server) -> None:
    server.stop("immediate")
    server.start()


@pytest.mark.slow(3)
def test_a_server_that_stops_between_two_writes_of_a_commit_has_all_of_it_or_nothing(mortal: Server) -> None:
    with fresh_database(mortal) as dsn:
        for number, table in enumerate(TABLES):
            store = PostgresStore.from_dsn(dsn)
            subject = execution(table)
            with psycopg.connect(dsn, autocommit=True) as observer, ThreadPoolExecutor(1) as threads:
                gate = Gate(dsn, observer)
                if number == 0:
                    gate.install()
                gate.close_at(table)
                victim = PostgresStore.from_dsn(dsn, name=NAME)
                pending = threads.submit(do, victim, full(subject, table))
                gate.await_blocked()
                stop_and_start(mortal)
                with pytest.raises(CommitOutcomeUnknown):
                    pending.result(TIMEOUT_S)
                victim.close()
            assert subject.version == 0
            with psycopg.connect(dsn, autocommit=True) as observer:
                Gate(dsn, observer).reset()
            # The first call finds the connection gone, the next one makes another.
            with pytest.raises(psycopg.OperationalError):
                store.load(table)
            assert store.load(table) is None
            assert effects(store, table, table) == NOTHING
            do(store, full(subject, table))
            assert effects(store, table, table) == ALL
            store.close()


@contextmanager
def courier_at(dsn: str) -> Iterator[Courier]:
    """Sessions on a database that may be killed: they are given up with the server."""
    with ExitStack() as stack:
        yield Courier(Race(dsn, stack))


@pytest.mark.slow(1)
@pytest.mark.parametrize("at", GATES)
def test_a_server_that_stops_at_any_change_of_a_relay_has_handed_over_all_or_nothing(
    mortal: Server, at: str
) -> None:
    with fresh_database(mortal) as dsn:
        install(dsn)
        with courier_at(dsn) as courier:
            prepare(courier)
            before = stopped_at(courier, mortal, at)
        with courier_at(dsn) as courier:
            assert inventory(courier) == before
            check_whole(courier)
            finish(courier)


def stopped_at(courier: Courier, server: Server, at: str) -> dict[str, Any]:
    """Work until a statement waits at that gate, and stop the server there. What was committed before."""
    blocked = "SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0"
    with ThreadPoolExecutor(1) as threads, connect(courier.dsn, "mortal") as mortal:
        mortal.execute("SELECT set_config('gate.at', %s, false)", (at,))
        courier.race.session("gatekeeper").execute("SELECT pg_advisory_lock(4711)")
        for operation in work(courier):
            pending = threads.submit(perform, mortal, operation)
            while not pending.done() and not courier.rows(blocked, mortal.info.backend_pid):
                pass
            if not pending.done():
                before = inventory(courier)
                stop_and_start(server)
                assert isinstance(pending.exception(TIMEOUT_S), psycopg.OperationalError)
                return before
    raise AssertionError(f"nobody came to {at}")
