"""Scripts for the picker's mutants."""

from __future__ import annotations

from collections.abc import Callable

from engine.picker import Commit, Hold, Job
from stress.scripts.arena import ROW_GATE, STATEMENT_GATE, Arena, Session, commit, quietly
from stress.scripts.steps import job


def stale_outcome(arena: Arena) -> None:
    """A claim is reaped, the row claimed again, and the first owner's outcome arrives."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job())
    assert row is not None
    one.claim("one.1", lease_ms=0)
    two.reap()
    two.claim("two.1")
    one.flush(commit(row, "one.1"))


def stale_outcome_of_the_same_worker(arena: Arena) -> None:
    """The same, but the row is claimed again by the worker that lost it; with the mutant both claims carry
    its name."""
    one, two = arena.session("one"), arena.session("two")
    names = ("w", "w") if "claims-named-by-worker" in arena.protocol else ("w.1", "w.2")
    row = one.insert(job())
    assert row is not None
    one.claim(names[0], lease_ms=0)
    two.reap()
    one.claim(names[1])
    one.flush(commit(row, names[0]))


def two_claims_of_one_key(arena: Arena) -> None:
    """A claim's snapshot is taken; before it looks at a row, another claim takes the key's other row and commits."""
    one, two = arena.session("one"), arena.session("two")
    one.insert(job(queue="a", concurrency_key="k"))
    two.insert(job(queue="b", concurrency_key="k"))
    one.set("gate.statement", "UPDATE")
    with arena.closed_gate(STATEMENT_GATE):
        claiming = arena.start(one.claim, "one.1", queue="a")
        arena.wait_for_gate(one, claiming, STATEMENT_GATE)
        assert len(two.claim("two.1", queue="b").rows) == 1
    claiming.result()


def two_claims_of_two_keys(arena: Arena) -> None:
    """Two queues whose pick orders meet two keys in opposite orders; the first claim is held between its
    two rows."""
    one, two = arena.session("one"), arena.session("two")
    one.insert(job(queue="a", concurrency_key="k1"))
    second = one.insert(job(queue="a", concurrency_key="k2", priority=1))
    two.insert(job(queue="b", concurrency_key="k2"))
    two.insert(job(queue="b", concurrency_key="k1", priority=1))
    arena.on_rows_ready()
    one.set("gate.row", str(second))
    with arena.closed_gate():
        first = arena.start(one.claim, "one.1", queue="a")
        assert arena.wait_until_blocked(one, first)
        other = arena.start(two.claim, "two.1", queue="b")
        arena.wait_until_blocked(two, other)
    first.result()
    other.result()


def identity_inserted_twice(arena: Arena) -> None:
    """One identity is inserted twice."""
    one = arena.session("one")
    for _ in range(2):
        one.insert(job(correlation_key="k"))


def two_batches_of_two_identities(arena: Arena) -> None:
    """Two batches with the same new identities in opposite orders; the first is held between its two rows."""
    one, two = arena.session("one"), arena.session("two")
    jobs = [job(correlation_key="k1"), job(correlation_key="k2")]
    one.set("gate.key", "k2")
    with arena.closed_gate():
        first = arena.start(quietly(one.insert_many), jobs)
        assert arena.wait_until_blocked(one, first)
        other = arena.start(quietly(two.insert_many), jobs[::-1])
        assert arena.wait_until_blocked(two, other)
    first.result()
    other.result()


def identity_taken_while_given_up(arena: Arena) -> None:
    """A row's scope ends with its claim, another row takes the identity, and the claim is reaped."""
    one, two = arena.session("one"), arena.session("two")
    one.insert(job(correlation_key="k", correlation_scope=("runnable",)))
    one.claim("one.1", lease_ms=0)
    assert two.insert(job(correlation_key="k", correlation_scope=("runnable",))) is not None
    quietly(two.reap)()


def heartbeat_meets_reaper(arena: Arena) -> None:
    """A heartbeat and a reaper want the same three rows, from both ends; both arrive while the middle one is
    locked.

    The rows lie in the table in the order of their claims and in the lease index in the opposite one; the
    planner is made to scan the table for one and the index for the other.
    """
    one, two = arena.session("one"), arena.session("two")
    rows = [one.insert(job()) or 0 for _ in range(3)]
    for place, _ in enumerate(rows):
        one.claim(f"one.{place}", batch=1, lease_ms=-1000 * place)
    for name in ("enable_hashjoin", "enable_mergejoin", "enable_indexscan", "enable_bitmapscan"):
        one.set(name, "off")
    for name in ("enable_seqscan", "enable_bitmapscan"):
        two.set(name, "off")
    with arena.locked_row(rows[1]):
        holds = [Hold(row, f"one.{place}") for place, row in enumerate(rows)]
        beating = arena.start(quietly(one.heartbeat), *holds)
        arena.wait_until_blocked(one, beating)
        reaping = arena.start(quietly(two.reap))
        arena.wait_until_blocked(two, reaping)
    beating.result()
    reaping.result()


