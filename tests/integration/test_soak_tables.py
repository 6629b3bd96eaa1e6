"""The tables of a soak from outside, and nodes that boot together, on a real server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from engine.operation import perform
from engine.picker import Job, Picker
from engine.schema import migrate, schema_version
from stress.swarm.herd import boot_with_the_herd, held, migrate_at_once
from stress.tables import empty, sizes

DEADLINE_S = 30.0
JOBS = 2_000


@pytest.fixture
def connection(database: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(database, autocommit=True)


def test_emptied_tables_have_no_row_and_keep_their_files(
    connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    migrate(connection)
    migrate(connection, "store")
    parent = perform(connection, Picker().insert(Job(fsm="f", step="s")))
    perform(connection, Picker().insert_many([Job(fsm="f", step="s") for _ in range(JOBS)]))
    perform(connection, Picker().signal(parent or 0, "go", {}))
    connection.execute("UPDATE gen_durable SET parent_id = %s WHERE id <> %s", (parent, parent))
    before = sizes(connection)["public.gen_durable"]
    assert before.heap > 0
    assert before.indexes > 0
    assert empty(connection) > JOBS
    assert sizes(connection)["public.gen_durable"].heap >= before.heap
    assert empty(connection) == 0
    # The schema is still there, and known to be.
    assert migrate(connection) == schema_version(connection) > 0
    assert "public.executions" in sizes(connection)


def test_sessions_that_make_one_schema_at_once_all_find_it_made(
    database: str, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    migrate_at_once(database, ("picker", "store"), 6)
    assert schema_version(connection) > 0
    assert schema_version(connection, "store") > 0


def test_nodes_of_a_herd_are_let_go_together_and_later_ones_at_once(
    database: str, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    with ThreadPoolExecutor(3) as threads:
        with held(connection) as waiting:
            booting = [threads.submit(boot_with_the_herd, database, ("picker",)) for _ in range(3)]
            deadline = time.monotonic() + DEADLINE_S
            while waiting() < 3:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert not any(each.done() for each in booting)
        for each in booting:
            each.result(DEADLINE_S)
    boot_with_the_herd(database, ("picker",))
