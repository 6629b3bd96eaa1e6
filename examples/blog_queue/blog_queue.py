"""A queue as people write it in a blog post, as a subject; and the same with what the harness found put right."""

from __future__ import annotations

from pathlib import Path

from stress.subjects.sql_queue import SqlQueue
from stress.subjects.system import Claims, Rows

HERE = Path(__file__).resolve().parent


class BlogQueue(SqlQueue):
    """One table, four statements, and a worker that claims a job, runs it and marks it done."""

    schema = HERE / "schema.sql"
    sql = HERE / "sql"

    # What the post promises: no job is lost, none is run by two workers, and what a dead worker had is run again.
    claims = Claims(lease_ms=1_500, heartbeat=False, retries=True, recovery_ms=2_000, side_by_side=1)
    rows = Rows(
        table="jobs", status="status", waiting=("pending",), running=("running",), ended=("done",), claim=("attempts",)
    )  # fmt: skip
    observe = """
        SELECT payload, CASE status WHEN 'pending' THEN 'waiting' WHEN 'running' THEN 'running' ELSE 'done' END
        FROM jobs
    """


class FencedQueue(BlogQueue):
    """The claim chooses its rows once, and only the claim that a job is under completes it."""

    overrides = HERE / "fenced"
