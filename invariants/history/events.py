"""One process's history: `history-<process>.msgpack`, appended while it runs.

    magic    8 bytes  b"PGRFHIST"
    version  2 bytes  unsigned, big-endian: 1
    frames   4 bytes  length of the payload, unsigned, big-endian
             payload  msgpack; the first frame is a `Clock`, every other one an `Event`

Rules, with reasons:

1. One file per process and one writer per file: no lock, no order to agree on, and a killed process spoils
   only the last frame of its own file. A cut tail is left out by the reader.
2. An event is handed to the operating system with one write before the recorder returns. An invoke is
   recorded before its statement is sent, so a process killed at any moment leaves at least the invoke of
   whatever it did; an invoke without a completion reads as `info`, "nobody knows whether it took effect".
3. `index` counts the operations of one process. A completion carries the index of its invoke, because one
   process has many operations open at once. An event of kind `count` has no invoke.
4. Time is CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a machine, and one that nobody sets.
   Histories of several machines are each right in themselves; `clocks` brings them to one time line. The `Clock`
   frame pairs that clock with the wall clock at start, and names the machine as it was booted.
5. msgpack, not JSON: integers of 64 bits stay integers, any text survives, and a frame takes about a
   microsecond.

What `value` holds is a contract with those who record; `docs` of each operation stand in
`invariants/witness.py`.
"""

from __future__ import annotations

import os
import platform
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import msgspec

MAGIC: Final = b"PGRFHIST"
VERSION: Final = 1
# As the kernel numbers it.
FIRST_TIME_NAMESPACE: Final = "time:[4026531834]"
_HEADER = struct.Struct("!8sH")
_LENGTH = struct.Struct("!I")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}\Z")

EventType = Literal["invoke", "ok", "fail", "info"]


class HistoryError(ValueError):
    """A file that is no history, or of a version this reader does not know."""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One end of an operation. `index` is the operation's, shared by its invoke and its completion."""

    process: str
    index: int
    type: EventType
    f: str
    value: Any
    time_ns: int


class Clock(msgspec.Struct, frozen=True, array_like=True):
    """When a file was begun, on both clocks, and by whom."""

    process: str
    pid: int
    wall_ns: int
    monotonic_ns: int
    # Whose monotonic clock it is; histories that do not say are of one machine.
    machine: str = ""


def machine_name() -> str:
    """Names the boot of this machine, which its monotonic clock counts from, and the namespace that sets it off."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()
    try:
        namespace = Path("/proc/self/ns/time").readlink().name
    except OSError:
        return boot
    return boot if namespace == FIRST_TIME_NAMESPACE else f"{boot} {namespace}"


def history_path(folder: Path, process: str) -> Path:
    """Where that process's history stands. Raises ValueError for a name that is no plain file name."""
    if not _NAME.match(process):
        raise ValueError(f"{process!r} cannot name a process: letters, digits and . _ + - only, 100 at most")
    return folder / f"history-{process}.msgpack"


class Recorder:
    """Records one process's operations; satisfies `engine.observer.Observer`.

    Not for several threads at once. Raises FileExistsError when the process's file exists: a restarted
    process is another process and takes another name.
    """

    def __init__(self, folder: Path, process: str, *, known_as: str | None = None) -> None:
        """`known_as`: whose operations these are, where the file has another name."""
        self.process = process if known_as is None else known_as
        self._names: dict[int, str] = {}
        self._last = -1
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        path = history_path(folder, process)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        clock = Clock(self.process, os.getpid(), time.time_ns(), time.monotonic_ns(), machine_name())
        payload = self._encoder.encode(clock)
        self._write(_HEADER.pack(MAGIC, VERSION) + _LENGTH.pack(len(payload)) + payload)

    def invoke(self, operation: str, value: object, *, at_ns: int | None = None) -> int:
        """An operation is about to be sent. It is on record when this returns. `at_ns`: when it was, if not now."""
        self._last += 1
        self._names[self._last] = operation
        self._append(self._last, "invoke", operation, value, at_ns)
        return self._last

    def complete(
        self, token: int, kind: Literal["ok", "fail", "info"], value: object, *, at_ns: int | None = None
    ) -> None:
        """The operation of that token has ended. Raises KeyError when it has already."""
        self._append(token, kind, self._names.pop(token), value, at_ns)

    def count(self, event: str, amount: int = 1) -> None:
        """An event happened `amount` times: an `ok` of kind `count` that has no invoke."""
        self._last += 1
        self._append(self._last, "ok", "count", {"event": event, "amount": amount})

    def close(self) -> None:
        """Close the file. Operations still open stay without a completion."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _append(
        self, index: int, kind: EventType, operation: str, value: object, at_ns: int | None = None
    ) -> None:
        moment = time.monotonic_ns() if at_ns is None else at_ns
        payload = self._encoder.encode(Event(self.process, index, kind, operation, value, moment))
        self._write(_LENGTH.pack(len(payload)) + payload)

    def _write(self, data: bytes) -> None:
        # A short write (a disk that is full) must not let later frames follow half of one.
        if os.write(self._file, data) != len(data):
            raise OSError(f"the history of {self.process} could not be written whole")


def read_events(path: Path) -> tuple[Clock | None, Iterator[Event]]:
    """A file's clock and its whole events; the clock is None when not even that was written. Raises
    HistoryError."""
    data = path.read_bytes()
    if len(data) < _HEADER.size:
        if MAGIC.startswith(data[: len(MAGIC)]):
            return None, iter(())
        raise HistoryError(f"{path} is not a history")
    magic, version = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise HistoryError(f"{path} is not a history")
    if version != VERSION:
        raise HistoryError(f"{path} is a history of version {version}, this reader knows {VERSION}")
    frames = _frames(data, _HEADER.size)
    first = next(frames, None)
    if first is None:
        return None, iter(())
    try:
        clock = msgspec.msgpack.decode(first, type=Clock)
    except msgspec.DecodeError as error:
        raise HistoryError(f"{path} does not begin with a clock: {error}") from None
    return clock, _events(path, frames)


def _events(path: Path, frames: Iterator[memoryview]) -> Iterator[Event]:
    decode = msgspec.msgpack.Decoder(Event).decode
    for frame in frames:
        try:
            yield decode(frame)
        except msgspec.DecodeError as error:
            raise HistoryError(f"{path} holds a frame that is no event: {error}") from None


def _frames(data: bytes, at: int) -> Iterator[memoryview]:
    view, end, size = memoryview(data), len(data), _LENGTH.size
    while at + size <= end:
        (length,) = _LENGTH.unpack_from(data, at)
        if at + size + length > end:
            return
        yield view[at + size : at + size + length]
        at += size + length
