"""How a node behaves: queues, leases, intervals. Checked where it is written down, not where it would stall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.values import UnstorableValue, check_key

MAX_CONCURRENCY = 10_000
POSITIVE = (
    "lease_ttl_ms",
    "heartbeat_interval_ms",
    "poll_interval_ms",
    "max_poll_interval_ms",
    "max_batch",
    "reap_interval_ms",
    "reap_batch",
    "expire_interval_ms",
    "expire_batch",
    "gc_interval_ms",
    "gc_batch",
    "reconcile_interval_ms",
    "reconcile_batch",
)
ZERO_ALLOWED = ("max_delay_ms", "drain_timeout_ms", "retention_ms", "poke_debounce_ms")


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
class FlusherPolicy:
    """One flusher, and the queues whose outcomes it commits (picker.md §4).

    Of several flushers the first whose `queues` hold a queue serves it; `"all"` holds every queue. Flushes of one
    flusher wait for each other, so a queue with one of its own is not held up by the batches of the rest.
    """

    queues: tuple[str, ...] | Literal["all"] = "all"
    max_batch: int = 100
    max_delay_ms: float = 100.0

    def __post_init__(self) -> None:
        if isinstance(self.queues, str) and self.queues != "all":
            raise PolicyError(f"a flusher's queues are a tuple of names or 'all', not {self.queues!r}")
        _check("max_batch", self.max_batch, 0 < self.max_batch < float("inf"))
        _check("max_delay_ms", self.max_delay_ms, 0 <= self.max_delay_ms < float("inf"))

    def serves(self, queue: str) -> bool:
        """Whether outcomes of that queue may go through this flusher."""
        return self.queues == "all" or queue in self.queues


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """One node. All times are in milliseconds.

    A claim is safe while `heartbeat_interval_ms` fits the lease at least three times: one tick may be skipped by a
    locked row and one may be late.

    `flushers`: none means one for all queues, with `max_batch` and `max_delay_ms` of the node. The parts `reaper`,
    `expiry`, `gc`, `reconciler` and `startup_reclaim` can be switched off, as long as some node has them on: what they
    do is done nowhere else. `retention_ms`: how long a row that has ended can still be read.

    `pokes`: tell the other nodes of the instance by LISTEN/NOTIFY where there is new work. Off by default: a poke saves
    part of `max_poll_interval_ms`, and costs a connection a node and, in Postgres, a lock on the whole database's
    notification queue at each commit that notifies. Worth it for queues that are idle most of the time and must be fast
    then.

    `max_sessions`: the database sessions that the node may have beside that of its pokes; None: one for each scheduler
    and flusher, and some for heartbeat and sweeps. With fewer they wait for each other, a heartbeat for a flush too.
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
    expire_interval_ms: float = 1_000.0
    expire_batch: int = 1_000
    expiry: bool = True
    gc_interval_ms: float = 60_000.0
    gc_batch: int = 1_000
    gc: bool = True
    retention_ms: float = 7 * 86_400_000.0
    reconcile_interval_ms: float = 30_000.0
    reconcile_batch: int = 1_000
    reconciler: bool = True
    startup_reclaim: bool = True
    flushers: tuple[FlusherPolicy, ...] = ()
    pokes: bool = False
    poke_debounce_ms: float = 20.0
    max_sessions: int | None = None

    def __post_init__(self) -> None:
        for name in POSITIVE:
            _check(name, getattr(self, name), 0 < getattr(self, name) < float("inf"))
        for name in ZERO_ALLOWED:
            _check(name, getattr(self, name), 0 <= getattr(self, name) < float("inf"))
        if ":" in self.instance or "@" in self.node:
            raise PolicyError(
                "an instance may hold no colon and a node no at sign: they delimit a claim's name"
            )
        for name in ("instance", "node"):
            if not getattr(self, name):
                raise PolicyError(f"{name} must not be empty: a claim is known by it")
            try:
                check_key(name, getattr(self, name))
            except UnstorableValue as error:
                raise PolicyError(str(error)) from None
        if self.max_sessions is not None and self.max_sessions < 1:
            raise PolicyError(f"max_sessions must be positive, not {self.max_sessions}")
        if not self.queues:
            raise PolicyError("a node needs at least one queue")
        if len({queue.name for queue in self.queues}) < len(self.queues):
            raise PolicyError("a node serves each queue once; one of the names is given twice")
        if self.heartbeat_interval_ms * 3 > self.lease_ttl_ms:
            raise PolicyError("heartbeat_interval_ms must be at most a third of lease_ttl_ms")
        if self.poll_interval_ms > self.max_poll_interval_ms:
            raise PolicyError("poll_interval_ms must not be above max_poll_interval_ms")
        for queue in self.queues:
            self.flusher_of(queue.name)

    @property
    def reclaim_margin_ms(self) -> float:
        """A lease with more than this left to live was renewed within the last two heartbeats (picker.md §3)."""
        return self.lease_ttl_ms - 2 * self.heartbeat_interval_ms

    @property
    def working_flushers(self) -> tuple[FlusherPolicy, ...]:
        """`flushers`, or the one that stands for none."""
        return self.flushers or (FlusherPolicy(max_batch=self.max_batch, max_delay_ms=self.max_delay_ms),)

    def flusher_of(self, queue: str) -> int:
        """The place in `working_flushers` of the one that commits outcomes of that queue. Raises PolicyError where
        none does."""
        for place, flusher in enumerate(self.working_flushers):
            if flusher.serves(queue):
                return place
        raise PolicyError(f"no flusher serves queue {queue!r}: name it in one, or end with one for 'all'")


def _check(name: str, value: float, allowed: bool) -> None:
    if not allowed:
        raise PolicyError(
            f"{name} must be {'zero or ' if name in ZERO_ALLOWED else ''}positive and finite, not {value}"
        )
