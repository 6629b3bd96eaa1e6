"""chancy, through its own `Worker` with its `AsyncExecutor`, which its documentation names for jobs that wait.
It has its default plugins, of which `Recovery` gives back the jobs of a worker whose heartbeats have ceased.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from chancy import Chancy, Queue, Worker
from chancy import Job as ChancyJob
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery

from stress.subjects.system import Claims, Job, Node, Rows, System

QUEUE = "work"
HEARTBEAT_S, DEAD_S, SWEEP_S, POLL_S = 1, 6, 1, 1
CONCURRENCY = 10
BENCH_CONCURRENCY = 1_000
# By default a job is tried once, and one that is cancelled when its worker loses its sessions has failed for good.
ATTEMPTS = 50
# Jobs are functions by name: the node that they are run by stands here.
NODE: list[Node] = []


async def work(*, payload: str) -> None:
    """A job."""
    await NODE[0].run_async(payload)


class ChancyPeer(System):
    """With a heartbeat every second and a time-out of 6 s, instead of 30 s and 90 s, and sweeps and elections every
    second, so that recovery fits into a run."""

    claims = Claims(
        lease_ms=DEAD_S * 1000, heartbeat=True, recovery_ms=(DEAD_S + 3 * SWEEP_S + POLL_S) * 1000,
        side_by_side=CONCURRENCY,
    )  # fmt: skip
    rows = Rows(
        table="chancy_jobs", status="state", waiting=("pending", "retrying"), running=("running",),
        ended=("succeeded", "failed"), claim=("taken_by",),
    )  # fmt: skip
    observe = """
        SELECT kwargs::text, CASE state WHEN 'running' THEN 'running' WHEN 'succeeded' THEN 'done'
            WHEN 'failed' THEN 'failed' ELSE 'waiting' END
        FROM chancy_jobs
    """
    left = "SELECT count(*) FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed')"

    def set_up(self, dsn: str) -> None:
        asyncio.run(self._set_up(dsn))

    async def _set_up(self, dsn: str) -> None:
        async with Chancy(dsn) as app:
            await app.migrate()
            await app.declare(
                Queue(
                    QUEUE,
                    concurrency=BENCH_CONCURRENCY if self.bench else CONCURRENCY,
                    executor=Chancy.Executor.Async,
                    polling_interval=POLL_S,
                ),
                upsert=True,
            )

    def connect(self, dsn: str) -> Any:
        app = Chancy(dsn)
        app.sync_pool.open()
        return app

    def enqueue(self, session: Any, job: Job) -> None:
        session.sync_push(_job(job))

    def enqueue_many(self, session: Any, jobs: Sequence[Job]) -> None:
        for _ in session.sync_push_many([_job(job) for job in jobs]):
            pass

    def work(self, node: Node) -> None:
        NODE[:] = [node]
        asyncio.run(self._work(node))

    async def _work(self, node: Node) -> None:
        plugins = (
            [] if self.bench else [Leadership(poll_interval=1, timeout=2), Recovery(poll_interval=SWEEP_S)]
        )
        times = {} if self.bench else {"heartbeat_poll_interval": HEARTBEAT_S, "heartbeat_timeout": DEAD_S}
        async with (
            Chancy(node.dsn, plugins=plugins) as app,
            Worker(
                app, worker_id=node.name, register_signal_handlers=False, shutdown_timeout=10,
                queue_change_poll_interval=1, **times,
            ),
        ):  # fmt: skip
            while not node.stopping.is_set():
                await asyncio.sleep(0.05)


def _job(job: Job) -> ChancyJob:
    return ChancyJob(
        func=f"{work.__module__}.{work.__name__}",
        queue=QUEUE,
        kwargs={"payload": job.payload},
        max_attempts=ATTEMPTS,
    )
