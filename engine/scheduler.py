"""A scheduler: one queue of one node. It claims into a small buffer, runs steps, and hands outcomes to the flusher.

Rules:

1. At most `concurrency` steps run; at most `concurrency + prefetch` claims are held, counted from the claim until the
   outcome is settled.
2. A full pick is followed by another as soon as there is room. A short pick means the queue is drained: the next one
   waits, from `poll_interval` doubling to `max_poll_interval`, unless something pokes.
3. A step starts only while its claim's lease is surely alive by the local monotonic clock, counted from before the
   statement that granted it was sent. A node that was frozen past its leases thus drops its buffer unstarted.
4. A pick is: claim; admit, only if some row has a configured gate or a rate limit; give back what was denied; load the
   inboxes and children of the rest. A pick that was denied something backs off like an empty one.
5. A slot is credited where the row says that it was drawn: the statement that ends a claim tells which shard was
   stamped, also by an admit whose answer was lost; a provisional shard is none.
6. A worker is a task that runs steps one after the other: while its step waits, the next worker takes the next. An
   outcome that ends its claim is handed to the flusher, and holds its place among the `concurrency` until it is
   settled. A worker that a step leaves in another context, or cancelled, runs no other step.
7. A machine that wants it goes on inline (picker.md §4): its next state commits first, under the same claim; only then
   the limiter is asked, for its stamp asks for no owner. Denied, the row is given back, and a pick admits it.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import psycopg

from engine.flusher import Flusher, Settled
from engine.limits import PROVISIONAL_SHARD, Admission, Limiter, Slot
from engine.machine import (
    KEEP,
    Await,
    Done,
    Next,
    Outcome,
    Registry,
    Retry,
    ScheduleChildren,
    Step,
    Stop,
    stop_with_error,
)
from engine.observer import Observer, wants_steps
from engine.picker import Claimed, Commit, Ended, Hold, Job, Picker, Surroundings
from engine.policy import NodePolicy, QueuePolicy
from engine.sessions import OutcomeUnknown, Sessions, Unavailable
from engine.values import check_key, check_text, to_json, to_json_object

# Polls of many nodes drift apart by this much either way.
POLL_JITTER = 0.2
# How long a row is put off whose limit nobody can meet; its error says why, and a change of configuration may help.
REFUSAL_DELAY_MS = 60_000.0
# How long a worker runs steps that never wait before it lets others have the event loop.
TURN_S = 0.005


@dataclass(slots=True)
class _Lease:
    """A claim held by this node and the local instant (seconds, monotonic) until which its lease surely lives.

    `slot`: the gate slot that was surely drawn for it. `started`: it has one of the places for steps.
    """

    claimed: Claimed
    hold: Hold
    alive_until: float
    around: Surroundings = field(default_factory=Surroundings)
    slot: Slot | None = None
    started: bool = False


class _Settlement:
    """What the flusher tells of an outcome that ends its lease."""

    __slots__ = ("_lease", "_scheduler")

    def __init__(self, scheduler: Scheduler, lease: _Lease) -> None:
        self._scheduler, self._lease = scheduler, lease

    def done(self) -> bool:
        return False

    def set_result(self, settled: Settled) -> None:
        self._scheduler.settle(self._lease, settled)

    def set_exception(self, error: BaseException) -> None:
        self._scheduler.fail(self._lease, error)


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
        limiter: Limiter | None = None,
    ) -> None:
        self._policy = policy
        self._queue = queue
        self._sessions = sessions
        self._picker = picker
        self._flusher = flusher
        self._registry = registry
        self._observer = observer
        self._tells_steps = wants_steps(observer)
        self._threads = threads
        self._name_claim = name_claim
        self._jitter = jitter
        self._limiter = limiter
        self._gates = frozenset() if limiter is None else frozenset(limiter.gates)
        self._buffer: deque[_Lease] = deque()
        self._leases: dict[Hold, _Lease] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._occupied = 0
        self._called = False
        self._context = copy_context()
        self._room = asyncio.Event()
        self._poked = asyncio.Event()
        self._stopping = False
        self._fault: BaseException | None = None

    @property
    def holds(self) -> list[Hold]:
        """Every claim that is not settled: buffered, running, or waiting for its flush."""
        return list(self._leases)

    @property
    def slots(self) -> list[Slot]:
        """Every gate slot that was drawn for a claim of `holds`."""
        return [lease.slot for lease in self._leases.values() if lease.slot is not None]

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
            found = await self._pick(demand)
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
        unstarted = list(self._buffer)
        self._buffer.clear()
        await self._give_back(unstarted)

    async def drained(self) -> None:
        """Wait until no step runs and no outcome waits."""
        while self._running or self._leases:
            self._room.clear()
            await self._room.wait()

    async def _wait_for_poke(self, pause_ms: float) -> None:
        spread = 1 + POLL_JITTER * (2 * self._jitter.random() - 1)
        try:
            await asyncio.wait_for(self._poked.wait(), pause_ms * spread / 1000)
        except TimeoutError:
            pass

    async def _pick(self, demand: int) -> int:
        """Claim up to `demand` rows and make them ready; how many are. A server that cannot be reached counts as an
        empty queue."""
        leases = await self._claim(demand)
        if not leases:
            return 0
        admitted = await self._admit(leases)
        ready = await self._enrich(admitted)
        self._buffer.extend(ready)
        if self._stopping:
            # The pick crossed the stop; its rows go back with the buffer.
            await self.stop()
            return 0
        self._start_steps()
        return len(ready)

    async def _claim(self, demand: int) -> list[_Lease]:
        name = self._name_claim(self._queue.name)
        alive_until = time.monotonic() + self._policy.lease_ttl_ms / 1000
        try:
            claim = await self._sessions.run(
                "claim",
                {"queue": self._queue.name, "batch": demand, "claim": name},
                self._picker.claim(
                    queue=self._queue.name,
                    batch=demand,
                    claim=name,
                    lease_ms=self._policy.lease_ttl_ms,
                    gates=sorted(self._gates),
                ),
                lambda claim: {
                    "ids": [row.id for row in claim.rows],
                    "keys": [
                        [row.id, row.concurrency_key] for row in claim.rows if row.concurrency_key is not None
                    ],
                    "contended": claim.contended,
                },
            )
        except (OutcomeUnknown, Unavailable):
            self._observer.count("reconnect")
            return []
        except psycopg.Error:
            self._observer.count("claim_failed")
            return []
        if claim.contended:
            self._observer.count("contended", claim.contended)
        leases = [_Lease(row, Hold(row.id, row.claim), alive_until) for row in claim.rows]
        # Held from here on: the heartbeat keeps them alive while they are admitted and enriched.
        self._leases.update((lease.hold, lease) for lease in leases)
        return leases

    async def _admit(self, leases: list[_Lease]) -> list[_Lease]:
        """Those that may start. The others are given back."""
        limited = [lease for lease in leases if self._is_limited(lease.claimed)]
        if not limited:
            return leases
        admission = await self._ask_limiter([lease.claimed for lease in limited])
        # One pick, one claim: an id names a lease.
        drawn = {} if admission is None else {row.id: row for row in admission.admitted}
        denied = []
        for lease in limited:
            if (row := drawn.get(lease.claimed.id)) is not None:
                self._stamp(lease, row)
            else:
                denied.append(lease)
        if not denied:
            return leases
        gone = {lease.hold for lease in denied}
        refused = (
            {} if admission is None else {Hold(r.row.id, r.row.claim): r.reason for r in admission.refused}
        )
        for lease in denied:
            if (reason := refused.get(lease.hold)) is not None:
                self._begin(self._put_off(lease, reason))
        await self._give_back([lease for lease in denied if lease.hold not in refused])
        return [lease for lease in leases if lease.hold not in gone]

    async def _put_off(self, lease: _Lease, reason: str) -> None:
        """End a claim that no wait would let start: a retry, long enough for somebody to read why and mend it."""
        self._observer.count("unlimitable")
        retry = to_commit(lease.hold, Retry(REFUSAL_DELAY_MS, reason), turn=lease.claimed.turn)
        try:
            await self._flusher.submit(retry)
        finally:
            self._forget(lease)

    def _is_limited(self, row: Claimed) -> bool:
        return self._limiter is not None and (
            row.rate_limit is not None or self._is_gated(row.concurrency_key)
        )

    def _is_gated(self, key: str | None) -> bool:
        return key is not None and key.partition(":")[0] in self._gates

    def _stamp(self, lease: _Lease, admitted: Claimed) -> None:
        lease.claimed = admitted
        key, shard = admitted.concurrency_key, admitted.concurrency_shard
        if key is not None and shard is not None and self._is_gated(key):
            lease.slot = Slot(key, shard)

    async def _ask_limiter(self, rows: list[Claimed]) -> Admission | None:
        """The limiter's answer; None where there is none."""
        if self._limiter is None:
            return None
        try:
            admission = await self._sessions.run(
                "admit",
                {
                    "claim": rows[0].claim,
                    "ids": [row.id for row in rows],
                    "rates": [
                        [row.id, row.rate_limit, row.weight] for row in rows if row.rate_limit is not None
                    ],
                },
                self._limiter.admit(rows),
                lambda admission: {
                    "admitted": [[row.id, row.concurrency_shard] for row in admission.admitted],
                    "denied": [row.id for row in admission.denied],
                    "contended": admission.contended,
                },
            )
        except (OutcomeUnknown, Unavailable, psycopg.Error):
            self._observer.count("admit_failed")
            return None
        if admission.contended:
            self._observer.count("contended", admission.contended)
        if admission.denied:
            self._observer.count("throttled", len(admission.denied))
        return admission

    async def _enrich(self, leases: list[_Lease]) -> list[_Lease]:
        """Load what their steps are handed. Where that fails, no step can start: all are given back."""
        ids = [lease.hold.id for lease in leases]
        if not ids:
            return []
        try:
            around = await self._sessions.run(
                "enrich",
                {"ids": ids},
                self._picker.enrich(ids),
                lambda found: {
                    "signals": sum(len(each.signals) for each in found.values()),
                    "children": sum(len(each.children) for each in found.values()),
                },
            )
        except (OutcomeUnknown, Unavailable, psycopg.Error):
            self._observer.count("enrich_failed")
            await self._give_back(leases)
            return []
        for lease in leases:
            lease.around = around[lease.hold.id]
        return leases

    async def _give_back(self, leases: list[_Lease]) -> None:
        """Release claims, and credit the slots that were drawn for them."""
        for lease in leases:
            self._forget(lease)
        holds = [lease.hold for lease in leases]
        if not holds:
            return
        try:
            ended: Ended = await self._sessions.run(
                "release",
                {"holds": [[hold.id, hold.claim] for hold in holds]},
                self._picker.release(holds),
                lambda ended: {
                    "xid": ended.xid,
                    "released": [[hold.id, hold.claim] for hold in ended.holds],
                },
            )
        except (OutcomeUnknown, Unavailable, psycopg.Error):
            self._observer.count("release_failed", len(holds))
            return
        if ended.freed and ended.xid is not None:
            await self._flusher.credit(ended.freed, ended.xid)

    def _start_steps(self) -> None:
        """See to it that a worker comes where there is a step and a place for it."""
        if not self._called and self._buffer and self._occupied < self._queue.concurrency:
            self._called = True
            self._begin(self._run_steps())

    async def _run_steps(self) -> None:
        """A worker; see the module's rules."""
        self._called = False
        task, context = asyncio.current_task(), copy_context()
        assert task is not None
        turn_ends = time.monotonic() + TURN_S
        while (lease := self._take()) is not None:
            self._start_steps()
            await self._work(lease)
            if task.cancelling() or copy_context() != context:
                return
            if time.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + TURN_S

    def _take(self) -> _Lease | None:
        """The next lease whose step may start, in a place of its own."""
        while self._buffer and self._occupied < self._queue.concurrency:
            lease = self._buffer.popleft()
            if time.monotonic() < lease.alive_until:
                lease.started = True
                self._occupied += 1
                return lease
            self._observer.count("lapsed")
            self._forget(lease)
        return None

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, context=self._context.copy())
        self._running.add(task)
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Steps answer their own errors; what arrives here is a fault of the node, and `run` raises it.
            self._fault = error
            self._poked.set()
        elif not self._stopping:
            self._start_steps()

    def settle(self, lease: _Lease, settled: Settled) -> None:
        """The flusher's answer to an outcome that ended its lease."""
        self._forget(lease)
        if settled == "committed" and lease.slot is not None:
            # Credited by now; whom it was denied may be waiting for the next poll.
            self.poke()

    def fail(self, lease: _Lease, error: BaseException) -> None:
        """The flusher's fault, which is the node's."""
        self._fault = error
        self._forget(lease)
        self._poked.set()

    async def _work(self, lease: _Lease) -> None:
        """Run the step, and those that follow it inline, until an outcome is handed over that ends the claim."""
        handed = False
        try:
            while True:
                commit = await self._execute(lease)
                if commit.kind != "continue":
                    self._flusher.hand_over(commit, _Settlement(self, lease))
                    handed = True
                    return
                sent = time.monotonic()
                settled = await self._flusher.submit(commit)
                if settled == "stale":
                    # Another has the row, or it is here and further than we were told: a first sending committed and
                    # its answer was lost. Then it goes back at once, instead of when its lease has run out.
                    await self._give_back([lease])
                    return
                if settled != "committed":
                    return
                lease.alive_until = sent + self._policy.lease_ttl_ms / 1000
                if not await self._go_on(lease, commit):
                    return
                if time.monotonic() >= lease.alive_until:
                    self._observer.count("lapsed")
                    return
        finally:
            if not handed:
                self._forget(lease)

    async def _go_on(self, lease: _Lease, commit: Commit) -> bool:
        """Make the lease of a continuation that committed ready for its next step; False where it was given back."""
        before = lease.claimed
        key = commit.concurrency_key if commit.sets_key else before.concurrency_key
        rekeyed = key != before.concurrency_key
        now = msgspec.structs.replace(
            before,
            step=before.step if commit.step is None else commit.step,
            state=before.state if commit.state is None else commit.state,
            attempt=0,
            concurrency_key=key,
            concurrency_shard=(PROVISIONAL_SHARD if commit.gated else None)
            if rekeyed
            else before.concurrency_shard,
            rate_limit=commit.rate_limit,
            weight=commit.weight,
            awaits=None,
            turn=before.turn + 1,
        )
        lease.claimed = now
        if rekeyed and lease.slot is not None:
            # The flush has credited the old slot; none is drawn for the new key yet.
            lease.slot = None
            self.poke()
        draws = rekeyed and self._is_gated(key)
        if self._limiter is not None and (draws or now.rate_limit is not None):
            # With its key kept it has its slot and needs tokens only.
            keyless = msgspec.structs.replace(now, concurrency_key=None, concurrency_shard=None)
            asked = now if draws else keyless
            admission = await self._ask_limiter([asked])
            if admission is None or not admission.admitted:
                await self._give_back([lease])
                return False
            if draws:
                shard = admission.admitted[0].concurrency_shard
                self._stamp(lease, msgspec.structs.replace(now, concurrency_shard=shard))
        return bool(await self._enrich([lease]))

    def _inline(self, commit: Commit, step: Step, row: Claimed) -> Commit:
        """The commit as it is, or as a continuation where its machine wants one and the key allows it.

        A key that is kept stays what it is, and a dropped one frees its slot. A configured gate's key is taken with a
        provisional shard. A new key of no gate would meet the arbiter, and fail the batch where a sibling executes.
        """
        if commit.kind != "next" or commit.step is None or self._stopping:
            return commit
        if not self._registry.goes_on_inline(step, commit.step):
            return commit
        key = commit.concurrency_key
        rekeyed = commit.sets_key and key != row.concurrency_key
        gated = rekeyed and self._is_gated(key)
        if rekeyed and key is not None and not gated:
            return commit
        return msgspec.structs.replace(
            commit,
            kind="continue",
            sets_key=rekeyed,
            concurrency_key=key if rekeyed else None,
            gated=gated,
            lease_ms=self._policy.lease_ttl_ms,
        )

    def _forget(self, lease: _Lease) -> None:
        self._leases.pop(lease.hold, None)
        if lease.started:
            lease.started = False
            self._occupied -= 1
            if not self._stopping:
                self._start_steps()
        self._room.set()

    async def _execute(self, lease: _Lease) -> Commit:
        """Run the step that the lease stands at; its outcome, ready to be sent."""
        row = lease.claimed
        try:
            step = Step.of(row, lease.around)
        except (ValueError, RecursionError) as error:
            # JSON that somebody else wrote and Python cannot hold, such as an integer of 5,000 digits.
            self._observer.count("step_raised")
            return to_commit(lease.hold, stop_with_error(error), turn=row.turn)
        if not self._tells_steps:
            return self._inline(await self._run_step(step, lease.hold, row.turn), step, row)
        token = self._observer.invoke(
            "step",
            {
                "id": step.instance_id,
                "claim": lease.hold.claim,
                "turn": row.turn,
                "key": row.concurrency_key,
                "step": step.name,
                "attempt": step.attempt,
                "signals": [signal.id for signal in step.signals],
                "awaits": None if step.awaits is None else list(step.awaits),
            },
        )
        commit = self._inline(await self._run_step(step, lease.hold, row.turn), step, row)
        self._observer.complete(token, "ok", {"kind": commit.kind})
        return commit

    async def _run_step(self, step: Step, hold: Hold, turn: int) -> Commit:
        function = self._registry.function(step)
        if function is None:
            return to_commit(
                hold,
                Stop(
                    f"this node runs no step {step.name!r} of machine {step.machine!r} version {step.version}"
                ),
                turn=turn,
            )
        outcome: Outcome | Awaitable[Outcome]
        try:
            if self._registry.is_coroutine(step):
                outcome = await cast(Awaitable[Outcome], function(step))
            else:
                outcome = await asyncio.get_running_loop().run_in_executor(self._threads, function, step)
                if inspect.isawaitable(outcome):
                    outcome = await outcome
            return to_commit(hold, outcome, step, turn)
        except Exception as error:
            return self._answer_error(step, hold, turn, error)

    def _answer_error(self, step: Step, hold: Hold, turn: int, error: Exception) -> Commit:
        """The machine's own answer to a step that raised; where that fails too, a plain stop."""
        self._observer.count("step_raised")
        try:
            return to_commit(hold, self._registry.on_error(step, error), step, turn)
        except Exception as second:
            return to_commit(hold, stop_with_error(second), step, turn)


