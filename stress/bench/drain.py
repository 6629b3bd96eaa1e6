"""A drain: so many jobs, done by one process or several.

Everybody is timed alike. The jobs are there, the table vacuumed and analysed, the log checkpointed. An exclusive lock
on the table holds all processes back until each has connected, prepared and waits for its first batch. The clock runs
from its release to the commit that ended the last job, both by the server's clock, the latter read from the
write-ahead log.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from engine.errors import InfrastructureError
from engine.postgres import Server, fresh_database
from invariants.ledger.pgoutput import Transaction
from results.bench.samples import Sample
from results.runs import VerdictWord
from stress.bench import ledger
from stress.bench.contenders import LOAD, Contender, Place
from stress.bench.cpu import Meter
from stress.bench.processes import check, end, running

READY_S: Final = 60.0
DRAIN_S: Final = 120.0
LOOK_S: Final = 0.1
# A session tells what it has counted once a second at most, and when it ends; until PostgreSQL 14 a collector writes it
# down twice a second.
SETTLE_S: Final = 10.0
COLLECTED_S: Final = 0.6
# Workers name their sessions after their processes; a session of one that does not stands for a process.
_WAITING = b"""
    SELECT count(DISTINCT coalesce(substring(application_name FROM 'bench-[0-9]+'), pid::text)) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def drain(
    server: Server,
    contender: Contender,
    processes: int,
    repetition: int,
    logs: Path,
    *,
    workload: str | None = None,
    counts: bool = False,
) -> Sample:
    """One measurement, on a database of its own. `counts`: with what the server counts, for each job. Raises
    InfrastructureError where a process fails or time runs out."""
    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as watch:
        place = contender.prepare(dsn, logs)
        # Who asks whether anything is left would else read all that has ended, to find what stands behind it.
        watch.execute("SET enable_seqscan TO off")
        with ledger.kept(dsn) as start:
            contender.load(dsn, logs, contender.jobs, LOAD)
            # By a session that ends: what it has touched is counted by then, and not among what follows.
            with psycopg.connect(dsn, autocommit=True) as upkeep:
                upkeep.execute(sql.SQL("VACUUM ANALYZE {}").format(place.table))
                upkeep.execute("CHECKPOINT")
            before = counters(watch) if counts else {}
            with contender.beside(dsn, logs):
                released_us, cpu_s = _run(server, dsn, watch, contender, place, processes, logs)
            spent = {name: value - before[name] for name, value in counters(watch).items()} if counts else {}
            transactions = ledger.read(dsn, start)
    account = ledger.Account.of(transactions, place.reading)
    verdict, reason = _verdict(contender, account, transactions)
    took_s = (account.last_us - released_us) / 1e6 if account.ended_us else DRAIN_S
    figures = {"per_s": len(account.ended) / took_s}
    if cpu_s is not None:
        figures["cpu_us"] = cpu_s * 1e6 / contender.jobs
    figures |= {name: value / contender.jobs for name, value in spent.items()}
    return Sample(
        workload=workload or f"drain {processes}",
        contender=contender.name,
        kind=contender.kind,
        repetition=repetition,
        figures=figures,
        verdict=verdict,
        reason=reason,
    )


def counters(watch: psycopg.Connection[Any]) -> dict[str, int]:
    """What the server has counted of this database since it began, once its other sessions have ended and told it all.
    Raises InfrastructureError where one does not end."""
    deadline = time.monotonic() + SETTLE_S
    while sessions := _one(watch, _OTHERS):
        if time.monotonic() > deadline:
            raise InfrastructureError(f"{sessions} sessions were not over {SETTLE_S:.0f} s after their work")
        time.sleep(LOOK_S)
    if watch.info.server_version < 150000:
        time.sleep(COLLECTED_S)
    row = watch.execute(_COUNTERS).fetchone()
    assert row is not None
    return dict(zip(COUNTED, map(int, row), strict=True))


COUNTED: Final = ("wal_bytes", "row_versions", "buffers_hit", "buffers_read")
# A session is gone from there only when it has told what it counted.
_OTHERS: Final = b"""
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_COUNTERS: Final = b"""
    SELECT
        pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'),
        (SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables), d.blks_hit, d.blks_read
    FROM pg_stat_database AS d WHERE d.datname = current_database()
"""


def _verdict(
    contender: Contender, account: ledger.Account, transactions: list[Transaction]
) -> tuple[VerdictWord, str | None]:
    reason = account.objection(contender.jobs)
    if reason is None and contender.is_engine:
        reason = ledger.objection(transactions)
    return ("held", None) if reason is None else ("violated", reason)


def _run(
    server: Server,
    dsn: str,
    watch: psycopg.Connection[Any],
    contender: Contender,
    place: Place,
    processes: int,
    logs: Path,
) -> tuple[int, float | None]:
    """Let them at it until nothing is left. When they were let, in microseconds since 1970, and the processor time that
    they and the server took from there."""

    def config(number: int) -> dict[str, Any]:
        return {"dsn": dsn, "name": f"bench-{number}", **contender.config}

    with psycopg.connect(dsn) as gate:
        gate.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(place.table))
        with running(processes, contender.command, config, logs) as children:
            deadline = time.monotonic() + READY_S
            while _one(watch, _WAITING) < processes:
                check(children)
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"{contender.name} did not ask for its first batch in time")
                time.sleep(LOOK_S)
            # Parts of a worker that are slower to come up wait here too.
            time.sleep(3 * LOOK_S)
            released_us = _one(gate, b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            meter = Meter(server, children)
            gate.commit()
            if place.unfinished is None:
                for child in children:
                    if child.wait(DRAIN_S) is None:
                        raise InfrastructureError(f"{contender.name} did not come to an end in time")
                check(children)
            else:
                deadline = time.monotonic() + DRAIN_S
                while _one(watch, place.unfinished):
                    check(children)
                    if time.monotonic() > deadline:
                        raise InfrastructureError(f"{contender.name} did not drain in {DRAIN_S:.0f} s")
                    time.sleep(LOOK_S)
                end(children)
            return released_us, meter.spent_s()


def _one(connection: psycopg.Connection[Any], query: bytes) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