def flush_meets_claim(arena: Arena) -> None:
    """A claim with an old snapshot and a flush with a stale outcome each hold what the other wants.

    The claim's snapshot is older than everything below, so its guard does not see that key A is executing.
    The flush ends A's claim and then waits for a row that was reaped and that the claim has locked; the claim
    waits at the arbiter for the end of A's claim.
    """
    node, claimer, flusher = (arena.session(name) for name in ("node", "claimer", "flusher"))
    use_the_plan_of_a_busy_table(arena)
    first = node.insert(job(queue="z")) or 0
    ended = node.insert(job(queue="x", concurrency_key="A")) or 0
    reaped = node.insert(job(queue="q")) or 0
    wanted = node.insert(job(queue="q", concurrency_key="A", priority=1)) or 0
    claimer.set("gate.statement", "UPDATE")
    claimer.set("gate.row", str(wanted))
    arena.close_gate(STATEMENT_GATE)
    arena.close_gate(ROW_GATE)
    claiming = arena.start(claimer.claim, "claimer.1", queue="q")
    arena.wait_for_gate(claimer, claiming, STATEMENT_GATE)
    node.claim("node.1", queue="z")
    node.claim("node.2", queue="x")
    node.claim("node.3", queue="q", batch=1, lease_ms=0)
    with arena.locked_row(first):
        outcomes = [commit(first, "node.1"), commit(ended, "node.2"), commit(reaped, "node.3")]
        flushing = arena.start(quietly(flusher.flush), *outcomes)
        assert arena.wait_until_blocked(flusher, flushing)
        node.reap()
        arena.open_gate(STATEMENT_GATE)
        arena.wait_for_gate(claimer, claiming, ROW_GATE)
    arena.wait_until_blocked(flusher, flushing)
    arena.open_gate(ROW_GATE)
    claiming.result()
    flushing.result()


def use_the_plan_of_a_busy_table(arena: Arena) -> None:
    """Many executing rows: the flush's plan locks a row, writes it, and goes on to the next."""
    filler = arena.session("filler")
    filler.insert_many([job(queue="filler") for _ in range(5000)])
    filler.claim("filler.1", queue="filler", batch=5000)
    arena.execute("ANALYZE gen_durable")


def waiting(session: Session, row: int, claim: str, *seen: int) -> Commit:
    """The outcome of a step that awaits `go` and was handed these signals."""
    session.step(row, claim, *seen, awaits=None)
    return commit(row, claim, "await", awaits=("go",), presented=seen)


def outcome_of_a_row_with_an_inbox(arena: Arena) -> None:
    """A claim is reaped, the row gets a signal, and the first owner says that the row has ended."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1", lease_ms=0)
    two.reap()
    two.signal(row, "go")
    one.step(row, "one.1")
    one.flush(commit(row, "one.1"))


def signal_meets_park(arena: Arena) -> None:
    """A delivery looks at a row while its park is under way, and waits for it."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1")
    signal_meets_flush(arena, one, two, row, waiting(one, row, "one.1"))


def signal_meets_end(arena: Arena) -> None:
    """A delivery looks at a row while its terminal outcome is under way, and waits for it; an earlier one did not."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1")
    two.signal(row, "go")
    one.step(row, "one.1")
    signal_meets_flush(arena, one, two, row, commit(row, "one.1"))


def signal_meets_flush(arena: Arena, one: Session, two: Session, row: int, outcome: Commit) -> None:
    one.set("gate.row", str(row))
    with arena.closed_gate():
        flushing = arena.start(one.flush, outcome)
        arena.wait_for_gate(one, flushing, ROW_GATE)
        delivering = arena.start(two.signal, row, "go")
        assert arena.wait_until_blocked(two, delivering)
    flushing.result()
    delivering.result()


def signal_during_the_step(arena: Arena) -> None:
    """A signal arrives while the step runs that then awaits it."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1")
    outcome = waiting(one, row, "one.1")
    two.signal(row, "go")
    one.flush(outcome)


