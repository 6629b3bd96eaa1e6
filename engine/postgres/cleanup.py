"""Nothing is left behind: three nets under every started server.

1. The `with` block of `provision`: every exit of the block, exceptions and Ctrl-C included, removes the
   server. A second Ctrl-C is held back while that happens (`uninterrupted`), at most for the limits of the
   steps.
2. `atexit`, for what the first net missed.
3. The next `provision` of the same user, for SIGKILL (`records.reap`, `databases.reap`, `containers.reap`).

SIGTERM and SIGHUP end a Python process without any of the first two. A front door therefore wraps its work in
`signals_stop()`, which turns them into an exception.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = tuple(
    number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)


class Stopped(SystemExit):
    """A signal asked this process to stop. Unless it is caught, the exit status is 128 + the signal's
    number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def signals_stop() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise `Stopped`, as Ctrl-C raises `KeyboardInterrupt`. Main thread
    only."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    previous = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT, SIGTERM and SIGHUP back within the block and deliver them after it.

    Outside of the main thread this does nothing: Python runs handlers in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    previous = {}
    for number in (signal.SIGINT, *STOPPING):
        handler = signal.getsignal(number)
        # Only what Python handles is held back. A default SIGTERM would kill us in the middle: it is held as
        # well.
        if handler is not None and handler != signal.SIG_IGN:
            previous[number] = signal.signal(number, lambda number, _: held.append(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(held):
            signal.raise_signal(number)


_pending: dict[object, tuple[int, Callable[[], object]]] = {}


@contextmanager
def removed_at_exit(remove: Callable[[], object]) -> Iterator[None]:
    """Run `remove` when the block is left, or at the latest when this process exits.

    A forked child inherits the block and its `atexit`; it must not take its parent's server away, so only the
    process that entered the block runs `remove`.
    """
    key = object()
    pid = os.getpid()
    _pending[key] = (pid, remove)
    try:
        yield
    finally:
        if os.getpid() == pid:
            with uninterrupted():
                remove()
                _pending.pop(key, None)


@atexit.register
def _remove_pending() -> None:
    for key, (pid, remove) in list(_pending.items()):
        if pid == os.getpid():
            try:
                remove()
            finally:
                _pending.pop(key, None)
