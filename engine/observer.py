"""What a node tells whoever watches it: operations as they begin and end, and counted events.

The shape is that of a history (invoke, then ok, fail or info): an operation whose connection broke is `info`, for
nobody knows whether it took effect. The engine's own observer logs; `engine.metrics` has one that counts; a harness
passes one that records; `Observers` is several of them at once.

An observer whose attribute `steps` is false is not told of each step that runs, which a node does tens of thousands of
times a second; whoever has no such attribute is.

Events: `contended` (a race for a key was lost and tried again), `throttled` (a limiter said no), `stale` (an outcome
came after its claim had ended), `reclaimed`, `reaped`, `expired`, `swept` (rows of the sweeps), `tick_failed`,
`reconnect`, `poke_failed`, `poke_reconnect`, `refused`, `abandoned`, `lapsed`, `broadcast`, `broadcast_dropped`,
`broadcast_failed`, `spawn_refused` (the relay's), and others that a part counts.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Literal, Protocol

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


def wants_steps(observer: Observer) -> bool:
    """Whether it is to be told of each step that runs."""
    return bool(getattr(observer, "steps", True))


# Where an operation's rows are to be found in what its invocation or its completion tells.
_SIZES_ASKED = {
    "flush": "outcomes",
    "heartbeat": "holds",
    "release": "holds",
    "insert_many": "jobs",
    "admit": "ids",
    "transport.publish": "messages",
    "transport.ack": "messages",
}
_SIZES_TOLD = {
    "claim": "ids",
    "reap": "holds",
    "reclaim": "holds",
    "expire": "ids",
    "gc": "ids",
    "relay.deliver": "seqs",
    "relay.spawn": "seqs",
    "relay.broadcast": "seqs",
    "relay.timers": "fired",
}


def size_asked(operation: str, value: object) -> int | None:
    """How many rows an operation is sent for, such as outcomes of a flush; None where that is no question."""
    return _size(_SIZES_ASKED.get(operation), value)


def size_told(operation: str, value: object) -> int | None:
    """How many rows an operation brought, such as those of a pick; None where that is no question."""
    return _size(_SIZES_TOLD.get(operation), value)


def _size(key: str | None, value: object) -> int | None:
    found = value.get(key) if key is not None and isinstance(value, dict) else None
    return len(found) if isinstance(found, list | tuple) else None


class Pending:
    """What an observer remembers of operations that have begun, by token."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[str, int | None, float]] = {}
        self._last = 0

    def begin(self, operation: str, value: object) -> int:
        """A token for an operation that begins now."""
        self._last += 1
        self._begun[self._last] = (operation, size_asked(operation, value), time.perf_counter())
        return self._last

    def end(self, token: int, value: object) -> tuple[str, int | None, float]:
        """The operation's name, its rows (asked, else brought), and the seconds it took."""
        operation, size, began = self._begun.pop(token)
        return operation, size_told(operation, value) if size is None else size, time.perf_counter() - began


class LoggingObserver:
    """Tells the standard `logging`: failures at WARNING, events and operations on rows at DEBUG.

    Every record has fields for a structured formatter: `event` and `amount`, or `operation`, `completion`, `rows` and
    `duration_ms`, and for a failure `error` and `sqlstate`.
    """

    # A step is not about rows, and ends well as an operation whatever its outcome: none would be logged.
    steps = False

    def __init__(self, logger: logging.Logger = log) -> None:
        self._log = logger
        self._pending = Pending()

    def invoke(self, operation: str, value: object) -> int:
        return self._pending.begin(operation, value)

    def complete(self, token: int, kind: Completion, value: object) -> None:
        operation, rows, took_s = self._pending.end(token, value)
        if kind == "ok" and not (rows and self._log.isEnabledFor(logging.DEBUG)):
            return
        extra: dict[str, Any] = {
            "operation": operation,
            "completion": kind,
            "rows": rows,
            "duration_ms": round(took_s * 1_000, 3),
        }
        if kind != "ok":
            told = value if isinstance(value, dict) else {}
            extra |= {"error": told.get("error"), "sqlstate": told.get("sqlstate")}
            self._log.warning("%s: %s: %s", operation, kind, value, extra=extra)
        else:
            self._log.debug("%s: %d rows in %.1f ms", operation, rows, took_s * 1_000, extra=extra)

    def count(self, event: str, amount: int = 1) -> None:
        self._log.debug("%s += %d", event, amount, extra={"event": event, "amount": amount})


class Observers:
    """Several observers as one: each is told everything, in the order given."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.steps = any(wants_steps(each) for each in observers)
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._last = 0

    def invoke(self, operation: str, value: object) -> int:
        self._last += 1
        self._tokens[self._last] = tuple(each.invoke(operation, value) for each in self._observers)
        return self._last

    def complete(self, token: int, kind: Completion, value: object) -> None:
        for each, its_token in zip(self._observers, self._tokens.pop(token), strict=True):
            each.complete(its_token, kind, value)

    def count(self, event: str, amount: int = 1) -> None:
        for each in self._observers:
            each.count(event, amount)
