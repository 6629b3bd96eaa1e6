"""Who takes part in a drain, and how each is set up: at its best known settings, which `settings` tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from engine.operation import perform
from engine.picker import Job, Picker
from engine.schema import migrate
from engine.sessions import connect
from invariants.ledger.pgoutput import Change
from results.bench.samples import Kind
from stress.bench.ledger import Act, Reading
from stress.bench.node_process import GATE, RATE
from stress.bench.processes import check, python, running
from stress.subjects.peers import pins_of
from stress.subjects.peers.environments import python_of

JOBS: Final = 20_000
LOAD: Final = 1_000
PEER_BATCH: Final = 500
# It is over too soon to be timed with fewer.
PGQUEUER_JOBS: Final = 50_000
LOAD_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to get `jobs` jobs done.

    `prepare` makes the schema, `load` puts so many jobs in, in calls of a size. `command` and `config` are its
    processes'; `table` is where the jobs are, and what is locked until all processes wait for it. `unfinished` asks
    whether there are any left, None for a contender whose processes end by themselves. `reading` finds jobs in the
    write-ahead log.
    """

    name: str
    kind: Kind
    settings: str
    table: str
    jobs: int = JOBS
    prepare: Callable[[str, Path], None]
    load: Callable[[str, Path, int, int], None]
    command: Sequence[str]
    config: dict[str, Any] = field(default_factory=dict)
    unfinished: bytes | None = None
    reading: Reading
    is_engine: bool = False


UNFINISHED = (
    b"SELECT EXISTS (SELECT FROM gen_durable WHERE status = 'runnable') "
    b"OR EXISTS (SELECT FROM gen_durable WHERE status = 'executing')"
)


def engine(name: str = "engine", kind: Kind = "engine", **how: Any) -> Contender:
    """The engine's nodes. `job`: what is inserted, by its number; `ended`: terminal rows that are there before;
    everything else is `NodeSetup`'s."""
    make: Callable[[int], Job] = how.pop("job", lambda _: Job(fsm="bench", step="noop"))
    before: int = how.pop("ended", 0)

    def prepare(dsn: str, _: Path) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
            if before:
                connection.execute(_ENDED, [before])

    def load(dsn: str, _: Path, jobs: int, size: int) -> None:
        picker = Picker()
        with connect(dsn, "bench load") as connection:
            for first in range(0, jobs, size):
                batch = [make(number) for number in range(first, min(first + size, jobs))]
                perform(connection, picker.insert_many(batch))

    return Contender(
        name=name,
        kind=kind,
        settings="concurrency 500, prefetch 500, max_batch 500, max_delay_ms 2",
        table="gen_durable",
        prepare=prepare,
        load=load,
        command=python("stress.bench.node_process"),
        config=how,
        unfinished=UNFINISHED,
        reading=read_engine,
        is_engine=True,
    )


_ENDED = b"""
    INSERT INTO gen_durable (fsm, step, status, result, updated_at)
    SELECT 'bench', 'noop', 'done', 'null', now() - n * interval '1 ms' FROM generate_series(1, %s) AS n
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

    def prepare(dsn: str, _: Path) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                "status text NOT NULL DEFAULT 'queued')"
            )
            connection.execute("CREATE INDEX job_queued ON job (id) WHERE status = 'queued'")

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
        table="job",
        prepare=prepare,
        load=load,
        command=python("stress.bench.raw_process"),
        config={"batch": batch},
        reading=read_raw,
    )


def read_raw(change: Change) -> tuple[Act, str, bytes | None] | None:
    """A row of the bare table."""
    if change.relation.name != "job" or change.new is None:
        return None
    job, status = change.new
    act = _ACTS.get(status or b"")
    return None if act is None else (act, (job or b"").decode(), None)


def pgqueuer() -> Contender:
    """PgQueuer through its own worker."""
    worker = (python_of("pgqueuer"), str(Path(__file__).parent / "peers/pgqueuer_worker.py"))
    pins = pins_of("pgqueuer").read_text("utf-8").splitlines()
    version = next(line for line in pins if line.startswith("pgqueuer=="))

    def act(dsn: str, logs: Path, **config: Any) -> None:
        with running(1, worker, lambda _: {"dsn": dsn, "name": "bench-load", **config}, logs) as children:
            children[0].wait(LOAD_S)
            check(children)

    return Contender(
        name="PgQueuer",
        kind="peer",
        settings=f"{version}: pool, uvloop, batch {PEER_BATCH}, durable tables, {PGQUEUER_JOBS:,} jobs",
        table="pgqueuer",
        jobs=PGQUEUER_JOBS,
        prepare=lambda dsn, logs: act(dsn, logs, act="install"),
        load=lambda dsn, logs, jobs, size: act(dsn, logs, act="load", jobs=jobs, batch=size),
        command=worker,
        config={"act": "drain", "batch": PEER_BATCH},
        reading=read_pgqueuer,
    )


def read_pgqueuer(change: Change) -> tuple[Act, str, bytes | None] | None:
    """A row of its queue: `queued` is put, `picked` taken; one that ended is deleted."""
    if change.relation.name != "pgqueuer":
        return None
    names = change.relation.columns
    if change.kind == "delete":
        assert change.old is not None
        return "ended", (change.old[names.index("id")] or b"").decode(), None
    assert change.new is not None
    job = (change.new[names.index("id")] or b"").decode()
    match change.new[names.index("status")]:
        case b"picked":
            return "taken", job, change.new[names.index("queue_manager_id")]
        case b"queued":
            return "put", job, None
    return None


PEERS: Final[dict[str, Callable[[], Contender]]] = {"pgqueuer": pgqueuer}


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
