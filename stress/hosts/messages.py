"""What master and workers say to each other: msgpack, one message a frame.

A worker says `Hello` until it is told `Welcome` or `Refused`. From then on the master asks for the time again and again
(`Ping`, `Pong`), which is how each of the two knows that the other is there, and has things done (`Call`, `Reply`). The
worker says by itself what its processes have written (`Data`), which of them have ended (`Ended`), and what its proxies
have done (`Did`). `Over` and `Bye` are the last words of the two.

The messages of one worker arrive in the order in which it sent them. So who hears that a process has ended, or that all
has been handed over, has what it wrote.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "invariants", "stress", "models")


@cache
def code() -> str:
    """A digest of the project's sources. Hosts that run other code than the master test something else."""
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in (".py", ".sql"):
                digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Either's."""


class Hello(Message, frozen=True):
    """`via`: by which name or address the worker found the master; `machine`: whose clock it reads."""

    code: str
    hostname: str
    via: str
    machine: str
    cores: int


class Welcome(Message, frozen=True):
    """`name`: what the worker is called in the run."""

    name: str


class Refused(Message, frozen=True):
    """In a sentence."""

    reason: str


class Ping(Message, frozen=True):
    """`sent` is the master's monotonic clock, in nanoseconds."""

    sent: int


class Pong(Message, frozen=True):
    """`sent` as it was asked; `there` the worker's clock."""

    sent: int
    there: int


class Action(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a worker is to do."""


class Reach(Action, frozen=True):
    """Log in to each server and out again."""

    dsns: tuple[str, ...]


class Start(Action, frozen=True):
    """Start `python -m module`, with that configuration; only the history's folder is the worker's own to say. Answered
    by its pid."""

    name: str
    module: str
    config: dict[str, Any]


class Tell(Action, frozen=True):
    """Write a byte to the lifeline of a process: stop making load, or end."""

    name: str
    byte: bytes


class Signal(Action, frozen=True):
    """Send a signal to a process."""

    name: str
    number: int


class Destroy(Action, frozen=True):
    """End a process now."""

    name: str


class OpenProxies(Action, frozen=True):
    """In front of each server one for each place, and for each process of clients. Answered by the ports, by server
    and place."""

    servers: tuple[tuple[str, int], ...]
    places: tuple[int, ...]
    clients: tuple[str, ...]


class ChangeWeather(Action, frozen=True):
    """As `stress.faults.proxy.Weather` has it, in front of one server. Answered, as the next two, by what has been done
    so far."""

    server: int
    place: int | str
    held: tuple[str, ...]
    delay_ms: tuple[float, float]
    share: float


class Cut(Action, frozen=True):
    """Reset the connections of a place to one server."""

    server: int
    place: int | str


class LoseAnswers(Action, frozen=True):
    """Of the next COMMITs of a place to one server."""

    server: int
    place: int | str
    count: int


class HandOver(Action, frozen=True):
    """Send what is left of all files. Answered by the size of each, when all has been sent."""


Actions: TypeAlias = (
    Reach | Start | Tell | Signal | Destroy | OpenProxies | ChangeWeather | Cut | LoseAnswers | HandOver
)


class Call(Message, frozen=True):
    """Do it and say how that went. Calls of one worker are done in their order."""

    number: int
    action: Actions


class Reply(Message, frozen=True):
    """`error`: why it was not done, in a sentence; None where it was, and `value` is the answer."""

    number: int
    value: Any = None
    error: str | None = None


class Data(Message, frozen=True):
    """A piece of a file: `name` within the run's folder, from that byte on."""

    name: str
    offset: int
    data: bytes


class Ended(Message, frozen=True):
    """A process has: its exit status, and the last line of its log."""

    name: str
    status: int
    words: str


class Did(Message, frozen=True):
    """What the proxies in front of one server have done to one place, so far."""

    server: int
    place: int | str
    counts: dict[str, int]


class Bye(Message, frozen=True):
    """The worker leaves."""

    reason: str


class Over(Message, frozen=True):
    """The run has ended, in that way."""

    word: str


FromWorker: TypeAlias = Hello | Pong | Reply | Data | Ended | Did | Bye
FromMaster: TypeAlias = Welcome | Refused | Ping | Call | Over

encode = msgspec.msgpack.encode
from_worker = msgspec.msgpack.Decoder(FromWorker).decode
from_master = msgspec.msgpack.Decoder(FromMaster).decode
