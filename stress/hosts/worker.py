"""A worker: one host's part of a run. It starts the processes that its master asks for, and hands over what they write.

1. It starts the processes of the swarm and no others (`MODULES`), and writes to a folder of its own and nowhere else.
2. What its processes write is sent on while the run goes on, so that a worker that is lost takes little with it.
3. It does not outlive its master: without a word for `ALONE_S` it ends its processes and goes. They do not outlive it
   either: their lifeline ends with it (`stress/swarm/child.py`).
4. Its folder goes with it. One that was killed leaves it behind, locked by nobody, and the next worker removes it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from engine.errors import HarnessError, InfrastructureError
from engine.postgres import conninfo
from invariants.history.events import machine_name
from stress.faults.proxy import BOTH, CLEAR, Place, Proxies, Weather
from stress.hosts.messages import (
    Actions,
    Bye,
    Call,
    ChangeWeather,
    Cut,
    Data,
    Destroy,
    Did,
    Ended,
    FromWorker,
    HandOver,
    Hello,
    LoseAnswers,
    OpenProxies,
    Over,
    Ping,
    Pong,
    Reach,
    Refused,
    Reply,
    Signal,
    Start,
    Tell,
    Welcome,
    code,
    encode,
    from_master,
)
from stress.hosts.token import VARIABLE, Key
from stress.scenarios import SCENARIOS
from stress.swarm.child import END_BYTE, Child

MODULES: Final = frozenset(
    {"stress.swarm.locust_worker", *(scenario.subject.node for scenario in SCENARIOS.values())}
)
PREFIX: Final = "pgreferee-worker-"
SEND_EVERY_S: Final = 0.1
CHUNK: Final = 256 * 1024
# A master asks for the time four times a second.
ALONE_S: Final = 30.0
# So often a connection is made and not let in before it is said to be the token.
NOT_LET_IN: Final = 3
LINGER_MS: Final = 2_000


class Rejected(InfrastructureError):
    """There is no run for this worker; the message says why."""


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder, gone after the block; those that killed workers of this account have left go first."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if left.stat().st_uid == os.getuid() and _is_abandoned(left):
                shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / "logs").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _is_abandoned(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@dataclass
class Worker:
    """One that has joined, or tries to."""

    address: str
    port: int
    token: str = field(repr=False)
    wait_seconds: float
    say: Callable[[str], None]
    folder: Path
    opened: ExitStack
    children: dict[str, Child] = field(default_factory=dict)
    started: Counter[str] = field(default_factory=Counter)
    _sizes: dict[str, int] = field(default_factory=dict)
    _proxies: tuple[Proxies, ...] = ()
    _places: tuple[Place, ...] = ()
    _did: dict[tuple[int, Place], Counter[str]] = field(default_factory=dict)
    _joined: asyncio.Event = field(default_factory=asyncio.Event)
    _word: str | None = None

    async def run(self) -> str:
        """Until the run is over; the word that its master had for it. Raises Rejected."""
        context = zmq.asyncio.Context()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        Key.of(self.token).guard_client(self._socket)
        self._monitor = self._socket.get_monitor_socket()
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        try:
            self._socket.connect(f"tcp://{self.address}:{self.port}")
            return await self._until(stopping)
        finally:
            self._socket.disable_monitor()
            context.destroy(linger=self._socket.linger)

    async def _until(self, stopping: asyncio.Event) -> str:
        works = (self._listen(), self._send_on(), self._say_hello(), stopping.wait())
        tasks = [asyncio.ensure_future(each) for each in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._word is None:
                await self._tell(Bye(reason="it was stopped"))
                raise KeyboardInterrupt
            return self._word
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for child in self.children.values():
                child.destroy()

    async def _say_hello(self) -> None:
        """Raises Rejected where nobody lets it in."""
        hello = Hello(
            code=code(),
            hostname=socket.gethostname(),
            via=self.address,
            machine=machine_name(),
            cores=os.cpu_count() or 1,
        )
        refused = asyncio.ensure_future(self._count_refusals())
        joined = asyncio.ensure_future(self._joined.wait())
        try:
            await self._tell(hello)
            done, _ = await asyncio.wait(
                (refused, joined), timeout=self.wait_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            refused.cancel()
            joined.cancel()
        where = f"{self.address}:{self.port}"
        if refused in done:
            raise Rejected(
                f"what listens at {where} does not know this token: set {VARIABLE}, or --token-file, to the master's"
            )
        if not done:
            raise Rejected(f"no master answered at {where} within {self.wait_seconds:.0f} s")
        await _for_ever()

    async def _count_refusals(self) -> None:
        """Ends when so many connections were closed before they were secure."""
        refused = 0
        while refused < NOT_LET_IN:
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            if event & (
                zmq.EVENT_HANDSHAKE_FAILED_AUTH
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            ):
                refused += 1
            elif event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
                await _for_ever()

    async def _listen(self) -> None:
        """Do what the master says, until it says that the run is over. Raises Rejected."""
        while True:
            try:
                async with asyncio.timeout(ALONE_S if self._joined.is_set() else None):
                    message = from_master(await self._socket.recv())
            except TimeoutError:
                raise Rejected(
                    f"the master at {self.address}:{self.port} has not been heard of for {ALONE_S:.0f} s"
                ) from None
            match message:
                case Ping(sent=sent):
                    await self._tell(Pong(sent=sent, there=time.monotonic_ns()))
                case Welcome(name=name):
                    self.say(f"joined {self.address}:{self.port} as {name}")
                    self._joined.set()
                    # From now on there is somebody to hear a last word.
                    self._socket.linger = LINGER_MS
                case Refused(reason=reason):
                    raise Rejected(reason)
                case Over(word=word):
                    self._word = word
                    return
                case Call(number=number, action=action):
                    try:
                        await self._tell(Reply(number=number, value=await self._do(action)))
                    except HarnessError as error:
                        await self._tell(Reply(number=number, error=str(error)))
                    except (OSError, LookupError, ValueError) as error:
                        await self._tell(Reply(number=number, error=f"{type(error).__name__}: {error}"))

    async def _tell(self, message: FromWorker) -> None:
        await self._socket.send(encode(message))

    async def _do(self, action: Actions) -> Any:
        match action:
            case Reach(dsns=dsns):
                await asyncio.get_running_loop().run_in_executor(None, _reach, dsns)
            case Start():
                return self._start(action)
            case Tell(name=name, byte=byte):
                child = self.children[name]
                child.ask_to_end() if byte == END_BYTE else child.ask_to_stop()
            case Signal(name=name, number=number):
                self.children[name].signal(signal.Signals(number))
            case Destroy(name=name):
                if name in self.children:
                    self.children[name].destroy()
                    await self._report_ended()
            case OpenProxies():
                return self._open(action)
            case ChangeWeather():
                weather = Weather(
                    frozenset(way for way in BOTH if way in action.held), action.delay_ms, action.share
                )
                clear = weather == CLEAR
                self._proxies[action.server].set_weather(action.place, CLEAR if clear else weather)
                return self._proxies[action.server].did(action.place)
            case Cut(server=server, place=place):
                self._proxies[server].cut(place)
                return self._proxies[server].did(place)
            case LoseAnswers(server=server, place=place, count=count):
                self._proxies[server].lose_commit_answers(place, count)
                return self._proxies[server].did(place)
            case HandOver():
                await self._report_ended()
                await self._send_files()
                return {name: size for name, size in self._sizes.items() if size}
        return None

    def _start(self, action: Start) -> int:
        if action.module not in MODULES:
            raise ValueError(f"{action.module} is none of the swarm's processes")
        config = {**action.config, "history": str(self.folder)}
        child = Child.start(
            action.name, action.module, config, self.folder / "logs" / f"{Path(action.name).name}.log"
        )
        self.children[action.name] = child
        self.started["processes of clients" if "locust" in action.module else "nodes"] += 1
        return child.pid

    def _open(self, action: OpenProxies) -> list[list[tuple[Place, int]]]:
        self._places = (*action.places, *action.clients)
        self._proxies = tuple(
            self.opened.enter_context(Proxies(server, action.places, action.clients))
            for server in action.servers
        )
        return [[(place, each.port(place)) for place in self._places] for each in self._proxies]

    async def _send_on(self) -> None:
        while True:
            await asyncio.sleep(SEND_EVERY_S)
            await self._send_files()
            await self._report_ended()
            for server, proxies in enumerate(self._proxies):
                for place in self._places:
                    did = proxies.did(place)
                    if did != self._did.get((server, place), Counter()):
                        self._did[server, place] = did
                        await self._tell(Did(server=server, place=place, counts=dict(did)))

    async def _report_ended(self) -> None:
        """What they wrote goes first."""
        for name, child in list(self.children.items()):
            status = child.status
            if status is not None:
                del self.children[name]
                await self._send_files()
                await self._tell(Ended(name=name, status=status, words=child.last_words()))
                child.destroy()

    async def _send_files(self) -> None:
        for path in sorted((*self.folder.glob("history-*.msgpack"), *self.folder.glob("logs/*.log"))):
            name = path.relative_to(self.folder).as_posix()
            with path.open("rb") as file:
                while True:
                    offset = self._sizes.get(name, 0)
                    file.seek(offset)
                    data = file.read(CHUNK)
                    if not data:
                        break
                    # Before anybody else sends the same piece.
                    self._sizes[name] = offset + len(data)
                    await self._tell(Data(name=name, offset=offset, data=data))
                self._sizes.setdefault(name, 0)


async def _for_ever() -> None:
    """Others have the last word."""
    await asyncio.Event().wait()


def _reach(dsns: tuple[str, ...]) -> None:
    """Raises InfrastructureError, without a password in it."""
    for dsn in dsns:
        with conninfo.connect(conninfo.parse(dsn)):
            pass


def serve(
    address: str, port: int, token: str, wait_seconds: float, say: Callable[[str], None]
) -> tuple[str, Counter[str]]:
    """Take part in one run; the word that its master had for it, and what was started here. Raises Rejected."""
    with own_folder() as folder, ExitStack() as opened:
        worker = Worker(address, port, token, wait_seconds, say, folder, opened)
        word = asyncio.run(worker.run())
        return word, worker.started
