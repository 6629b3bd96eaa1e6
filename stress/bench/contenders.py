"""Who takes part in a drain, and how each is set up: at its best known settings, which `settings` tells."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.sql import Identifier

from engine.errors import InfrastructureError
from engine.operation import perform
from engine.picker import Job, Picker
from engine.schema import migrate
from engine.sessions import connect
from invariants.ledger.pgoutput import Change
from invariants.ledger.process import RecorderError, RecorderProcess
from invariants.ledger.reader import LedgerUnavailable
from results.bench.samples import Kind
from stress.bench.ledger import Act, Reading
from stress.bench.node_process import GATE, RATE
from stress.bench.processes import python

JOBS: Final = 20_000
LOAD: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where jobs are: `table`, which is locked until all processes wait for it. `unfinished` asks whether there are any
    left, None for a contender whose processes end by themselves. `reading` finds jobs in the write-ahead log."""

    table: Identifier
    reading: Reading
    unfinished: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to get `jobs` jobs done.

    `prepare` makes the schema and says where in it jobs are, `load` puts so many in, in calls of a size; both may keep
    files in a folder. `command` and `config` are its processes'. `beside`: what goes on meanwhile, told where and with
    which folder. `has_client`: jobs are put in through a client of its own, also where that is what is measured.
    """

    name: str
    kind: Kind
    settings: str
    jobs: int = JOBS
    prepare: Callable[[str, Path], Place]
    load: Callable[[str, Path, int, int], None]
    command: Sequence[str]
    config: dict[str, Any] = field(default_factory=dict)
    beside: Callable[[str, Path], AbstractContextManager[object]] = lambda _, __: nullcontext()
    has_client: bool = False
    is_engine: bool = False


UNFINISHED = (
    b"SELECT EXISTS (SELECT FROM gen_durable WHERE status = 'runnable') "
    # In the index's words: without them it is all rows that are read, as soon as nothing else is left.
    b"OR EXISTS (SELECT FROM gen_durable WHERE status = 'executing' AND lease_expires_at IS NOT NULL)"
)

# Beside rows that another has claimed for an hour: whose lease ends sooner is a node's of the bench.
UNFINISHED_BESIDE = (
    b"SELECT EXISTS (SELECT FROM gen_durable WHERE status = 'runnable' AND queue = 'default') OR EXISTS ("
    b"SELECT FROM gen_durable WHERE status = 'executing' AND lease_expires_at < now() + interval '30 minutes')"
)


def engine(name: str = "engine", kind: Kind = "engine", **how: Any) -> Contender:
    """The engine's nodes. `job`: what is inserted, by its number; `ended`, `executing`: such rows that are there
    before, the latter another's; everything else is `NodeSetup`'s."""
    make: Callable[[int], Job] = how.pop("job", lambda _: Job(fsm="bench", step="noop"))
    before: int = how.pop("ended", 0)
    others: int = how.pop("executing", 0)

    def prepare(dsn: str, _: Path) -> Place:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
            if before:
                connection.execute(_ENDED, [before])
                # What autovacuum would come for while the clock runs; the load's own vacuum finds the rest.
                connection.execute("VACUUM (FREEZE, ANALYZE) gen_durable")
            if others:
                connection.execute(_EXECUTING, [others])
        left = UNFINISHED_BESIDE if others else UNFINISHED
        return Place(table=Identifier("gen_durable"), reading=read_engine, unfinished=left)

    def load(dsn: str, _: Path, jobs: int, size: int) -> None:
        picker = Picker()
        with connect(dsn, "bench load") as connection:
            for first in range(0, jobs, size):
                batch = [make(number) for number in range(first, min(first + size, jobs))]
                perform(connection, picker.insert_many(batch))

    return Contender(
        name=name,
        kind=kind,
        settings="concurrency 1,000, prefetch 1,000, max_batch 1,000, max_delay_ms 2",
        prepare=prepare,
        load=load,
        command=python("stress.bench.node_process"),
        config=how,
        is_engine=True,
    )


_ENDED = b"""
    INSERT INTO gen_durable (fsm, step, status, result, updated_at)
    SELECT 'bench', 'noop', 'done', 'null', now() - n * interval '1 ms' FROM generate_series(1, %s) AS n
