"""What a node does beside running steps: it takes back, wakes, collects and reconciles, and each part can be off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import psycopg
import pytest

from engine.limiter import Limit
from engine.limits import Admission, Slot
from engine.machine import Done, Machine, Next, Outcome, ScheduleChildren, Step
from engine.node import ClaimNames, session_prefix
from engine.operation import Operation, call
from engine.picker import Claimed, Job
from engine.policy import FlusherPolicy, PolicyError, QueuePolicy
from engine.statements import Statement
from stress.scripts.node import Notes, policy
from tests.fixtures.node import DEADLINE_S, Jobs, running_node

WAITING = "SELECT count(*) FROM gen_durable WHERE status IN ('runnable', 'executing')"
ALL_OFF: dict[str, Any] = {
    "reaper": False,
    "expiry": False,
    "gc": False,
    "reconciler": False,
    "startup_reclaim": False,
}


class Quick(Machine):
    name = "quick"

    async def run(self, step: Step) -> Outcome:
        return Done(step.attempt)


class Held(Machine):
    """Steps that wait until the test lets them go."""

    name = "held"
    open = threading.Event()

    def wait(self, step: Step) -> Outcome:
        assert Held.open.wait(DEADLINE_S)
        return Done()


def insert(jobs: Jobs, **fields: Any) -> int:
    row_id = jobs.do(jobs.picker.insert(Job(**{"fsm": "quick", "step": "run", **fields})))
    assert row_id is not None
    return row_id


def left_behind(jobs: Jobs, claim: str, **fields: Any) -> int:
    row_id = insert(jobs, **fields)
    jobs.do(jobs.picker.claim(queue=fields.get("queue", "default"), batch=1, claim=claim, lease_ms=60_000.0))
    return row_id


async def count_of(notes: Notes, event: str, least: int = 1) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while notes.counts.get(event, 0) < least:
            await asyncio.sleep(0.005)


def test_a_node_takes_back_its_claims_before_it_makes_the_first(jobs: Jobs) -> None:
    mine = left_behind(jobs, "test:default@n-0123456789ab.1")
    other = left_behind(jobs, "test:default@n-1-0123456789ab.1")
    # A lease of 0.6 s lies below the margin of 0.8 s, and is far from what the reaper takes.
    jobs.rows("UPDATE gen_durable SET lease_expires_at = now() + interval '0.6 seconds' RETURNING id")
    notes = Notes()

    async def main() -> None:
        async with running_node(jobs.dsn, [Quick], notes=notes, **{**ALL_OFF, "startup_reclaim": True}):
            await jobs.until(f"SELECT status::text FROM gen_durable WHERE id = {mine}", "done")

    asyncio.run(main())
    assert notes.counts["reclaimed"] == 1
    assert [name for name, _ in notes.operations[:2]] == ["reclaim", "claim"]
    assert jobs.one("SELECT result::text FROM gen_durable WHERE id = %s", mine) == "1"
    assert jobs.one("SELECT status::text FROM gen_durable WHERE id = %s", other) == "executing"


def test_a_node_that_starts_beside_a_living_one_of_its_name_takes_nothing_from_it(jobs: Jobs) -> None:
    Held.open = threading.Event()
    insert(jobs, fsm="held", step="wait")
    first, second = Notes(), Notes()

    async def main() -> None:
        async with running_node(jobs.dsn, [Held], notes=first, **ALL_OFF):
            await jobs.until("SELECT count(*) FROM gen_durable WHERE status = 'executing'", 1)
            # By the second's own intervals every lease of the first is stale.
            longer: dict[str, Any] = {"lease_ttl_ms": 600_000.0, "heartbeat_interval_ms": 10_000.0}
            reclaiming = {**ALL_OFF, "startup_reclaim": True, **longer}
            async with running_node(jobs.dsn, [Held], notes=second, **reclaiming):
                await count_of_operations(second, "claim")
            Held.open.set()
            await jobs.until(WAITING, 0)

    asyncio.run(main())
    assert len(second.sent("reclaim")) == 1
    assert "reclaimed" not in second.counts
    assert "stale" not in first.counts


async def count_of_operations(notes: Notes, operation: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not notes.sent(operation):
            await asyncio.sleep(0.005)


def test_a_node_wakes_collects_and_reaps(jobs: Jobs) -> None:
    parked, ended = insert(jobs), insert(jobs)
    jobs.rows(
        "UPDATE gen_durable SET status = 'awaiting_signal', awaits = '{a}', await_deadline = now() WHERE id = %s"
        " RETURNING id",
        parked,
    )
    jobs.rows(
        "UPDATE gen_durable SET status = 'done', updated_at = now() - interval '1 hour' WHERE id = %s RETURNING id",
        ended,
    )
    lapsed = insert(jobs)
    jobs.do(jobs.picker.claim(queue="default", batch=1, claim="elsewhere", lease_ms=-1.0))
    notes = Notes()

    async def main() -> None:
        often: dict[str, Any] = {
            "expire_interval_ms": 10.0,
            "gc_interval_ms": 10.0,
            "retention_ms": 600_000.0,
        }
        async with running_node(jobs.dsn, [Quick], notes=notes, **often):
            await jobs.until("SELECT count(*) FROM gen_durable WHERE status = 'done'", 2)
            await count_of(notes, "swept")

    asyncio.run(main())
    assert jobs.rows("SELECT id FROM gen_durable ORDER BY id") == [(parked,), (lapsed,)]
    assert {name: notes.counts[name] for name in ("expired", "swept", "reaped")} == {
        "expired": 1,
        "swept": 1,
        "reaped": 1,
    }


def test_collection_works_through_pages_past_what_it_must_spare(jobs: Jobs) -> None:
    parent = insert(jobs, queue="elsewhere")
    ids = [insert(jobs) for _ in range(30)]
    jobs.rows(
        "UPDATE gen_durable SET status = 'done', updated_at = now() - interval '1 hour',"
        " parent_id = CASE WHEN id <= %s THEN %s::bigint END WHERE id = ANY (%s) RETURNING id",
        ids[19],
        parent,
        ids,
    )
    notes = Notes()

    async def main() -> None:
        often: dict[str, Any] = {"gc_interval_ms": 10.0, "gc_batch": 3, "retention_ms": 0.0}
        async with running_node(jobs.dsn, [Quick], notes=notes, **often):
            await count_of(notes, "swept", 10)

    asyncio.run(main())
    assert jobs.rows("SELECT id FROM gen_durable ORDER BY id") == [
        (row_id,) for row_id in [parent, *ids[:20]]
    ]


class Family(Machine):
    """A parent that reads its children, in two rounds."""

    name = "family"
    read: ClassVar[list[list[int]]] = []

    async def spawn(self, step: Step) -> Outcome:
        jobs = [Job(fsm="family", step="child", state={"n": n}) for n in range(5)]
        return ScheduleChildren(jobs, "again" if step.state.get("round") == 2 else "once", {"round": 2})

    async def child(self, step: Step) -> Outcome:
        return Done(step.state["n"])

    async def once(self, step: Step) -> Outcome:
        return Next("spawn", {"round": 2})

    async def again(self, step: Step) -> Outcome:
        Family.read.append(sorted(child.result for child in step.children))
        return Done()


def test_collectors_that_never_rest_take_no_child_from_a_parent_and_end_in_no_deadlock(jobs: Jobs) -> None:
    Family.read.clear()
    jobs.do(jobs.picker.insert_many([Job(fsm="family", step="spawn") for _ in range(30)]))
    notes = [Notes() for _ in range(3)]

    async def main() -> None:
        eager: dict[str, Any] = {
            "gc_interval_ms": 1.0,
            "gc_batch": 7,
            "retention_ms": 0.0,
            "lease_ttl_ms": 30_000.0,
        }
        async with AsyncExitStack() as nodes:
            for number, observer in enumerate(notes):
                await nodes.enter_async_context(
                    running_node(jobs.dsn, [Family], notes=observer, node=f"n{number}", **eager)
                )
            await jobs.until("SELECT count(*) FROM gen_durable", 0)

    asyncio.run(main())
    assert Family.read == [sorted([*range(5), *range(5)])] * 30
    assert sum(observer.counts["swept"] for observer in notes) == 30 * 11
    failures = [told for observer in notes for kind, _, told in observer.completions if kind == "fail"]
    assert failures == []


class CountingLimiter:
    """A limiter whose sweeps are seen, and fail the first time. It is asked for nothing else."""

    gates: Sequence[str] = ()
    limits: Sequence[Limit] = ()

    def __init__(self) -> None:
        self.sweeps: list[str] = []

    def admit(self, rows: Sequence[Claimed]) -> Operation[Admission]:
        raise AssertionError("no row asks for anything")

    def credit(self, slots: Sequence[Slot], freed_by: int) -> Operation[Any]:
        raise AssertionError("no row asks for anything")

    def renew(self, slots: Sequence[Slot]) -> Operation[Any]:
        raise AssertionError("no row asks for anything")

    def sync_config(self) -> Operation[int]:
        return self._sweep("sync_config")

    def reconcile(self, limit: int) -> Operation[int]:
        return self._sweep("reconcile")

    def sweep_buckets(self, limit: int) -> Operation[int]:
        return self._sweep("sweep_buckets")

    def _sweep(self, name: str) -> Operation[int]:
        self.sweeps.append(name)
        divisor = 0 if self.sweeps.count(name) == 1 else 1
        rows = yield call(Statement.parse("test/sweep", "SELECT 1 / $1::integer"), divisor)
        return int(rows[0][0])


def test_the_sweeps_of_a_limiter_run_and_a_failed_tick_ends_nothing(jobs: Jobs) -> None:
    limiter, notes = CountingLimiter(), Notes()

    async def main() -> None:
        async with running_node(jobs.dsn, [Quick], notes=notes, limiter=limiter, reconcile_interval_ms=5.0):
            async with asyncio.timeout(DEADLINE_S):
                while "sweep_buckets" not in limiter.sweeps:
                    await asyncio.sleep(0.005)

    asyncio.run(main())
    assert limiter.sweeps[:5] == ["sync_config", "sync_config", "reconcile", "reconcile", "sweep_buckets"]
    assert notes.counts["tick_failed"] >= 2
    assert [name for name, _ in notes.operations[:3]] == ["sync_config", "sync_config", "reclaim"]


def test_parts_that_are_off_send_nothing(jobs: Jobs) -> None:
    notes = Notes()

    async def main() -> None:
        often: dict[str, Any] = {"reap_interval_ms": 1.0, "expire_interval_ms": 1.0, "gc_interval_ms": 1.0}
        async with running_node(
            jobs.dsn,
            [Quick],
            notes=notes,
            limiter=CountingLimiter(),
            reconcile_interval_ms=1.0,
            **often,
            **ALL_OFF,
        ):
            insert(jobs)
            await jobs.until("SELECT count(*) FROM gen_durable WHERE status = 'done'", 1)

    asyncio.run(main())
    assert {name for name, _ in notes.operations} - {"heartbeat"} == {
        "sync_config",
        "claim",
        "enrich",
        "step",
        "flush",
    }


def test_a_queue_goes_through_the_first_flusher_that_serves_it(jobs: Jobs) -> None:
    for queue in ("a", "b", "c"):
        for _ in range(20):
            insert(jobs, queue=queue)
    notes = Notes()
    queues = tuple(QueuePolicy(name=name, concurrency=20, prefetch=0) for name in ("a", "b", "c"))
    flushers = (
        FlusherPolicy(queues=("b",), max_batch=1),
        FlusherPolicy(queues=("a", "b"), max_batch=50),
        FlusherPolicy(max_batch=2),
    )

    async def main() -> None:
        async with running_node(jobs.dsn, [Quick], notes=notes, queues=queues, flushers=flushers):
            await jobs.until(WAITING, 0)

    asyncio.run(main())
    sizes: dict[frozenset[str], int] = {}
    for flush in notes.sent("flush"):
        queues_of_flush = frozenset(
            claim.partition(":")[2].partition("@")[0] for _, claim, _ in flush["outcomes"]
        )
        sizes[queues_of_flush] = max(sizes.get(queues_of_flush, 0), len(flush["outcomes"]))
    assert sizes.keys() == {frozenset("a"), frozenset("b"), frozenset("c")}
    assert sizes[frozenset("b")] == 1
    assert sizes[frozenset("c")] <= 2 < sizes[frozenset("a")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flushers": (FlusherPolicy(queues=("other",)),)}, "no flusher serves queue 'default'"),
        ({"retention_ms": -1.0}, "retention_ms"),
        ({"gc_batch": 0}, "gc_batch"),
        ({"node": "a\x00"}, "NUL"),
        ({"instance": "a:b"}, "colon"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy(**changes)


def test_a_flusher_takes_a_tuple_of_names() -> None:
    with pytest.raises(PolicyError, match="tuple"):
        FlusherPolicy(queues="default")  # type: ignore[arg-type]  # what a careless author writes


@pytest.mark.parametrize("names", [("i", "n"), ("i", "n" * 500), ("ï", "ñ-1")])
def test_a_server_keeps_the_whole_session_name_of_a_node(jobs: Jobs, names: tuple[str, str]) -> None:
    found = policy(instance=names[0], node=names[1])
    name = session_prefix(found) + ClaimNames(found).boot + "/pokes"
    with psycopg.connect(jobs.dsn, application_name=name) as connection:
        row = connection.execute("SHOW application_name").fetchone()
    assert row == (name,)
    assert session_prefix(found) != session_prefix(policy(instance=names[0], node=names[1] + "-1"))
