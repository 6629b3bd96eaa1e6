"""Compare-and-set commits of one kilobyte by 1, 2, 4 and 8 clients, a process each, every one on rows of its own.

An observer adds up the rows' versions at two moments a while apart, by the server's clock. The log of the whole run is
then read: every row's versions must be 1, 2, 3 …, and as many as the table says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from engine.errors import InfrastructureError
from engine.postgres import Server, fresh_database
from engine.postgres.accounts import server_account
from engine.postgres.binaries import embedded
from engine.schema import migrate
from invariants.ledger.pgoutput import Transaction
from results.bench.samples import Kind, Sample
from stress.bench import ledger
from stress.bench.commit_process import BATCH
from stress.bench.processes import check, python, running

CLIENTS: Final = (1, 2, 4, 8)
READY_S: Final = 30.0
WARM_S: Final = 0.5
MEASURE_S: Final = 2.0
_PGBENCH = """\
UPDATE executions SET data = '{}', version = :v + 1 WHERE id = 'bench-' || :client_id AND version = :v;
\\set v :v + 1
"""
_SUM = b"SELECT coalesce(sum(version), 0)::bigint, extract(epoch FROM clock_timestamp()) FROM executions"


@dataclass(frozen=True, slots=True)
class Writer:
    """A way to commit. `command` of so many clients, in that many processes or, where it forks itself, in one."""

    name: str
    kind: Kind
    command: Callable[[str, int, Path], Sequence[str]]
    config: dict[str, Any]
    forks: bool = False


def writers() -> list[Writer]:
    """Floors first."""
    module = python("stress.bench.commit_process")
    return [
        Writer("pgbench", "floor", _pgbench, {}, forks=True),
        Writer("raw psycopg", "floor", lambda *_: module, {"kind": "raw"}),
        Writer("store", "engine", lambda *_: module, {"kind": "store"}),
        Writer(f"store, {BATCH} at once", "engine", lambda *_: module, {"kind": "batch"}),
    ]


def _pgbench(dsn: str, clients: int, logs: Path) -> Sequence[str]:
    script = logs / "commits.pgbench"
    script.write_text(_PGBENCH.format("x" * 1_000), "utf-8")
    program = embedded(server_account()).program("pgbench")
    # It ends when its process is ended.
    return (
        str(program), "-n", "-M", "prepared", "-c", str(clients), "-j", str(clients), "-T", "600", "-D", "v=1",
        "-f", str(script), dsn,
    )  # fmt: skip


def commits(server: Server, writer: Writer, clients: int, repetition: int, logs: Path) -> Sample:
    """One measurement, on a database of its own. Raises InfrastructureError."""
    with fresh_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as watch:
        migrate(watch, "store")
        if writer.forks:
            watch.execute(
                "INSERT INTO executions (id, definition_id, data, version) "
                "SELECT 'bench-' || n, 'bench', repeat('x', 1000), 1 FROM generate_series(0, 7) AS n"
            )
        watch.execute("CHECKPOINT")
        with ledger.kept(dsn) as start:
            before, _ = _sum(watch)
            command = writer.command(dsn, clients, logs)

            def config(place: int) -> dict[str, Any]:
                return {"dsn": dsn, "name": f"bench-{place}", **writer.config}

            with running(1 if writer.forks else clients, command, config, logs) as children:
                deadline = time.monotonic() + READY_S
                while (first := _sum(watch))[0] < before + clients:
                    check(children)
                    if time.monotonic() > deadline:
                        raise InfrastructureError(f"{writer.name} did not commit in time")
                    time.sleep(WARM_S)
                time.sleep(WARM_S)
                first = _sum(watch)
                time.sleep(MEASURE_S)
                second = _sum(watch)
                check(children)
            _await_ends(watch)
            after, _ = _sum(watch)
            transactions = ledger.read(dsn, start)
    reason = objection(transactions, after - before)
    return Sample(
        workload=f"commits {clients}",
        contender=writer.name,
        kind=writer.kind,
        repetition=repetition,
        figures={"per_s": (second[0] - first[0]) / (second[1] - first[1])},
        verdict="held" if reason is None else "violated",
        reason=reason,
    )


def objection(transactions: Sequence[Transaction], expected: int) -> str | None:
    """Why these are not `expected` commits, each one version after the other of its row; None where they are."""
    versions: dict[bytes | None, int] = {}
    total = 0
    for transaction in transactions:
        for change in transaction.changes:
            if change.relation.name != "executions" or change.new is None:
                continue
            names = change.relation.columns
            row, version = change.new[names.index("id")], int(change.new[names.index("version")] or 0)
            if versions.get(row, version - 1) != version - 1:
                return f"version {version} of {row!r} came after {versions[row]}"
            versions[row] = version
            total += 1
    return None if total == expected else f"the log has {total} commits, the table {expected}"


def _sum(connection: psycopg.Connection[Any]) -> tuple[int, float]:
    row = connection.execute(_SUM).fetchone()
    assert row is not None
    return int(row[0]), float(row[1])


def _await_ends(connection: psycopg.Connection[Any]) -> None:
    """Until the server has noticed that the writers are gone."""
    deadline = time.monotonic() + READY_S
    query = (
        b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        b"AND backend_type = 'client backend'"
    )
    while True:
        row = connection.execute(query).fetchone()
        if row is None or row[0] == 0:
            return
        if time.monotonic() > deadline:
            raise InfrastructureError("the server did not let go of the writers' sessions in time")
        time.sleep(0.05)
