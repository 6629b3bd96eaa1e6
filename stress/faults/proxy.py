"""A TCP proxy between one node, or one process of clients, and the server, whose weather can be changed: it delays,
holds, cuts, and loses the answer to a COMMIT.

Rules:

1. It listens on loopback, beside whom it serves, and connects to the server of the run and to nothing else.
2. What is held is not lost: it arrives when the weather clears, late, as TCP has it. What is cut is reset, and what was
   on its way is gone.
3. A lost answer is exact: the client's COMMIT goes to the server, the server's answer is read up to "ready" outside of
   a transaction, so it has been decided and is durable, and then the connection is reset before the client hears of it.
   Clients mostly send statements that are transactions of their own: of a place of `autocommit`, the answer to such a
   statement is lost as well.
4. Weather and cuts may be for a share of the connections alone; each draws anew whether it is among them.

`Proxies` runs all of a run's in a thread with a loop of its own; its methods are for any thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from stress.faults.wire import Messages, is_commit, is_execute, is_idle

T = TypeVar("T")
# A node's number, or a name.
Place = int | str
Direction = Literal["to server", "to client"]
BOTH: tuple[Direction, Direction] = ("to server", "to client")

LOOPBACK = "127.0.0.1"
CHUNK = 65_536
CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Weather:
    """`held`: directions in which nothing goes through. `delay_ms`: for each chunk, to the server and to the client.
    `share`: of the connections, how many it is for."""

    held: frozenset[Direction] = frozenset()
    delay_ms: tuple[float, float] = (0.0, 0.0)
    share: float = 1.0


CLEAR = Weather()


class Waysides(Protocol):
    """What stands in front of one server, wherever: see `Proxies`."""

    def did(self, place: Place) -> Counter[str]: ...
    def set_weather(self, place: Place, weather: Weather) -> None: ...
    def cut(self, place: Place) -> int: ...
    def lose_commit_answers(self, place: Place, count: int) -> None: ...


@dataclass(eq=False, slots=True)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    from_client: Messages = field(default_factory=lambda: Messages(startup=True))
    from_server: Messages = field(default_factory=lambda: Messages(startup=False))
    # Its COMMIT has gone to the server, and the answer is to be lost.
    doomed: bool = False
    # Whether the weather is for it.
    exposed: bool = True

    def reset(self) -> None:
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            # The other end may have closed it a moment ago.
            with suppress(OSError):
                if sock is not None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Proxy:
    """One listener. All methods are for the loop's thread; `did` counts what was done, for anybody to read."""

    def __init__(self, upstream: tuple[str, int], place: Place = 0, *, autocommit: bool = False) -> None:
        self.upstream = upstream
        self._autocommit = autocommit
        self._random = Random(f"proxy/{place}")
        self.port = 0
        self.did: Counter[str] = Counter()
        self._weather = CLEAR
        self._changed = asyncio.Event()
        self._commits_to_lose = 0
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no longer, and reset what is open."""
        if self._server is not None:
            self._server.close()
        self.set_weather(CLEAR)
        self.cut()

    def set_weather(self, weather: Weather) -> None:
        """From now on, on every connection that is to have it."""
        self._weather = weather
        for connection in self._connections:
            connection.exposed = self._draws(weather.share)
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> int:
        """Reset every connection that the weather is for; how many there were."""
        exposed = [connection for connection in self._connections if connection.exposed]
        for connection in exposed:
            connection.reset()
            self._connections.discard(connection)
        self.did["connections cut"] += len(exposed)
        return len(exposed)

    def _draws(self, share: float) -> bool:
        return share >= 1 or self._random.random() < share

    def lose_commit_answers(self, count: int) -> None:
        """Of the next `count` COMMITs the answer is lost; 0 for no more."""
        self._commits_to_lose = count

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                upstream, server = await asyncio.open_connection(*self.upstream, limit=CHUNK)
        except (OSError, TimeoutError):
            client.transport.abort()
            return
        connection = _Connection(client, server, exposed=self._draws(self._weather.share))
        self._connections.add(connection)
        for writer in (client, server):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pumps = [
            asyncio.ensure_future(self._pump(connection, reader, server, "to server")),
            asyncio.ensure_future(self._pump(connection, upstream, client, "to client")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._connections.discard(connection)
            for writer in (client, server):
                writer.close()

    async def _pump(
        self,
        connection: _Connection,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        direction: Direction,
    ) -> None:
        try:
            while data := await source.read(CHUNK):
                if connection.exposed and self._weather is not CLEAR:
                    await self._endure(direction)
                if direction == "to server":
                    if any(self._decides(message) for message in connection.from_client.feed(data)):
                        self._choose(connection)
                elif self._loses(connection, data):
                    connection.reset()
                    return
                target.write(data)
                await target.drain()
        except OSError:
            pass

    async def _endure(self, direction: Direction) -> None:
        """Wait as long as the weather says, whatever it becomes meanwhile."""
        delay_s = self._weather.delay_ms[BOTH.index(direction)] / 1000
        if delay_s > 0:
            self.did["chunks delayed"] += 1
            await asyncio.sleep(delay_s)
        if direction in self._weather.held:
            self.did[f"chunks {direction} held"] += 1
            while direction in self._weather.held:
                await self._changed.wait()

    def _decides(self, message: tuple[int, bytes]) -> bool:
        return is_commit(message) or (self._autocommit and is_execute(message))

    def _choose(self, connection: _Connection) -> None:
        if self._commits_to_lose > 0:
            self._commits_to_lose -= 1
            connection.doomed = True

    def _loses(self, connection: _Connection, data: bytes) -> bool:
        """Whether the connection ends here. What the server said before its word on the COMMIT is lost with it."""
        idle = any(is_idle(message) for message in connection.from_server.feed(data))
        if connection.doomed and idle:
            self.did["answers to clients lost" if self._autocommit else "answers to COMMIT lost"] += 1
            return True
        return False


class Proxies:
    """One proxy for each place, in front of one server; `autocommit`: places of clients. Use it with `with`."""

    def __init__(
        self, upstream: tuple[str, int], places: Iterable[Place], autocommit: Iterable[Place] = ()
    ) -> None:
        self._upstream = upstream
        self._places = {**dict.fromkeys(places, False), **dict.fromkeys(autocommit, True)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: dict[Place, Proxy] = {}

    def __enter__(self) -> Proxies:
        self._thread.start()
        self._wait(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def port(self, place: Place) -> int:
        """Where who is in that place finds the server."""
        return self._proxies[place].port

    def did(self, place: Place) -> Counter[str]:
        """What has been done so far to whoever is in that place."""
        return Counter(self._proxies[place].did)

    def set_weather(self, place: Place, weather: Weather) -> None:
        """See `Proxy`."""
        self._call(lambda: self._proxies[place].set_weather(weather))

    def cut(self, place: Place) -> int:
        """See `Proxy`."""
        return self._call(self._proxies[place].cut)

    def lose_commit_answers(self, place: Place, count: int) -> None:
        """See `Proxy`."""
        self._call(lambda: self._proxies[place].lose_commit_answers(count))

    async def _start(self) -> None:
        for place, autocommit in self._places.items():
            proxy = Proxy(self._upstream, place, autocommit=autocommit)
            await proxy.start()
            self._proxies[place] = proxy

    async def _stop(self) -> None:
        for proxy in self._proxies.values():
            await proxy.stop()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _call(self, act: Callable[[], T]) -> T:
        async def in_loop() -> T:
            return act()

        return self._wait(in_loop())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(CALL_TIMEOUT_S)
