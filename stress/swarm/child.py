"""Child processes: started with their configuration on standard input, ended with certainty.

Rules:

1. A child reads one line of JSON from standard input; secrets travel there, never in arguments or the environment.
2. Standard input stays open as a lifeline: when it ends, the parent is gone and the child exits at once. On Linux the
   kernel is also asked to kill the child with its parent, because a frozen child cannot read.
3. A child leads a session of its own, so that the terminal's Ctrl-C reaches the runner alone, which then ends its
   children in order.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")

LOOPBACK = "127.0.0.1"

PR_SET_PDEATHSIG = 1
# Where the harness's packages lie.
ROOT = Path(__file__).resolve().parents[2]
# What is written to a child's lifeline: stop making load, or, for a node, end in order.
STOP_BYTE, END_BYTE = b"s", b"e"


class Process(Protocol):
    """A process of the swarm, on this host or another. `name` is its name in logs and histories."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""

    def ask_to_stop(self) -> None:
        """A client ends its work and exits, a node makes no load of its own any more."""

    def ask_to_end(self) -> None:
        """A node ends in order."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless it has ended."""

    def wait(self, timeout_s: float) -> int | None:
        """Exit status, or None when it still runs after `timeout_s`."""

    def destroy(self) -> None:
        """End it now, frozen or not."""

    def last_words(self) -> str:
        """The last line of its log that is not empty."""


class Host(Protocol):
    """Where processes of the swarm run. `way_here`: by which name or address they find this one."""

    @property
    def way_here(self) -> str: ...

    def start(self, name: str, module: str, config: msgspec.Struct) -> Process:
        """Start `python -m module` there."""

    def check(self) -> None:
        """Raises ChildDied where the host itself is lost."""


class ChildDied(Exception):
    """A child ended that nobody ended; the message has its last words."""


@dataclass(slots=True)
class Here:
    """This machine. Logs go to `folder`."""

    folder: Path

    @property
    def way_here(self) -> str:
        """Loopback."""
        return LOOPBACK

    def start(self, name: str, module: str, config: msgspec.Struct) -> Child:
        """A child of this process."""
        return Child.start(name, module, config, self.folder / "logs" / f"{name}.log")

    def check(self) -> None:
        """It is there."""


@dataclass(slots=True)
class Child:
    """A running child. `name` is its name in logs and histories."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls,
        name: str,
        module: str,
        config: msgspec.Struct | dict[str, Any],
        log: Path,
        *,
        answers: bool = False,
        python: str | None = None,
    ) -> Child:
        """Start `python -m module`. With `answers`, its standard output can be read; else it goes to the log. `python`:
        another interpreter than this one, which finds the harness's modules, too."""
        env = None if python is None else os.environ | {"PYTHONPATH": str(ROOT)}
        with log.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable if python is None else python, "-m", module],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else stderr,
                stderr=stderr,
                start_new_session=True,
            )
        child = cls(name, process, log)
        child._input.write(msgspec.json.encode(config) + b"\n")
        child._input.flush()
        return child

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self.process.poll()

    @property
    def _input(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def ask_to_stop(self) -> None:
        """Send the stop byte: a client ends its work and exits, a node makes no load of its own any more."""
        self._tell(STOP_BYTE)

    def ask_to_end(self) -> None:
        """Tell a node to end in order. Unlike SIGTERM this may come before the process knows what to do about it."""
        self._tell(END_BYTE)

    def tell(self, line: msgspec.Struct) -> None:
        """A line of JSON for a child that reads more than orders."""
        self._tell(msgspec.json.encode(line) + b"\n")

    def _tell(self, byte: bytes) -> None:
        try:
            self._input.write(byte)
            self._input.flush()
        except BrokenPipeError:
            pass

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless the child has ended."""
        if self.status is None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Exit status, or None when it still runs after `timeout_s`."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def destroy(self) -> None:
        """End it now, frozen or not, and close the lifeline."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def last_words(self) -> str:
        """The last line of its log that is not empty."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing in its log")


def receive_config(shape: type[T]) -> T:
    """In a child: tie its life to its parent's and read its configuration. Exits when the parent is already gone."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    line = _read_line(sys.stdin.fileno())
    if not line or os.getppid() != parent:
        sys.exit(3)
    return msgspec.json.decode(line, type=shape)


def _read_line(descriptor: int) -> bytes:
    # Unbuffered: whatever follows the line belongs to the lifeline and must stay in the pipe.
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def lifeline(end: Callable[[], object], calm: Callable[[], object] = lambda: None) -> None:
    """In a node's event loop, when standard input can be read: exit where the parent is gone, end or be calm when told
    to."""
    byte = os.read(sys.stdin.fileno(), 1)
    if byte == b"":
        os._exit(3)
    elif byte == END_BYTE:
        end()
    else:
        calm()
