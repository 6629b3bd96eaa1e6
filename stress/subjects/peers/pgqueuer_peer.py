"""PgQueuer, through its own worker (`PgQueuer.run`) on an asyncpg pool and uvloop, as its documentation has it for
production. A key is an entrypoint whose `concurrency_limit` is 1, which it enforces in the database over all workers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job as PgqJob
from pgqueuer.queries import Queries

from stress.subjects.system import Claims, Job, Node, Rows, System

KEYS = tuple(f"key-{number}" for number in range(6))
HEARTBEAT_S = 3
POLL_S = 1
BATCH = 10
BENCH_BATCH, BENCH_POOL = 500, 20


class Session:
    """A client's event loop with its pool."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._pool = self._runner.run(_pool(dsn, 1))
        self.queries = Queries(AsyncpgPoolDriver(self._pool))

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        self._pool.terminate()
        self._runner.close()


async def _pool(dsn: str, size: int, name: str = "pgqueuer") -> asyncpg.Pool:
    # A word of libpq's that asyncpg takes for a setting of the server; it encrypts nothing by itself.
    dsn = re.sub(r"gssencmode=\w+&?", "", dsn).rstrip("?&")
    return await asyncpg.create_pool(
        dsn, min_size=min(size, 4), max_size=max(2, size), command_timeout=30,
        server_settings={"application_name": name},
    )  # fmt: skip


class PgQueuerPeer(System):
    """With a heartbeat time-out of 3 s instead of 30 s, and a poll every second, so that recovery fits into a run."""

    claims = Claims(
        lease_ms=HEARTBEAT_S * 1000, heartbeat=True, per_key=1, recovery_ms=(HEARTBEAT_S + POLL_S) * 1000
    )
    rows = Rows(
        table="pgqueuer", status="status", waiting=("queued",), running=("picked",), ended=("failed",), deleted=True,
        claim=("queue_manager_id",),
    )  # fmt: skip
    observe = """
        SELECT convert_from(payload, 'UTF8'),
            CASE status::text WHEN 'queued' THEN 'waiting' WHEN 'picked' THEN 'running' ELSE 'failed' END
        FROM pgqueuer
    """
    left = "SELECT count(*) FROM pgqueuer"

    def set_up(self, dsn: str) -> None:
        session = Session(dsn)
        session.run(session.queries.install())
        session.close()

    def connect(self, dsn: str) -> Session:
        return Session(dsn)

    def enqueue(self, session: Session, job: Job) -> None:
        session.run(session.queries.enqueue(job.key or KEYS[0], job.payload.encode()))

    def enqueue_many(self, session: Session, jobs: Sequence[Job]) -> None:
        names = [job.key or "work" for job in jobs]
        payloads: list[bytes | None] = [job.payload.encode() for job in jobs]
        session.run(session.queries.enqueue(names, payloads, [0] * len(jobs)))

    def work(self, node: Node) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._work(node))

    async def _work(self, node: Node) -> None:
        batch = BENCH_BATCH if self.bench else BATCH
        async with await _pool(node.dsn, BENCH_POOL if self.bench else 4, node.name) as pool:
            manager = PgQueuer.from_asyncpg_pool(pool)

            async def work(job: PgqJob) -> None:
                assert job.payload is not None
                await node.run_async(job.payload.decode())

            if self.bench:
                manager.entrypoint("work")(work)
            else:
                for key in KEYS:
                    manager.entrypoint(key, concurrency_limit=1)(work)
            stopping = asyncio.create_task(_stopped(node, manager))
            await manager.run(
                dequeue_timeout=timedelta(seconds=POLL_S),
                batch_size=batch,
                heartbeat_timeout=timedelta(seconds=30 if self.bench else HEARTBEAT_S),
            )
            stopping.cancel()


async def _stopped(node: Node, manager: PgQueuer) -> None:
    while not node.stopping.is_set():
        await asyncio.sleep(0.05)
    manager.shutdown.set()
