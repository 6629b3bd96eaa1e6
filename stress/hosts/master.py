"""The master's end: workers join, and are hosts of a swarm from then on.

1. Workers may join until all have come (`gather`); who comes later is refused, for a run is planned for its hosts.
2. A host that leaves, or says nothing for `LOST_S`, or for `GONE_S` after a connection was closed, or does not do what
   it was asked within `CALL_S`, is lost, and with it the run: what its processes did last nobody knows. Nothing waits
   for a lost host.
3. What a worker sends of a file goes to the run's folder under the same name, piece after piece. A piece that is
   missing makes its host lost.

Sockets and clocks are looked after in a thread with a loop of its own; the methods are for the runner's thread.
"""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec
import zmq
import zmq.asyncio

from engine.errors import InfrastructureError
from invariants.history.clocks import Clocks, HostClock, Sample, write_clocks
from invariants.history.events import machine_name
from stress.faults.proxy import Place
from stress.hosts.messages import (
    Actions,
    Bye,
    Call,
    Data,
    Destroy,
    Did,
    Ended,
    FromMaster,
    HandOver,
    Hello,
    Over,
    Ping,
    Pong,
    Refused,
    Reply,
    Signal,
    Start,
    Tell,
    Welcome,
    code,
    encode,
    from_worker,
)
from stress.hosts.token import Key
from stress.swarm.child import END_BYTE, STOP_BYTE, ChildDied

T = TypeVar("T")

PING_EVERY_S: Final = 0.25
LOST_S: Final = 20.0
GONE_S: Final = 5.0
CALL_S: Final = 30.0
# Of a run that ended early, the last word of its hosts.
LAST_CALL_S: Final = 10.0
POLL_S: Final = 0.01
LINGER_MS: Final = 2_000
_FILE = re.compile(
    r"history-([A-Za-z0-9][A-Za-z0-9._+-]{0,99})\.msgpack|logs/[A-Za-z0-9][A-Za-z0-9._+-]{0,99}\.log"
)


class HostLost(ChildDied):
    """A host is gone, and what it did last nobody knows; the message says which and why."""


class NotAllCame(Exception):
    """Workers are missing; the message says how many, and why if it is known."""


