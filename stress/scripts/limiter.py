"""Scripts for the limiter's mutants."""

from __future__ import annotations

from collections.abc import Callable

from engine.limiter import Gate, RateLimit
from stress.scripts.arena import ROW_GATE, STATEMENT_GATE, Arena, Session, commit, quietly
from stress.scripts.steps import job


def insert(session: Session, *keys: str | None, **fields: object) -> None:
    """Insert a job for each concurrency key."""
    for key in keys:
        session.insert(job(concurrency_key=key, **fields))


def come_to_rest(arena: Arena) -> None:
    """Every claim runs out; then all is run to its end, and counted."""
    arena.execute("UPDATE gen_durable SET lease_expires_at = '2000-01-01' WHERE status = 'executing'")
    last = arena.session("last")
    last.reap()
    last.reconcile()
    for place in range(20):
        rows = last.pick(f"last.{place}")
        if not rows:
            break
        last.end(*rows)
    last.reconcile()


def one_slot_drawn_twice(arena: Arena) -> None:
    """An admission has seen a free slot and is about to draw it when another one comes."""
    one, two = arena.session("one"), arena.session("two")
    one.configure(Gate("g", 1))
    insert(one, "g", "g", "g")
    one.end(*one.pick("one.1", batch=1))
    early, late = one.claim("one.2", batch=1).rows, two.claim("two.1", batch=1).rows
    one.set("gate.limit", "g")
    with arena.closed_gate():
        drawing = arena.start(one.admit, early)
        arena.wait_for_gate(one, drawing, ROW_GATE)
        other = arena.start(two.admit, late)
        arena.wait_until_blocked(two, other)
    drawing.result()
    other.result()
    come_to_rest(arena)


def more_credits_than_a_shard_holds(arena: Arena) -> None:
    """The capacity is lowered while two rows execute on a shard that now has room for one; both end."""
    one = arena.session("one")
    one.configure(Gate("g", 4, 2))
    insert(one, *["g"] * 4)
    rows = one.pick("one.1")
    one.end(*(row for row in rows if row.concurrency_shard == 1))
    one.configure(Gate("g", 2, 2))
    one.reconcile()
    quietly(one.end)(*(row for row in rows if row.concurrency_shard == 0))


def credit_comes_late(arena: Arena) -> None:
    """A row ends, a count gives its slot back, another row takes it, and then the credit arrives."""
    one, two = arena.session("one"), arena.session("two")
    one.configure(Gate("g", 1))
    insert(one, "g", "g", "g")
    [first] = one.pick("one.1")
    ended = one.flush(commit(first.id, first.claim))
    two.reconcile()
    two.pick("two.1")
    one.credit(ended)
    two.pick("two.2")
    come_to_rest(arena)


def more_ask_than_a_gate_lets_in(arena: Arena) -> None:
    """Three rows ask for two slots, and the one that is denied goes back; then it is claimed again."""
    one = arena.session("one")
    one.configure(Gate("g", 2))
    insert(one, "g", "g", "g")
    one.pick("one.1")
    one.pick("one.2")
    come_to_rest(arena)


def capacity_lowered_while_full(arena: Arena) -> None:
    """A gate of four is full when it is made one of two; two of its rows end, and others wait."""
    one = arena.session("one")
    one.configure(Gate("g", 4, 2))
    insert(one, *["g"] * 9)
    rows = one.pick("one.1")
    one.configure(Gate("g", 2, 2))
    one.reconcile()
    for place, row in enumerate(rows[:2], 2):
        one.end(row)
        one.pick(f"one.{place}")


def shards_added_under_a_surplus(arena: Arena) -> None:
    """A full gate of one shard gets a larger capacity in three, of which the first has no room for all that execute on
    it; two of those end."""
    one = arena.session("one")
    one.configure(Gate("g", 4))
    insert(one, *["g"] * 4)
    rows = one.pick("one.1")
    one.configure(Gate("g", 9, 3))
    one.reconcile()
    one.end(*rows[:2])
    come_to_rest(arena)


def shards_added_to_keys_in_use(arena: Arena) -> None:
    """A gate and a rate get more shards while a row executes; the sweeps run, and the row ends."""
    one = arena.session("one")
    one.configure(Gate("g", 4, 2), RateLimit("r", 1e-8, 8, 2))
    insert(one, "g", rate_limit="r")
    rows = one.pick("one.1")
    one.configure(Gate("g", 4, 4), RateLimit("r", 1e-8, 8, 4))
    one.reconcile()
    one.sweep()
    one.end(*rows)


