"""Attacks that once succeeded, each with the hole closed: long keys, other plans, other isolation levels."""

from __future__ import annotations

import secrets

import psycopg
import pytest

from engine.picker import Hold, Job
from engine.sessions import connect
from engine.values import UnstorableValue
from stress.scripts.arena import STATEMENT_GATE, commit, of, verdicts
from stress.scripts.picker import two_claims_of_two_keys
from stress.scripts.steps import job
from tests.fixtures.node import Jobs
from tests.fixtures.scripts import OpenArena


@pytest.mark.parametrize("setting", ["enable_nestloop", "enable_tidscan", "enable_hashjoin"])
def test_two_claims_do_not_deadlock_under_another_plan(setting: str, open_arena: OpenArena) -> None:
    arena = open_arena(None)
    arena.session_settings = {setting: "off"}
    two_claims_of_two_keys(arena)
    report = arena.judge()
    assert of(report, "no-deadlock").verdict == "held", verdicts(report)


def test_two_claims_do_not_deadlock_under_the_plan_of_a_small_table(open_arena: OpenArena) -> None:
    # A table of a few pages, as autovacuum leaves it: the planner's own choice is a hash join, which keeps no order.
    arena = open_arena(None)
    arena.on_rows_ready = lambda: arena.execute("VACUUM ANALYZE gen_durable")
    two_claims_of_two_keys(arena)
    report = arena.judge()
    assert of(report, "no-deadlock").verdict == "held", verdicts(report)


@pytest.mark.parametrize("column", ["queue", "concurrency_key", "correlation_key"])
def test_a_key_that_no_index_could_hold_is_refused_where_it_is_made(column: str, jobs: Jobs) -> None:
    long = secrets.token_hex(1001)
    with pytest.raises(UnstorableValue, match="2002 bytes"):
        Job(fsm="order", step="charge", **{column: long})  # type: ignore[arg-type]
    with pytest.raises(psycopg.errors.CheckViolation):
        jobs.rows(
            f"INSERT INTO gen_durable (fsm, step, {column}) VALUES ('order', 'charge', %s) RETURNING id", long
        )


def test_the_longest_key_that_is_taken_can_be_claimed(jobs: Jobs) -> None:
    longest = {name: secrets.token_hex(1000) for name in ("queue", "concurrency_key", "correlation_key")}
    jobs.do(jobs.picker.insert(Job(fsm="order", step="charge", **longest)))  # type: ignore[arg-type]
    claim = jobs.do(jobs.picker.claim(queue=longest["queue"], batch=1, claim="c", lease_ms=1000))
    assert [row.concurrency_key for row in claim.rows] == [longest["concurrency_key"]]


def test_a_session_reads_committed_whatever_the_default_of_the_database(jobs: Jobs) -> None:
    name = jobs.one("SELECT current_database()")
    jobs.connection.execute(
        f"ALTER DATABASE {name} SET default_transaction_isolation TO 'repeatable read'".encode()
    )
    with psycopg.connect(jobs.dsn) as theirs, connect(jobs.dsn, "test") as ours:
        levels = [c.execute("SHOW transaction_isolation").fetchone() for c in (theirs, ours)]
    assert levels == [("repeatable read",), ("read committed",)]


def test_a_flush_whose_row_a_heartbeat_changes_after_the_snapshot_commits(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1")
    one.set("gate.statement", "UPDATE")
    arena.close_gate(STATEMENT_GATE)
    flushing = arena.start(one.flush, commit(row, "one.1"))
    arena.wait_for_gate(one, flushing, STATEMENT_GATE)
    assert two.heartbeat(Hold(row, "one.1"))
    arena.open_gate(STATEMENT_GATE)
    assert flushing.result().holds == (Hold(row, "one.1"),)
    assert {j.verdict for j in arena.judge().judgements} <= {"held", "unknown", "not_exercised"}
