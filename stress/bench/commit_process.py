"""One writer of the commits workload: compare-and-set of executions of its own, one kilobyte each, until it is ended.

`store`: one commit after the other. `batch`: many executions in one transaction, the store's group commit. `raw`: what
`store` sends, by psycopg alone, its data made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Literal

import msgspec
import psycopg

from engine.statements import Catalogue
from engine.store import PostgresStore
from engine.store.execution import Commit, Execution
from stress.swarm.child import receive_config

BATCH = 100
# With the other fields of an execution, a kilobyte of text.
CONTEXT = {f"field{n:02}": "some text of an order" for n in range(22)}


class WriterSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes, and how."""

    dsn: str
    name: str
    kind: Literal["store", "batch", "raw"]


def executions(setup: WriterSetup) -> list[Execution]:
    """Those of this writer."""
    ids = [f"{setup.name}/{n}" for n in range(BATCH if setup.kind == "batch" else 1)]
    return [
        Execution(id=each, definition_id="bench", status="RUNNING", context=dict(CONTEXT)) for each in ids
    ]


def write(setup: WriterSetup) -> None:
    """For as long as nobody ends it."""
    if setup.kind == "raw":
        for _ in _raw(setup):
            pass
    store = PostgresStore.from_dsn(setup.dsn, name=setup.name)
    mine = executions(setup)
    while setup.kind == "store":
        store.commit(mine[0])
    while True:
        answers = store.commit_many([Commit(execution=each) for each in mine])
        assert not any(answers), answers


def _raw(setup: WriterSetup) -> Iterator[None]:
    statement = Catalogue.load()["store/commit_cas"]
    # About as many bytes as the store makes of it, but made once.
    [mine] = executions(setup)
    data = msgspec.json.encode(mine).decode()
    with psycopg.connect(
        setup.dsn, autocommit=True, prepare_threshold=0, application_name=setup.name
    ) as connection:
        cursor = psycopg.RawCursor(connection)
        for version in count():
            arguments = (mine.id, "bench", data, version, None, "RUNNING", None, None, None)
            row = cursor.execute(statement.query, statement.encode(arguments)).fetchone()
            assert row == (True,), row
            yield


if __name__ == "__main__":
    write(receive_config(WriterSetup))