"""

_EXECUTING = b"""
    INSERT INTO gen_durable (fsm, step, status, queue, locked_by, lease_expires_at)
    SELECT 'bench', 'noop', 'executing', 'another', 'another@bench.' || n, now() + interval '1 hour'
    FROM generate_series(1, %s) AS n
"""


def read_engine(change: Change) -> tuple[Act, str, bytes | None] | None:
    """A row of gen_durable: `executing` is taken, `done` ended."""
    if change.relation.name != "gen_durable" or change.new is None:
        return None
    names = change.relation.columns
    status, job = change.new[names.index("status")], change.new[names.index("id")]
    act = _ACTS.get(status or b"")
    return None if act is None else (act, (job or b"").decode(), change.new[names.index("locked_by")])


_ACTS: dict[bytes, Act] = {
    b"runnable": "put",
    b"executing": "taken",
    b"done": "ended",
    b"queued": "put",
    b"taken": "taken",
    b"ended": "ended",
}


def raw(batch: int) -> Contender:
    """A bare table, psycopg, batches of that size."""

    def prepare(dsn: str, _: Path) -> Place:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                "status text NOT NULL DEFAULT 'queued')"
            )
            connection.execute("CREATE INDEX job_queued ON job (id) WHERE status = 'queued'")
        return Place(table=Identifier("job"), reading=read_raw)

    def load(dsn: str, _: Path, jobs: int, size: int) -> None:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
            cursor = psycopg.RawCursor(connection)
            for first in range(0, jobs, size):
                statuses = ["queued"] * min(size, jobs - first)
                cursor.execute(b"INSERT INTO job (status) SELECT unnest($1::text[])", [statuses])

    return Contender(
        name=f"raw {batch}",
        kind="floor",
        settings=f"psycopg, prepared, one connection a process, batches of {batch}",
        prepare=prepare,
        load=load,
        command=python("stress.bench.raw_process"),
        config={"batch": batch},
    )


def read_raw(change: Change) -> tuple[Act, str, bytes | None] | None:
    """A row of the bare table."""
    if change.relation.name != "job" or change.new is None:
        return None
    job, status = change.new
    act = _ACTS.get(status or b"")
    return None if act is None else (act, (job or b"").decode(), None)


def limited() -> list[Contender]:
    """The engine with limits that never deny."""
    found = []
    for shards in (1, 8):
        word = "shard" if shards == 1 else "shards"
        found.append(
            engine(
                f"gate, {shards} {word}",
                "variant",
                gate_shards=shards,
                job=lambda _: Job(fsm="bench", step="noop", concurrency_key=f"{GATE}:all"),
            )
        )
        found.append(
            engine(
                f"rate, {shards} {word}",
                "variant",
                rate_shards=shards,
                job=lambda _: Job(fsm="bench", step="noop", rate_limit=RATE),
            )
        )
    keyed = engine(
        "keys", "variant", job=lambda number: Job(fsm="bench", step="noop", concurrency_key=f"k{number}")
    )
    return [*found, keyed]


def grown() -> list[Contender]:
    """The engine among rows that have ended."""
    return [engine(f"{ended:,} ended", "variant", ended=ended) for ended in (100_000, 1_000_000)]


def swarmed() -> list[Contender]:
    """The engine's nodes alone, and as a swarm has them: each writes a history, the ledger is recorded and judged."""

    @contextmanager
    def recorded(dsn: str, folder: Path) -> Iterator[None]:
        ledger = folder / "ledger"
        shutil.rmtree(ledger, ignore_errors=True)
        ledger.mkdir()
        try:
            with RecorderProcess(dsn, ledger, "pgreferee_bench_swarm") as recorder:
                yield
                # One that gave up on the way was no burden to the nodes.
                recorder.check_alive()
                told = recorder.stop()
        except (RecorderError, LedgerUnavailable) as error:
            raise InfrastructureError(f"the swarm's ledger was not recorded: {error}") from error
        if not told["complete"]:
            raise InfrastructureError(f"the swarm's ledger is not complete: {told['reason']}")

    return [
        engine("nodes alone"),
        replace(engine("nodes in a swarm", "variant", history=True), beside=recorded),
    ]
