"""Each sweep takes exactly what its sentence says, in one statement, by its own index."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from engine.maintenance import Collected, Maintenance, Place
from engine.operation import Operation, Row, T, call
from engine.picker import Commit, Ended, Hold, Job
from engine.statements import Catalogue
from engine.values import UnstorableValue
from invariants.mutants import REGISTRY
from invariants.mutants.protocol import maintenance_of
from stress.scripts.race import Race

LEASE_MS, HEARTBEAT_MS = 30_000.0, 10_000.0
MARGIN_MS = LEASE_MS - 2 * HEARTBEAT_MS
SWEEPS = Maintenance()
DAY_MS = 86_400_000.0


def insert(race: Race, **fields: Any) -> int:
    row_id = race.do(race.picker.insert(Job(fsm="m", step="s", **fields)))
    assert row_id is not None
    return row_id


def executing(race: Race, claim: str, *, lease_left_ms: float = 0.0) -> int:
    """A row under that claim, whose lease ends that far from now."""
    row_id = insert(race)
    race.do(race.picker.claim(queue="default", batch=1, claim=claim, lease_ms=lease_left_ms))
    return row_id


def terminal(race: Race, *, days_ago: float, parent: int | None = None, status: str = "done") -> int:
    row_id = insert(race)
    race.rows(
        "UPDATE gen_durable SET status = %s::durable_status, parent_id = %s,"
        " updated_at = now() - %s::float8 * interval '1 day' WHERE id = %s",
        status,
        parent,
        days_ago,
        row_id,
    )
    return row_id


def reclaim(
    prefixes: list[str] | None = None, *, boot: str = "now", limit: int = 100, margin_ms: float = MARGIN_MS
) -> Operation[Ended]:
    return SWEEPS.reclaim(
        prefixes=["i:default@a-"] if prefixes is None else prefixes,
        session=f"i@a-{boot}",
        sessions="i@a-",
        margin_ms=margin_ms,
        limit=limit,
    )


def collect(
    *, retention_ms: float = DAY_MS, limit: int = 100, after: Place | None = None
) -> Operation[Collected]:
    return SWEEPS.collect(retention_ms=retention_ms, limit=limit, after=after)


def count_calls(race: Race, operation: Operation[T]) -> int:
    """How many statements an operation sends."""
    calls = 0

    def counted() -> Operation[T]:
        nonlocal calls
        pending = next(operation)
        while True:
            calls += 1
            rows = yield pending
            try:
                pending = operation.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result

    race.do(counted())
    return calls


# -------------------------------------------------------------------------------------------- startup reclaim


def test_reclaim_takes_what_an_earlier_process_of_this_node_left(race: Race) -> None:
    row_id = executing(race, "i:default@a-0123456789ab.7")

    ended = race.do(reclaim())

    assert ended.holds == (Hold(row_id, "i:default@a-0123456789ab.7"),)
    assert ended.xid is not None
    assert race.row(row_id, "status::text, attempt, locked_by, lease_expires_at") == (
        "runnable",
        1,
        None,
        None,
    )
    assert race.do(reclaim()) == Ended((), None)


def test_reclaim_leaves_a_lease_that_was_renewed_within_two_heartbeats(race: Race) -> None:
    renewed = executing(race, "i:default@a-0123456789ab.1", lease_left_ms=MARGIN_MS + 5_000)
    stale = executing(race, "i:default@a-0123456789ab.2", lease_left_ms=MARGIN_MS - 1)

    assert [hold.id for hold in race.do(reclaim()).holds] == [stale]
    assert race.row(renewed, "status::text") == ("executing",)


@pytest.mark.parametrize(
    "claim",
    [
        "i:default@a-1-0123456789ab.1",  # node a-1
        "i:default@ab-0123456789ab.1",  # node ab
        "i:default@A-0123456789ab.1",
        "j:default@a-0123456789ab.1",  # another instance
        "i:default2@a-0123456789ab.1",  # another queue
        "i:default@a-@b-0123456789ab.1",  # queue `default@a-` of node b
        "i:default@a-0123456789ab.1-0123456789ab.1",  # node `a-0123456789ab.1`
        "a-0123456789ab.1",
    ],
)
def test_reclaim_leaves_the_claims_of_nodes_whose_names_clash(race: Race, claim: str) -> None:
    executing(race, claim)

    assert race.do(reclaim()).holds == ()


@pytest.mark.parametrize("name", ["%", "_", "\\", "a%", ".*", "é", "a-1"])
def test_reclaim_reads_a_node_name_as_it_is_written(race: Race, name: str) -> None:
    mine = executing(race, f"i:default@{name}-0123456789ab.1")
    executing(race, "i:default@xx-0123456789ab.1")
    operation = SWEEPS.reclaim(
        prefixes=[f"i:default@{name}-"],
        session=f"i@{name}-b",
        sessions=f"i@{name}-",
        margin_ms=0.0,
        limit=9,
    )

    assert [hold.id for hold in race.do(operation).holds] == [mine]


def test_reclaim_takes_nothing_while_another_process_of_the_name_has_a_session(race: Race) -> None:
    row_id = executing(race, "i:default@a-0123456789ab.1")
    namesake = race.session("namesake", {"application_name": "i@a-other"})

    assert race.do(reclaim()).holds == ()
    # Those of other nodes and of this process are no namesakes.
    namesake.execute("SET application_name = 'i@a-1-other'")
    race.session("own", {"application_name": "i@a-now"})
    race.session("listener", {"application_name": "i@a-now/pokes"})
    assert [hold.id for hold in race.do(reclaim()).holds] == [row_id]


def test_a_tick_that_met_a_locked_row_does_not_cost_a_living_node_its_claim(race: Race) -> None:
    # The documented margin alone takes this row: two heartbeats have passed since the claim, one was skipped because a
    # session held the row, the other is some milliseconds late.
    row_id = executing(race, "i:default@a-living.1", lease_left_ms=LEASE_MS)
    with race.locked(row_id):
        assert race.do(race.picker.heartbeat([Hold(row_id, "i:default@a-living.1")], LEASE_MS)) == ()
    race.session("living", {"application_name": "i@a-living"})
    race.rows("UPDATE gen_durable SET lease_expires_at = now() + interval '9.99 seconds'")

    assert race.do(reclaim()).holds == ()


def test_a_shorter_lease_of_a_living_namesake_is_not_taken_for_a_stale_one(race: Race) -> None:
    # It renews every second for three; a successor with leases of thirty is started beside it.
    row_id = executing(race, "i:default@a-living.1", lease_left_ms=3_000)
    living = race.session("living", {"application_name": "i@a-living"})

    assert race.do(reclaim()).holds == ()
    living.execute("SET application_name = 'gone'")
    assert [hold.id for hold in race.do(reclaim()).holds] == [row_id]


def test_reclaim_takes_the_oldest_up_to_its_limit_and_passes_over_locked_rows(race: Race) -> None:
    newer, older, locked = (
        executing(race, f"i:default@a-b.{n}", lease_left_ms=left)
        for n, left in enumerate([-1.0, -60_000.0, -90_000.0])
    )

    with race.locked(locked):
        assert [hold.id for hold in race.do(reclaim(limit=1)).holds] == [older]
        assert [hold.id for hold in race.do(reclaim()).holds] == [newer]


def test_reclaim_sees_a_heartbeat_that_committed_after_its_snapshot(race: Race) -> None:
    row_id = executing(race, "i:default@a-b.1")
    race.install_gates()
    gate = race.gate_at_start("reclaimer")

    pending = race.begin("reclaimer", reclaim())
    race.do(race.picker.heartbeat([Hold(row_id, "i:default@a-b.1")], LEASE_MS))
    race.open_gate(gate)

    assert pending.result(20) == Ended((), None)


def test_a_prefix_without_its_delimiter_is_refused(race: Race) -> None:
    with pytest.raises(UnstorableValue, match="hyphen"):
        race.do(reclaim(["i:default@a"]))


# ---------------------------------------------------------------------------------------------------------- GC


def test_gc_deletes_what_has_been_terminal_past_retention_with_its_inbox(race: Race) -> None:
    old, failed = terminal(race, days_ago=2), terminal(race, days_ago=3, status="failed")
    young, live = terminal(race, days_ago=0.5), insert(race)
    race.rows("UPDATE gen_durable SET updated_at = '2020-01-01' WHERE id = %s", live)
    race.rows("INSERT INTO signals (target_id, name) VALUES (%s, 'late')", old)

    collected = race.do(collect())

    assert collected.ids == (old, failed)
    assert collected.xid is not None
    assert race.rows("SELECT id FROM gen_durable ORDER BY id") == [(young,), (live,)]
    assert race.rows("SELECT 1 FROM signals") == []


@pytest.mark.parametrize("parent_status", ["runnable", "executing", "awaiting_signal", "awaiting_children"])
def test_gc_never_takes_a_child_that_its_live_parent_may_still_read(race: Race, parent_status: str) -> None:
    parent = insert(race)
    owner = ("'c'", "now()") if parent_status == "executing" else ("NULL", "NULL")
    race.rows(
        f"UPDATE gen_durable SET status = '{parent_status}', locked_by = {owner[0]}, lease_expires_at = {owner[1]}"
    )
    children = [terminal(race, days_ago=2, parent=parent) for _ in range(2)]

    assert race.do(collect()).ids == ()
    race.rows(
        "UPDATE gen_durable SET status = 'done', locked_by = NULL, lease_expires_at = NULL WHERE id = %s",
        parent,
    )
    assert race.do(collect()).ids == tuple(children)


def test_gc_takes_a_tree_from_its_leaves(race: Race) -> None:
    root = terminal(race, days_ago=2)
    child = terminal(race, days_ago=3, parent=root)
    grandchild = terminal(race, days_ago=4, parent=child)

    assert [race.do(collect()).ids for _ in range(4)] == [(grandchild,), (child,), (root,), ()]


def test_gc_asks_for_no_row_with_children_and_would_not_get_it(race: Race) -> None:
    # A child that ended after its parent; the foreign key would have to change it, and to wait for its lock.
    root = terminal(race, days_ago=2)
    terminal(race, days_ago=0.5, parent=root)

    assert count_calls(race, collect()) == 1

    def delete() -> Operation[list[Row]]:
        rows: list[Row] = yield call(Catalogue.load()["maintenance/gc_delete"], [root])
        return rows

    assert race.do(delete()) == []


def test_gc_goes_on_behind_the_place_of_its_last_page(race: Race) -> None:
    parent = insert(race)
    spared = [terminal(race, days_ago=9, parent=parent) for _ in range(3)]
    race.rows("UPDATE gen_durable SET updated_at = '2020-01-01' WHERE id = ANY (%s)", spared)  # one instant
    free = terminal(race, days_ago=2)

    first = race.do(collect(limit=2))
    second = race.do(collect(limit=2, after=first.place))
    third = race.do(collect(limit=2, after=second.place))

    assert [(page.ids, page.looked_at) for page in (first, second, third)] == [((), 2), ((free,), 2), ((), 0)]


def test_gc_passes_over_a_row_that_somebody_shares(race: Race) -> None:
    # As the foreign key check of a signal does.
    shared, free = terminal(race, days_ago=2), terminal(race, days_ago=2)
    sharer = race.session("sharer")
    with sharer.transaction():
        sharer.execute("SELECT FROM gen_durable WHERE id = %s FOR KEY SHARE", (shared,))
        assert race.do(collect()).ids == (free,)


# Waits with the lock on the row that the session names, before that is deleted.
DELETE_GATE = """
CREATE FUNCTION gate_before_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('gate.at_row', true) = OLD.id::text THEN
        PERFORM pg_advisory_xact_lock_shared(-OLD.id);
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER gate_before_delete BEFORE DELETE ON gen_durable
FOR EACH ROW EXECUTE FUNCTION gate_before_delete();
"""
IN_ID_ORDER = {"enable_bitmapscan": "off", "enable_seqscan": "off"}
IN_TABLE_ORDER = {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_seqscan": "off"}


@pytest.mark.parametrize("documented", [False, True], ids=["ours", "documented"])
def test_two_collectors_with_one_page_and_two_plans_end_without_a_deadlock(
    race: Race, documented: bool
) -> None:
    sweeps = maintenance_of(REGISTRY["collectors-wait"] if documented else None)
    first, second = terminal(race, days_ago=3), terminal(race, days_ago=2)
    # An index entry of its own puts the first row behind the second in the table.
    race.rows("UPDATE gen_durable SET updated_at = updated_at - interval '1 day' WHERE id = %s", first)
    race.rows(DELETE_GATE)
    race.session("ids", IN_ID_ORDER)
    race.session("table", IN_TABLE_ORDER)
    gate = race.gate_at_row("ids", first)

    by_id = race.begin("ids", sweeps.collect(retention_ms=DAY_MS, limit=9))
    if documented:
        by_table = race.begin("table", sweeps.collect(retention_ms=DAY_MS, limit=9))
        race.open_gate(gate)
        errors = [error for pending in (by_id, by_table) if (error := pending.exception(20))]
        assert [type(error) for error in errors] == [psycopg.errors.DeadlockDetected]
    else:
        assert race.do(sweeps.collect(retention_ms=DAY_MS, limit=9), "table").ids == (second,)
        race.open_gate(gate)
        assert by_id.result(20).ids == (first,)


def test_while_gc_holds_its_rows_nobody_waits_for_it(race: Race) -> None:
    ended = terminal(race, days_ago=2)
    live = [insert(race, correlation_key=f"k{n}") for n in range(3)]
    race.do(race.picker.signal(live[0], "s", dedup_key="d"))
    race.rows(DELETE_GATE)
    gate = race.gate_at_row("collector", ended)
    collecting = race.begin("collector", collect())

    # Each of these would run into the session's statement_timeout.
    assert race.do(race.picker.signal(ended, "s")).outcome == "no_target"
    assert race.do(race.picker.signal("k0", "s", dedup_key="e")).outcome == "delivered"
    race.do(race.picker.claim(queue="default", batch=9, claim="c", lease_ms=LEASE_MS))
    commits = [Commit(id=row_id, claim="c", kind="done") for row_id in live]
    assert len(race.do(race.picker.flush(commits)).holds) == 3
    assert race.do(collect(retention_ms=0)).ids == tuple(live)
    race.open_gate(gate)

    assert collecting.result(20).ids == (ended,)
    assert race.rows("SELECT 1 FROM signals") == race.rows("SELECT 1 FROM signal_receipts") == []


def test_gc_waits_for_no_flush_that_joins_a_parent(race: Race) -> None:
    # The flush holds the parent and the child that it ends; the child that ended before is spared, not waited for.
    parent = insert(race, queue="elsewhere")
    earlier = terminal(race, days_ago=2, parent=parent)
    child = insert(race)
    race.rows("UPDATE gen_durable SET parent_id = %s WHERE id = %s", parent, child)
    race.rows(
        "UPDATE gen_durable SET status = 'awaiting_children', children_pending = 1 WHERE id = %s", parent
    )
    race.do(race.picker.claim(queue="default", batch=1, claim="c", lease_ms=LEASE_MS))
    race.install_gates()
    gate = race.gate_at_row("flusher", parent)

    flushing = race.begin("flusher", race.picker.flush([Commit(id=child, claim="c", kind="done")]))
    assert race.do(collect(retention_ms=0)).ids == ()
    race.open_gate(gate)

    assert flushing.result(20).woken == ("elsewhere",)
    assert race.do(collect(retention_ms=0)).ids == ()
    assert race.rows("SELECT id FROM gen_durable ORDER BY id") == [(parent,), (earlier,), (child,)]


def test_gc_sends_two_statements_or_one_when_nothing_may_go(race: Race) -> None:
    assert count_calls(race, collect()) == 1
    for _ in range(50):
        terminal(race, days_ago=2)
    assert count_calls(race, collect()) == 2


# ------------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize("limit", [-1, 10**9, True, 1.0, "1"])
def test_a_limit_that_is_none_is_refused(race: Race, limit: Any) -> None:
    for operation in (reclaim(limit=limit), collect(limit=limit)):
        with pytest.raises(UnstorableValue, match="limit"):
            race.do(operation)


# ------------------------------------------------------------------------------------------------------- plans

FULL_TABLE = """
INSERT INTO gen_durable (fsm, step, status, parent_id, updated_at, await_deadline, locked_by, lease_expires_at)
SELECT 'm', 's', s.status, CASE WHEN n > 100 AND mod(n, 3) = 0 THEN mod(n, 100) + 1 END,
    now() - n * interval '1 minute',
    CASE WHEN s.status = 'awaiting_signal' THEN now() + (n - 10000) * interval '1 second' END,
    CASE WHEN s.status = 'executing' THEN 'i:default@a-b.' || n END,
    CASE WHEN s.status = 'executing' THEN now() + n * interval '1 second' END
