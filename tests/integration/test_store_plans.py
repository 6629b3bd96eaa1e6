"""What the store and the relay do costs the same among a hundred thousand rows of each table, also where a session made
its plans when the tables were empty and vacuumed, and keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from engine import sessions
from engine.operation import perform
from engine.relay.handover import Handover
from engine.store import Commit, Emit, Event, Execution, Spawn, TimerOp
from engine.store.operations import Operations
from stress.scripts.courier import Courier

ROWS = 100_000
# Rows of one table that one operation may touch: a few for each that it handles, ten at most.
TOUCHED = 300
TABLES = (
    "executions", "outbox", "processed_events", "timers", "spawns", "trace", "transport_messages", "transport_groups",
)  # fmt: skip
_FILL = f"""
INSERT INTO executions (id, definition_id, data, version, status)
    SELECT 'x' || n, 'd', json_build_object('id', 'x' || n, 'definition_id', 'd'), 1, 'RUNNING'
    FROM generate_series(1, {ROWS}) AS n;
INSERT INTO outbox (target_id, event)
    SELECT 'x' || n, json_build_object('id', n::text, 'kind', 'k') FROM generate_series(1, {ROWS}) AS n;
INSERT INTO processed_events SELECT 'x' || n, 'e' FROM generate_series(1, {ROWS}) AS n;
-- Half of them are due at the same instant.
INSERT INTO timers SELECT 'x' || n, 'p', CASE n % 2 WHEN 0 THEN 2 ELSE 1e10 END FROM generate_series(1, {ROWS}) AS n;
INSERT INTO spawns (parent_id, child_id, root_path, context)
    SELECT 'x' || n, 'c' || n, 'r', '{{}}' FROM generate_series(1, {ROWS}) AS n;
INSERT INTO trace SELECT 'x' || n % 1000, n / 1000, '{{}}' FROM generate_series(0, {ROWS} - 1) AS n;
"""


def works(name: str) -> Iterator[tuple[str, Callable[[psycopg.Connection[Any]], object]]]:
    """Every operation, with an execution of that name."""
    store, relay = Operations(), Handover()
    subject = Execution(id=name, definition_id="d")
    effects = Commit(
        execution=subject,
        emits=[Emit(name, Event(id=name, kind="k"))],
        processed_event_id="m1",
        timers=[TimerOp("schedule", "p", 1.0)],
        spawns=[Spawn(f"child-{name}", "r", {})],
        trace={},
    )
    cancels = Commit(execution=subject, timers=[TimerOp("cancel", "p")], trace={})
    batch = [Commit(execution=Execution(id=f"{name}.{n}", definition_id="d"), trace={}) for n in range(5)]
    for operation in (
        lambda: store.commit(effects),
        lambda: store.commit(cancels),
        lambda: store.commit(Commit(execution=subject, processed_event_id="m2")),
        lambda: store.commit_many(batch),
        lambda: store.load(name),
        lambda: store.load_for_event(name, "m1"),
        lambda: store.is_processed(name, "m1"),
        lambda: store.pending_outbox(10),
        lambda: store.ack_outbox(1),
        lambda: store.pending_spawns(10),
        lambda: store.ack_spawn(1),
        lambda: store.append_trace(name, {}),
        lambda: store.read_trace(name),
        lambda: store.list_executions(limit=10),
        lambda: store.list_executions(limit=10, status=["RUNNING", "DONE"]),
        lambda: store.due_timers(5.0, 10),
        lambda: store.delete_timer(name, "p", 7.0),
        lambda: relay.sweep(10, 5.0),
        lambda: relay.spawn(0, 10),
        lambda: relay.move(4, 10, 0),
        lambda: relay.ack([1, 2]),
        lambda: relay.broadcasts(10),
    ):
        code: Any = operation
        yield code.__code__.co_names[0], lambda connection, made=operation: perform(connection, made())  # type: ignore[misc]


def touched(courier: Courier, session: psycopg.Connection[Any]) -> dict[str, int]:
    """Rows read so far, by table."""
    session.execute("SELECT pg_stat_force_next_flush()")
    session.execute("SELECT 1")
    courier.rows("SELECT pg_stat_clear_snapshot()")
    query = "SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"
    return dict(courier.rows(query))


@pytest.mark.slow(15)
@pytest.mark.parametrize("state", ["planned when empty", "never analyzed", "analyzed"])
def test_no_operation_reads_more_than_a_few_rows_of_any_table(courier: Courier, state: str) -> None:
    session = sessions.connect(courier.dsn, "planner")
    for table in TABLES:
        courier.rows(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    if state == "planned when empty":
        for turn in range(12):
            if turn == 6:
                for table in TABLES:
                    courier.rows(f"DELETE FROM {table}")
                courier.rows("VACUUM ANALYZE")
            for _, work in works(f"warm{turn}"):
                work(session)
        for table in TABLES:
            courier.rows(f"DELETE FROM {table}")
    with psycopg.connect(courier.dsn, autocommit=True) as filler:
        filler.execute(_FILL.encode())
    if state == "analyzed":
        courier.rows("ANALYZE")
    for turn in range(2):
        for name, work in works(f"new{turn}"):
            before = touched(courier, session)
            work(session)
            after = touched(courier, session)
            assert max(after[table] - before[table] for table in TABLES) <= TOUCHED, (name, turn)
    session.close()
