"""A scheduler: one queue of one node. It claims into a small buffer, runs steps, and hands outcomes to the flusher.

Rules:

1. At most `concurrency` steps run; at most `concurrency + prefetch` claims are held, counted from the claim until the
   outcome is settled.
2. A full pick is followed by another as soon as there is room. A short pick means the queue is drained: the next one
   waits, from `poll_interval` doubling to `max_poll_interval`, unless something pokes.
3. A step starts only while its claim's lease is surely alive by the local monotonic clock, counted from before the
   statement that granted it was sent. A node that was frozen past its leases thus drops its buffer unstarted.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import cast

import psycopg

from engine.flusher import Flusher
from engine.machine import Done, Next, Outcome, Registry, Retry, Step, Stop, stop_with_error
from engine.observer import Observer
from engine.picker import Claimed, Commit, Hold, Picker
from engine.policy import NodePolicy, QueuePolicy
from engine.sessions import OutcomeUnknown, Sessions, Unavailable
from engine.values import check_text, to_json, to_json_object

# Polls of many nodes drift apart by this much either way.
POLL_JITTER = 0.2


@dataclass(slots=True)
class _Lease:
    """A claim held by this node and the local instant (seconds, monotonic) until which its lease surely lives."""

    claimed: Claimed
    hold: Hold
    alive_until: float


class Scheduler:
    """Drives one queue; see the module's rules."""

    def __init__(
        self,
        policy: NodePolicy,
        queue: QueuePolicy,
        *,
        sessions: Sessions,
        picker: Picker,
        flusher: Flusher,
        registry: Registry,
        observer: Observer,
        threads: Executor,
        name_claim: Callable[[str], str],
        jitter: random.Random,
    ) -> None:
        self._policy = policy
        self._queue = queue
        self._sessions = sessions
        self._picker = picker
        self._flusher = flusher
        self._registry = registry
        self._observer = observer
        self._threads = threads
        self._name_claim = name_claim
        self._jitter = jitter
        self._buffer: deque[_Lease] = deque()
        self._leases: dict[Hold, _Lease] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._poked = asyncio.Event()
        self._stopping = False
        self._fault: BaseException | None = None

    @property
    def holds(self) -> list[Hold]:
        """Every claim that is not settled: buffered, running, or waiting for its flush."""
        return list(self._leases)

    def poke(self) -> None:
        """A hint that the queue may have work. Losing it costs latency only."""
        self._poked.set()

    def extended(self, hold: Hold, alive_until: float) -> None:
        """A heartbeat that was sent before `alive_until - lease` extended this claim."""
        if (lease := self._leases.get(hold)) is not None:
            lease.alive_until = alive_until

    async def run(self) -> None:
        """Claim until `stop`."""
        pause_ms = self._policy.poll_interval_ms
        while not self._stopping:
            if self._fault is not None:
                raise self._fault
            demand = self._queue.capacity - len(self._leases)
            if demand < self._queue.demand_threshold:
                self._room.clear()
                await self._room.wait()
                continue
            self._poked.clear()
            found = await self._claim(demand)
            if found == demand:
                pause_ms = self._policy.poll_interval_ms
                continue
            pause_ms = (
                self._policy.poll_interval_ms
                if found
                else min(pause_ms * 2, self._policy.max_poll_interval_ms)
            )
            await self._wait_for_poke(pause_ms)

    async def stop(self) -> None:
        """Stop claiming and give back what has not started."""
        self._stopping = True
        self._room.set()
        self._poked.set()
        unstarted = [lease.hold for lease in self._buffer]
        self._buffer.clear()
        for hold in unstarted:
            del self._leases[hold]
        if unstarted:
            try:
                await self._sessions.run(
                    "release",
                    {"holds": [[hold.id, hold.claim] for hold in unstarted]},
                    self._picker.release(unstarted),
                    lambda ended: {
                        "xid": ended.xid,
                        "released": [[hold.id, hold.claim] for hold in ended.holds],
                    },
                )
            except (OutcomeUnknown, Unavailable, psycopg.Error):
                self._observer.count("release_failed", len(unstarted))

    async def drained(self) -> None:
        """Wait until no step runs and no outcome waits."""
        while self._running:
            await asyncio.wait(self._running)

    async def _wait_for_poke(self, pause_ms: float) -> None:
        spread = 1 + POLL_JITTER * (2 * self._jitter.random() - 1)
        try:
            await asyncio.wait_for(self._poked.wait(), pause_ms * spread / 1000)
        except TimeoutError:
            pass

    async def _claim(self, demand: int) -> int:
        """Claim up to `demand` rows; how many came. A server that cannot be reached counts as an empty queue."""
        name = self._name_claim(self._queue.name)
        alive_until = time.monotonic() + self._policy.lease_ttl_ms / 1000
        try:
            claim = await self._sessions.run(
                "claim",
                {"queue": self._queue.name, "batch": demand, "claim": name},
                self._picker.claim(
                    queue=self._queue.name, batch=demand, claim=name, lease_ms=self._policy.lease_ttl_ms
                ),
                lambda claim: {"ids": [row.id for row in claim.rows], "contended": claim.contended},
            )
        except (OutcomeUnknown, Unavailable):
            self._observer.count("reconnect")
            return 0
        except psycopg.Error:
            self._observer.count("claim_failed")
            return 0
        if claim.contended:
            self._observer.count("contended", claim.contended)
        if self._stopping:
            # The claim crossed the stop; its rows go back with the buffer.
            for row in claim.rows:
                self._hold(row, alive_until)
            await self.stop()
            return 0
        for row in claim.rows:
            self._hold(row, alive_until)
        self._start_steps()
        return len(claim.rows)

    def _hold(self, row: Claimed, alive_until: float) -> None:
        lease = _Lease(row, Hold(row.id, row.claim), alive_until)
        self._leases[lease.hold] = lease
        self._buffer.append(lease)

    def _start_steps(self) -> None:
        while self._buffer and len(self._running) < self._queue.concurrency:
            lease = self._buffer.popleft()
            if time.monotonic() >= lease.alive_until:
                self._observer.count("lapsed")
                self._forget(lease)
                continue
            task = asyncio.create_task(self._work(lease))
            self._running.add(task)
            task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Steps answer their own errors; what arrives here is a fault of the node, and `run` raises it.
            self._fault = error
            self._room.set()
            self._poked.set()
        elif not self._stopping:
            self._start_steps()

    async def _work(self, lease: _Lease) -> None:
        try:
            step = Step.of(lease.claimed)
            token = self._observer.invoke(
                "step",
                {
                    "id": step.instance_id,
                    "claim": lease.hold.claim,
                    "step": step.name,
                    "attempt": step.attempt,
                },
            )
            commit = await self._run_step(step, lease.hold)
            self._observer.complete(token, "ok", {"kind": commit.kind})
            await self._flusher.submit(commit)
        finally:
            self._forget(lease)

    def _forget(self, lease: _Lease) -> None:
        self._leases.pop(lease.hold, None)
        self._room.set()

    async def _run_step(self, step: Step, hold: Hold) -> Commit:
        function = self._registry.function(step)
        if function is None:
            return to_commit(
                hold,
                Stop(
                    f"this node runs no step {step.name!r} of machine {step.machine!r} version {step.version}"
                ),
            )
        try:
            if inspect.iscoroutinefunction(function):
                outcome = await function(step)
            else:
                outcome = await asyncio.get_running_loop().run_in_executor(self._threads, function, step)
                if inspect.isawaitable(outcome):
                    outcome = await cast(Awaitable[Outcome], outcome)
            return to_commit(hold, outcome)
        except Exception as error:
            return self._answer_error(step, hold, error)

    def _answer_error(self, step: Step, hold: Hold, error: Exception) -> Commit:
        """The machine's own answer to a step that raised; where that fails too, a plain stop."""
        self._observer.count("step_raised")
        try:
            return to_commit(hold, self._registry.on_error(step, error))
        except Exception as second:
            return to_commit(hold, stop_with_error(second))


def to_commit(hold: Hold, outcome: Outcome) -> Commit:
    """An outcome as it is sent. Raises UnstorableValue, or TypeError for what is not an outcome."""
    match outcome:
        case Next(step, state):
            return Commit(
                id=hold.id,
                claim=hold.claim,
                kind="next",
                step=check_text("step", step),
                state=None if state is None else to_json_object("state", dict(state)),
            )
        case Retry(delay_ms, error):
            if not 0 <= delay_ms < float("inf"):
                raise ValueError(f"delay_ms must be zero or more and finite, not {delay_ms}")
            return Commit(
                id=hold.id,
                claim=hold.claim,
                kind="retry",
                delay_ms=float(delay_ms),
                error=None if error is None else _storable(error),
            )
        case Done(result):
            return Commit(id=hold.id, claim=hold.claim, kind="done", result=to_json("result", result))
        case Stop(error):
            return Commit(id=hold.id, claim=hold.claim, kind="stop", error=_storable(error))
    raise TypeError(f"a step must return Next, Retry, Done or Stop, not {type(outcome).__name__}")


def _storable(text: str) -> str:
    """Error texts are made by other people's code: whatever Postgres cannot hold is replaced, never refused."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
