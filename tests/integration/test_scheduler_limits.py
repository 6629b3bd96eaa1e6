"""What a scheduler and a flusher do with a limiter: when they ask, what they give back, and what they credit.

The limiter of these tests keeps its counters in Python and stamps as the real one does: by id, without asking who owns
the row.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec import structs

from engine.flusher import Flusher
from engine.limiter import Limit
from engine.limits import Admission, Slot
from engine.machine import Done, Machine, Next, Outcome, Registry, Step
from engine.node import ClaimNames
from engine.operation import Operation, call
from engine.picker import Claimed, Job, Picker
from engine.policy import QueuePolicy
from engine.scheduler import Scheduler
from engine.sessions import Sessions
from engine.statements import Statement
from stress.scripts.node import Notes, policy
from tests.fixtures.node import Jobs

STAMP = Statement.parse(
    "test/stamp",
    "UPDATE gen_durable SET concurrency_shard = $2::smallint WHERE id = $1::bigint RETURNING step",
)
LIVE = "SELECT count(*) FROM gen_durable WHERE status NOT IN ('done', 'failed')"


@dataclass(slots=True)
class Counters:
    """A limiter: `free` slots by key, `tokens` by rate; a key that is not named is free without end."""

    gates: Sequence[str] = ("a", "b")
    free: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    asked: list[Claimed] = field(default_factory=list)
    stood_at: list[str] = field(default_factory=list)
    drawn: Counter[str] = field(default_factory=Counter)
    credited: Counter[str] = field(default_factory=Counter)
    denied: int = 0

    def admit(self, rows: Sequence[Claimed]) -> Operation[Admission]:
        self.asked += rows
        admitted, denied = [], []
        for row in rows:
            key = (
                row.concurrency_key if row.concurrency_key and row.concurrency_key[0] in self.gates else None
            )
            if (key and self.free.get(key, 1) < 1) or self.tokens.get(row.rate_limit or "", 1) < 1:
                denied.append(row)
                continue
            if row.rate_limit in self.tokens:
                self.tokens[row.rate_limit] -= 1
            if key is None:
                admitted.append(row)
                continue
            if key in self.free:
                self.free[key] -= 1
            self.drawn[key] += 1
            [(step,)] = yield call(STAMP, row.id, 7)
            self.stood_at.append(step)
            admitted.append(structs.replace(row, concurrency_shard=7))
        self.denied += len(denied)
        return Admission(tuple(admitted), tuple(denied))

    def credit(self, slots: Sequence[Slot], freed_by: int) -> Operation[None]:
        assert freed_by > 0
        for slot in slots:
            assert slot.shard == 7, "a provisional shard was never drawn"
            self.credited[slot.key] += 1
            if slot.key in self.free:
                self.free[slot.key] += 1
        yield from ()

    @property
    def limits(self) -> Sequence[Limit]:
        return ()

    def renew(self, slots: Sequence[Slot]) -> Operation[None]:
        yield from ()

    def sync_config(self) -> Operation[None]:
        yield from ()

    def reconcile(self, limit: int) -> Operation[None]:
        yield from ()

    def sweep_buckets(self, limit: int) -> Operation[None]:
        yield from ()


class Walk(Machine):
    """Each step goes on as its list says: to a key, a rate, or the end."""

    name = "walk"
    inline_execution = True
    running: ClassVar[Counter[str]] = Counter()
    most: ClassVar[Counter[str]] = Counter()
    hold: ClassVar[asyncio.Event]

    async def go(self, step: Step) -> Outcome:
        return await self.on(step)

    async def on(self, step: Step) -> Outcome:
        key = step.concurrency_key or ""
        Walk.running[key] += 1
        Walk.most[key] = max(Walk.most[key], Walk.running[key])
        await asyncio.sleep(0)
        Walk.running[key] -= 1
        if not step.state["way"]:
            return Done(step.concurrency_key)
        here, *rest = step.state["way"]
        return Next("on", {"way": rest}, **here)

    async def wait(self, step: Step) -> Outcome:
        await Walk.hold.wait()
        return Next("on", {"way": []})


@asynccontextmanager
async def scheduling(jobs: Jobs, limiter: Counters, notes: Notes, **queue: Any) -> AsyncIterator[Scheduler]:
    rules = policy(queues=(QueuePolicy(name="default", **queue),))
    picker = Picker()
    async with Sessions(jobs.dsn, notes, size=4, name="limited") as sessions:
        flusher = Flusher(
            sessions, picker, notes, max_batch=10, max_delay_ms=1.0, give_up_ms=1000.0, limiter=limiter,
            committed=lambda _: scheduler.poke(),
        )  # fmt: skip
        with ThreadPoolExecutor(1) as threads:
            scheduler = Scheduler(
                rules, rules.queues[0], sessions=sessions, picker=picker, flusher=flusher, threads=threads,
                registry=Registry([Walk]), observer=notes, name_claim=ClaimNames(rules).next,
                jitter=random.Random(1), limiter=limiter,
            )  # fmt: skip
            tasks = [asyncio.create_task(flusher.run()), asyncio.create_task(scheduler.run())]
            try:
                yield scheduler
                await scheduler.stop()
                await scheduler.drained()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def walk(*way: dict[str, Any], **fields: Any) -> Job:
    return Job(**({"fsm": "walk", "step": "go", "state": {"way": list(way)}} | fields))


def run_all(jobs: Jobs, limiter: Counters, *inserted: Job, **queue: Any) -> Notes:
    notes = Notes()
    jobs.do(jobs.picker.insert_many(inserted))

    async def main() -> None:
        async with scheduling(jobs, limiter, notes, **queue):
            await jobs.until(LIVE, 0)

    Walk.running.clear()
    Walk.most.clear()
    asyncio.run(main())
    return notes


def kinds(notes: Notes) -> list[str]:
    return [value["kind"] for kind, name, value in notes.completions if name == "step" and kind == "ok"]


def results(jobs: Jobs) -> list[Any]:
    return [
        result for (result,) in jobs.rows("SELECT result FROM gen_durable WHERE status = 'done' ORDER BY id")
    ]


def test_a_pick_without_a_limited_row_asks_no_limiter(jobs: Jobs) -> None:
    limiter = Counters()
    notes = run_all(jobs, limiter, walk(), walk({}), walk(concurrency_key="other"))
    assert limiter.asked == []
    assert notes.sent("admit") == notes.sent("credit") == []


def test_an_empty_pick_is_the_claim_alone(jobs: Jobs) -> None:
    notes = Notes()

    async def main() -> None:
        async with scheduling(jobs, Counters(), notes):
            while len(notes.sent("claim")) < 5:
                await asyncio.sleep(0.001)

    asyncio.run(main())
    assert {name for name, _ in notes.operations} == {"claim"}


def test_a_gate_lets_in_as_many_as_fit_and_the_denied_come_back_later(jobs: Jobs) -> None:
    limiter = Counters(free={"a:1": 2})
    notes = run_all(jobs, limiter, *[walk(concurrency_key="a:1") for _ in range(20)], walk())
    assert results(jobs) == ["a:1"] * 20 + [None]
    assert Walk.most["a:1"] == 2
    assert limiter.denied > 0
    assert notes.counts["throttled"] == limiter.denied
    assert limiter.drawn == limiter.credited == Counter({"a:1": 20})
    assert jobs.rows("SELECT DISTINCT attempt FROM gen_durable") == [(0,)]


def test_a_saturated_gate_is_not_asked_in_a_tight_loop(jobs: Jobs) -> None:
    notes = Notes()
    jobs.do(jobs.picker.insert_many([walk(concurrency_key="a:1") for _ in range(20)]))

    async def main() -> None:
        async with scheduling(jobs, Counters(free={"a:1": 0}), notes, concurrency=10, prefetch=10):
            while len(notes.sent("claim")) < 6:
                await asyncio.sleep(0.001)

    began = asyncio.run(timed(main()))
    # From the second on the pauses are 10, 20, 20, 20 ms, each shorter by a fifth at most.
    assert began > 0.05


async def timed(awaitable: Any) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await awaitable
    return loop.time() - began


def test_an_inline_step_that_keeps_its_key_keeps_its_slot(jobs: Jobs) -> None:
    limiter = Counters(free={"a:1": 1})
    notes = run_all(jobs, limiter, walk({}, {"concurrency_key": "a:1"}, {}, concurrency_key="a:1"))
    assert kinds(notes) == ["continue"] * 3 + ["done"]
    assert limiter.drawn == limiter.credited == Counter({"a:1": 1})
    assert len(limiter.asked) == 1


def test_an_inline_step_that_drops_its_key_frees_its_slot_at_once(jobs: Jobs) -> None:
    limiter = Counters(free={"a:1": 1})
    notes = run_all(jobs, limiter, walk({"concurrency_key": None}, {}, concurrency_key="a:1"))
    assert kinds(notes) == ["continue", "continue", "done"]
    order = [name for name, _ in notes.operations if name in ("credit", "step")]
    assert order == ["step", "credit", "step", "step"]
    assert limiter.drawn == limiter.credited == Counter({"a:1": 1})


def test_an_inline_step_to_another_gate_commits_first_and_is_admitted_then(jobs: Jobs) -> None:
    limiter = Counters(free={"a:1": 1, "b:1": 1})
    notes = run_all(jobs, limiter, walk({"concurrency_key": "b:1"}, {}, concurrency_key="a:1"), walk())
    assert kinds(notes).count("continue") == 2
    assert limiter.stood_at == ["go", "on"]  # the second stamp found the next step committed
    assert limiter.drawn == limiter.credited == Counter({"a:1": 1, "b:1": 1})
    assert results(jobs) == ["b:1", None]


def test_an_inline_step_to_a_new_key_of_no_gate_is_requeued_and_its_slot_freed(jobs: Jobs) -> None:
    limiter = Counters(free={"a:1": 1})
    notes = run_all(jobs, limiter, walk({"concurrency_key": "plain"}, concurrency_key="a:1"))
    assert kinds(notes) == ["next", "done"]
    assert limiter.drawn == limiter.credited == Counter({"a:1": 1})


def test_an_inline_step_that_is_denied_is_requeued_and_its_provisional_shard_not_credited(jobs: Jobs) -> None:
    limiter = Counters(free={"a:1": 1, "b:1": 0})
    notes = Notes()
    jobs.do(jobs.picker.insert(walk({"concurrency_key": "b:1"}, concurrency_key="a:1")))

    async def main() -> None:
        async with scheduling(jobs, limiter, notes):
            while limiter.denied < 3:
                await asyncio.sleep(0.001)
            assert limiter.credited == Counter({"a:1": 1})
            limiter.free["b:1"] = 1
            await jobs.until(LIVE, 0)

    asyncio.run(main())
    assert kinds(notes) == ["continue", "done"]
    assert limiter.drawn == limiter.credited == Counter({"a:1": 1, "b:1": 1})
    assert jobs.rows("SELECT attempt, result FROM gen_durable") == [(0, "b:1")]


def test_an_inline_step_with_a_rate_asks_for_tokens_only_and_gives_its_slot_back_where_there_is_none(
    jobs: Jobs,
) -> None:
    limiter = Counters(free={"a:1": 1}, tokens={"r": 1})
    notes = Notes()
    jobs.do(jobs.picker.insert(walk({"rate_limit": "r"}, {"rate_limit": "r"}, concurrency_key="a:1")))

    async def main() -> None:
        async with scheduling(jobs, limiter, notes):
            while limiter.denied < 1:
                await asyncio.sleep(0.001)
            while limiter.credited["a:1"] < 1:
                await asyncio.sleep(0.001)
            limiter.tokens["r"] = 1
            await jobs.until(LIVE, 0)

    asyncio.run(main())
    assert kinds(notes) == ["continue", "continue", "done"]
    assert [row.concurrency_key for row in limiter.asked[:3]] == ["a:1", None, None]
    assert limiter.drawn == limiter.credited
    assert limiter.free == {"a:1": 1}


def test_a_continuation_that_is_stale_asks_for_nothing(jobs: Jobs) -> None:
    limiter, notes = Counters(), Notes()
    jobs.do(jobs.picker.insert(walk({}, step="wait", concurrency_key="a:1")))

    async def main() -> None:
        Walk.hold = asyncio.Event()
        async with scheduling(jobs, limiter, notes, concurrency=1, prefetch=0):
            while not notes.sent("step"):
                await asyncio.sleep(0.001)
            jobs.rows(
                "UPDATE gen_durable SET status = 'runnable', locked_by = NULL, lease_expires_at = NULL, "
                "concurrency_shard = NULL, queue = 'away' RETURNING id"
            )
            Walk.hold.set()
            while "stale" not in notes.counts:
                await asyncio.sleep(0.001)

    asyncio.run(main())
    assert kinds(notes) == ["continue"]
    assert len(limiter.asked) == 1
    assert limiter.credited == Counter()  # the reaper's: only the reconciler knows


def test_a_graceful_stop_credits_the_slots_of_what_has_not_started(jobs: Jobs) -> None:
    limiter, notes = Counters(free={"a:1": 3}), Notes()
    jobs.do(jobs.picker.insert_many([walk(step="wait", concurrency_key="a:1") for _ in range(3)]))

    async def main() -> None:
        Walk.hold = asyncio.Event()
        async with scheduling(jobs, limiter, notes, concurrency=1, prefetch=5) as scheduler:
            while not notes.sent("step"):
                await asyncio.sleep(0.001)
            assert scheduler.slots == [Slot("a:1", 7)] * 3
            await scheduler.stop()
            assert limiter.credited == Counter({"a:1": 2})
            Walk.hold.set()

    asyncio.run(main())
    assert limiter.free == {"a:1": 3}
