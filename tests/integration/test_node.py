"""A node runs machines to their end, and none of the ways in which steps, outcomes or servers go wrong loses a job."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from engine.machine import Done, Machine, Next, Outcome, Retry, Step, Stop
from engine.picker import Job
from engine.policy import QueuePolicy
from stress.scripts.node import Notes
from tests.fixtures.node import Jobs, running_node

WAITING = "SELECT count(*) FROM gen_durable WHERE status IN ('runnable', 'executing')"
EXECUTING = "SELECT count(*) FROM gen_durable WHERE status = 'executing'"


class Order(Machine):
    name = "order"

    async def reserve(self, step: Step) -> Outcome:
        return Next("charge", {"reserved": step.state["item"]})

    def charge(self, step: Step) -> Outcome:
        if step.attempt < 2:
            return Retry(1, "card machine busy")
        return Done({"charged": step.state["reserved"], "attempts": step.attempt})

    async def refuse(self, step: Step) -> Outcome:
        return Stop("no such item\x00")

    def explode(self, step: Step) -> Outcome:
        raise RuntimeError("boom \ud800")

    async def unstorable(self, step: Step) -> Outcome:
        return Done({"text": "\x00"})

    async def nonsense(self, step: Step) -> Outcome:
        return "done"  # type: ignore[return-value]  # what a careless author writes

    async def endless(self, step: Step) -> Outcome:
        return Retry(1e300)


class Gate(Machine):
    """Steps that wait until the test lets them go."""

    name = "gate"
    open = threading.Event()
    started = threading.Semaphore(0)

    def wait(self, step: Step) -> Outcome:
        Gate.started.release()
        assert Gate.open.wait(20)
        return Done(step.attempt)


@pytest.fixture
def gate() -> type[Gate]:
    Gate.open = threading.Event()
    Gate.started = threading.Semaphore(0)
    return Gate


def job(step: str, **fields: Any) -> Job:
    return Job(fsm="order", step=step, **fields)


def run_all(jobs: Jobs, **changes: Any) -> Notes:
    """Run a node until nothing waits."""
    notes = Notes()

    async def main() -> None:
        async with running_node(jobs.dsn, [Order], notes=notes, **changes):
            await jobs.until(WAITING, 0)

    asyncio.run(main())
    return notes


def test_a_machine_runs_through_sync_and_async_steps_with_retries_to_its_result(jobs: Jobs) -> None:
    jobs.do(jobs.picker.insert(job("reserve", state={"item": "tea"})))
    run_all(jobs)
    expected = [("done", "charge", {"charged": "tea", "attempts": 2}, "card machine busy")]
    assert jobs.rows("SELECT status::text, step, result, last_error FROM gen_durable") == expected


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("refuse", "no such item\ufffd"),
        ("explode", "RuntimeError: boom ?"),
        ("unstorable", "UnstorableValue: result holds a NUL character, which jsonb cannot hold"),
        ("nonsense", "TypeError: a step must return an outcome such as Next or Done, not str"),
        ("endless", "the server refused the outcome: DatetimeFieldOverflow"),
        ("absent", "this node runs no step 'absent' of machine 'order' version 1"),
    ],
)
def test_a_step_that_goes_wrong_fails_its_own_job_with_a_reason(jobs: Jobs, step: str, error: str) -> None:
    jobs.do(jobs.picker.insert(job(step)))
    run_all(jobs)
    assert jobs.rows("SELECT status::text, last_error FROM gen_durable") == [("failed", error)]


def test_an_outcome_that_the_server_refuses_harms_no_other_of_its_batch(jobs: Jobs) -> None:
    steps = ["endless" if number % 7 == 3 else "refuse" for number in range(60)]
    jobs.do(jobs.picker.insert_many([job(step) for step in steps]))
    run_all(jobs, queues=(QueuePolicy(name="default", concurrency=60, prefetch=0),), max_delay_ms=50.0)
    failed = dict(jobs.rows("SELECT step, count(*) FROM gen_durable WHERE status = 'failed' GROUP BY step"))
    assert failed == {"endless": steps.count("endless"), "refuse": steps.count("refuse")}


def test_many_outcomes_share_one_flush(jobs: Jobs) -> None:
    jobs.do(jobs.picker.insert_many([job("refuse") for _ in range(200)]))
    notes = run_all(
        jobs, queues=(QueuePolicy(name="default", concurrency=200, prefetch=0),), max_delay_ms=50.0
    )
    flushes = notes.sent("flush")
    assert sum(len(flush["outcomes"]) for flush in flushes) == 200
    assert len(flushes) <= 10


def test_a_stopped_node_gives_back_what_it_has_not_started_and_finishes_what_it_has(
    jobs: Jobs, gate: type[Gate]
) -> None:
    jobs.do(jobs.picker.insert_many([Job(fsm="gate", step="wait") for _ in range(5)]))

    async def main() -> None:
        queue = QueuePolicy(name="default", concurrency=2, prefetch=3)
        async with running_node(jobs.dsn, [gate], queues=(queue,), reaper=False) as node:
            await asyncio.to_thread(lambda: [gate.started.acquire(timeout=20) for _ in range(2)])
            await jobs.until(EXECUTING, 5)
            node.stop()
            await jobs.until("SELECT count(*) FROM gen_durable WHERE status = 'runnable'", 3)
            gate.open.set()

    asyncio.run(main())
    assert dict(jobs.rows("SELECT status::text, count(*) FROM gen_durable GROUP BY 1")) == {
        "done": 2,
        "runnable": 3,
    }
    assert jobs.one("SELECT count(*) FROM gen_durable WHERE locked_by IS NOT NULL") == 0


def test_leases_of_buffered_and_running_jobs_are_kept_alive_past_their_length(
    jobs: Jobs, gate: type[Gate]
) -> None:
    jobs.do(jobs.picker.insert_many([Job(fsm="gate", step="wait") for _ in range(4)]))
    notes = Notes()

    async def main() -> None:
        queue = QueuePolicy(name="default", concurrency=2, prefetch=2)
        async with running_node(
            jobs.dsn, [gate], notes=notes, queues=(queue,), lease_ttl_ms=400.0, heartbeat_interval_ms=50.0
        ):
            await jobs.until(EXECUTING, 4)
            first = jobs.one("SELECT max(lease_expires_at) FROM gen_durable")
            async with asyncio.timeout(20):
                while not jobs.one(
                    "SELECT min(lease_expires_at) > %s + interval '1 second' FROM gen_durable", first
                ):
                    await asyncio.sleep(0.01)
            gate.open.set()
            await jobs.until(WAITING, 0)

    asyncio.run(main())
    assert jobs.rows("SELECT DISTINCT status::text, result, attempt FROM gen_durable") == [("done", 0, 0)]
    assert "reaped" not in notes.counts
    assert "stale" not in notes.counts


def test_a_claim_that_was_reaped_meanwhile_ends_stale_and_the_job_is_run_again(
    jobs: Jobs, gate: type[Gate]
) -> None:
    jobs.do(jobs.picker.insert(Job(fsm="gate", step="wait")))
    notes = Notes()

    async def main() -> None:
        # One place for two executions of one row: the node claims it again while the first still runs.
        async with running_node(
            jobs.dsn, [gate], notes=notes, queues=(QueuePolicy(name="default", concurrency=2),)
        ):
            await asyncio.to_thread(gate.started.acquire, timeout=20)
            jobs.rows(
                "UPDATE gen_durable SET status = 'runnable', attempt = attempt + 1, locked_by = NULL,"
                " lease_expires_at = NULL RETURNING id"
            )
            await asyncio.to_thread(gate.started.acquire, timeout=20)
            gate.open.set()
            await jobs.until(WAITING, 0)

    asyncio.run(main())
    assert notes.counts["stale"] == 1
    assert jobs.rows("SELECT status::text, result FROM gen_durable") == [("done", 1)]


def test_a_node_whose_sessions_are_all_terminated_goes_on(jobs: Jobs) -> None:
    jobs.do(jobs.picker.insert_many([job("reserve", state={"item": number}) for number in range(300)]))

    async def main() -> None:
        async with running_node(jobs.dsn, [Order]):
            for share in (250, 150, 50):
                async with asyncio.timeout(20):
                    while jobs.one(WAITING) > share:
                        await asyncio.sleep(0.005)
                jobs.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name LIKE 'test@n#%'"
                )
            await jobs.until(WAITING, 0)

    asyncio.run(main())
    assert jobs.one("SELECT count(*) FROM gen_durable WHERE status = 'done'") == 300


def test_a_node_on_a_database_without_the_schema_says_so(database: str) -> None:
    notes = Notes()

    async def main() -> None:
        async with running_node(database, [Order], notes=notes), asyncio.timeout(20):
            while "claim_failed" not in notes.counts:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    failures = {(name, error["sqlstate"]) for kind, name, error in notes.completions if kind == "fail"}
    assert ("claim", psycopg.errors.UndefinedTable.sqlstate) in failures