@dataclass(eq=False)
class FarHost:
    """A worker that has joined. Fields are the loop's to write; who is not in the loop reads them."""

    master: Master
    name: str
    identity: bytes
    hello: Hello
    heard_at: float
    samples: list[Sample] = field(default_factory=list)
    ended: dict[str, Ended] = field(default_factory=dict)
    did: dict[tuple[int, Place], Counter[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    lost: str | None = None
    # It has handed over all it had.
    whole: bool = False
    calls: dict[int, asyncio.Future[Reply]] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """Its name in the run, and what its machine is called."""
        return f"{self.name} ({self.hello.hostname})"

    @property
    def way_here(self) -> str:
        """By which name or address it finds the master."""
        return self.hello.via

    def check(self) -> None:
        """Raises HostLost."""
        if self.lost is not None:
            raise HostLost(f"{self.told} is lost: {self.lost}")
        if self.master.broken is not None:
            raise HostLost(f"the hosts cannot be heard any more: {self.master.broken}")

    def do(self, action: Actions, timeout_s: float = CALL_S) -> Any:
        """Have it done; the answer. Raises HostLost, and InfrastructureError where the worker could not do it."""
        self.check()
        try:
            reply = self.master.wait_for(self._call(action, timeout_s), timeout_s + CALL_S)
        except TimeoutError:
            raise HostLost("the hosts cannot be heard any more") from None
        if reply is None:
            self.check()
            raise HostLost(f"{self.told} is lost")
        if reply.error is not None:
            raise InfrastructureError(f"{self.told}: {reply.error}")
        return reply.value

    def start(self, name: str, module: str, config: msgspec.Struct) -> FarProcess:
        """Start a process of the swarm there."""
        pid = self.do(Start(name=name, module=module, config=msgspec.to_builtins(config)))
        return FarProcess(self, name, int(pid))

    def hand_over(self, timeout_s: float = CALL_S) -> None:
        """Until all that its processes wrote is here. Raises HostLost."""
        sizes = self.do(HandOver(), timeout_s)
        if sizes != self.sizes:
            self.lost = "what it handed over is not what it sent"
            self.check()
        self.whole = True

    async def _call(self, action: Actions, timeout_s: float) -> Reply | None:
        number = next(self.master.numbers)
        self.calls[number] = asyncio.get_running_loop().create_future()
        await self.master.tell(self.identity, Call(number=number, action=action))
        try:
            async with asyncio.timeout(timeout_s):
                return await self.calls[number]
        except TimeoutError:
            what = type(action).__name__
            self.lose(f"it has not answered to {what} within {timeout_s:.0f} s")
            return None
        except asyncio.CancelledError:
            return None
        finally:
            del self.calls[number]

    def lose(self, why: str) -> None:
        """In the loop: it is lost from now on, and nobody waits for it."""
        self.lost = self.lost or why
        for call in self.calls.values():
            call.cancel()


@dataclass(eq=False)
class FarProcess:
    """A process on another host; see `stress.swarm.child.Process`. Its methods raise HostLost, but for `destroy`."""

    host: FarHost
    name: str
    pid: int

    @property
    def status(self) -> int | None:
        ended = self.host.ended.get(self.name)
        return None if ended is None else ended.status

    def ask_to_stop(self) -> None:
        self._unless_ended(Tell(name=self.name, byte=STOP_BYTE))

    def ask_to_end(self) -> None:
        self._unless_ended(Tell(name=self.name, byte=END_BYTE))

    def signal(self, number: signal.Signals) -> None:
        self._unless_ended(Signal(name=self.name, number=int(number)))

    def wait(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        while self.status is None and time.monotonic() < deadline:
            self.host.check()
            time.sleep(POLL_S)
        return self.status

    def destroy(self) -> None:
        """Of a lost host nothing can be ended; its worker does so when it misses its master."""
        try:
            if self.host.lost is None:
                self._unless_ended(Destroy(name=self.name))
        except ChildDied:
            pass

    def last_words(self) -> str:
        ended = self.host.ended.get(self.name)
        return "nothing that was heard" if ended is None else ended.words

    def _unless_ended(self, action: Actions) -> None:
        if self.status is None:
            try:
                self.host.do(action)
            except InfrastructureError:
                # It has ended, and the word of it is on its way.
                self.host.check()


class Master:
    """Listens for workers within its `with` block. Raises InfrastructureError where it cannot listen there.

    `folder` is the run's. `say` tells a person who has come.
    """

    def __init__(
        self, bind: str, port: int, token: str, workers: int, folder: Path, say: Callable[[str], None]
    ) -> None:
        self.hosts: list[FarHost] = []
        self.token = token
        self.numbers = count()
        self._bind, self._port, self._key = bind, port, Key.of(token)
        self._workers, self._folder, self._say = workers, folder, say
        self._refused: list[str] = []
        self._by_identity: dict[bytes, FarHost] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hosts", daemon=True)
        self._tasks: list[asyncio.Future[None]] = []
        # What ended the hearing of hosts, if anything did.
        self.broken: BaseException | None = None
        self._closed_at = 0.0

    def __enter__(self) -> Master:
        self._thread.start()
        try:
            self.wait_for(self._listen(), CALL_S)
        except zmq.ZMQError as error:
            self._end_loop()
            raise InfrastructureError(
                f"the master cannot listen at {self._bind}:{self._port}: {error.strerror or error}; --bind and --port "
                "say where it should"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release("ended")
        self.wait_for(self._close(), CALL_S)
        self._end_loop()

    def gather(self, timeout_s: float) -> Sequence[FarHost]:
        """Wait until all workers have come. Raises NotAllCame."""
        deadline = time.monotonic() + timeout_s
        while len(self.hosts) < self._workers:
            if time.monotonic() > deadline:
                why = f": {self._refused[-1]}" if self._refused else ""
                raise NotAllCame(
                    f"{len(self.hosts)} of {self._workers} workers came within {timeout_s:.0f} s{why}"
                )
            for host in self.hosts:
                host.check()
            time.sleep(POLL_S)
        return self.hosts

    def collect(self, *, early: bool = False) -> str | None:
        """Have all hosts hand over what their processes wrote, and note their clocks. Why not all of it is there, None
        where it is."""
        gaps = []
        for host in self.hosts:
            try:
                if not host.whole:
                    host.hand_over(LAST_CALL_S if early else CALL_S)
            except (HostLost, InfrastructureError) as error:
                gaps.append(str(error))
        self._note_clocks()
        return f"the histories are not whole: {'; '.join(gaps)}" if gaps else None

    def described(self) -> tuple[dict[str, Any], ...]:
        """The hosts, as a verdict has them."""
        return tuple(
            {"name": host.name, "hostname": host.hello.hostname, "cores": host.hello.cores}
            for host in self.hosts
        )

    def release(self, word: str) -> None:
        """Tell the workers that the run is over."""
        self.wait_for(self._release(word), CALL_S)

    def wait_for(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Done in the loop."""
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(timeout_s)

    async def tell(self, identity: bytes, message: FromMaster) -> None:
        """In the loop."""
        await self._socket.send_multipart([identity, encode(message)])

    def _note_clocks(self) -> None:
        clocks = {
            host.name: HostClock(
                machine=host.hello.machine,
                processes=tuple(
                    found[1] for name in host.sizes if (found := _FILE.fullmatch(name)) and found[1]
                ),
                samples=tuple(host.samples),
            )
            for host in self.hosts
        }
        offset_ns = time.time_ns() - time.monotonic_ns()
        write_clocks(self._folder, Clocks(machine=machine_name(), wall_offset_ns=offset_ns, hosts=clocks))

    async def _listen(self) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = LINGER_MS
        self._key.guard_server(self._socket)
        monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self._socket.bind(f"tcp://{self._bind}:{self._port}")
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        works = (self._hear(), self._ask_the_time(), self._watch(monitor))
        self._tasks = [asyncio.ensure_future(work) for work in works]
        for task in self._tasks:
            task.add_done_callback(self._note_broken)

    def _note_broken(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = error

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.disable_monitor()
        self._context.destroy(linger=LINGER_MS)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    async def _release(self, word: str) -> None:
        for host in self.hosts:
            if host.lost is None:
                await self.tell(host.identity, Over(word=word))
        # Over is said once.
        self._by_identity.clear()

    async def _hear(self) -> None:
        while True:
            identity, frame = await self._socket.recv_multipart()
            received = time.monotonic_ns()
            try:
                message = from_worker(frame)
            except msgspec.DecodeError:
                await self.tell(identity, Refused(reason="the master does not understand this worker"))
                continue
            if isinstance(message, Hello):
                await self._meet(identity, message)
            elif (host := self._by_identity.get(identity)) is not None:
                host.heard_at = time.monotonic()
                self._take(host, message, received)

    async def _meet(self, identity: bytes, hello: Hello) -> None:
        if hello.code != code():
            reason = f"{hello.hostname} runs other code than the master: bring both to one commit"
            self._refused.append(reason)
        elif len(self.hosts) >= self._workers:
            reason = f"the run has its {self._workers} workers: start the master with --workers {self._workers + 1}"
        else:
            name = f"host-{len(self.hosts) + 1}"
            host = FarHost(self, name, identity, hello, time.monotonic())
            self._by_identity[identity] = host
            self.hosts.append(host)
            await self.tell(identity, Welcome(name=name))
            self._say(f"{host.told} has joined, {hello.cores} cores: {len(self.hosts)} of {self._workers}")
            return
        self._say(f"refused: {reason}")
        await self.tell(identity, Refused(reason=reason))

    def _take(self, host: FarHost, message: Any, received: int) -> None:
        match message:
            case Pong(sent=sent, there=there):
                host.samples.append(Sample(sent, there, received))
            case Reply(number=number):
                if (call := host.calls.get(number)) is not None and not call.done():
                    call.set_result(message)
            case Data():
                self._keep(host, message)
            case Ended(name=name):
                host.ended[name] = message
            case Did(server=server, place=place, counts=counts):
                host.did[server, place] = Counter(counts)
            case Bye(reason=reason):
                host.lose(reason)

    def _keep(self, host: FarHost, data: Data) -> None:
        known = data.name in host.sizes
        if not _FILE.fullmatch(data.name) or (not known and (self._folder / data.name).exists()):
            host.lose(f"it sent a file {data.name!r}, which is not its own")
            return
        if data.offset != host.sizes.get(data.name, 0):
            host.lose(f"a piece of {data.name} is missing")
            return
        with (self._folder / data.name).open("ab") as file:
            file.write(data.data)
        host.sizes[data.name] = data.offset + len(data.data)

    async def _ask_the_time(self) -> None:
        while True:
            for host in self.hosts:
                if host.lost is None:
                    await self.tell(host.identity, Ping(sent=time.monotonic_ns()))
                    self._miss(host, time.monotonic())
            await asyncio.sleep(PING_EVERY_S)

    def _miss(self, host: FarHost, now: float) -> None:
        if now - host.heard_at > LOST_S:
            host.lose(f"nothing was heard of it for {LOST_S:.0f} s")
        elif host.heard_at < self._closed_at < now - GONE_S:
            host.lose(f"its connection was closed, and nothing was heard of it for {GONE_S:.0f} s")

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        """Note when a connection was closed. Whose is not said: those that are still there say something soon."""
        while True:
            await monitor.recv_multipart()
            self._closed_at = time.monotonic()
