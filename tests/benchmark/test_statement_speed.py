"""What each hot operation costs on a client's connection, statement and answer included: claim, enrich, flush, insert,
signal, heartbeat, admission, commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.limiter import Gate, PostgresLimiter
from engine.picker import Claimed, Commit, Hold, Job
from engine.sessions import connect
from engine.store import PostgresStore
from tests.fixtures.node import Jobs
from tests.fixtures.stores import execution

BATCH, ROUNDS = 100, 30
LEASE_MS = 60_000.0
JOB = Job(fsm="f", step="s")


class Bench:
    """A session as nodes have it, and rows for it to claim."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = Jobs(jobs.dsn, connect(jobs.dsn, "bench"))
        self.claims = 0

    def put(self, job: Job = JOB) -> list[int]:
        return [int(each or 0) for each in self.jobs.do(self.jobs.picker.insert_many([job] * BATCH))]

    def claim(self, *gates: str) -> tuple[Claimed, ...]:
        self.claims += 1
        claim = self.jobs.picker.claim(
            queue="default", batch=BATCH, claim=f"c{self.claims}", lease_ms=LEASE_MS, gates=gates
        )
        return self.jobs.do(claim).rows

    def claimed(self, job: Job = JOB, *gates: str) -> tuple[Claimed, ...]:
        self.put(job)
        return self.claim(*gates)


@pytest.fixture
def bench(jobs: Jobs) -> Any:
    made = Bench(jobs)
    yield made
    made.jobs.connection.close()


def taken(benchmark: Any, act: Callable[..., object], prepare: Callable[[], object]) -> Any:
    """The last answer; each round has preparations of its own, which are not measured."""
    rounds = ROUNDS if benchmark.enabled else 1
    return benchmark.pedantic(act, setup=lambda: ((prepare(),), {}), rounds=rounds, warmup_rounds=0)


def test_a_claim(benchmark: Any, bench: Bench) -> None:
    assert len(taken(benchmark, lambda _: bench.claim(), bench.put)) == BATCH


def test_a_claim_of_distinct_keys(benchmark: Any, bench: Bench) -> None:
    def put() -> None:
        keyed = [Job(fsm="f", step="s", concurrency_key=f"k{n}-{bench.claims}") for n in range(BATCH)]
        bench.jobs.do(bench.jobs.picker.insert_many(keyed))

    assert len(taken(benchmark, lambda _: bench.claim(), put)) == BATCH


def test_what_steps_are_handed(benchmark: Any, bench: Bench) -> None:
    picker = bench.jobs.picker

    def enrich(rows: tuple[Claimed, ...]) -> object:
        return bench.jobs.do(picker.enrich([row.id for row in rows]))

    assert len(taken(benchmark, enrich, bench.claimed)) == BATCH


def test_a_flush(benchmark: Any, bench: Bench) -> None:
    def flush(rows: tuple[Claimed, ...]) -> object:
        outcomes = [Commit(id=row.id, claim=row.claim, kind="done", result="null") for row in rows]
        return bench.jobs.do(bench.jobs.picker.flush(outcomes))

    assert len(taken(benchmark, flush, bench.claimed).holds) == BATCH


def test_a_heartbeat(benchmark: Any, bench: Bench) -> None:
    def beat(rows: tuple[Claimed, ...]) -> object:
        return bench.jobs.do(bench.jobs.picker.heartbeat([Hold(row.id, row.claim) for row in rows], LEASE_MS))

    assert len(taken(benchmark, beat, bench.claimed)) == BATCH


@pytest.mark.parametrize("shards", [1, 8])
def test_an_admission_that_never_denies(benchmark: Any, bench: Bench, shards: int) -> None:
    limiter = PostgresLimiter([Gate("g", 1_000_000, shards=shards)])
    bench.jobs.do(limiter.sync_config())
    gated = Job(fsm="f", step="s", concurrency_key="g:all")
    admission = taken(
        benchmark, lambda rows: bench.jobs.do(limiter.admit(rows)), lambda: bench.claimed(gated, "g")
    )
    assert len(admission.admitted) == BATCH


def test_an_insert(benchmark: Any, bench: Bench) -> None:
    assert taken(benchmark, lambda _: bench.jobs.do(bench.jobs.picker.insert(JOB)), lambda: None)


def test_a_batch_of_inserts(benchmark: Any, bench: Bench) -> None:
    assert len(taken(benchmark, lambda _: bench.put(), lambda: None)) == BATCH


def test_a_signal(benchmark: Any, bench: Bench) -> None:
    target = bench.put()[0]
    sent = taken(benchmark, lambda _: bench.jobs.do(bench.jobs.picker.signal(target, "go")), lambda: None)
    assert sent.outcome == "delivered"


def test_a_commit_of_the_store(benchmark: Any, database: str) -> None:
    store = PostgresStore.from_dsn(database)
    one = execution("one", context={f"field{n:02}": "some text of an order" for n in range(22)})
    taken(benchmark, lambda _: store.save(one), lambda: None)
    store.close()
    assert one.version == (ROUNDS if benchmark.enabled else 1)
