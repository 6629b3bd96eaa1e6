"""procrastinate, through its own worker (`App.run_worker_async`) on its psycopg pool. A key is a `lock`.

Jobs of a worker that died are given back by a task of the user's, which its documentation shows ("Retry stalled jobs");
here by the same calls in each worker, twice a second, for its periodic tasks run every ten minutes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from stress.subjects.system import Claims, Job, Node, Rows, System

STALLED_S = 3.0
HEARTBEAT_S = 0.5
SWEEP_S = 0.5
POLL_S = 1.0
CONCURRENCY = 10
TASK = "work"


class Session:
    """A client's app, open."""

    def __init__(self, dsn: str) -> None:
        self._app = App(connector=SyncPsycopgConnector(conninfo=dsn))
        self._app.open()
        self.app = self._app

    def close(self) -> None:
        self._app.close()


class ProcrastinatePeer(System):
    """With heartbeats twice a second and a time-out of 3 s, instead of 10 s and 30 s, so that recovery fits into a
    run."""

    claims = Claims(
        lease_ms=STALLED_S * 1000, heartbeat=True, per_key=1, recovery_ms=(STALLED_S + SWEEP_S + POLL_S) * 1000,
        side_by_side=CONCURRENCY,
    )  # fmt: skip
    rows = Rows(
        table="procrastinate_jobs", status="status", waiting=("todo",), running=("doing",),
        ended=("succeeded", "failed", "cancelled", "aborted"), claim=("worker_id",),
    )  # fmt: skip
    observe = """
        SELECT args::text, CASE status::text
            WHEN 'todo' THEN 'waiting' WHEN 'doing' THEN 'running' WHEN 'succeeded' THEN 'done' ELSE 'failed' END
        FROM procrastinate_jobs
    """
    left = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    def set_up(self, dsn: str) -> None:
        app = App(connector=SyncPsycopgConnector(conninfo=dsn))
        with app.open():
            app.schema_manager.apply_schema()

    def connect(self, dsn: str) -> Session:
        return Session(dsn)

    def enqueue(self, session: Session, job: Job) -> None:
        session.app.configure_task(TASK, lock=job.key).defer(payload=job.payload)

    def enqueue_many(self, session: Session, jobs: Sequence[Job]) -> None:
        session.app.configure_task(TASK).batch_defer(*({"payload": job.payload} for job in jobs))

    def work(self, node: Node) -> None:
        asyncio.run(self._work(node))

    async def _work(self, node: Node) -> None:
        app = App(connector=PsycopgConnector(conninfo=node.dsn, min_size=2, max_size=CONCURRENCY + 2))

        @app.task(name=TASK)
        async def work(payload: str) -> None:
            await node.run_async(payload)

        async with app.open_async():
            worker = asyncio.create_task(
                app.run_worker_async(
                    name=node.name,
                    concurrency=CONCURRENCY,
                    fetch_job_polling_interval=POLL_S,
                    shutdown_graceful_timeout=10.0,
                    update_heartbeat_interval=HEARTBEAT_S,
                    stalled_worker_timeout=STALLED_S,
                    install_signal_handlers=False,
                )
            )
            sweeper = asyncio.create_task(_sweep(app))
            while not node.stopping.is_set() and not worker.done():
                await asyncio.sleep(0.05)
            sweeper.cancel()
            if worker.done():
                await worker
            worker.cancel()
            await asyncio.gather(worker, sweeper, return_exceptions=True)


async def _sweep(app: Any) -> None:
    """Its documentation's recipe."""
    while True:
        try:
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S):
                await app.job_manager.retry_job(job)
        except Exception:  # somebody else was first, or the server is away
            pass
        await asyncio.sleep(SWEEP_S)