def signal_seen_and_awaited_again(arena: Arena) -> None:
    """A step is handed a signal, and waits for another of its name, which comes."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    signal = two.signal(row, "go").signal or 0
    one.claim("one.1")
    one.flush(waiting(one, row, "one.1", signal))
    two.signal(row, "go")


def two_parks_of_one_flush(arena: Arena) -> None:
    """One row parks beside a late signal, the other beside one that is younger and that it has seen."""
    one, two = arena.session("one"), arena.session("two")
    late, seen = one.insert(job()) or 0, one.insert(job()) or 0
    one.claim("one.1", batch=1)
    first = waiting(one, late, "one.1")
    two.signal(late, "go")
    signal = two.signal(seen, "go").signal or 0
    one.claim("one.2")
    one.flush(first, waiting(one, seen, "one.2", signal))


def delivery_repeated_after_consumption(arena: Arena) -> None:
    """A signal wakes a row, is consumed, and is delivered once more under its dedup key."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1")
    one.flush(waiting(one, row, "one.1"))
    signal = two.signal(row, "go", "k").signal or 0
    one.claim("one.2")
    one.step(row, "one.2", signal, awaits=["go"])
    one.flush(commit(row, "one.2", "next", step="ship", consumed=(signal,)))
    two.signal(row, "go", "k")


def reaper_meets_birth(arena: Arena) -> None:
    """A parent's lease has run out; the reaper comes while its children are being inserted."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1", lease_ms=0)
    one.step(row, "one.1")
    one.set("gate.key", "child")
    outcome = commit(row, "one.1", "childs", step="join", children=(job(correlation_key="child"),))
    with arena.closed_gate():
        flushing = arena.start(one.flush, outcome)
        arena.wait_for_gate(one, flushing, ROW_GATE)
        two.reap()
    flushing.result()


def two_flushes_swap_identities(arena: Arena) -> None:
    """Each of two flushes ends the holder of an identity and spawns a child of the other's."""
    one, two = arena.session("one"), arena.session("two")
    ends = [one.insert(job(correlation_key=key)) or 0 for key in ("a", "b")]
    parents = [one.insert(job()) or 0 for _ in range(2)]
    one.claim("one.1")
    for row in (*ends, *parents):
        one.step(row, "one.1")
    batches = [
        (
            commit(ends[place], "one.1"),
            commit(parents[place], "one.1", "childs", step="join", children=(job(correlation_key=spawned),)),
        )
        for place, spawned in enumerate(("b", "a"))
    ]
    one.set("gate.key", "b")
    with arena.closed_gate():
        first = arena.start(quietly(one.flush), *batches[0])
        arena.wait_for_gate(one, first, ROW_GATE)
        other = arena.start(quietly(two.flush), *batches[1])
        arena.wait_until_blocked(two, other)
    first.result()
    other.result()


def key_that_reads_like_an_id(arena: Arena) -> None:
    """One row's id is another row's key."""
    one = arena.session("one")
    row = one.insert(job(priority=1))
    one.insert(job(concurrency_key=str(row)))
    one.claim("one.1")


def one_job(arena: Arena) -> None:
    """A job is inserted."""
    arena.session("one").insert(Job(fsm="order", step="charge", state={"n": 1}))


def six_thousand_jobs(arena: Arena) -> None:
    """A batch of 6,000 jobs, 72,000 values."""
    one = arena.session("one")
    quietly(one.insert_many)([job() for _ in range(6000)])
    while rows := one.claim(f"one.{arena.execute('SELECT clock_timestamp()')}", batch=6000).rows:
        one.flush(*(commit(row.id, row.claim) for row in rows))


SCRIPTS: dict[str, Callable[[Arena], None]] = {
    "outcome-unguarded": stale_outcome,
    "worker-not-claim": stale_outcome_of_the_same_worker,
    "guard-only-no-arbiter": two_claims_of_one_key,
    "claim-without-key-lock": two_claims_of_two_keys,
    "flush-locks-late": flush_meets_claim,
    "identity-unguarded": identity_inserted_twice,
    "insert-many-unordered": two_batches_of_two_identities,
    "scope-reentered": identity_taken_while_given_up,
    "maintenance-unordered": heartbeat_meets_reaper,
    "rider-reads-snapshot": outcome_of_a_row_with_an_inbox,
    "wake-filtered-in-where": signal_meets_park,
    "park-without-recheck": signal_during_the_step,
    "recheck-ignores-presented": signal_seen_and_awaited_again,
    "recheck-by-watermark": two_parks_of_one_flush,
    "signal-to-the-dead": signal_meets_end,
    "dedup-forgets": delivery_repeated_after_consumption,
    "children-without-parent-lock": reaper_meets_birth,
    "children-after-update": two_flushes_swap_identities,
    "key-collides-with-id": key_that_reads_like_an_id,
    "json-double-encoded": one_job,
    "too-many-parameters": six_thousand_jobs,
}
