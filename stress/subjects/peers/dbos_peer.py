"""DBOS, through its own queue: a workflow of one step, enqueued by its client. A key is a partition of the queue whose
`partition_concurrency` is 1.

Without its hosted part, a process that starts under an executor's name takes up that executor's workflows. So the
workers of one place have one name here, as the replicas of a deployment would, and who is started in place of one that
was killed goes on with what it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbos import DBOS, DBOSClient

from stress.subjects.system import Claims, Job, Node, Rows, System

QUEUE = "work"
VERSION = "1"
POLL_S = 0.1
CONCURRENCY = 10
BENCH_CONCURRENCY = 100


class DbosPeer(System):
    """It polls ten times a second instead of once."""

    claims = Claims(per_key=1, side_by_side=CONCURRENCY)
    rows = Rows(
        table="workflow_status", status="status", waiting=("ENQUEUED", "DELAYED"), running=("PENDING",),
        ended=("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"), claim=("executor_id",),
    )  # fmt: skip
    observe = """
        SELECT workflow_uuid, CASE status WHEN 'PENDING' THEN 'running' WHEN 'SUCCESS' THEN 'done'
            WHEN 'ENQUEUED' THEN 'waiting' WHEN 'DELAYED' THEN 'waiting' ELSE 'failed' END
        FROM dbos.workflow_status
    """
    left = "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'DELAYED', 'PENDING')"

    def set_up(self, dsn: str) -> None:
        self._launch(dsn, "set-up", None)
        DBOS.destroy()

    def connect(self, dsn: str) -> DBOSClient:
        # Its sessions come back by themselves; a call that hangs meanwhile would hide that nobody knows its outcome.
        return DBOSClient(system_database_url=dsn, application_name="peer", retry_connection_errors=False)

    def enqueue(self, session: Any, job: Job) -> None:
        options: dict[str, Any] = {
            "workflow_name": "work",
            "queue_name": QUEUE,
            "workflow_id": job.name,
            "app_version": VERSION,
        }
        if not self.bench:
            options["queue_partition_key"] = job.key or "none"
        session.enqueue(options, job.payload)

    def enqueue_many(self, session: Any, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.enqueue(session, job)

    def work(self, node: Node) -> None:
        place = node.name.partition(".")[0]
        self._launch(node.dsn, place, node)
        node.stopping.wait()
        DBOS.destroy(workflow_completion_timeout_sec=10)

    def _launch(self, dsn: str, executor: str, node: Node | None) -> None:
        DBOS(
            config={
                "name": "peer",
                "system_database_url": dsn,
                "executor_id": executor,
                "application_version": VERSION,
                "log_level": "WARNING",
            }
        )

        @DBOS.step(name="do")
        def do(payload: str) -> None:
            assert node is not None
            node.run(payload)

        @DBOS.workflow(name="work", max_recovery_attempts=1_000)
        def work(payload: str) -> None:
            do(payload)

        DBOS.launch()
        if self.bench:
            DBOS.register_queue(QUEUE, worker_concurrency=BENCH_CONCURRENCY, polling_interval_sec=POLL_S)
        else:
            DBOS.register_queue(
                QUEUE, worker_concurrency=CONCURRENCY, partition_concurrency=1, polling_interval_sec=POLL_S
            )
