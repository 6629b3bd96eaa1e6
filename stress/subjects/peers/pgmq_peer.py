"""pgmq's SQL-only install, which the package `pgmq` brings, and its client. It has no worker: the loop is ours, read,
run, delete, as its documentation shows it.

A message has no status that could be read from the log: whether it waits or somebody has it is a matter of the time of
day. So its rows are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from pgmq import PGMQueue
from pgmq.install import get_embedded_install_sql, install_pgmq_sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stress.subjects.system import Claims, Job, Node, System

QUEUE = "work"
VISIBLE_AFTER_S = 3
IDLE_S = 0.05
BENCH_BATCH = 100
RECONNECT_PAUSE_S = 0.1


class PgmqPeer(System):
    """With a visibility time-out of 3 s instead of 30 s, so that recovery fits into a run."""

    claims = Claims(
        lease_ms=VISIBLE_AFTER_S * 1000, heartbeat=False, recovery_ms=VISIBLE_AFTER_S * 1000, side_by_side=1
    )
    observe = f"SELECT message::text, 'waiting' FROM pgmq.q_{QUEUE}"  # noqa: S608
    left = f"SELECT count(*) FROM pgmq.q_{QUEUE}"  # noqa: S608

    def set_up(self, dsn: str) -> None:
        install_pgmq_sql(get_embedded_install_sql(), dsn=dsn)
        queue = self.connect(dsn)
        queue.create_queue(QUEUE)
        queue.close()

    def connect(self, dsn: str) -> PGMQueue:
        # Of an address it takes no socket's folder.
        parts: dict[str, Any] = dict(conninfo_to_dict(dsn))
        return PGMQueue(conn_string=make_conninfo(**parts), init_extension=False, pool_size=1)

    def enqueue(self, session: Any, job: Job) -> None:
        session.send(QUEUE, {"payload": job.payload})

    def enqueue_many(self, session: Any, jobs: Sequence[Job]) -> None:
        session.send_batch(QUEUE, [{"payload": job.payload} for job in jobs])

    def work(self, node: Node) -> None:
        while not node.stopping.is_set():
            try:
                queue = self.connect(node.dsn)
                try:
                    self._work_on(queue, node)
                finally:
                    queue.close()
            except psycopg.Error:
                node.stopping.wait(RECONNECT_PAUSE_S)

    def _work_on(self, queue: Any, node: Node) -> None:
        limit = BENCH_BATCH if self.bench else 1
        while not node.stopping.is_set():
            messages = queue.read_batch(QUEUE, vt=VISIBLE_AFTER_S, batch_size=limit) or []
            if not messages:
                node.stopping.wait(IDLE_S)
                continue
            for message in messages:
                node.run(message.message["payload"])
            queue.delete_batch(QUEUE, [message.msg_id for message in messages])
