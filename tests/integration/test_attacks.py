"""Attacks on the sound engine that succeed today. Each is strict: closing the hole turns the test, which then
moves to the scripts of `test_mutants.py` with the open form as a mutant.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from engine.picker import Hold, Picker
from engine.statements import Catalogue
from tests.fixtures.arena import DEADLINE_S, ROW_GATE, STATEMENT_GATE, Arena, Session, commit, of, verdicts
from tests.integration.test_mutants import OpenArena, job, quietly, two_claims_of_two_keys

FLUSH_LOCKS_FIRST = (
    (
        "\n\nUPDATE gen_durable",
        ",\n\nlocked AS MATERIALIZED (SELECT o.*, count(*) OVER () FROM owned AS o)\n\nUPDATE gen_durable",
    ),
    ("FROM owned AS o\nWHERE g.id", "FROM locked AS o\nWHERE g.id"),
)


# `= ANY` of an array can be neither hashed nor merged, so the rows come in the order of `chosen`. Joining by id, the
# update writes the version that the lock found, also where it is newer than the snapshot.
CLAIM_BY_NESTED_LOOP = (
    ("        r.tid,\n", "        r.id,\n"),
    ("WHERE g.ctid = c.tid", "WHERE g.id = ANY (ARRAY[c.id])"),
)


def patched(name: str, patches: Sequence[tuple[str, str]]) -> Picker:
    """The engine with a cure that this file proposes."""
    catalogue = Catalogue.load()
    text = catalogue[name].text
    for old, new in patches:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return Picker(catalogue.patched({name: text}))


def wait_for_gate(arena: Arena, session: Session, future: Future[Any], lock: int) -> None:
    """Wait until the session stands at that gate."""
    deadline = time.monotonic() + DEADLINE_S
    query = f"SELECT count(*) FROM pg_locks WHERE pid = {session.pid} AND objid = {lock} AND NOT granted"
    while arena.execute(query) != [(1,)]:
        assert not future.done(), "the session ended without coming to the gate"
        assert time.monotonic() < deadline, "the session did not come to the gate"


def flush_meets_claim(arena: Arena) -> None:
    """A claim with an old snapshot and a flush with a stale outcome each hold what the other wants.

    The claim's snapshot is older than everything below, so its guard does not see that key A is executing.
    The flush ends A's claim and then waits for a row that was reaped and that the claim has locked; the claim
    waits at the arbiter for the end of A's claim.
    """
    node, claimer, flusher = (arena.session(name) for name in ("node", "claimer", "flusher"))
    first = node.insert(job(queue="z")) or 0
    ended = node.insert(job(queue="x", concurrency_key="A")) or 0
    reaped = node.insert(job(queue="q")) or 0
    wanted = node.insert(job(queue="q", concurrency_key="A", priority=1)) or 0
    claimer.set("gate.statement", "UPDATE")
    claimer.set("gate.row", str(wanted))
    arena.close_gate(STATEMENT_GATE)
    arena.close_gate(ROW_GATE)
    claiming = arena.start(claimer.claim, "claimer.1", queue="q")
    wait_for_gate(arena, claimer, claiming, STATEMENT_GATE)
    node.claim("node.1", queue="z")
    node.claim("node.2", queue="x")
    node.claim("node.3", queue="q", batch=1, lease_ms=0)
    with arena.locked_row(first):
        outcomes = [commit(first, "node.1"), commit(ended, "node.2"), commit(reaped, "node.3")]
        flushing = arena.start(quietly(flusher.flush), *outcomes)
        assert arena.wait_until_blocked(flusher, flushing)
        node.reap()
        arena.open_gate(STATEMENT_GATE)
        wait_for_gate(arena, claimer, claiming, ROW_GATE)
    assert arena.wait_until_blocked(flusher, flushing)
    arena.open_gate(ROW_GATE)
    claiming.result()
    flushing.result()


def use_the_plan_of_a_busy_table(arena: Arena) -> None:
    """Many executing rows: the flush's plan locks a row, writes it, and goes on to the next."""
    arena.execute(
        "INSERT INTO gen_durable (fsm, step, queue, status, locked_by, lease_expires_at) SELECT 'f', 's', "
        "'filler', "
        "'executing', 'filler', now() + interval '1 hour' FROM generate_series(1, 5000)"
    )
    arena.execute("ANALYZE gen_durable")


