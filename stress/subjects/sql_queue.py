"""A queue that is a table and a handful of statements, as a subject.

The statements are files of one folder, so that the run, the schedules and the plans all read the same text:

    enqueue.sql     $1: the payload                  accepts a job
    claim.sql       $1: how many                     returns id and payload, and a fence where there is one
    complete.sql    $1: id, $2: the fence, if any    ends a job; with RETURNING it says whether it did
    requeue.sql     no parameter, or $1: the lease in milliseconds; gives back what was claimed too long ago

Each is one statement whose parameters have a cast, `$1::bigint`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from engine.statements import Statement
from invariants.foreign import job_in
from stress.subjects.system import Job, JobFailed, Node, System

NAMES: Final = ("enqueue", "claim", "complete", "requeue")
IDLE_S: Final = 0.02
SWEEP_S: Final = 0.2
RECONNECT_PAUSE_S: Final = 0.1


class SqlQueue(System):
    """Derive from it and name `schema`, a file, and `sql`, a folder with the statements. `overrides`: a folder whose
    statements stand for those of the same name. `batch`: how many jobs a worker claims at once."""

    schema: Path
    sql: Path
    overrides: Path | None = None
    batch: int = 1

    def __init__(self) -> None:
        self.statements = {name: self._statement(name) for name in NAMES}

    def _statement(self, name: str) -> Statement:
        folders = [self.sql] if self.overrides is None else [self.overrides, self.sql]
        for folder in folders:
            path = folder / f"{name}.sql"
            if path.is_file():
                return Statement.parse(name, path.read_text("utf-8").strip().removesuffix(";"))
        raise FileNotFoundError(f"there is no {name}.sql in {self.sql}")

    def set_up(self, dsn: str) -> None:
        """The schema."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(self.schema.read_bytes())

    def enqueue(self, session: Any, job: Job) -> None:
        """One statement, one transaction."""
        self.ask(session, "enqueue", *self.enqueues_with(job))

    def enqueues_with(self, job: Job) -> tuple[object, ...]:
        """What an enqueue is asked with: the payload, and the key where the statement takes one."""
        return (job.payload, job.key)[: len(self.statements["enqueue"].types)]

    def claims_of(self, limit: int) -> tuple[object, ...]:
        """What a claim is asked with."""
        return (limit,)

    def completes_with(self, row: Sequence[Any]) -> tuple[object, ...]:
        """What a completion is asked with, for a row of a claim: its id, and its fence if it takes one."""
        fenced = len(self.statements["complete"].types) > 1
        return (row[0], row[2]) if fenced else (row[0],)

    def requeues_with(self, lease_ms: float) -> tuple[object, ...]:
        """What a requeue is asked with."""
        return (lease_ms,) if self.statements["requeue"].types else ()

    def ask(self, session: psycopg.Connection[Any], name: str, *arguments: object) -> list[tuple[Any, ...]]:
        """The rows of a statement; none where it returns none."""
        statement = self.statements[name]
        with psycopg.RawCursor(session) as cursor:
            cursor.execute(statement.query, statement.encode(arguments))
            return cursor.fetchall() if cursor.description else []

    def work(self, node: Node) -> None:
        """Claim, run, complete; now and then give back what was claimed too long ago. A lost session is opened anew."""
        while not node.stopping.is_set():
            try:
                with psycopg.connect(node.dsn, autocommit=True, application_name=node.name) as session:
                    self._work_on(session, node)
            except psycopg.Error:
                node.stopping.wait(RECONNECT_PAUSE_S)

    def _work_on(self, session: psycopg.Connection[Any], node: Node) -> None:
        swept_at = 0.0
        while not node.stopping.is_set():
            if time.monotonic() - swept_at > SWEEP_S:
                self.ask(session, "requeue", *self.requeues_with(self.claims.lease_ms or 0.0))
                swept_at = time.monotonic()
            rows = self.ask(session, "claim", *self.claims_of(self.batch))
            if not rows:
                node.stopping.wait(IDLE_S)
                continue
            node.claimed(self.batch, [job_in(row[1]) or "?" for row in rows])
            for row in rows:
                try:
                    node.run(row[1])
                except JobFailed:
                    # What was not completed is given back when its lease is over.
                    continue
                self.ask(session, "complete", *self.completes_with(row))
