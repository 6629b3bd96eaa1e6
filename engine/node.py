"""A node: the schedulers, the flusher, the heartbeat and the reaper of one process (picker.md §5).

Everything a node knows is in the database; a node that is killed loses nothing but time. `stop` is the graceful way:
claims end, what has not started goes back at once, running steps get `drain_timeout_ms`, and the heartbeat goes on
until the last outcome is durable.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import psycopg

from engine.flusher import Flusher
from engine.machine import Machine, Registry
from engine.observer import LoggingObserver, Observer
from engine.picker import Commit, Picker
from engine.policy import NodePolicy
from engine.scheduler import Scheduler
from engine.sessions import OutcomeUnknown, Sessions, Unavailable

MAX_THREADS = 64
# Flush, heartbeat and reaper each need a session at once; schedulers share the rest.
SESSIONS_BESIDE_SCHEDULERS = 3


class Node:
    """Runs machines. `picker` may carry another catalogue, `observer` may record; both have working defaults."""

    def __init__(
        self,
        dsn: str,
        policy: NodePolicy,
        machines: Iterable[Machine | type[Machine]],
        *,
        picker: Picker | None = None,
        observer: Observer | None = None,
        name_claim: Callable[[str], str] | None = None,
    ) -> None:
        self._dsn = dsn
        self._policy = policy
        self._registry = Registry(machines)
        self._picker = Picker() if picker is None else picker
        self._observer: Observer = LoggingObserver() if observer is None else observer
        self._name_claim = ClaimNames(policy).next if name_claim is None else name_claim
        self._stop = asyncio.Event()
        self._schedulers: dict[str, Scheduler] = {}
        self.abandoned_steps = 0

    def stop(self) -> None:
        """Ask for a graceful stop; `run` returns when it is done. Safe to call from a signal handler of the loop."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop`. Steps that outlast `drain_timeout_ms` are counted in `abandoned_steps`; their leases run
        out and another node takes them over."""
        policy = self._policy
        size = len(policy.queues) + SESSIONS_BESIDE_SCHEDULERS
        threads = ThreadPoolExecutor(
            min(MAX_THREADS, sum(queue.concurrency for queue in policy.queues)), thread_name_prefix="step"
        )
        async with Sessions(
            self._dsn, self._observer, size=size, name=f"{policy.instance}@{policy.node}"
        ) as sessions:
            flusher = Flusher(
                sessions,
                self._picker,
                self._observer,
                max_batch=policy.max_batch,
                max_delay_ms=policy.max_delay_ms,
                give_up_ms=policy.lease_ttl_ms,
                committed=self._poke_after,
            )
            jitter = random.Random(policy.node)
            self._schedulers = {
                queue.name: Scheduler(
                    policy,
                    queue,
                    sessions=sessions,
                    picker=self._picker,
                    flusher=flusher,
                    registry=self._registry,
                    observer=self._observer,
                    threads=threads,
                    name_claim=self._name_claim,
                    jitter=jitter,
                )
                for queue in policy.queues
            }
            claiming = [asyncio.create_task(scheduler.run()) for scheduler in self._schedulers.values()]
            serving = [
                asyncio.create_task(flusher.run()),
                asyncio.create_task(
                    self._every(policy.heartbeat_interval_ms, lambda: self._heartbeat(sessions))
                ),
            ]
            if policy.reaper:
                serving.append(
                    asyncio.create_task(self._every(policy.reap_interval_ms, lambda: self._reap(sessions)))
                )
            try:
                await self._until_stopped([*claiming, *serving])
                await self._drain(claiming)
            finally:
                for task in (*claiming, *serving):
                    task.cancel()
                await asyncio.gather(*claiming, *serving, return_exceptions=True)
                threads.shutdown(wait=False, cancel_futures=True)

    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> None:
        """Return on `stop`; raise what ended a component, for a node without one of its parts is not a node."""
        stopped = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopped.cancel()

    async def _drain(self, claiming: list[asyncio.Task[None]]) -> None:
        schedulers = self._schedulers.values()
        await asyncio.gather(*(scheduler.stop() for scheduler in schedulers))
        try:
            async with asyncio.timeout(self._policy.drain_timeout_ms / 1000):
                await asyncio.gather(*claiming)
                await asyncio.gather(*(scheduler.drained() for scheduler in schedulers))
        except TimeoutError:
            self.abandoned_steps = sum(len(scheduler.holds) for scheduler in schedulers)
            self._observer.count("abandoned", self.abandoned_steps)

    def _poke_after(self, commit: Commit) -> None:
        """A committed outcome that left its row runnable is work for this node too, without waiting for a poll."""
        if commit.kind == "next" or (commit.kind == "retry" and commit.delay_ms == 0):
            queue = queue_of_claim(commit.claim)
            if (scheduler := self._schedulers.get(queue)) is not None:
                scheduler.poke()

    async def _every(self, interval_ms: float, act: Callable[[], Awaitable[None]]) -> None:
        """Act, then wait out the rest of the interval. A server that cannot be reached or refuses costs one tick."""
        while True:
            began = time.monotonic()
            try:
                await act()
            except (OutcomeUnknown, Unavailable, psycopg.Error):
                self._observer.count("tick_failed")
            await asyncio.sleep(max(0.0, interval_ms / 1000 - (time.monotonic() - began)))

    async def _heartbeat(self, sessions: Sessions) -> None:
        holders = {hold: scheduler for scheduler in self._schedulers.values() for hold in scheduler.holds}
        if not holders:
            return
        holds = list(holders)
        alive_until = time.monotonic() + self._policy.lease_ttl_ms / 1000
        extended = await sessions.run(
            "heartbeat",
            {"holds": [[hold.id, hold.claim] for hold in holds]},
            self._picker.heartbeat(holds, self._policy.lease_ttl_ms),
            lambda extended: {"ids": [hold.id for hold in extended]},
        )
        for hold in extended:
            holders[hold].extended(hold, alive_until)

    async def _reap(self, sessions: Sessions) -> None:
        while True:
            reaped = await sessions.run(
                "reap",
                {"limit": self._policy.reap_batch},
                self._picker.reap(self._policy.reap_batch),
                lambda reaped: {"holds": [[hold.id, hold.claim] for hold in reaped.holds], "xid": reaped.xid},
            )
            if reaped.holds:
                self._observer.count("reaped", len(reaped.holds))
                for scheduler in self._schedulers.values():
                    scheduler.poke()
            if len(reaped.holds) < self._policy.reap_batch:
                return


class ClaimNames:
    """Names of claims: `<instance>:<queue>@<node>-<boot>.<n>`.

    The part up to the node is the prefix that picker.md §5 gives to a worker; `<boot>` is drawn anew by every process
    and `<n>` counts its claims, so no name is ever used twice.
    """

    def __init__(self, policy: NodePolicy) -> None:
        self._instance, self._node = policy.instance, policy.node
        self._boot = secrets.token_hex(6)
        self._count = 0

    def next(self, queue: str) -> str:
        self._count += 1
        return f"{self._instance}:{queue}@{self._node}-{self._boot}.{self._count}"


def queue_of_claim(claim: str) -> str:
    """The queue in a claim's name; an instance has no colon and a node no at sign."""
    return claim.partition(":")[2].rpartition("@")[0]
