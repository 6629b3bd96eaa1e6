"""The sweeps of a node, as its parts: which run, how often, what they tell the observer.

A tick goes on in batches until one comes back short, so a backlog is worked off at once. Any number of nodes may sweep
at the same time; what one has locked the others pass over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, is_dataclass
from typing import Any

from engine.maintenance import Maintenance, NodeLimiter, Place
from engine.observer import Observer
from engine.operation import Operation
from engine.picker import Ended, Picker
from engine.policy import NodePolicy
from engine.sessions import Sessions

Part = tuple[float, Callable[[], Awaitable[None]]]

# Pages of garbage collection in one tick: a collector shares its sessions and its server with the steps.
GC_PAGES = 100


class Sweeper:
    """Runs the sweeps that the policy has switched on. `made_runnable` is told the queues that got work."""

    def __init__(
        self,
        policy: NodePolicy,
        *,
        sessions: Sessions,
        picker: Picker,
        maintenance: Maintenance,
        limiter: NodeLimiter | None,
        observer: Observer,
        session: str,
        made_runnable: Callable[[Iterable[str]], None],
    ) -> None:
        self._policy = policy
        self._sessions = sessions
        self._picker = picker
        self._maintenance = maintenance
        self._limiter = limiter
        self._observer = observer
        self._session = session
        self._made_runnable = made_runnable
        self._place = Place()

    def parts(self) -> list[Part]:
        """(interval in ms, act) of every part that is on."""
        policy = self._policy
        parts: list[tuple[bool, float, Callable[[], Awaitable[None]]]] = [
            (policy.reaper, policy.reap_interval_ms, self.reap),
            (policy.expiry, policy.expire_interval_ms, self.expire),
            (policy.gc, policy.gc_interval_ms, self.collect),
            (policy.reconciler and self._limiter is not None, policy.reconcile_interval_ms, self.reconcile),
        ]
        return [(interval_ms, act) for on, interval_ms, act in parts if on]

    async def reclaim(self) -> None:
        """Take back what an earlier process of this node had claimed; before the first claim of this one."""
        policy = self._policy
        prefixes = [f"{policy.instance}:{queue.name}@{policy.node}-" for queue in policy.queues]
        while True:
            ended = await self._sessions.run(
                "reclaim",
                {"prefix": prefixes, "margin_ms": policy.reclaim_margin_ms},
                self._maintenance.reclaim(
                    prefixes=prefixes,
                    session=self._session,
                    sessions=self._session.rpartition("-")[0] + "-",
                    margin_ms=policy.reclaim_margin_ms,
                    limit=policy.reap_batch,
                ),
                _told_of_ended,
            )
            if ended.holds:
                self._observer.count("reclaimed", len(ended.holds))
            if len(ended.holds) < policy.reap_batch:
                return

    async def reap(self) -> None:
        """Take back claims whose lease has run out, of whatever node."""
        limit = self._policy.reap_batch
        while True:
            ended = await self._sessions.run(
                "reap", {"limit": limit}, self._picker.reap(limit), _told_of_ended
            )
            if ended.holds:
                self._observer.count("reaped", len(ended.holds))
                self._made_runnable(queue_of_claim(hold.claim) for hold in ended.holds)
            if len(ended.holds) < limit:
                return

    async def expire(self) -> None:
        """Wake who has waited for a signal too long."""
        limit = self._policy.expire_batch
        while True:
            expired = await self._sessions.run(
                "expire",
                {"limit": limit},
                self._picker.expire_awaits(limit),
                lambda expired: {"ids": list(expired.ids), "xid": expired.xid},
            )
            if expired.ids:
                self._observer.count("expired", len(expired.ids))
                self._made_runnable(expired.queues)
            if len(expired.ids) < limit:
                return

    async def collect(self) -> None:
        """Delete what ended longer than `retention_ms` ago. A tick that has had its pages leaves the rest to the next,
        which goes on at the same place; after the last page it begins at the oldest row again."""
        limit = self._policy.gc_batch
        for _ in range(GC_PAGES):
            page = await self._sessions.run(
                "gc",
                {"limit": limit, "retention_ms": self._policy.retention_ms},
                self._maintenance.collect(
                    retention_ms=self._policy.retention_ms, limit=limit, after=self._place
                ),
                lambda page: {"ids": list(page.ids), "xid": page.xid},
            )
            if page.ids:
                self._observer.count("swept", len(page.ids))
            if page.looked_at < limit:
                self._place = Place()
                return
            self._place = page.place

    async def reconcile(self) -> None:
        """Keep a limiter's counters right: gates first, then rate buckets."""
        assert self._limiter is not None
        limit = self._policy.reconcile_batch
        await self._limiter_sweep("reconcile", self._limiter.reconcile(limit))
        await self._limiter_sweep("sweep_buckets", self._limiter.sweep_buckets(limit))

    async def _limiter_sweep(self, name: str, operation: Operation[Any]) -> None:
        await self._sessions.run(name, {"limit": self._policy.reconcile_batch}, operation, _plain)


def queue_of_claim(claim: str) -> str:
    """The queue in a claim's name; an instance has no colon and a node no at sign."""
    return claim.partition(":")[2].rpartition("@")[0]


def _told_of_ended(ended: Ended) -> dict[str, Any]:
    return {"holds": [[hold.id, hold.claim] for hold in ended.holds], "xid": ended.xid}


def _plain(answer: object) -> object:
    return asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else {"answer": answer}
