"""What is no drain: jobs put in, and what time passes between two commits.

All times are those of commits in the write-ahead log. Enqueue: from the first commit of a client to its last.
Latency: from the commit that put a job in, at a rate that keeps nobody busy, to the one that ended it. A signal's round
trip: from the commit that delivered it to the one that consumed it. Families: from the first parent that was put in to
the last that joined, in jobs a second, children and parents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import psycopg

from engine.errors import InfrastructureError
from engine.operation import perform
from engine.picker import Job, Picker
from engine.postgres import Server, fresh_database
from engine.sessions import connect
from invariants.ledger.pgoutput import Transaction
from results.bench.samples import Sample
from stress.bench import ledger
from stress.bench.contenders import UNFINISHED, Contender
from stress.bench.processes import check, end, python, running

SINGLES: Final = 2_000
BATCH: Final = 1_000
BATCHES: Final = 20
RATE_PER_S: Final = 200.0
LATENCY_JOBS: Final = 1_000
SIGNALS: Final = 1_000
PARKED: Final = 50
FAMILIES: Final = 200
CHILDREN: Final = 20
WAIT_S: Final = 60.0
_CLIENT = python("stress.bench.enqueue_process")


def enqueue(server: Server, contender: Contender, batch: int, repetition: int, logs: Path) -> Sample:
    """How many jobs a second one client puts in, in calls of that size."""
    jobs = SINGLES if batch == 1 else BATCHES * batch
    with fresh_database(server) as dsn:
        place = contender.prepare(dsn, logs)
        with ledger.kept(dsn) as start:
            if contender.has_client:
                contender.load(dsn, logs, jobs, batch)
            else:
                _client(dsn, logs, kind=_kind(contender), jobs=jobs, batch=batch)
            transactions = ledger.read(dsn, start)
    puts = ledger.Account.of(transactions, place.reading).puts_us
    found = sum(count for _, count in puts)
    took_s = (puts[-1][0] - puts[0][0]) / 1e6
    return _sample(
        f"enqueue {batch:,}",
        contender,
        repetition,
        {"per_s": (found - puts[0][1]) / took_s},
        None if found == jobs else f"{found} jobs were put in, not {jobs}",
    )


def latency(server: Server, contender: Contender, repetition: int, logs: Path) -> Sample:
    """From put in to ended, one worker, jobs one by one at a fixed rate."""
    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as watch:
        place = contender.prepare(dsn, logs)
        with ledger.kept(dsn) as start, _workers(dsn, contender, logs) as children:
            _client(dsn, logs, kind=_kind(contender), jobs=LATENCY_JOBS, per_s=RATE_PER_S)
            _until_done(watch, contender, children)
            transactions = ledger.read(dsn, start)
            end(children)
    account = ledger.Account.of(transactions, place.reading)
    reason = account.objection(LATENCY_JOBS) or (
        ledger.objection(transactions) if contender.is_engine else None
    )
    took = [account.ended_us[job] - account.put_us[job] for job in account.ended_us]
    return _sample(f"latency at {RATE_PER_S:,.0f}/s", contender, repetition, _percentiles(took), reason)


def signals(server: Server, contender: Contender, repetition: int, logs: Path) -> Sample:
    """From delivered to consumed, one worker, instances parked before."""
    picker = Picker()
    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as watch:
        contender.prepare(dsn, logs)
        with ledger.kept(dsn) as start, _workers(dsn, contender, logs) as children:
            with connect(dsn, "bench load") as connection:
                ids = perform(connection, picker.insert_many([Job(fsm="bench", step="park")] * PARKED))
            _until_done(watch, contender, children)
            _client(
                dsn,
                logs,
                kind="signals",
                jobs=SIGNALS,
                per_s=RATE_PER_S,
                targets=[int(each or 0) for each in ids],
            )
            _until_done(watch, contender, children)
            transactions = ledger.read(dsn, start)
            end(children)
    delivered, consumed = _signals(transactions)
    lost = len(delivered.keys() - consumed.keys())
    reason = f"{lost} signals were not consumed" if lost else ledger.objection(transactions)
    took = [consumed[each] - delivered[each] for each in delivered.keys() & consumed.keys()]
    return _sample(f"signals at {RATE_PER_S:,.0f}/s", contender, repetition, _percentiles(took), reason)


def families(server: Server, contender: Contender, repetition: int, logs: Path) -> Sample:
    """Parents that fan out and join, one worker."""
    picker = Picker()
    parents = [Job(fsm="bench", step="fan", state={"children": CHILDREN})] * FAMILIES
    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as watch:
        place = contender.prepare(dsn, logs)
        with ledger.kept(dsn) as start, _workers(dsn, contender, logs) as children:
            with connect(dsn, "bench load") as connection:
                perform(connection, picker.insert_many(parents))
            _until_done(watch, contender, children)
            transactions = ledger.read(dsn, start)
            end(children)
    account = ledger.Account.of(transactions, place.reading)
    jobs = FAMILIES * (1 + CHILDREN)
    reason = None if len(account.ended) == jobs else f"{len(account.ended)} jobs were ended, not {jobs}"
    took_s = (account.last_us - account.puts_us[0][0]) / 1e6
    return _sample(
        f"families of {CHILDREN}",
        contender,
        repetition,
        {"per_s": jobs / took_s},
        reason or ledger.objection(transactions),
    )


def _workers(dsn: str, contender: Contender, logs: Path) -> Any:
    return running(
        1, contender.command, lambda place: {"dsn": dsn, "name": f"bench-{place}", **contender.config}, logs
    )


def _client(dsn: str, logs: Path, **config: Any) -> None:
    with running(1, _CLIENT, lambda _: {"dsn": dsn, "name": "bench-client", **config}, logs) as children:
        if children[0].wait(WAIT_S) is None:
            raise InfrastructureError("a client of the bench took too long")
        check(children)


def _kind(contender: Contender) -> str:
    return "engine" if contender.is_engine else "raw"


def _until_done(watch: psycopg.Connection[Any], contender: Contender, children: Sequence[Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    quiet = 0
    while quiet < 2:
        check(children)
        row = watch.execute(UNFINISHED).fetchone()
        quiet = quiet + 1 if row is not None and not row[0] else 0
        if time.monotonic() > deadline:
            raise InfrastructureError(f"{contender.name} did not get everything done in {WAIT_S:.0f} s")
        time.sleep(0.1)


def _signals(transactions: Sequence[Transaction]) -> tuple[dict[bytes, int], dict[bytes, int]]:
    delivered: dict[bytes, int] = {}
    consumed: dict[bytes, int] = {}
    for transaction in transactions:
        for change in transaction.changes:
            if change.relation.name != "signals":
                continue
            row, at = (change.new, delivered) if change.kind == "insert" else (change.old, consumed)
            assert row is not None
            at[row[change.relation.columns.index("id")] or b""] = transaction.committed_us
    return delivered, consumed


def _percentiles(took_us: Sequence[int]) -> dict[str, float]:
    if len(took_us) < 2:
        return {}
    cuts = quantiles(took_us, n=100, method="inclusive")
    return {"p50_ms": cuts[49] / 1_000, "p99_ms": cuts[98] / 1_000}


def _sample(
    workload: str, contender: Contender, repetition: int, figures: dict[str, float], reason: str | None
) -> Sample:
    return Sample(
        workload=workload,
        contender=contender.name,
        kind=contender.kind,
        repetition=repetition,
        figures=figures,
        verdict="held" if reason is None else "violated",
        reason=reason,
    )
