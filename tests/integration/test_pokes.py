"""A poke is a hint: it saves latency where it arrives, and nothing is lost where it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from engine.machine import Done, Machine, Next, Outcome, Step
from engine.picker import Job
from engine.pokes import Debounce, Pokes, channel, decode, encode, notify
from engine.policy import QueuePolicy
from engine.sessions import Sessions
from engine.statements import Catalogue
from stress.scripts.node import Notes
from tests.fixtures.node import DEADLINE_S, Jobs, running_node

WAITING = "SELECT count(*) FROM gen_durable WHERE status IN ('runnable', 'executing')"
NAMES = ["default", "", "a b", "%2F", "ü" * 1_000, "\x01" * 2_000, '",\n:@-', "\U0001f600" * 500]


class Chain(Machine):
    name = "chain"

    async def first(self, step: Step) -> Outcome:
        return Next("second")

    async def second(self, step: Step) -> Outcome:
        return Done()


@asynccontextmanager
async def pokes(
    dsn: str, *, observer: Notes | None = None, listen_dsn: str | None = None, **changes: Any
) -> AsyncIterator[tuple[Pokes, list[str | None]]]:
    """Pokes at work, and what they heard. The block begins when they listen."""
    heard: list[str | None] = []
    notes = Notes() if observer is None else observer
    async with Sessions(dsn, notes, size=2, name="test") as sessions:
        arguments: dict[str, Any] = {"debounce_ms": 20.0, **changes}
        found = Pokes(
            dsn if listen_dsn is None else listen_dsn,
            "test",
            sessions=sessions,
            observer=notes,
            name="listener",
            poked=heard.append,
            **arguments,
        )
        task = asyncio.create_task(found.run())
        try:
            await wait_for(lambda: None in heard)
            yield found, heard
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def wait_for(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:4]))
def test_a_queue_of_any_name_fits_a_payload_and_comes_back(name: str) -> None:
    assert decode(encode(name)) == name
    assert len(encode(name)) < 8_000
    assert encode(name).isascii()


def test_a_debounce_lets_a_queue_through_once_in_its_time() -> None:
    now = [0.0]
    debounce = Debounce(20.0, clock=lambda: now[0])

    assert debounce.due(["b", "a", "b"]) == ["a", "b"]
    now[0] = 0.019
    assert debounce.due(["a", "c"]) == ["c"]
    now[0] = 0.02
    assert debounce.due(["a", "b", "c"]) == ["a", "b"]


def test_what_one_node_announces_another_hears(jobs: Jobs) -> None:
    async def main() -> None:
        async with pokes(jobs.dsn) as (one, _), pokes(jobs.dsn) as (_, heard):
            one.announce(NAMES)
            await wait_for(lambda: set(NAMES) <= set(heard))

    asyncio.run(main())


def test_an_instance_hears_no_other_instance(jobs: Jobs) -> None:
    async def main() -> None:
        async with pokes(jobs.dsn) as (_, heard):
            jobs.do(notify(Catalogue.load(), "other", ["foreign"]))
            jobs.do(notify(Catalogue.load(), "test", ["own"]))
            await wait_for(lambda: "own" in heard)
            assert "foreign" not in heard

    asyncio.run(main())


def test_a_thousand_announcements_make_a_few_notifications(jobs: Jobs) -> None:
    async def main() -> None:
        async with pokes(jobs.dsn, debounce_ms=50.0) as (one, heard):
            loop = asyncio.get_running_loop()
            began = loop.time()
            for number in range(1_000):
                one.announce([f"q{number % 2}"])
                if number % 10 == 0:
                    await asyncio.sleep(0)
            one.announce(["last"])
            await wait_for(lambda: "last" in heard)
            told = [queue for queue in heard if queue is not None]
            assert len(told) <= 2 * (2 + (loop.time() - began) / 0.05) + 1

    asyncio.run(main())


def test_a_listener_that_was_terminated_listens_again_and_counts_every_queue_as_poked(jobs: Jobs) -> None:
    notes = Notes()

    async def main() -> None:
        async with pokes(jobs.dsn, observer=notes) as (one, heard):
            jobs.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listener'"
            )
            await wait_for(lambda: heard.count(None) == 2)
            one.announce(["after"])
            await wait_for(lambda: "after" in heard)

    asyncio.run(main())
    assert notes.counts["poke_reconnect"] == 1


class Swallow:
    """A proxy that forwards until it is told to swallow all that comes: a connection that is half open."""

    def __init__(self, dsn: str) -> None:
        found = conninfo_to_dict(dsn)
        self._to = str(found["host"]), str(found.get("port", 5432))
        self._dsn = dsn
        self.swallowing = False
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return make_conninfo(self._dsn, host="127.0.0.1", port=port)

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._to
        if host.startswith("/"):
            up, out = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            up, out = await asyncio.open_connection(host, int(port))
        self._writers += [writer, out]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pump(reader, out), self._pump(up, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        swallow = False
        while data := await source.read(65_536):
            swallow = swallow or self.swallowing
            if not swallow:
                sink.write(data)
                await sink.drain()


def test_a_connection_that_is_half_open_is_found_dead_and_replaced(jobs: Jobs) -> None:
    notes = Notes()

    async def main() -> None:
        proxy = Swallow(jobs.dsn)
        async with (
            proxy as dsn,
            pokes(jobs.dsn, observer=notes, listen_dsn=dsn, check_interval_s=0.05, check_timeout_s=0.2) as (
                one,
                heard,
            ),
        ):
            proxy.swallowing = True
            await wait_for(lambda: notes.counts.get("poke_reconnect"))
            proxy.swallowing = False
            await wait_for(lambda: heard.count(None) >= 2)
            one.announce(["after"])
            await wait_for(lambda: "after" in heard)

    asyncio.run(main())


SLOW_POLLS: dict[str, Any] = {"poll_interval_ms": 60_000.0, "max_poll_interval_ms": 60_000.0}


def test_a_poke_wakes_a_node_that_would_have_slept_for_a_minute(jobs: Jobs) -> None:
    notes = Notes()
    queues = (QueuePolicy(name="default"), QueuePolicy(name="%: ü"))

    async def main() -> None:
        async with running_node(jobs.dsn, [Chain], notes=notes, queues=queues, pokes=True, **SLOW_POLLS):
            await wait_for(lambda: len(notes.sent("claim")) >= 4)  # two at the start, two when it listens
            jobs.do(jobs.picker.insert(Job(fsm="chain", step="first", queue="%: ü")))
            jobs.do(notify(Catalogue.load(), "test", ["%: ü"]))
            await jobs.until(WAITING, 0)

    asyncio.run(main())


def test_a_node_tells_the_others_what_its_flush_made_runnable(jobs: Jobs) -> None:
    async def main() -> None:
        async with pokes(jobs.dsn) as (_, heard), running_node(jobs.dsn, [Chain], pokes=True):
            jobs.do(jobs.picker.insert(Job(fsm="chain", step="first")))
            await wait_for(lambda: "default" in heard)
            await jobs.until(WAITING, 0)

    asyncio.run(main())


def test_with_every_notification_dropped_all_work_is_done(jobs: Jobs) -> None:
    # Nobody listens, and every attempt to notify fails.
    notes = Notes()
    database = jobs.one("SELECT current_database()")
    jobs.connection.execute("CREATE SCHEMA shadow")
    jobs.connection.execute(
        "CREATE FUNCTION shadow.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'dropped'; END $$"
    )
    jobs.connection.execute(
        f"ALTER DATABASE {database} SET search_path TO shadow, pg_catalog, public".encode()
    )

    async def main() -> None:
        async with running_node(jobs.dsn, [Chain], notes=notes, pokes=True):
            for _ in range(20):
                jobs.do(jobs.picker.insert(Job(fsm="chain", step="first")))
            await jobs.until("SELECT count(*) FROM gen_durable WHERE status = 'done'", 20)

    asyncio.run(main())
    assert notes.counts["poke_failed"] >= 1


def test_a_node_whose_listener_cannot_connect_works_on(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = psycopg.AsyncConnection.connect

    async def refuse(dsn: str, **named: Any) -> object:
        if named["application_name"].endswith("/pokes"):
            raise psycopg.OperationalError("no")
        return await connect(dsn, **named)

    notes = Notes()

    async def main() -> None:
        async with running_node(jobs.dsn, [Chain], notes=notes, pokes=True):
            jobs.do(jobs.picker.insert(Job(fsm="chain", step="first")))
            await jobs.until("SELECT count(*) FROM gen_durable WHERE status = 'done'", 1)
            await wait_for(lambda: notes.counts.get("poke_reconnect", 0) >= 2)

    monkeypatch.setattr("engine.pokes.psycopg.AsyncConnection.connect", refuse)
    asyncio.run(main())


def test_a_channel_is_a_name_that_postgres_keeps_whole() -> None:
    assert len(channel("x" * 1_000)) < 63
    assert channel("a") != channel("A")
