"""absurd, through its Python SDK's worker on the SQL that `absurdctl` brings. A job is a task of one step.

Its claim is a lease that a checkpoint renews, and nothing else, so a job of one step has it for `CLAIM_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from stress.subjects.system import Claims, Job, Node, Rows, System

QUEUE = "work"
CLAIM_S = 3
POLL_S = 0.1
CONCURRENCY = 4
ATTEMPTS = 50


class AbsurdPeer(System):
    """With claims of 3 s instead of 120 s, so that recovery fits into a run, and attempts enough for every fault."""

    claims = Claims(
        lease_ms=CLAIM_S * 1000,
        heartbeat=False,
        recovery_ms=(CLAIM_S + POLL_S) * 1000,
        side_by_side=CONCURRENCY,
    )
    rows = Rows(
        table=f"t_{QUEUE}", status="state", waiting=("pending", "sleeping"), running=("running",),
        ended=("completed", "failed", "cancelled"), claim=("last_attempt_run",),
    )  # fmt: skip
    observe = f"""
        SELECT params::text, CASE state WHEN 'running' THEN 'running' WHEN 'completed' THEN 'done'
            WHEN 'failed' THEN 'failed' WHEN 'cancelled' THEN 'failed' ELSE 'waiting' END
        FROM absurd.t_{QUEUE}
    """  # noqa: S608
    left = f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state IN ('pending', 'running', 'sleeping')"  # noqa: S608

    def set_up(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(BUNDLED_SCHEMA_SQL.encode())
            Absurd(connection, queue_name=QUEUE).create_queue()

    def connect(self, dsn: str) -> Absurd:
        return self._app(dsn)

    def _app(self, dsn: str) -> Absurd:
        return Absurd(dsn, queue_name=QUEUE, default_max_attempts=ATTEMPTS)

    def enqueue(self, session: Any, job: Job) -> None:
        session.spawn("work", {"payload": job.payload}, queue=QUEUE, max_attempts=ATTEMPTS)

    def enqueue_many(self, session: Any, jobs: Sequence[Job]) -> None:
        with session._conn.transaction():
            for job in jobs:
                self.enqueue(session, job)

    def work(self, node: Node) -> None:
        app = self._app(node.dsn)

        @app.register_task(name="work", default_max_attempts=ATTEMPTS)
        def work(params: Any, ctx: Any) -> None:
            ctx.step("work", lambda: node.run(params["payload"]))

        threading.Thread(target=lambda: (node.stopping.wait(), app.stop_worker()), daemon=True).start()
        if self.bench:
            app.start_worker(worker_id=node.name, concurrency=1, batch_size=50, poll_interval=POLL_S)
        else:
            app.start_worker(
                worker_id=node.name, claim_timeout=CLAIM_S, concurrency=CONCURRENCY, poll_interval=POLL_S
            )
