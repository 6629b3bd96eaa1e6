"""A node: the schedulers, flushers, heartbeat, sweeps and pokes of one process (picker.md §5).

Everything a node knows is in the database; a node that is killed loses nothing but time. When it comes back under its
name, it first takes back what it had claimed. `stop` is the graceful way: claims end, what has not started goes back at
once, running steps get `drain_timeout_ms`, and the heartbeat goes on until the last outcome is durable.

A node's sessions carry its name, so that another process of the same name can see that it lives
(`engine/sql/maintenance/reclaim.sql`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import psycopg

from engine.flusher import Flusher
from engine.limiter import columns_of
from engine.machine import Machine, Registry
from engine.maintenance import Maintenance, NodeLimiter
from engine.observer import LoggingObserver, Observer
from engine.picker import Commit, Picker
from engine.pokes import Pokes
from engine.policy import FlusherPolicy, NodePolicy
from engine.scheduler import Scheduler
from engine.sessions import IDLE_IN_TRANSACTION_MS, OutcomeUnknown, Sessions, Unavailable
from engine.sweeper import Sweeper, queue_of_claim

MAX_THREADS = 64
# Heartbeat, sweeps and pokes; each scheduler and each flusher has one of its own.
OTHER_SESSIONS = 3
CONFIGURE_PAUSE_S = 1.0
# A tick comes up to this share of its interval early, never late: nodes drift apart, and no lease is renewed late.
TICK_JITTER = 0.1


class Node:
    """Runs machines. `picker` and `maintenance` may carry another catalogue, `observer` may record; all have working
    defaults. `limiter`: what gates and rates ask; None for a node that knows none."""

    def __init__(
        self,
        dsn: str,
        policy: NodePolicy,
        machines: Iterable[Machine | type[Machine]],
        *,
        picker: Picker | None = None,
        maintenance: Maintenance | None = None,
        limiter: NodeLimiter | None = None,
        observer: Observer | None = None,
        name_claim: Callable[[str], str] | None = None,
    ) -> None:
        self._dsn = dsn
        self._policy = policy
        self._registry = Registry(machines)
        self._picker = Picker() if picker is None else picker
        self._maintenance = Maintenance() if maintenance is None else maintenance
        self._limiter = limiter
        self._observer: Observer = LoggingObserver() if observer is None else observer
        names = ClaimNames(policy)
        self._name_claim = names.next if name_claim is None else name_claim
        self._session_name = session_prefix(policy) + names.boot
        self._jitter = random.Random(names.boot)
        self._stop = asyncio.Event()
        self._schedulers: dict[str, Scheduler] = {}
        self._pokes: Pokes | None = None
        self.abandoned_steps = 0

    def stop(self) -> None:
        """Ask for a graceful stop; `run` returns when it is done. Safe to call from a signal handler of the loop."""
        self._stop.set()

    async def run(self) -> None:
        """Work until `stop`. Steps that outlast `drain_timeout_ms` are counted in `abandoned_steps`; their leases run
        out and another node takes them over."""
        policy = self._policy
        places = sorted({policy.flusher_of(queue.name) for queue in policy.queues})
        size = policy.max_sessions or len(policy.queues) + len(places) + OTHER_SESSIONS
        threads = ThreadPoolExecutor(
            min(MAX_THREADS, sum(queue.concurrency for queue in policy.queues)), thread_name_prefix="step"
        )
        async with Sessions(
            self._dsn,
            self._observer,
            size=size,
            name=self._session_name,
            idle_in_transaction_ms=min(policy.lease_ttl_ms, IDLE_IN_TRANSACTION_MS),
        ) as sessions:
            if self._limiter is not None:
                await self._until_configured(sessions, self._limiter)
            sweeper = self._sweeper(sessions)
            if policy.startup_reclaim:
                await self._tick(sweeper.reclaim)
            flushers = {place: self._flusher(sessions, policy.working_flushers[place]) for place in places}
            self._schedulers = {
                queue.name: Scheduler(
                    policy,
                    queue,
                    sessions=sessions,
                    picker=self._picker,
                    flusher=flushers[policy.flusher_of(queue.name)],
                    registry=self._registry,
                    observer=self._observer,
                    threads=threads,
                    name_claim=self._name_claim,
                    jitter=self._jitter,
                    limiter=self._limiter,
                )
                for queue in policy.queues
            }
            serving = [asyncio.create_task(flusher.run()) for flusher in flushers.values()]
            serving += [
                asyncio.create_task(self._every(interval_ms, act))
                for interval_ms, act in (
                    (policy.heartbeat_interval_ms, lambda: self._heartbeat(sessions)),
                    *sweeper.parts(),
                )
            ]
            if policy.pokes:
                self._pokes = self._poker(sessions)
                serving.append(asyncio.create_task(self._pokes.run()))
            claiming = [asyncio.create_task(scheduler.run()) for scheduler in self._schedulers.values()]
            try:
                await self._until_stopped([*claiming, *serving])
                await self._drain(claiming)
            finally:
                for task in (*claiming, *serving):
                    task.cancel()
                await asyncio.gather(*claiming, *serving, return_exceptions=True)
                threads.shutdown(wait=False, cancel_futures=True)

    def _flusher(self, sessions: Sessions, flusher: FlusherPolicy) -> Flusher:
        return Flusher(
            sessions,
            self._picker,
            self._observer,
            max_batch=flusher.max_batch,
            max_delay_ms=flusher.max_delay_ms,
            give_up_ms=self._policy.lease_ttl_ms,
            committed=self._poke_after,
            woken=lambda queue: self._made_runnable([queue]),
            limiter=self._limiter,
        )

    def _sweeper(self, sessions: Sessions) -> Sweeper:
        return Sweeper(
            self._policy,
            sessions=sessions,
            picker=self._picker,
            maintenance=self._maintenance,
            limiter=self._limiter,
            observer=self._observer,
            session=self._session_name,
            made_runnable=self._made_runnable,
        )

    def _poker(self, sessions: Sessions) -> Pokes:
        return Pokes(
            self._dsn,
            self._policy.instance,
            sessions=sessions,
            observer=self._observer,
            name=f"{self._session_name}/pokes",
            poked=self._heard,
            debounce_ms=self._policy.poke_debounce_ms,
        )

    async def _until_configured(self, sessions: Sessions, limiter: NodeLimiter) -> None:
        """Gates and rates must be known before a row is claimed: until they are written down, or `stop`."""
        while not self._stop.is_set():
            try:
                told = {"limits": [list(columns_of(limit)) for limit in limiter.limits]}
                await sessions.run("sync_config", told, limiter.sync_config(), lambda _: {})
            except (OutcomeUnknown, Unavailable, psycopg.Error):
                self._observer.count("tick_failed")
            else:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), CONFIGURE_PAUSE_S)

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
            self._made_runnable([queue_of_claim(commit.claim)])

    def _made_runnable(self, queues: Iterable[str]) -> None:
        """Rows of these queues became runnable by this node's doing."""
        names = set(queues)
        for name in names:
            self._poked(name)
        if self._pokes is not None:
            self._pokes.announce(names)

    def _heard(self, queue: str | None) -> None:
        """A notification for a queue; None: the node listens from here on, and what came before is unknown."""
        self._poked(queue)

    def _poked(self, queue: str | None) -> None:
        """A queue may have work; None: any may."""
        for name, scheduler in self._schedulers.items():
            if queue is None or name == queue:
                scheduler.poke()

    async def _every(self, interval_ms: float, act: Callable[[], Awaitable[None]]) -> None:
        """Act, then wait out the rest of the interval."""
        while True:
            began = time.monotonic()
            await self._tick(act)
            pause_s = interval_ms * (1 - TICK_JITTER * self._jitter.random()) / 1000
            await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began)))

    async def _tick(self, act: Callable[[], Awaitable[None]]) -> None:
        """A server that cannot be reached or refuses costs one tick, never the node."""
        try:
            await act()
        except (OutcomeUnknown, Unavailable, psycopg.Error):
            self._observer.count("tick_failed")

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
        slots = [slot for scheduler in self._schedulers.values() for slot in scheduler.slots]
        if self._limiter is not None and slots:
            told = {"slots": [[slot.key, slot.shard] for slot in slots]}
            await sessions.run("renew", told, self._limiter.renew(slots), lambda _: {})


class ClaimNames:
    """Names of claims: `<instance>:<queue>@<node>-<boot>.<n>`.

    The part up to the node is the prefix that picker.md §5 gives to a worker; `<boot>` is drawn anew by every process
    and `<n>` counts its claims, so no name is ever used twice. An instance holds no colon, a node no at sign, and
    `<boot>.<n>` no hyphen: so a name reads in one way only, whatever hyphens a node or what signs a queue may have.
    """

    def __init__(self, policy: NodePolicy) -> None:
        self._instance, self._node = policy.instance, policy.node
        self.boot = secrets.token_hex(6)
        self._count = 0

    def next(self, queue: str) -> str:
        self._count += 1
        return f"{self._instance}:{queue}@{self._node}-{self.boot}.{self._count}"


def session_prefix(policy: NodePolicy) -> str:
    """What the session names of every process of this node begin with; the process's boot follows, without a hyphen.

    A server keeps 63 bytes of ASCII of an application_name, so the node is named by a digest, after some letters for
    people to read.
    """
    full = f"{policy.instance}@{policy.node}"
    readable = re.sub(r"[^A-Za-z0-9@._-]", "_", full)[:20]
    return f"{readable}#{hashlib.sha256(full.encode()).hexdigest()[:16]}-"
