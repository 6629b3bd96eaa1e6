"""How a node behaves: queues, leases, intervals. Checked where it is written down, not where it would stall."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CONCURRENCY = 10_000
POSITIVE = (
    "lease_ttl_ms",
    "heartbeat_interval_ms",
    "poll_interval_ms",
    "max_poll_interval_ms",
    "max_batch",
    "reap_interval_ms",
    "reap_batch",
)
ZERO_ALLOWED = ("max_delay_ms", "drain_timeout_ms")


class PolicyError(ValueError):
    """A policy that cannot work; the message says which knob and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """One queue of a node.

    `concurrency`: steps that run at once. `prefetch`: claims kept ready beyond that. `min_demand`: do not claim until
    that many places are free; clamped to `concurrency + prefetch`, for a larger one would never be reached.
    """

    name: str
    concurrency: int = 10
    prefetch: int = 10
    min_demand: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise PolicyError(
                f"queue {self.name!r}: concurrency must be 1 to {MAX_CONCURRENCY}, not {self.concurrency}"
            )
        if not 0 <= self.prefetch <= MAX_CONCURRENCY:
            raise PolicyError(
                f"queue {self.name!r}: prefetch must be 0 to {MAX_CONCURRENCY}, not {self.prefetch}"
            )
        if self.min_demand < 1:
            raise PolicyError(f"queue {self.name!r}: min_demand must be at least 1, not {self.min_demand}")

    @property
    def capacity(self) -> int:
        """The most claims this queue's scheduler holds at once."""
        return self.concurrency + self.prefetch

    @property
    def demand_threshold(self) -> int:
        """`min_demand`, clamped to what can be reached."""
        return min(self.min_demand, self.capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """One node. All times are in milliseconds.

    A claim is safe while `heartbeat_interval_ms` fits the lease at least three times: one tick may be skipped by a
    locked row and one may be late.
    """

    instance: str
    node: str
    queues: tuple[QueuePolicy, ...]
    lease_ttl_ms: float = 30_000.0
    heartbeat_interval_ms: float = 10_000.0
    poll_interval_ms: float = 50.0
    max_poll_interval_ms: float = 1_000.0
    max_batch: int = 100
    max_delay_ms: float = 100.0
    drain_timeout_ms: float = 10_000.0
    reap_interval_ms: float = 5_000.0
    reap_batch: int = 1_000
    reaper: bool = True

    def __post_init__(self) -> None:
        for name in POSITIVE:
            _check(name, getattr(self, name), 0 < getattr(self, name) < float("inf"))
        for name in ZERO_ALLOWED:
            _check(name, getattr(self, name), 0 <= getattr(self, name) < float("inf"))
        if ":" in self.instance or "@" in self.node:
            raise PolicyError(
                "an instance may hold no colon and a node no at sign: they delimit a claim's name"
            )
        if not self.queues:
            raise PolicyError("a node needs at least one queue")
        if len({queue.name for queue in self.queues}) < len(self.queues):
            raise PolicyError("a node serves each queue once; one of the names is given twice")
        if self.heartbeat_interval_ms * 3 > self.lease_ttl_ms:
            raise PolicyError("heartbeat_interval_ms must be at most a third of lease_ttl_ms")
        if self.poll_interval_ms > self.max_poll_interval_ms:
            raise PolicyError("poll_interval_ms must not be above max_poll_interval_ms")


def _check(name: str, value: float, allowed: bool) -> None:
    if not allowed:
        raise PolicyError(
            f"{name} must be {'zero or ' if name in ZERO_ALLOWED else ''}positive and finite, not {value}"
        )
