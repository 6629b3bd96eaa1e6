"""What a node tells whoever watches it: operations as they begin and end, and counted events.

The shape is that of a history (invoke, then ok, fail or info): an operation whose connection broke is `info`, for
nobody knows whether it took effect. The engine's own observer logs; a harness passes one that records.
"""

from __future__ import annotations

import logging
from typing import Literal, Protocol

Completion = Literal["ok", "fail", "info"]

log = logging.getLogger("engine.node")


class Observer(Protocol):
    """Called from the node's event loop; must not block."""

    def invoke(self, operation: str, value: object) -> int:
        """An operation is about to be sent. Returns a token for its completion."""

    def complete(self, token: int, kind: Completion, value: object) -> None:
        """The operation of that token has ended."""

    def count(self, event: str, amount: int = 1) -> None:
        """An event such as `contended`, `stale`, `reaped` happened `amount` times."""


class LoggingObserver:
    """Counts go to the standard `logging` at DEBUG, failures at WARNING; operations that end well are not logged."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._last = 0

    def invoke(self, operation: str, value: object) -> int:
        self._last += 1
        self._names[self._last] = operation
        return self._last

    def complete(self, token: int, kind: Completion, value: object) -> None:
        operation = self._names.pop(token)
        if kind != "ok":
            log.warning("%s: %s: %s", operation, kind, value)

    def count(self, event: str, amount: int = 1) -> None:
        log.debug("%s += %d", event, amount)
