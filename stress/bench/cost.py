"""What a job costs, and how that grows: with the batch, the backlog, what else executes or has ended, the number of
keys, of shards and of nodes. Small drains by real nodes, with what the server has counted; statements and round trips
are counted in one session that does what a node does, batch by batch, for the server does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

from engine.limiter import PostgresLimiter
from engine.limits import Limiter
from engine.operation import Begin, Call, Operation, perform, round_trips
from engine.operation import Commit as End
from engine.picker import Claimed, Commit, Job, Picker
from engine.postgres import Server, fresh_database
from engine.schema import migrate
from engine.sessions import connect
from results.bench.samples import Sample
from stress.bench.contenders import Contender, engine
from stress.bench.node_process import GATE, RATE, NodeSetup, limits_of

JOBS: Final = 2_000
BATCHES: Final = (1, 10, 100, 500)
NODES: Final = (1, 2, 4, 8)
SHARDS: Final = (1, 2, 4, 8, 16)
LEASE_MS: Final = 60_000.0


def variants() -> Iterator[tuple[str, int, Contender]]:
    """What grows, by how many processes, and who."""
    for batch in BATCHES:
        yield "cost by batch", 1, _small(f"{batch}", JOBS // 10 if batch == 1 else JOBS, batch)
    for backlog in (JOBS, 10 * JOBS, 25 * JOBS):
        yield "cost by backlog", 1, _small(f"{backlog:,}", jobs=backlog)
    for rows in (0, 10_000, 100_000):
        yield "cost by executing", 1, _small(f"{rows:,}", executing=rows)
    for rows in (0, 10_000, 100_000):
        yield "cost by ended", 1, _small(f"{rows:,}", ended=rows)
    for keys in (1, 10, 100, 1_000):
        yield "cost by gate keys", 1, _small(f"{keys:,}", gate_shards=1, job=_gated(keys))
    for nodes in NODES:
        yield "cost by nodes", nodes, _small(f"{nodes}", jobs=2 * JOBS)


def sharded() -> Iterator[tuple[str, int, Contender]]:
    """The same of limits that never deny, by their shards."""
    for processes in (1, 2):
        for shards in SHARDS:
            gate = _small(f"gate, {shards}", jobs=5 * JOBS, gate_shards=shards, job=_gated(1))
            rate = _small(f"rate, {shards}", jobs=5 * JOBS, rate_shards=shards, job=_rated)
            yield f"shards, {processes} nodes", processes, gate
            yield f"shards, {processes} nodes", processes, rate


def _small(name: str, jobs: int = JOBS, batch: int = BATCHES[-1], **how: Any) -> Contender:
    # Of one size whatever the bench's nodes have, so that only what is named grows.
    sizes = dict.fromkeys(("concurrency", "prefetch", "max_batch"), batch)
    return replace(engine(name, "variant", **sizes, **how), jobs=jobs)


def _gated(keys: int) -> Any:
    return lambda number: Job(fsm="bench", step="noop", concurrency_key=f"{GATE}:{number % keys}")


def _rated(_: int) -> Job:
    return Job(fsm="bench", step="noop", rate_limit=RATE)


def messages() -> Iterator[tuple[str, int, dict[str, int]]]:
    """Kinds of jobs whose statements are counted, in batches of how many, with which limits."""
    for batch in BATCHES:
        yield "plain", batch, {}
    yield "gate", 500, {"gate_shards": 8}
    yield "rate", 500, {"rate_shards": 8}


def counted(
    server: Server, kind: str, batch: int, limits: dict[str, int], repetition: int, _: Path
) -> Sample:
    """Statements and round trips of one job, as a node sends them: claim, admit, inbox, children, flush, credit."""
    picker = Picker()
    count = min(JOBS, 10 * batch)
    with fresh_database(server) as dsn, connect(dsn, "bench cost") as connection:
        migrate(connection)
        configured = limits_of(msgspec.structs.replace(NodeSetup(dsn=dsn, name="cost"), **limits))
        limiter = PostgresLimiter(configured)
        perform(connection, limiter.sync_config())
        make = {"gate": _gated(1), "rate": _rated}.get(kind, lambda _: Job(fsm="bench", step="noop"))
        perform(connection, picker.insert_many([make(number) for number in range(count)]))
        sent = Sent()
        done = _batches(connection, picker, limiter if configured else None, batch, sent)
    return Sample(
        workload="cost in messages",
        contender=f"{kind}, batches of {batch}",
        kind="variant",
        repetition=repetition,
        figures={"statements": sent.statements / count, "round_trips": sent.round_trips / count},
        verdict="held" if done == count else "violated",
        reason=None if done == count else f"{done} of {count} jobs were ended",
    )


class Sent:
    """Counts what operations send."""

    def __init__(self) -> None:
        self.statements = self.round_trips = 0
        self._in_transaction = False

    def counting(self, operation: Operation[Any]) -> Operation[Any]:
        """The same operation, counted."""
        answer: Any = None
        error: psycopg.Error | None = None
        while True:
            try:
                asked = operation.send(answer) if error is None else operation.throw(error)
            except StopIteration as stop:
                return stop.value
            requests = asked if isinstance(asked, tuple) else (asked,)
            self.statements += sum(isinstance(each, Call) for each in requests)
            self.round_trips += len(round_trips(requests, self._in_transaction))
            for each in requests:
                self._in_transaction = isinstance(each, Begin) or (
                    self._in_transaction and not isinstance(each, End)
                )
            error = None
            try:
                answer = yield asked
            except psycopg.Error as raised:
                error = raised


def _batches(
    connection: psycopg.Connection[Any], picker: Picker, limiter: Limiter | None, batch: int, sent: Sent
) -> int:
    done = number = 0
    while rows := _claimed(connection, picker, limiter, batch, f"bench@cost.{number}", sent):
        number += 1
        perform(connection, sent.counting(picker.enrich([row.id for row in rows])))
        commits = [Commit(id=row.id, claim=row.claim, kind="done", result="null") for row in rows]
        ended = perform(connection, sent.counting(picker.flush(commits)))
        if limiter is not None and ended.freed:
            perform(connection, sent.counting(limiter.credit(ended.freed, ended.xid)))
        done += len(ended.holds)
    return done


def _claimed(
    connection: psycopg.Connection[Any],
    picker: Picker,
    limiter: Limiter | None,
    batch: int,
    name: str,
    sent: Sent,
) -> Sequence[Claimed]:
    gates = () if limiter is None else limiter.gates
    asked = picker.claim(queue="default", batch=batch, claim=name, lease_ms=LEASE_MS, gates=gates)
    before = sent.statements, sent.round_trips
    rows: Sequence[Claimed] = perform(connection, sent.counting(asked)).rows
    if not rows:
        # The last claim finds nothing and belongs to no job.
        sent.statements, sent.round_trips = before
    if limiter is None or not rows:
        return rows
    admitted: Sequence[Claimed] = perform(connection, sent.counting(limiter.admit(rows))).admitted
    return admitted
