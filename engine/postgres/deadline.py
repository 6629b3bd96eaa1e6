"""Waiting for a condition, never longer than a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator


def until(deadline_s: float) -> Iterator[float]:
    """Tries with growing pauses (5 to 100 ms) until `deadline_s` seconds have passed; yields the seconds
    left.

    The `else` of the loop is where the caller says what did not happen in time.
    """
    end, pause = time.monotonic() + deadline_s, 0.005
    while (left := end - time.monotonic()) > 0:
        yield left
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(pause * 1.5, 0.1)
