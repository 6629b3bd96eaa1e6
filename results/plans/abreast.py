"""Several pieces of work at a time, a thread each: the servers and the databases of one session. A thread waits for its
server nearly always, so there are as many as cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class Abreast:
    """Runs works until the block is left; what has not begun by then is never begun, and what has ends at its next
    `check`. Servers that the works use should be stopped before, for that ends what waits for them."""

    def __init__(self, threads: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1)
        self._left = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._pool.shutdown(cancel_futures=True)

    def check(self) -> None:
        """Raise CancelledError once the block was left."""
        if self._left.is_set():
            raise CancelledError

    def all(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """What each answers, in their order. Raises what the first one raised, without waiting for the others."""
        futures = [self._pool.submit(work) for work in works]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [future.result() for future in futures]