FROM generate_series(1, 20000) AS n,
    LATERAL (SELECT (enum_range(NULL::durable_status))[mod(n, 6) + 1] AS status) AS s
"""

SWEPT: dict[str, tuple[list[object], str]] = {
    "maintenance/reclaim": ([["i:default@a-"], 1e9, 100, "i@a-b", "i@a-"], "gen_durable_lease"),
    "maintenance/gc_select": ([60_000.0, 100, "-infinity", 0], "gen_durable_gc"),
    "maintenance/gc_delete": ([list(range(1, 101))], "gen_durable_pkey"),
}


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes_of(child))]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", SWEPT)
def test_a_sweep_reads_no_table_from_end_to_end(race: Race, name: str, mode: str) -> None:
    race.rows(FULL_TABLE)
    race.rows("ANALYZE gen_durable")
    arguments, index = SWEPT[name]
    statement = Catalogue.load()[name]
    session = race.session("one", {"plan_cache_mode": mode})
    types = ", ".join(statement.types)
    session.execute(f"PREPARE sweep ({types}) AS {statement.text}".encode())
    values = ", ".join(
        "NULL" if text is None else "'" + text.replace("'", "''") + "'"
        for text in statement.encode(tuple(arguments))
    )
    found = session.execute(
        f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE sweep ({values})".encode()
    ).fetchone()
    assert found is not None
    plan = found[0] if isinstance(found[0], list) else json.loads(found[0])

    nodes = nodes_of(plan[0]["Plan"])

    scans = [node for node in nodes if node.get("Relation Name") == "gen_durable"]
    assert "Seq Scan" not in {node["Node Type"] for node in scans}
    assert index in {node.get("Index Name") for node in nodes}
    # At most a page of rows comes from any one scan, and a sort of groups may read some ahead.
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 200
