"""The proxy in front of a node: what it holds arrives late, what it cuts is gone, and the answer to a COMMIT that it
loses is the answer to one that was committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from engine.operation import Begin, Commit, Operation, call, perform
from engine.picker import Commit as Outcome
from engine.picker import Hold, Job
from engine.postgres import Server, conninfo
from engine.sessions import OutcomeUnknown, Sessions
from engine.statements import Statement
from stress.faults.proxy import BOTH, CLEAR, LOOPBACK, Place, Proxies, Proxy, Weather
from stress.scripts.node import Notes
from tests.fixtures.node import Jobs

ADD = Statement.parse("test/add", "INSERT INTO note VALUES ($1::integer)")
DEADLINE_S = 20.0


@dataclass
class Way:
    """A way to the database of `jobs` through a proxy."""

    jobs: Jobs
    proxies: Proxies
    dsn: str

    def connect(self, place: Place = 0) -> psycopg.Connection[Any]:
        dsn = make_conninfo(self.dsn, port=self.proxies.port(place))
        return psycopg.connect(dsn, autocommit=True, application_name="far")

    def notes(self) -> list[int]:
        return [n for (n,) in self.jobs.rows("SELECT n FROM note ORDER BY n")]

    def until(self, query: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self.jobs.rows(query):
            assert time.monotonic() < deadline, query


@pytest.fixture
def way(jobs: Jobs, server: Server) -> Iterator[Way]:
    if server.tcp_dsn is None:
        pytest.fail("the server of the tests listens on loopback")
    jobs.connection.execute("CREATE TABLE note (n integer)")
    params = conninfo.parse(server.tcp_dsn)
    with Proxies((params["host"], int(params["port"])), [0], ["clients"]) as proxies:
        here = {
            **params,
            "dbname": jobs.one("SELECT current_database()"),
            "host": LOOPBACK,
            "port": str(proxies.port(0)),
            "sslmode": "disable",
            "gssencmode": "disable",
        }
        yield Way(jobs, proxies, conninfo.to_uri(here))


def add(number: int) -> Operation[None]:
    yield Begin()
    yield call(ADD, number)
    yield Commit()


def add_at_once(number: int) -> Operation[None]:
    yield (Begin(), call(ADD, number), Commit())


@pytest.mark.parametrize("operation", [add, add_at_once])
def test_the_answer_to_a_commit_is_lost_after_the_server_has_committed(way: Way, operation: Any) -> None:
    with way.connect() as first, way.connect() as second:
        way.proxies.lose_commit_answers(0, 1)
        with pytest.raises(psycopg.OperationalError):
            perform(first, operation(1))
        assert way.notes() == [1]
        assert first.broken
        perform(second, operation(2))
    assert way.notes() == [1, 2]
    assert way.proxies.did(0) == {"answers to COMMIT lost": 1}


def test_a_flush_whose_commit_was_not_answered_is_sent_again_and_found_to_have_committed(way: Way) -> None:
    jobs = way.jobs
    jobs.do(jobs.picker.insert(Job(fsm="f", step="s")))
    [row] = jobs.do(jobs.picker.claim(queue="default", batch=1, claim="c", lease_ms=60_000)).rows
    outcome = Outcome(id=row.id, claim="c", kind="done", result='{"sum": 1}')

    async def main() -> tuple[Hold, ...]:
        async with Sessions(way.dsn, Notes(), size=1, name="far") as sessions:
            way.proxies.lose_commit_answers(0, 1)
            with pytest.raises(OutcomeUnknown):
                await sessions.run("flush", {}, jobs.picker.flush([outcome]), repr)
            return (await sessions.run("flush", {}, jobs.picker.flush([outcome]), repr)).holds

    assert asyncio.run(main()) == ()
    assert jobs.rows("SELECT status::text, result FROM gen_durable") == [("done", {"sum": 1})]


def test_the_answer_to_a_statement_that_is_a_transaction_of_its_own_is_lost_to_a_client_alone(
    way: Way,
) -> None:
    with way.connect("clients") as client, way.connect() as node:
        for place in ("clients", 0):
            way.proxies.lose_commit_answers(place, 1)
        with pytest.raises(psycopg.OperationalError):
            client.execute("INSERT INTO note VALUES (%s)", (1,))
        node.execute("INSERT INTO note VALUES (%s)", (2,))
    assert way.notes() == [1, 2]
    assert way.proxies.did("clients") == {"answers to clients lost": 1}


@pytest.mark.parametrize("operation", [add, add_at_once])
def test_a_transaction_of_a_client_loses_the_answer_to_its_commit_and_to_nothing_before(
    way: Way, operation: Any
) -> None:
    with way.connect("clients") as client:
        way.proxies.lose_commit_answers("clients", 1)
        with pytest.raises(psycopg.OperationalError):
            perform(client, operation(1))
    assert way.notes() == [1]


def test_weather_is_for_its_share_of_the_connections_also_of_those_that_come_later(way: Way) -> None:
    with way.connect() as there:
        for share, exposed in ((0.0, False), (1.0, True)):
            before = way.proxies.did(0)["chunks delayed"]
            way.proxies.set_weather(0, Weather(delay_ms=(1.0, 1.0), share=share))
            with way.connect() as later:
                for far in (there, later):
                    far.execute("SELECT 1")
                    assert (way.proxies.did(0)["chunks delayed"] > before) == exposed
        way.proxies.set_weather(0, Weather(share=0.0))
        assert way.proxies.cut(0) == 0
        assert there.execute("SELECT 1").fetchone() == (1,)


def test_what_is_held_on_its_way_to_the_server_arrives_when_the_way_is_clear(way: Way) -> None:
    with way.connect() as far, ThreadPoolExecutor(1) as threads:
        way.proxies.set_weather(0, Weather(held=frozenset({"to server"})))
        pending = threads.submit(far.execute, "INSERT INTO note VALUES (1)")
        deadline = time.monotonic() + DEADLINE_S
        while not way.proxies.did(0)["chunks to server held"]:
            assert time.monotonic() < deadline
        assert way.notes() == []
        assert not pending.done()
        way.proxies.set_weather(0, CLEAR)
        pending.result(DEADLINE_S)
    assert way.notes() == [1]


def test_an_answer_that_is_held_keeps_the_client_waiting_for_what_the_server_has_done(way: Way) -> None:
    with way.connect() as far, ThreadPoolExecutor(1) as threads:
        way.proxies.set_weather(0, Weather(held=frozenset({"to client"})))
        pending = threads.submit(far.execute, "INSERT INTO note VALUES (1)")
        way.until("SELECT 1 FROM note")
        assert not pending.done()
        way.proxies.set_weather(0, CLEAR)
        pending.result(DEADLINE_S)


def test_a_cut_ends_every_connection_and_none_that_comes_later(way: Way) -> None:
    with way.connect() as one, way.connect() as other:
        assert way.proxies.cut(0) == 2
        for far in (one, other):
            with pytest.raises(psycopg.OperationalError):
                far.execute("SELECT 1")
    with way.connect() as later:
        assert later.execute("SELECT 1").fetchone() == (1,)


def test_what_was_held_when_it_was_cut_never_arrives(way: Way) -> None:
    with way.connect() as far, ThreadPoolExecutor(1) as threads:
        way.proxies.set_weather(0, Weather(held=frozenset(BOTH)))
        pending = threads.submit(far.execute, "INSERT INTO note VALUES (1)")
        deadline = time.monotonic() + DEADLINE_S
        while not way.proxies.did(0)["chunks to server held"]:
            assert time.monotonic() < deadline
        way.proxies.cut(0)
        way.proxies.set_weather(0, CLEAR)
        with pytest.raises(psycopg.OperationalError):
            pending.result(DEADLINE_S)
    way.until("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'far')")
    assert way.notes() == []


def test_a_delay_is_that_of_the_direction_that_has_it(way: Way) -> None:
    with way.connect() as far:
        for delay_ms in ((200.0, 0.0), (0.0, 200.0)):
            way.proxies.set_weather(0, Weather(delay_ms=delay_ms))
            began = time.monotonic()
            far.execute("SELECT 1")
            assert time.monotonic() - began >= 0.2
    assert way.proxies.did(0)["chunks delayed"] >= 2


def test_a_connection_whose_sockets_have_closed_a_moment_ago_is_cut_as_any_other() -> None:
    async def main() -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        upstream = await asyncio.start_server(answer, LOOPBACK, 0)
        proxy = Proxy(upstream.sockets[0].getsockname()[:2])
        await proxy.start()
        async with asyncio.timeout(DEADLINE_S):
            _, client = await asyncio.open_connection(LOOPBACK, proxy.port)
            while not proxy._connections:
                await asyncio.sleep(0)
            [connection] = proxy._connections
            # Its sockets are closed one turn of the loop before the proxy forgets it.
            for writer in (connection.client, connection.server):
                writer.transport.abort()
            await asyncio.sleep(0)
            assert connection in proxy._connections
            assert connection.client.get_extra_info("socket").fileno() == -1
            cut = proxy.cut()
            client.close()
            await proxy.stop()
            upstream.close()
        return cut

    assert asyncio.run(main()) == 1
