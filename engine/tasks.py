"""Tasks that are cancelled, and end.

A cancellation can get lost on its way. Where it meets a task at the moment in which what that waits for has come (a
session from a pool, under Python 3.11 anything under `asyncio.wait_for`), the task goes on as if nothing had been; and
a driver that is cancelled in mid-statement, and loses its connection over that, raises the latter error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

CANCEL_AGAIN_S: Final = 1.0


@contextmanager
def heeded() -> Iterator[Callable[[], None]]:
    """In this block a cancellation of the task may get lost: it leaves as CancelledError all the same. What it is
    given raises that at once."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()

    def heed() -> None:
        if task.cancelling() > before:
            raise asyncio.CancelledError

    try:
        yield heed
    except Exception:
        heed()
        raise
    heed()


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks until all have ended, however they did."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()