@pytest.mark.xfail(strict=True, reason="flush writes a row before it has locked the next one")
def test_a_flush_and_a_claim_do_not_deadlock(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    use_the_plan_of_a_busy_table(arena)
    flush_meets_claim(arena)
    assert of(arena.judge(), "no-deadlock").verdict == "held"


def test_a_flush_that_locks_all_its_rows_first_does_not_deadlock_with_a_claim(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    arena.picker = patched("picker/flush", FLUSH_LOCKS_FIRST)
    use_the_plan_of_a_busy_table(arena)
    flush_meets_claim(arena)
    report = arena.judge()
    assert of(report, "no-deadlock").verdict == "held", verdicts(report)


def use_the_plan_of_a_small_table(arena: Arena) -> None:
    """A table of a few pages whose size the planner knows, as autovacuum leaves it: the planner takes a hash join."""
    arena.on_rows_ready = lambda: arena.execute("VACUUM ANALYZE gen_durable")


PLANS: dict[str, dict[str, str]] = {
    "its own": {},
    "no nested loop": {"enable_nestloop": "off"},
    "no look-up by tid": {"enable_tidscan": "off"},
}


@pytest.mark.xfail(strict=True, reason="a hash join loses the order in which a claim should meet the arbiter")
@pytest.mark.parametrize("plan", PLANS)
def test_two_claims_of_a_small_table_do_not_deadlock(plan: str, open_arena: OpenArena) -> None:
    arena = open_arena(None)
    arena.session_settings = PLANS[plan]
    use_the_plan_of_a_small_table(arena)
    two_claims_of_two_keys(arena)
    assert of(arena.judge(), "no-deadlock").verdict == "held"


@pytest.mark.parametrize("plan", PLANS)
def test_a_claim_whose_join_can_only_be_a_nested_loop_does_not_deadlock(
    plan: str, open_arena: OpenArena
) -> None:
    arena = open_arena(None)
    arena.picker = patched("picker/claim", CLAIM_BY_NESTED_LOOP)
    arena.session_settings = PLANS[plan]
    use_the_plan_of_a_small_table(arena)
    two_claims_of_two_keys(arena)
    report = arena.judge()
    assert of(report, "no-deadlock").verdict == "held", verdicts(report)
    assert of(report, "k1-exclusion").verdict == "held", verdicts(report)


@pytest.mark.xfail(
    strict=True, raises=psycopg.errors.ProgramLimitExceeded, reason="the arbiter cannot index the key"
)
def test_a_long_concurrency_key_does_not_wedge_its_queue(open_arena: OpenArena) -> None:
    one = open_arena(None).session("one")
    assert one.insert(job(concurrency_key=secrets.token_hex(5000))) is not None
    assert one.insert(job()) is not None
    assert one.claim("one.1").rows


@pytest.mark.xfail(
    strict=True, raises=psycopg.errors.SerializationFailure, reason="sessions take the server's default"
)
def test_a_stricter_default_isolation_level_makes_no_errors(open_arena: OpenArena) -> None:
    arena = open_arena(None)
    arena.session_settings = {"default_transaction_isolation": "repeatable read"}
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1")
    one.set("gate.statement", "UPDATE")
    with arena.closed_gate(STATEMENT_GATE):
        flushing = arena.start(one.flush, commit(row, "one.1"))
        wait_for_gate(arena, one, flushing, STATEMENT_GATE)
        assert two.heartbeat(Hold(row, "one.1"))
    flushing.result()