def to_commit(hold: Hold, outcome: Outcome, given: Step | None = None, turn: int = 0) -> Commit:
    """An outcome as it is sent; `given` is the step that returned it, for what it was handed.

    Raises UnstorableValue, or TypeError for what is not an outcome.
    """
    match outcome:
        case Done(result):
            return Commit(
                id=hold.id, claim=hold.claim, turn=turn, kind="done", result=to_json("result", result)
            )
        case Next(step, state, rate_limit, weight, key):
            return Commit(
                id=hold.id,
                claim=hold.claim,
                turn=turn,
                kind="next",
                step=check_text("step", step),
                state=None if state is None else to_json_object("state", dict(state)),
                sets_rate=True,
                rate_limit=rate_limit,
                weight=weight,
                sets_key=key is not KEEP,
                concurrency_key=None if key is KEEP else key,
                consumed=_consumed(given),
            )
        case Await(names, step, state, timeout_ms):
            awaits = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
            for name in awaits:
                check_key("names", name)
            if timeout_ms is None and not awaits:
                raise ValueError("an await of no signal needs a time-out: nothing else would wake it")
            return Commit(
                id=hold.id,
                claim=hold.claim,
                turn=turn,
                kind="await",
                step=None if step is None else check_text("step", step),
                state=None if state is None else to_json_object("state", dict(state)),
                # The rate belongs to the step: another one has none of its own.
                sets_rate=step is not None,
                awaits=awaits,
                timeout_ms=None if timeout_ms is None else _duration("timeout_ms", timeout_ms),
                presented=() if given is None else tuple(signal.id for signal in given.signals),
            )
        case ScheduleChildren(jobs, step, state):
            children = tuple(jobs)
            for job in children:
                if not isinstance(job, Job):
                    raise TypeError(f"a child must be a Job, not {type(job).__name__}")
            return Commit(
                id=hold.id,
                claim=hold.claim,
                turn=turn,
                kind="childs",
                step=check_text("step", step),
                state=None if state is None else to_json_object("state", dict(state)),
                sets_rate=True,
                children=children,
                consumed=_consumed(given),
            )
        case Retry(delay_ms, error):
            return Commit(
                id=hold.id,
                claim=hold.claim,
                turn=turn,
                kind="retry",
                delay_ms=_duration("delay_ms", delay_ms),
                error=None if error is None else _storable(error),
            )
        case Stop(error):
            return Commit(id=hold.id, claim=hold.claim, turn=turn, kind="stop", error=_storable(error))
    raise TypeError(f"a step must return an outcome such as Next or Done, not {type(outcome).__name__}")


def _consumed(given: Step | None) -> tuple[int, ...]:
    return () if given is None else tuple(signal.id for signal in given.awaited)


def _duration(name: str, amount_ms: float) -> float:
    if not 0 <= amount_ms < float("inf"):
        raise ValueError(f"{name} must be zero or more and finite, not {amount_ms}")
    return float(amount_ms)


def _storable(text: str) -> str:
    """Error texts are made by other people's code: whatever Postgres cannot hold is replaced, never refused."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
