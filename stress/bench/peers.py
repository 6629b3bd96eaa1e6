"""Peers as contenders, through the subjects that `stress` runs (`stress/subjects/peers`), each in an environment of its
own, with the settings that those have for being timed. What a peer says of its rows is how its jobs are found in the
write-ahead log."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from engine.errors import InfrastructureError
from invariants.claims import Rows
from invariants.ledger.pgoutput import Change
from stress.bench.contenders import Contender, Place
from stress.bench.ledger import Act
from stress.bench.processes import check, running
from stress.subjects.own_run import open_subject
from stress.subjects.own_swarm import MODULE
from stress.subjects.peers import PEERS as SUBJECTS
from stress.subjects.peers import pins_of, words_of
from stress.subjects.peers.environments import python_of

LOAD_S: Final = 300.0
# As many as take some seconds: who is quick is over too soon to be timed with fewer.
JOBS: Final = {
    "pgqueuer": 50_000,
    "procrastinate": 3_000,
    "chancy": 10_000,
    "dbos": 1_000,
    "absurd": 5_000,
    "pgmq": 50_000,
}
SETTINGS: Final = {
    "pgqueuer": "asyncpg pool of 20, uvloop, batches of 500, durable tables",
    "procrastinate": "psycopg pool, 10 side by side",
    "chancy": "AsyncExecutor, 1,000 side by side, no plugins",
    "dbos": "a workflow of one step, 100 side by side, polls every 0.1 s",
    "absurd": "a task of one step, claims of 50, polls every 0.1 s",
    "pgmq": "SQL-only install, read 100, delete 100",
}
# A message of pgmq has no status: one that is read is hidden for a while, and counts how often.
PGMQ: Final = "q_work"
_PLACE: Final = """
    SELECT n.nspname, c.relname FROM pg_class AS c INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE c.relname = %s AND c.relkind IN ('r', 'p')
"""


def peer(name: str) -> Contender:
    """The peer of that name. Raises InfrastructureError where its packages cannot be had."""
    python = python_of(name)
    command = (python, "-m", MODULE)
    base = {"subject": words_of(name), "folder": "", "bench": True}
    [version] = [
        line for line in pins_of(name).read_text("utf-8").splitlines() if line.startswith(_PACKAGES[name])
    ]

    def load(dsn: str, logs: Path, jobs: int, size: int) -> None:
        asked = base | {"part": "fill", "dsn": dsn, "name": "fill", "jobs": jobs, "at_once": size}
        with running(1, command, lambda _: asked, logs) as children:
            if children[0].wait(LOAD_S) is None:
                raise InfrastructureError(f"{name} was not filled in {LOAD_S:.0f} s")
            check(children)

    return Contender(
        name=name,
        # Without a worker it is nearly a floor.
        kind="floor" if name == "pgmq" else "peer",
        settings=f"{version.split()[0]}: {SETTINGS[name]}, {JOBS[name]:,} jobs",
        jobs=JOBS[name],
        prepare=partial(_prepare, name, python),
        load=load,
        command=command,
        config=base | {"part": "worker"},
        has_client=True,
    )


_PACKAGES: Final = {name: f"{'absurd-sdk' if name == 'absurd' else name}==" for name in SUBJECTS}


def _prepare(name: str, python: str, dsn: str, _: Path) -> Place:
    with tempfile.TemporaryDirectory(prefix="pgreferee-peer-") as place:
        folder = Path(place)
        (folder / "logs").mkdir()
        rows = open_subject(name, python, dsn, folder, bench=True).rows
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(_PLACE, [PGMQ if rows is None else rows.table]).fetchall()
        if len(found) != 1:
            raise InfrastructureError(f"{name} has {len(found)} tables of the name that it keeps jobs in")
        schema, relation = found[0]
        table = Identifier(schema, relation)
        if rows is None:
            left = SQL("SELECT EXISTS (SELECT FROM {})").format(table)
        else:
            left = unfinished(table, rows)
        reading = (
            partial(_read_message, schema, relation) if rows is None else _Rows(schema, relation, rows).read
        )
        return Place(table=table, reading=reading, unfinished=left.as_bytes(connection))


def unfinished(table: Identifier, rows: Rows) -> Composed:
    """Asks whether a job waits or runs: of one status at a time and without a cast, so that an index of the peer's will
    do, for what the asking takes is among what the peer is said to take."""
    one = SQL("EXISTS (SELECT FROM {} WHERE {} = {})")
    return SQL("SELECT ") + SQL(" OR ").join(
        one.format(table, Identifier(rows.status), Literal(status))
        for status in (*rows.waiting, *rows.running)
    )


class _Rows:
    """Rows as their subject describes them.

    A row may be written again after its job has ended, by who tidies up; that is no second end where nobody has taken
    it since.
    """

    def __init__(self, schema: str, table: str, rows: Rows) -> None:
        self._place, self._rows = (schema, table), rows
        self._ended: set[str] = set()

    def read(self, change: Change) -> tuple[Act, str, bytes | None] | None:
        """See `stress.bench.ledger.Reading`."""
        relation, rows = change.relation, self._rows
        if (relation.schema, relation.name) != self._place:
            return None
        job = _key(change)
        if change.kind == "delete":
            return ("ended", job, None) if rows.deleted else None
        assert change.new is not None
        cells = dict(zip(relation.columns, change.new, strict=True))
        status = (cells[rows.status] or b"").decode()
        if status in rows.ended:
            if job in self._ended:
                return None
            self._ended.add(job)
            return "ended", job, None
        self._ended.discard(job)
        if status in rows.running:
            return "taken", job, b"/".join(cells[column] or b"" for column in rows.claim)
        return ("put", job, None) if status in rows.waiting else None


def _read_message(schema: str, table: str, change: Change) -> tuple[Act, str, bytes | None] | None:
    """A message: read, and counted, then deleted."""
    if (change.relation.schema, change.relation.name) != (schema, table):
        return None
    match change.kind:
        case "insert":
            return "put", _key(change), None
        case "update":
            assert change.new is not None
            return "taken", _key(change), change.new[change.relation.columns.index("read_ct")]
        case "delete":
            return "ended", _key(change), None
    return None


def _key(change: Change) -> str:
    row = change.old if change.new is None else change.new
    assert row is not None
    return "/".join((row[column] or b"").decode() for column in change.relation.key)


PEERS: Final[dict[str, Callable[[], Contender]]] = {name: partial(peer, name) for name in SUBJECTS}