def two_plans_of_one_scan(arena: Arena) -> None:
    """Two admissions want the same three shards, from both ends; both arrive while the middle one is locked."""
    one, two = arena.session("one"), arena.session("two")
    one.configure(Gate("g", 6, 3))
    insert(one, *["g"] * 3)
    one.end(*one.pick("one.1", batch=1))
    # In the table the shards now lie in the opposite order.
    for shard in (2, 1, 0):
        arena.execute(f"UPDATE gen_durable_buckets SET debt = debt WHERE shard = {shard}")
    early, late = one.claim("one.2", batch=1).rows, two.claim("two.1", batch=1).rows
    for name in ("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "enable_bitmapscan"):
        one.set(name, "off")
    for name in ("enable_mergejoin", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"):
        two.set(name, "off")
    with arena.holding("SELECT FROM gen_durable_buckets WHERE shard = 1 FOR UPDATE"):
        first = arena.start(one.admit, early)
        arena.wait_until_blocked(one, first)
        second = arena.start(two.admit, late)
        arena.wait_until_blocked(two, second)
    first.result()
    second.result()


def two_boots_of_two_orders(arena: Arena) -> None:
    """Two nodes boot with the same two limits in opposite orders; the first is held between its two."""
    one, two = arena.session("one"), arena.session("two")
    one.set("gate.limit", "b")
    with arena.closed_gate():
        first = arena.start(quietly(one.configure), Gate("a", 1), Gate("b", 1))
        arena.wait_for_gate(one, first, ROW_GATE)
        second = arena.start(quietly(two.configure), Gate("b", 1), Gate("a", 1))
        assert arena.wait_until_blocked(two, second)
    first.result()
    second.result()


def two_makers_of_two_keys(arena: Arena) -> None:
    """Both of two keys are cold to one admission, one of them to another, which has drawn on the one that is warm."""
    one, two, three = (arena.session(name) for name in ("one", "two", "three"))
    one.configure(Gate("g", 4))
    insert(one, "g:1", "g:3")
    early = one.claim("one.1").rows
    insert(one, "g:1", "g:3")
    late = two.claim("two.1").rows
    insert(one, "g:3")
    two.set("gate.limit", "g:1")
    arena.close_gate(STATEMENT_GATE)
    arena.close_gate(ROW_GATE)
    first = arena.start(one.admit, early, arena.paused_limiter())
    arena.wait_for_gate(one, first, STATEMENT_GATE)
    assert len(three.pick("three.1")) == 1
    second = arena.start(two.admit, late)
    arena.wait_for_gate(two, second, ROW_GATE)
    arena.open_gate(STATEMENT_GATE)
    arena.wait_until_blocked(one, first)
    arena.open_gate(ROW_GATE)
    first.result()
    second.result()


def first_step_of_a_cold_key(arena: Arena) -> None:
    """Nobody has drawn on a rate yet, and somebody does."""
    one = arena.session("one")
    one.configure(RateLimit("r", 1.0, 2.0))
    insert(one, None, rate_limit="r")
    one.pick("one.1")


def swept_before_it_woke(arena: Arena) -> None:
    """A sweep runs between a job's insert and its first pick."""
    one = arena.session("one")
    one.configure(RateLimit("r", 1e6, 1.0))
    insert(one, None, rate_limit="r")
    one.sweep()
    one.pick("one.1")


def more_than_the_burst(arena: Arena) -> None:
    """A rate that brings in nothing is asked for more than is left of its burst."""
    one = arena.session("one")
    one.configure(RateLimit("r", 1e-7, 4.0))
    insert(one, *[None] * 8, rate_limit="r")
    one.pick("one.1", batch=1)
    one.pick("one.2")


def admission_comes_late(arena: Arena) -> None:
    """A claim is reaped and its row claimed again; then the first claim's admission arrives."""
    one, two = arena.session("one"), arena.session("two")
    one.configure(Gate("g", 2))
    insert(one, "g")
    late = one.claim("one.1", lease_ms=0).rows
    two.reap()
    two.claim("two.1")
    one.admit(late)


def burst_raised(arena: Arena) -> None:
    """A burst is raised while its key is in use, and a draw leaves more than the key was made with."""
    one = arena.session("one")
    one.configure(RateLimit("r", 1e6, 1.0))
    insert(one, None, rate_limit="r")
    one.pick("one.1")
    one.configure(RateLimit("r", 1e6, 8.0))
    insert(one, None, None, rate_limit="r", weight=3.0)
    one.pick("one.2")


def clock_set_back(arena: Arena) -> None:
    """A key was last refilled in an hour's time. One admission meets it, which a full gate might have denied as well;
    a lone step follows."""
    one = arena.session("one")
    one.configure(RateLimit("r", 1e6, 1.0), Gate("g", 1))
    insert(one, None, rate_limit="r")
    one.pick("one.1")
    arena.execute(
        "UPDATE gen_durable_buckets SET last_refill = now() + interval '1 hour' WHERE kind = 'rate'"
    )
    insert(one, "g", rate_limit="r")
    assert one.pick("one.2") == ()
    insert(one, None, rate_limit="r", priority=-1)
    one.pick("one.3", batch=1)


def older_admission_draws_later(arena: Arena) -> None:
    """An admission begins, another one draws and commits, the first goes on; then many ask."""
    one, two, three = (arena.session(name) for name in ("one", "two", "three"))
    one.configure(RateLimit("r", 100.0, 1000.0))
    insert(one, None, rate_limit="r")
    one.pick("one.1")
    insert(one, None, rate_limit="r")
    old = one.claim("one.2").rows
    insert(two, None, rate_limit="r", weight=990.0)
    new = two.claim("two.1").rows
    three.insert_many([job(rate_limit="r", weight=4.0)] * 200)
    many = three.claim("three.1", batch=200).rows
    with arena.closed_gate(STATEMENT_GATE):
        waiting = arena.start(one.admit, old, arena.paused_limiter())
        arena.wait_for_gate(one, waiting, STATEMENT_GATE)
        # What the rate brings in meanwhile is what the mutant counts twice: 50.
        arena.wait_for_time(500)
        assert two.admit(new).admitted
    assert waiting.result().admitted
    three.admit(many)


def weight_of_the_burst(arena: Arena) -> None:
    """A lone step asks for all of a burst that no number of equal parts adds up to."""
    one = arena.session("one")
    one.configure(RateLimit("r", 1.0, 3.3, 6))
    insert(one, None, rate_limit="r", weight=3.3)
    one.pick("one.1")


def parts_that_round_up(arena: Arena) -> None:
    """A lone step asks for all of a burst whose parts are drawn as a little more than they are."""
    one = arena.session("one")
    one.configure(RateLimit("r", 1.0, 2.5, 3))
    insert(one, None, rate_limit="r", weight=2.5)
    one.pick("one.1")


def refilled_as_one_counter(arena: Arena) -> None:
    """A little was drawn on a full key, it has come back, and a lone step asks for everything."""
    one = arena.session("one")
    one.configure(RateLimit("r", 6.4, 64.0, 64))
    insert(one, None, rate_limit="r")
    one.pick("one.1")
    arena.wait_for_time(250)
    insert(one, None, rate_limit="r", weight=64.0)
    one.pick("one.2")


SCRIPTS: dict[str, Callable[[Arena], None]] = {
    "no-check": one_slot_drawn_twice,
    "credit-without-cap": more_credits_than_a_shard_holds,
    "credit-after-count": credit_comes_late,
    "provisional-is-a-shard": more_ask_than_a_gate_lets_in,
    "lowered-capacity-forgotten": capacity_lowered_while_full,
    "surplus-credited": shards_added_under_a_surplus,
    "shards-grow-unhealed": shards_added_to_keys_in_use,
    "buckets-unordered": two_plans_of_one_scan,
    "config-upsert-unordered": two_boots_of_two_orders,
    "cold-keys-wait": two_makers_of_two_keys,
    "cold-bucket-lags": first_step_of_a_cold_key,
    "bucket-swept-while-asleep": swept_before_it_woke,
    "admit-doubles-shard": more_than_the_burst,
    "admit-stamps-unguarded": admission_comes_late,
    "burst-raised-wedges": burst_raised,
    "refill-counts-back": clock_set_back,
    "counts-back-in-races": older_admission_draws_later,
    "full-is-a-sum": weight_of_the_burst,
    "admit-unclamped": parts_that_round_up,
    "draws-in-order": refilled_as_one_counter,
}
