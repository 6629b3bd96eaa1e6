"""Each rule both ways: a sound trace holds, and every way to break it is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.limiter import cold_lock
from invariants.areas import RECONCILING
from invariants.evidence import Evidence, LedgerSummary
from invariants.picker import ALWAYS_EXERCISED, PICKER_RULES, check_generated
from tests.fixtures.traces import AT_REST, COMPLETE, LIVE_SCOPE, Trace, at, job

ALL = frozenset(rule.name for rule in PICKER_RULES)


def sound() -> Trace:
    """Two jobs of one key and identity in turn, a retry, a reaping, a release, a stop; everything ends."""
    trace = Trace()
    base(trace)
    return trace


def base(trace: Trace) -> None:
    keyed: dict[str, Any] = {"concurrency_key": "k", "correlation_key": "c", "correlation_scope": LIVE_SCOPE}
    trace.insert(1, {"status": "done", "result": 1}, **keyed)
    trace.did("client", "insert", {"job": job(**keyed)}, {"id": None})
    trace.insert(2, {"status": "failed", "result": None}, priority="5")
    trace.claim(1, 2, name="a.1", lease=1.0)
    trace.finish(1, "a.1", "next", step="ship", state='{"n": 1}')
    trace.reap(2, "a.1")
    trace.claim(1, name="a.2")
    trace.change(1, lease_expires_at=at(2e6)).commit()
    trace.did("node", "heartbeat", {"holds": [[1, "a.2"]]}, {"ids": [1]})
    trace.finish(1, "a.2", "retry", attempt="1", eligible_at=at(8))
    trace.claim(1, 2, name="a.3")
    trace.finish(1, "a.3", "done", result="1")
    trace.release(2, "a.3")
    trace.insert(3, {"status": "done", "result": None}, **keyed)
    trace.claim(2, 3, name="b.1", told=[3, 2])
    trace.finish(2, "b.1", "stop", last_error="boom")
    trace.finish(3, "b.1", "done", result="null")


def full() -> Trace:
    """The same, and gates, a rate limit, signals, children, an inline continuation, a collection, dropped pokes."""
    trace = Trace()
    trace.gate("g", 2, shards=2)
    trace.rate("r", 1.0, 2.0)
    base(trace)
    # Two rows of a gate, one let in and one denied; the slot comes back later than it is freed.
    for row in (10, 11):
        trace.insert(row, {"status": "done", "result": None}, concurrency_key="g:1", rate_limit="r")
    trace.claim(10, 11, name="c.1", concurrency_shard="0")
    trace.level("conc", "g:1", 0, 1, 1).level("conc", "g:1", 1, 1, 0).level("rate", "r", 0, 2, 1)
    trace.change(10, concurrency_shard="1").commit()
    trace.admit("c.1", 10, denied=[11])
    trace.release(11, "c.1", concurrency_shard=None)
    trace.outcome(10, "c.1", "continue", "executing", step="more", state="{}").flushed()
    trace.step(10, "c.1")
    trace.outcome(10, "c.1", "done", "done", result="null").flushed()
    trace.level("conc", "g:1", 1, 1, 1).commit()
    trace.did("node", "credit", {"slots": [["g:1", 1]]}, {"contended": 0})
    trace.claim(11, name="c.2", concurrency_shard="0")
    trace.level("conc", "g:1", 0, 1, 0).level("rate", "r", 0, 2, 0)
    trace.change(11, concurrency_shard="0").commit()
    trace.admit("c.2", 11)
    trace.outcome(11, "c.2", "done", "done", result="null").flushed()
    trace.level("conc", "g:1", 0, 1, 1).commit()
    # A rate limit alone; its burst has come back meanwhile.
    trace.insert(12, {"status": "done", "result": None}, rate_limit="r", weight="2")
    trace.claim(12, name="c.3")
    trace.level("rate", "r", 0, 2, 0).commit()
    trace.admit("c.3", 12, shard=None)
    trace.outcome(12, "c.3", "done", "done", result="null").flushed()
    # A row that waits: woken by a signal, parked again beside what it has seen, woken by time, and gone on.
    trace.insert(20, {"status": "done", "result": None})
    trace.claim(20, name="s.1")
    trace.step(20, "s.1")
    trace.outcome(20, "s.1", "await", "awaiting_signal", awaits='{go,"a b"}').flushed()
    first = trace.signal(20, "go", "once")
    trace.change(20, status="runnable").commit()
    trace.did("client", "signal", {"target": 20, "key": None, "name": "go", "dedup": "once"},
              {"outcome": "duplicate", "target": 20, "signal": None})  # fmt: skip
    trace.claim(20, name="s.2")
    trace.step(20, "s.2", first, awaits=["go", "a b"])
    parked = {"awaits": "{go}", "await_deadline": at(len(trace.transactions) + 1.5)}
    trace.outcome(20, "s.2", "await", "awaiting_signal", **parked).flushed()
    expired = trace.change(20, status="runnable", await_deadline=None).commit()
    trace.did("node", "expire", {"limit": 9}, {"ids": [20], "xid": expired})
    trace.claim(20, name="s.3")
    trace.step(20, "s.3", first, awaits=["go"])
    trace.outcome(20, "s.3", "next", "runnable", step="ship", awaits=None).drop("signals", first).flushed()
    trace.claim(20, name="s.4")
    trace.step(20, "s.4")
    trace.signal(20, "late")
    trace.commit()
    trace.outcome(20, "s.4", "done", "done", result="null").drop("signals", 2).flushed()
    # A parent, two children, the join; then they are collected.
    trace.insert(30, {"status": "done", "result": None})
    trace.claim(30, name="p.1")
    trace.outcome(30, "p.1", "childs", "awaiting_children", children_pending="2")
    trace.change(31, parent_id="30").change(32, parent_id="30").flushed()
    trace.claim(31, 32, name="p.2")
    trace.outcome(31, "p.2", "done", "done").change(30, children_pending="1").flushed()
    trace.outcome(32, "p.2", "stop", "failed", last_error="x")
    trace.change(30, status="runnable", children_pending="0").flushed()
    trace.claim(30, name="p.3")
    trace.outcome(30, "p.3", "done", "done", result="null").flushed()
    trace.delete(32).delete(30).change(31, parent_id=None).commit()
    trace.did("node", "gc", {"limit": 9, "retention_ms": 0}, {"ids": [32, 30]})
    trace.did("node", "count", {"event": "poke_dropped", "amount": 1}, None)
    return trace


@pytest.mark.parametrize(("build", "exercised"), [(sound, ALWAYS_EXERCISED), (full, ALL)])
def test_a_sound_trace_holds_every_invariant(build: Callable[[], Trace], exercised: frozenset[str]) -> None:
    trace = build()
    report = trace.judge(msgspec.structs.replace(AT_REST, exercises=tuple(exercised)))
    found = {j.invariant: (j.verdict, [v.summary for v in j.violations]) for j in report.judgements}
    bad = {name: what for name, what in found.items() if what[0] in ("violated", "unknown")}
    assert bad == {}
    assert exercised <= {name for name, what in found.items() if what[0] == "held"}
    assert report.exit_code == 0


def outcome_of_another_claim(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", lease=0.5)
    trace.reap(1, "a.1")
    trace.claim(1, name="a.2")
    trace.finish(1, "a.1", result="1")


def outcome_of_a_row_that_nobody_holds(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", lease=0.5)
    trace.reap(1, "a.1")
    trace.finish(1, "a.1", result="1")


def terminal_row_changed(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", result="1")
    trace.finish(1, "a.1", "next", step="again")


def owner_replaced(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.claim(1, name="a.2")


def claim_name_reused(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a", lease=0.5)
    trace.reap(1, "a")
    trace.claim(1, name="a")
    trace.finish(1, "a", result="1")


def claim_of_nobody(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.operations.pop()
    trace.did("node", "claim", {"queue": "default", "batch": 1, "claim": "a.9"}, {"ids": [], "contended": 0})


def claim_not_told(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", told=[])


def end_of_nobody(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", result="1")
    trace.operations.pop()


def committed_but_told_stale(trace: Trace) -> None:
    trace.insert(1)
    trace.insert(2)
    trace.claim(1, 2, name="a.1")
    free = {"status": "done", "locked_by": None, "lease_expires_at": None, "result": "1"}
    xid = trace.change(1, **free).change(2, **free).commit()
    outcomes = [[1, "a.1", "done"], [2, "a.1", "done"]]
    trace.did("node", "flush", {"outcomes": outcomes}, {"xid": xid, "committed": [[1, "a.1"]]})


def told_committed_but_not(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.did("node", "flush", {"outcomes": [[1, "a.1", "done"]]}, {"xid": 77, "committed": [[1, "a.1"]]})


def outcome_told_twice(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", result="1")
    trace.operations.append(trace.operations[-1])


def wrong_kind(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", "done", status="failed")


def two_rows_of_one_key(trace: Trace) -> None:
    trace.insert(1, concurrency_key="k")
    trace.insert(2, concurrency_key="k")
    trace.claim(1, name="a.1")
    trace.claim(2, name="b.1")


def two_rows_of_one_identity(trace: Trace) -> None:
    trace.insert(1, correlation_key="c", correlation_scope=LIVE_SCOPE)
    trace.insert(2, correlation_key="c", correlation_scope="{runnable}")


def identity_retaken(trace: Trace) -> None:
    trace.insert(1, correlation_key="c", correlation_scope="{runnable}")
    trace.claim(1, name="a.1", lease=0.1)
    trace.insert(2, correlation_key="c", correlation_scope="{runnable}")
    trace.reap(1, "a.1")


def job_not_ended(trace: Trace) -> None:
    trace.insert(1)


def job_never_was(trace: Trace) -> None:
    trace.insert(1)
    trace.did("client", "insert", {"job": job()}, {"id": 2})


def job_ended_otherwise(trace: Trace) -> None:
    trace.insert(1, {"status": "done", "result": 1})
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", "stop", last_error="boom")


def job_with_another_result(trace: Trace) -> None:
    trace.insert(1, {"status": "done", "result": {"n": 1}})
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", result='{"n": 2}')


def job_of_nobody(trace: Trace) -> None:
    trace.insert(1)
    trace.operations.pop()


def refused_without_cause(trace: Trace) -> None:
    trace.insert(1, correlation_key="c", correlation_scope=LIVE_SCOPE)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", result="1")
    for row in (2, 3, 4):
        trace.insert(row)
    trace.did("client", "insert", {"job": job(correlation_key="c")}, {"id": None})


def done_from_runnable(trace: Trace) -> None:
    trace.insert(1)
    trace.finish(1, "a.1", result="1")


def born_executing(trace: Trace) -> None:
    trace.insert(1, status="executing", locked_by="a.1", lease_expires_at=at(99))


def deleted(trace: Trace) -> None:
    trace.insert(1)
    trace.delete(1).commit()


def state_encoded_twice(trace: Trace) -> None:
    trace.insert(1, state='"{\\"n\\": 1}"')


def claim_changes_priority(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", priority="7")


def claim_changes_scope(trace: Trace) -> None:
    trace.insert(1, correlation_key="c", correlation_scope=LIVE_SCOPE)
    trace.claim(1, name="a.1", correlation_scope="{}")


def heartbeat_changes_state(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.change(1, lease_expires_at=at(2e6), state='{"n": 2}').commit()


def heartbeat_changes_priority(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.change(1, lease_expires_at=at(2e6), priority="2").commit()


def reap_without_attempt(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", lease=0.5)
    trace.reap(1, "a.1", attempt="2")


def done_counts_an_attempt(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", attempt="1", result="1")


def awaits_from_executing(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", "next", status="awaiting_signal")


def owner_left_behind(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", locked_by="a.1")


def urgent_row_second(trace: Trace) -> None:
    trace.insert(1, priority="5")
    trace.insert(2, priority="1")
    trace.claim(1, 2, name="a.1")


def younger_row_first(trace: Trace) -> None:
    trace.insert(1, eligible_at=at(0.25))
    trace.insert(2, eligible_at=at(0.2))
    trace.claim(1, 2, name="a.1")


def started_early(trace: Trace) -> None:
    trace.insert(1, eligible_at=at(100))
    trace.claim(1, name="a.1")


def reaped_in_time(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", lease=100)
    trace.reap(1, "a.1")


def lost_race_surfaces(trace: Trace) -> None:
    trace.insert(1)
    error = {"error": "UniqueViolation", "sqlstate": "23505", "message": "duplicate key"}
    trace.did("node", "claim", {"queue": "default", "batch": 1, "claim": "a.1"}, error, "fail")


LOCK_TIMEOUT = {"error": "LockNotAvailable", "sqlstate": "55P03", "message": "lock timeout"}


def impatient_flush(trace: Trace, *kinds: str) -> list[list[Any]]:
    """A flush that waited in vain for a lock; its outcomes."""
    trace.insert(1)
    outcomes = [[number, "a.1", kind] for number, kind in enumerate(kinds, 1)]
    trace.did("node", "flush", {"outcomes": outcomes}, LOCK_TIMEOUT, "fail")
    return outcomes


def impatience_drops_an_outcome(trace: Trace) -> None:
    spawn, _ = impatient_flush(trace, "childs", "done")
    trace.change(1).commit()
    trace.did("node", "flush", {"outcomes": [spawn]}, {"xid": None, "committed": []})


def impatience_gives_up_less_than_it_drops(trace: Trace) -> None:
    impatient_flush(trace, "childs", "done")
    trace.change(1).commit()
    trace.did("node", "count", {"event": "abandoned", "amount": 1}, None)


def impatience_without_children(trace: Trace) -> None:
    outcomes = impatient_flush(trace, "done", "next")
    trace.change(1).commit()
    trace.did("node", "flush", {"outcomes": outcomes}, {"xid": None, "committed": []})


def impatience_sends_again(trace: Trace) -> None:
    for outcome in impatient_flush(trace, "childs", "done"):
        trace.change(1).commit()
        trace.did("node", "flush", {"outcomes": [outcome]}, {"xid": None, "committed": []})


def impatience_is_killed(trace: Trace) -> None:
    impatient_flush(trace, "childs", "done")
    trace.did("harness", "fault", {"fault": "kill", "target": "node", "pid": 1}, None)


def impatience_gives_up(trace: Trace) -> None:
    """The server went away before all was sent again."""
    spawn, _ = impatient_flush(trace, "childs", "done")
    trace.change(1).commit()
    trace.did("node", "flush", {"outcomes": [spawn]}, {"xid": None, "committed": []})
    trace.did("node", "count", {"event": "abandoned", "amount": 1}, None)


def impatience_of_another_host(trace: Trace) -> None:
    """Whose clock leaves open which of its operations overlap."""
    impatience_sends_again(trace)
    trace.operations[:] = [
        msgspec.structs.replace(
            o, start_ns=o.start_ns - 10**9, end_ns=(o.end_ns or 0) + 10**9, error_ns=2 * 10**9
        )
        for o in trace.operations
    ]


@pytest.mark.parametrize(
    "play", [impatience_sends_again, impatience_is_killed, impatience_gives_up, impatience_of_another_host]
)
def test_a_spawning_flush_that_waited_in_vain_and_was_sent_again_in_parts_surfaces_to_nobody(
    play: Callable[[Trace], None],
) -> None:
    trace = Trace()
    play(trace)
    assert trace.of("contention-quiet").verdict == "held"


LOST = {"error": "OperationalError", "sqlstate": None, "message": "server closed the connection"}
ENDED = {"error": "AdminShutdown", "sqlstate": "57P01", "message": "terminating connection"}


def denied_with_a_weight_of_2(trace: Trace, row: int) -> None:
    trace.insert(row, rate_limit="r", weight="2")
    trace.claim(row, name=f"a.{row}")
    trace.admit(f"a.{row}", denied=[row])


@pytest.mark.parametrize(
    ("error", "crashed", "denials"),
    [(LOST, False, 0), (LOST, True, 1), (ENDED, False, 1)],
    ids=["lost", "lost before a crash", "ended by the server"],
)
def test_a_sweep_that_is_surely_over_leaves_a_rate_to_be_judged_again(
    error: dict[str, Any], crashed: bool, denials: int
) -> None:
    trace = Trace()
    trace.rate("r", 1, 2)
    trace.insert(1, rate_limit="r", weight="2")
    trace.claim(1, name="a.1")
    trace.admit("a.1", 1)
    trace.did("node", "sweep_buckets", {"limit": 1}, error, "info")
    if crashed:
        trace.did("harness", "fault", {"fault": "crash", "target": "server", "pid": 0}, {"did": {}})
    for row in (2, 3, 4):
        trace.insert(row)
    denied_with_a_weight_of_2(trace, 5)
    assert trace.of("rate-liveness").violated == denials


def test_a_sweep_cannot_hold_what_was_never_made() -> None:
    trace = Trace()
    trace.rate("r", 1, 2)
    trace.did("node", "sweep_buckets", {"limit": 1}, LOST, "info")
    denied_with_a_weight_of_2(trace, 1)
    assert trace.of("rate-liveness").verdict == "violated"


def test_a_sweep_cannot_hold_what_was_drawn_on_of_late() -> None:
    trace = Trace()
    trace.rate("r", 1, 200)
    trace.insert(1, rate_limit="r", weight="2")
    trace.claim(1, name="a.1")
    trace.admit("a.1", 1)
    trace.did("node", "sweep_buckets", {"limit": 1}, LOST, "info")
    denied_with_a_weight_of_2(trace, 2)
    assert trace.of("rate-liveness").verdict == "violated"


SHARES_ITS_LOCK = next(
    key for n in range(100_000) if cold_lock("rate", key := f"s:{n}") == cold_lock("rate", "r")
)


@pytest.mark.parametrize(
    ("key", "denials"), [(SHARES_ITS_LOCK, 0), ("s", 1)], ids=["its lock", "another lock"]
)
def test_another_admission_is_in_the_way_of_a_cold_key_where_the_two_share_a_lock(
    key: str, denials: int
) -> None:
    trace = Trace()
    trace.rate("r", 1, 2)
    trace.rate("s", 1, 2)
    trace.insert(1, rate_limit=key)
    trace.claim(1, name="a.1")
    trace.did("node", "admit", {"claim": "a.1", "ids": [1]}, LOST, "info")
    denied_with_a_weight_of_2(trace, 2)
    assert trace.of("rate-liveness").violated == denials


@pytest.mark.parametrize(
    ("queue", "before", "denials"),
    [("default", True, 0), ("other", True, 1), ("default", False, 1)],
    ids=["it may see the row runnable", "another queue", "it sees the row claimed"],
)
def test_a_claim_that_lost_a_row_may_hold_it_against_the_winners_admission(
    queue: str, before: bool, denials: int
) -> None:
    trace = Trace()
    trace.rate("r", 1, 2)
    trace.insert(1, rate_limit="r", weight="2")
    rival = {"queue": queue, "batch": 1, "claim": "b.1"}
    if before:
        trace.did("node", "claim", rival, LOST, "info")
    trace.claim(1, name="a.1")
    if not before:
        trace.insert(2)
        trace.did("node", "claim", rival, LOST, "info")
    trace.admit("a.1", denied=[1])
    assert trace.of("rate-liveness").violated == denials


@pytest.mark.parametrize(("rate", "denials"), [("r", 0), ("s", 1)])
def test_who_was_continued_may_have_drawn_on_the_rates_that_its_row_had(rate: str, denials: int) -> None:
    trace = Trace()
    trace.rate("r", 1, 2)
    trace.rate("s", 1, 2)
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.change(1, step="next", rate_limit=rate).commit()
    trace.did("node", "admit", {"claim": "a.1", "ids": [1]}, LOST, "info")
    denied_with_a_weight_of_2(trace, 2)
    assert trace.of("rate-liveness").violated == denials


def deadlock_surfaces(trace: Trace) -> None:
    trace.insert(1)
    error = {"error": "DeadlockDetected", "sqlstate": "40P01", "message": "deadlock detected"}
    trace.did("client", "insert_many", {"jobs": [job()]}, error, "fail")


def admitted(trace: Trace, row: int, claim: str, available: float, *, shard: int = 0) -> None:
    """A row of gate g:1 is inserted, claimed and let in."""
    trace.insert(row, concurrency_key="g:1")
    trace.claim(row, name=claim, concurrency_shard="0")
    trace.level("conc", "g:1", shard, 1, available)
    trace.change(row, concurrency_shard=str(shard)).commit()
    trace.admit(claim, row)


def gate_lets_in_one_too_many(trace: Trace) -> None:
    trace.gate("g", 1)
    admitted(trace, 1, "a.1", 0)
    admitted(trace, 2, "a.2", 0)


def capacity_grows_by_minting(trace: Trace) -> None:
    trace.gate("g", 1)
    trace.gate("g", 1, shards=2)
    admitted(trace, 1, "a.1", 0)
    admitted(trace, 2, "a.2", 0, shard=1)


def credited_while_held(trace: Trace) -> None:
    trace.gate("g", 1)
    admitted(trace, 1, "a.1", 0)
    trace.level("conc", "g:1", 0, 1, 1).commit()


def slot_leaked(trace: Trace) -> None:
    trace.gate("g", 1)
    admitted(trace, 1, "a.1", 0)
    trace.finish(1, "a.1", concurrency_shard=None)


def rate_overspent(trace: Trace) -> None:
    trace.rate("r", 0.25, 1)
    for row in (1, 2, 3):
        trace.insert(row, rate_limit="r")
        trace.claim(row, name=f"a.{row}")
        trace.admit(f"a.{row}", row)


def full_bucket_denies(trace: Trace) -> None:
    trace.rate("r", 1, 2)
    trace.insert(1, rate_limit="r", weight="2")
    trace.claim(1, name="a.1")
    trace.admit("a.1", denied=[1])


def refilled_bucket_denies(trace: Trace) -> None:
    trace.rate("r", 1, 2)
    for row in (1, 2):
        trace.insert(row, rate_limit="r", weight="2")
        trace.claim(row, name=f"a.{row}")
        trace.admit(f"a.{row}", *([row] if row == 1 else []), denied=[] if row == 1 else [row])
        trace.insert(row + 10)


def lone_admit_tries_again(trace: Trace) -> None:
    trace.insert(1, concurrency_key="g:1")
    trace.claim(1, name="a.1")
    trace.admit("a.1", 1, contended=1)


def lone_credit_fails(trace: Trace) -> None:
    error = {"error": "CheckViolation", "sqlstate": "23514", "message": "available"}
    trace.insert(1)
    trace.did("node", "credit", {"slots": [["g:1", 0]]}, error, "fail")


def one_shard_swept(trace: Trace) -> None:
    trace.gate("g", 2, shards=2)
    trace.level("conc", "g:1", 0, 1, 1).level("conc", "g:1", 1, 1, 1).commit()
    trace.insert(1)
    trace.drop("gen_durable_buckets", "conc", "g:1", 1).commit()


def shards_not_healed(trace: Trace) -> None:
    trace.rate("r", 1, 1)
    trace.level("rate", "r:x", 0, 1, 1).commit()
    trace.put("gen_durable_bucket_configs", kind="rate", name="r", rate=1, capacity=1, shards=2).commit()
    trace.insert(1)


def parked(trace: Trace, *seen: int, row: int = 1, claim: str = "a.1", **columns: Any) -> None:
    """A row awaits `go`, and its step had been handed these signals."""
    if row not in trace.rows:
        trace.insert(row)
    trace.claim(row, name=claim)
    trace.step(row, claim, *seen, awaits=["go"])
    trace.outcome(row, claim, "await", "awaiting_signal", **({"awaits": "{go}"} | columns))


def delivered_twice(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go", "k")
    trace.commit()
    trace.claim(1, name="a.1")
    trace.step(1, "a.1", 1)
    trace.outcome(1, "a.1", "done", "done").drop("signals", 1).flushed()
    trace.signal(1, "go", "k")
    trace.commit()


def duplicate_of_nothing(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go")
    trace.commit()
    value = {"target": 1, "key": None, "name": "go", "dedup": "k"}
    trace.did("client", "signal", value, {"outcome": "duplicate", "target": 1, "signal": None})


def not_woken(trace: Trace) -> None:
    parked(trace)
    trace.flushed()
    trace.signal(1, "go")
    trace.commit()


def parked_beside_news(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go")
    trace.commit()
    parked(trace)
    trace.flushed()


def below_the_watermark(trace: Trace) -> None:
    """Signal 1 commits after signal 2, which the step saw."""
    trace.insert(1)
    trace.signal(1, "no", told=False)
    trace.signal(1, "go")
    trace.commit()
    trace.drop("signals", 1).put("signals", id=1, target_id=1, name="go").commit()
    parked(trace, 2)
    trace.flushed()


def delivered_to_the_dead(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1")
    trace.signal(1, "go")
    trace.commit()


def unseen_signal_deleted(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go")
    trace.commit()
    trace.claim(1, name="a.1", awaits="{go}")
    trace.step(1, "a.1")
    trace.outcome(1, "a.1", "next", "runnable", step="x").drop("signals", 1).flushed()


def unawaited_signal_deleted(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go")
    trace.commit()
    trace.claim(1, name="a.1")
    trace.step(1, "a.1", 1)
    trace.outcome(1, "a.1", "next", "runnable", step="x").drop("signals", 1).flushed()


def signal_vanishes(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go")
    trace.commit()
    trace.drop("signals", 1).commit()


def signal_never_arrived(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "no")
    trace.commit()
    value = {"target": 1, "key": None, "name": "go", "dedup": None}
    trace.did("client", "signal", value, {"outcome": "delivered", "target": 1, "signal": 9})


def inbox_left_behind(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go")
    trace.commit()
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1")


def woken_by_what_it_saw(trace: Trace) -> None:
    trace.insert(1)
    trace.signal(1, "go")
    trace.commit()
    parked(trace, 1)
    trace.change(1, status="runnable").flushed()


def woken_by_nothing(trace: Trace) -> None:
    parked(trace)
    trace.flushed()
    trace.change(1, status="runnable").commit()


def woken_before_its_time(trace: Trace) -> None:
    parked(trace, await_deadline=at(1000))
    trace.flushed()
    trace.change(1, status="runnable", await_deadline=None).commit()


def not_parked(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.outcome(1, "a.1", "await", "runnable", awaits="{go}").flushed()


def family(trace: Trace, pending: int, children: int = 2) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.outcome(1, "a.1", "childs", "awaiting_children", children_pending=str(pending))
    for child in range(2, 2 + children):
        trace.change(child, parent_id="1")
    trace.flushed()


def child_not_counted(trace: Trace) -> None:
    family(trace, 1)


def parent_waits_for_nobody(trace: Trace) -> None:
    family(trace, 0, 0)


def join_too_early(trace: Trace) -> None:
    family(trace, 2)
    trace.claim(2, name="a.2")
    trace.outcome(2, "a.2", "done", "done").change(1, status="runnable", children_pending="0").flushed()


def child_counted_twice(trace: Trace) -> None:
    family(trace, 2)
    trace.claim(2, name="a.2")
    trace.outcome(2, "a.2", "done", "done").change(1, children_pending="1").flushed()
    trace.change(1, children_pending="0", status="runnable").commit()


def child_without_parent(trace: Trace) -> None:
    trace.insert(1)
    trace.change(2, parent_id="1").commit()


def inbox_emptied_by_a_stale_outcome(trace: Trace) -> None:
    trace.insert(1)
    trace.insert(2)
    trace.signal(1, "go")
    trace.commit()
    trace.claim(2, name="a.2")
    trace.outcome(2, "a.2", "done", "done").drop("signals", 1).flushed()


def counted_off_by_a_stale_outcome(trace: Trace) -> None:
    family(trace, 2)
    trace.insert(9)
    trace.claim(9, name="a.9")
    trace.outcome(9, "a.9", "done", "done").change(1, children_pending="1").flushed()


def continued_by_another_claim(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.outcome(1, "a.0", "continue", "executing", step="x").flushed()


def left_out_of_its_flush(trace: Trace) -> None:
    trace.insert(1)
    trace.insert(2)
    trace.claim(1, 2, name="a.1", lease=0.5)
    free = {"status": "done", "locked_by": None, "lease_expires_at": None}
    xid = trace.change(1, **free).commit()
    outcomes = [[1, "a.1", "done"], [2, "a.1", "done"]]
    trace.did("node", "flush", {"outcomes": outcomes}, {"xid": xid, "committed": [[1, "a.1"]]})
    trace.reap(2, "a.1")


def refused_whole(trace: Trace) -> None:
    trace.insert(1)
    error = {"error": "UniqueViolation", "sqlstate": "23505", "message": "duplicate key"}
    outcomes = [[1, "a.1", "continue"], [2, "a.1", "done"]]
    trace.did("node", "flush", {"outcomes": outcomes}, error, "fail")


def room_and_left_behind(trace: Trace) -> None:
    trace.insert(1, concurrency_key="2")
    trace.insert(2)
    trace.claim(1, name="a.1", batch=9)


def reclaimed_from_the_living(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", lease=100)
    free = {"status": "runnable", "locked_by": None, "lease_expires_at": None, "attempt": "1"}
    xid = trace.change(1, **free).commit()
    trace.did("node", "reclaim", {"prefix": "a", "margin_ms": 5000}, {"xid": xid, "holds": [[1, "a.1"]]})


def reclaimed_beside_its_owner(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1", lease=6)
    free = {"status": "runnable", "locked_by": None, "lease_expires_at": None, "attempt": "1"}
    xid = trace.change(1, **free).commit()
    trace.did("other", "reclaim", {"prefix": "a", "margin_ms": 5000}, {"xid": xid, "holds": [[1, "a.1"]]})
    trace.insert(2)
    trace.did("node", "heartbeat", {"holds": [[1, "a.1"]]}, {"ids": []})


def outcome_of_an_earlier_turn(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    for step in ("second", "again"):
        xid = trace.change(1, step=step, turn="1" if step == "second" else "2").commit()
        value = {"outcomes": [[1, "a.1", "continue"]], "turns": [0]}
        trace.did("node", "flush", value, {"xid": xid, "committed": [[1, "a.1"]]})


def admitted_under_another_claim(trace: Trace) -> None:
    trace.gate("g", 2)
    admitted(trace, 1, "a.1", 1)
    trace.admit("a.0", 1)


def shard_without_a_gate(trace: Trace) -> None:
    trace.gate("g", 1)
    for row in (1, 2):
        trace.insert(row, concurrency_key="k")
    trace.claim(1, name="a.1", concurrency_shard="0")
    trace.claim(2, name="a.2")


def refill_counted_twice(trace: Trace) -> None:
    """The old admission began before the window and ended in it; without it the window is still too rich."""
    trace.rate("r", 1, 10)
    for row, weight in ((1, 1), (2, 9), (3, 6)):
        trace.insert(row, rate_limit="r", weight=str(weight))
        trace.claim(row, name=f"a.{row}")
    trace.admit("a.2", 2, shard=None)
    old = trace.operations[-1]
    trace.admit("a.1", 1, shard=None)
    began = msgspec.structs.replace(
        trace.operations[-1], start_ns=old.start_ns - 5_000_000_000, end_ns=(old.end_ns or 0) + 1
    )
    trace.operations[-1] = began
    trace.insert(4)
    trace.admit("a.3", 3, shard=None)
    trace.operations.sort(key=lambda o: o.start_ns)


def one_counter_would_be_full(trace: Trace) -> None:
    trace.rate("r", 1, 8)
    for row, weight in ((1, 1), (2, 8)):
        trace.insert(row, rate_limit="r", weight=str(weight))
        trace.claim(row, name=f"a.{row}")
        trace.admit(f"a.{row}", *([row] if row == 1 else []), denied=[] if row == 1 else [row], shard=None)


def collected_too_early(trace: Trace) -> None:
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", updated_at=at(3))
    trace.delete(1).commit()
    trace.did("node", "gc", {"limit": 9, "retention_ms": 60000}, {"ids": [1]})


def collected_alive(trace: Trace) -> None:
    trace.insert(1)
    trace.delete(1).commit()


def collected_before_its_parent_read_it(trace: Trace) -> None:
    family(trace, 2)
    trace.claim(2, name="a.2")
    trace.outcome(2, "a.2", "done", "done").change(1, children_pending="1").flushed()
    trace.delete(2).commit()


def asleep_without_pokes(trace: Trace) -> None:
    trace.insert(1)
    trace.did("node", "count", {"event": "poke_dropped", "amount": 3}, None)


def kept_its_shard(trace: Trace) -> None:
    trace.insert(1, concurrency_key="g:1")
    trace.claim(1, name="a.1", concurrency_shard="0")
    trace.finish(1, "a.1")


def orphaned_by_nobody(trace: Trace) -> None:
    family(trace, 2)
    trace.change(2, parent_id=None).commit()


BROKEN: list[tuple[str, Callable[[Trace], None], str]] = [
    ("single-owner", outcome_of_another_claim, "carried claim a.1 and ended claim a.2"),
    ("single-owner", outcome_of_a_row_that_nobody_holds, "a stale outcome changed something"),
    ("single-owner", terminal_row_changed, "was done, held by nobody"),
    ("single-owner", owner_replaced, "went from claim a.1 to a.2"),
    ("single-owner", claim_name_reused, "a name that an earlier claim has used"),
    ("single-owner", claim_of_nobody, "which no process says it used"),
    ("single-owner", claim_not_told, "was not told so"),
    ("single-owner", end_of_nobody, "by nobody who says so"),
    ("single-owner", committed_but_told_stale, "was told that it did not"),
    ("single-owner", told_committed_but_not, "which ended no claim of that row"),
    ("single-owner", outcome_told_twice, "told 2 times"),
    ("single-owner", wrong_kind, "outcome done of node made the row failed"),
    ("k1-exclusion", two_rows_of_one_key, "concurrency key k has 2 executing rows at once: [1, 2]"),
    ("identity-unique", two_rows_of_one_identity, "occupied by 2 rows at once: [1, 2]"),
    ("identity-unique", identity_retaken, "occupied by 2 rows at once: [1, 2]"),
    ("no-lost-job", job_not_ended, "row 1 is runnable at rest"),
    ("no-lost-job", job_never_was, "is row 2, which never was"),
    ("no-lost-job", job_ended_otherwise, "ended failed, its machine prescribes done"),
    ("no-lost-job", job_with_another_result, 'with result {"n": 2}, its machine prescribes {"n": 1}'),
    ("no-lost-job", job_of_nobody, "row 1 appeared, and no insert explains it"),
    ("no-lost-job", refused_without_cause, "while no row occupied it"),
    ("lifecycle", done_from_runnable, "went from runnable to done"),
    ("lifecycle", born_executing, "was born executing"),
    ("lifecycle", deleted, "was deleted while runnable"),
    ("lifecycle", state_encoded_twice, "no JSON object"),
    ("lifecycle", claim_changes_priority, "changed more than a claim may: "),
    ("lifecycle", claim_changes_scope, "had its scope changed"),
    ("single-owner", heartbeat_changes_state, "was taken on under claim a.1 by nobody who says so"),
    ("lifecycle", heartbeat_changes_priority, "changed while executing"),
    ("lifecycle", reap_without_attempt, "went from attempt 0 to 2"),
    ("lifecycle", done_counts_an_attempt, "changed more than a done may: "),
    ("lifecycle", awaits_from_executing, "is parked and awaits nothing"),
    ("lifecycle", owner_left_behind, "is done with locked_by a.1"),
    ("pick-order", urgent_row_second, "handed out row 1 (priority 5) before row 2 (priority 1)"),
    ("pick-order", younger_row_first, "handed out row 1"),
    ("pick-order", started_early, "98.000 s before it was eligible"),
    ("lease-respect", reaped_in_time, "97.000 s of its lease left"),
    ("contention-quiet", lost_race_surfaces, "claim of node ended with UniqueViolation (23505)"),
    ("contention-quiet", impatience_drops_an_outcome, "flush of node ended with LockNotAvailable (55P03)"),
    (
        "contention-quiet",
        impatience_gives_up_less_than_it_drops,
        "flush of node ended with LockNotAvailable (55P03)",
    ),
    ("contention-quiet", impatience_without_children, "flush of node ended with LockNotAvailable (55P03)"),
    ("no-deadlock", deadlock_surfaces, "insert_many of client ended in deadlock"),
    (
        "single-owner",
        inbox_emptied_by_a_stale_outcome,
        "signal 1 of row 1 was deleted by a transaction in which",
    ),
    ("single-owner", counted_off_by_a_stale_outcome, "row 1 had a child counted off by a transaction"),
    ("single-owner", child_without_parent, "row 2 was born a child of row 1 by a transaction"),
    ("single-owner", continued_by_another_claim, "carried claim a.0 and ended claim a.1"),
    ("gate-cap", gate_lets_in_one_too_many, "gate g:1 lets 1 rows in and 2 are executing: [1, 2]"),
    ("gate-cap", capacity_grows_by_minting, "gate g:1 lets 1 rows in and 2 are executing"),
    ("slot-conservation", credited_while_held, "1 of 1 slots free while 1 admitted rows execute on it"),
    ("slot-conservation", slot_leaked, "at rest shard 0 of gate g:1 has 0 of 1 slots free"),
    ("rate-budget", rate_overspent, "granted a weight of 3 within 4.500000 s"),
    ("rate-liveness", full_bucket_denies, "was denied though the key held 2: nothing was granted ever"),
    ("rate-liveness", refilled_bucket_denies, "was denied though the key held 2: nothing was granted for"),
    ("quiet-limiter", lone_admit_tries_again, "violated a constraint 1 times"),
    ("quiet-limiter", lone_credit_fails, "ended with CheckViolation (23514)"),
    ("shards-whole", one_shard_swept, "conc bucket g:1 has the shards [0], and 2 are configured"),
    ("shards-whole", shards_not_healed, "rate bucket r:x has the shards [0], and 2 are configured"),
    ("signal-dedup", delivered_twice, "got signal 2 under dedup key k, under which it had got signal 1"),
    ("signal-dedup", duplicate_of_nothing, "told that k is a duplicate, and row 1 never got it"),
    ("no-lost-wakeup", not_woken, "row 1 is parked on go while its inbox holds signal 1"),
    ("no-lost-wakeup", parked_beside_news, "row 1 is parked on go while its inbox holds signal 1"),
    ("no-lost-wakeup", below_the_watermark, "row 1 is parked on go while its inbox holds signal 1"),
    ("no-lost-signal", delivered_to_the_dead, "delivered to row 1, which is done"),
    (
        "no-lost-signal",
        unseen_signal_deleted,
        "signal 1 of row 1 was deleted, and no step of claim a.1 had seen it",
    ),
    ("no-lost-signal", unawaited_signal_deleted, "signal 1 of row 1 was deleted, and nobody awaited go"),
    (
        "no-lost-signal",
        signal_vanishes,
        "signal 1 of row 1 was deleted, and no outcome of its target committed",
    ),
    ("no-lost-signal", signal_never_arrived, "where it never arrived"),
    ("no-lost-signal", inbox_left_behind, "row 1 ended and left 1 signals in its inbox"),
    (
        "no-spin",
        woken_by_what_it_saw,
        "its inbox holds nothing that the step which parked it had not been handed",
    ),
    ("no-spin", woken_by_nothing, "no signal among go arrived and no deadline had passed"),
    ("no-spin", woken_before_its_time, "no signal among go arrived and no deadline had passed"),
    ("no-spin", not_parked, "asked to await and went back to runnable"),
    ("join-exact", child_not_counted, "counts 1 children, and 2 live: [2, 3]"),
    ("join-exact", parent_waits_for_nobody, "waits for children, and none lives"),
    ("join-exact", join_too_early, "row 1 is runnable, and 1 of its children live: [3]"),
    ("join-exact", child_counted_twice, "row 1 is runnable, and 1 of its children live: [3]"),
    ("join-exact", child_without_parent, "row 1 is runnable, and 1 of its children live: [2]"),
    ("batch-independence", left_out_of_its_flush, "yet the flush of commit 4 left its outcome out"),
    ("batch-independence", refused_whole, "a flush of 2 outcomes of node was refused whole"),
    ("pick-order", room_and_left_behind, "took 1 and left row 2, which was runnable, due and without a key"),
    ("lease-respect", reclaimed_from_the_living, "5.000 s of which a reclaim may ignore"),
    ("lease-respect", reclaimed_beside_its_owner, "and node, which made it, was at work afterwards"),
    ("single-owner", outcome_of_an_earlier_turn, "an outcome of turn 0 of claim a.1, which stood at turn 1"),
    ("single-owner", admitted_under_another_claim, "no slot was stamped on it under that claim"),
    ("k1-exclusion", shard_without_a_gate, "concurrency key k has 2 executing rows at once: [1, 2]"),
    ("rate-budget", refill_counted_twice, "granted a weight of 15 within 1.500000 s"),
    ("rate-liveness", one_counter_would_be_full, "was denied though the key held 8: nothing was granted for"),
    ("gc-safe", collected_too_early, "1.000 s after its end, and was to be kept for 60.000 s"),
    ("gc-safe", collected_alive, "was collected while runnable"),
    ("gc-safe", collected_before_its_parent_read_it, "was collected while its parent 1 is awaiting_children"),
    ("poke-is-a-hint", asleep_without_pokes, "row 1 is runnable at rest, and 3 notifications were held back"),
    ("lifecycle", kept_its_shard, "is done and keeps shard 0 of its gate"),
    ("lifecycle", orphaned_by_nobody, "lost its parent 1, which was not deleted"),
]


@pytest.mark.parametrize(
    ("invariant", "breach", "says"), BROKEN, ids=[f"{b[0]}-{b[1].__name__}" for b in BROKEN]
)
def test_a_broken_trace_is_found(invariant: str, breach: Callable[[Trace], None], says: str) -> None:
    trace = Trace()
    breach(trace)
    judgement = trace.of(invariant)
    assert judgement.verdict == "violated"
    assert says in " | ".join(violation.summary for violation in judgement.violations)


def far_away(trace: Trace, row: int, planned: bool) -> None:
    """A row that is due in years, and that was inserted so or was not."""
    trace.change(row, eligible_at="2036-01-01 00:00:00+00").commit()
    described = job() | ({"eligible_at": 2_082_758_400_000} if planned else {})
    trace.did("client", "insert", {"job": described}, {"id": row})


def test_a_row_that_is_not_due_for_years_is_not_lost_where_it_was_inserted_so() -> None:
    trace = Trace()
    far_away(trace, 1, planned=True)
    assert trace.of("no-lost-job").verdict == "held"
    far_away(trace, 2, planned=False)
    judgement = trace.of("no-lost-job")
    assert [violation.summary for violation in judgement.violations] == ["row 2 is runnable at rest"]


def test_a_row_that_is_not_due_for_years_and_of_which_nobody_was_told_needs_an_insert_as_late() -> None:
    trace = Trace()
    trace.change(1, eligible_at="2036-01-01 00:00:00+00").commit()
    trace.did("client", "insert", {"job": job()}, {"error": "OperationalError", "sqlstate": None}, "info")
    assert trace.of("no-lost-job").verdict == "violated"
    late = job() | {"eligible_at": 2_082_758_400_000}
    trace.did("client", "insert", {"job": late}, {"error": "OperationalError", "sqlstate": None}, "info")
    assert trace.of("no-lost-job").verdict == "held"


def test_every_rule_has_a_broken_trace() -> None:
    assert {rule.name for rule in PICKER_RULES} == {invariant for invariant, _, _ in BROKEN}


def test_a_violation_shows_its_transactions_in_order_and_who_did_them() -> None:
    trace = Trace()
    outcome_of_another_claim(trace)
    [violation] = trace.of("single-owner").violations
    assert [(t.number, t.who) for t in violation.transactions] == [
        (1, "client insert"),
        (2, "node claim"),
        (3, "node reap"),
        (4, "node claim"),
        (5, "node flush"),
    ]
    last = violation.transactions[-1].changes[0]
    assert (last.before["locked_by"], last.after["locked_by"]) == ("a.2", None)
    assert "result" in last.after
    assert violation.operations[0].startswith("node flush")


@pytest.mark.parametrize("kind", ["info", "fail"])
def test_an_outcome_that_nobody_knows_may_have_committed_or_not(kind: str) -> None:
    committed, not_committed = Trace(), Trace()
    for trace in (committed, not_committed):
        trace.insert(1)
        trace.claim(1, name="a.1")
    committed.finish(1, "a.1", result="1")
    committed.operations.pop()
    error = {"error": "OperationalError", "sqlstate": "57P01", "message": "terminating connection"}
    for trace in (committed, not_committed):
        trace.did("node", "flush", {"outcomes": [[1, "a.1", "done"]]}, error, kind)
        assert trace.of("single-owner").verdict == "held"


def test_an_unknown_outcome_excuses_only_its_own_effect() -> None:
    trace = Trace()
    trace.insert(1)
    trace.claim(1, name="a.1")
    trace.finish(1, "a.1", result="1")
    trace.operations.pop()
    trace.did("node", "flush", {"outcomes": [[1, "a.1", "stop"]]}, None, "info")
    assert trace.of("single-owner").verdict == "violated"


def test_an_insert_that_nobody_knows_explains_one_row() -> None:
    trace = Trace()
    for row in (1, 2):
        trace.change(row, status="runnable").commit()
    trace.did("client", "insert", {"job": job()}, None, "info")
    summaries = [v.summary for v in trace.of("no-lost-job").violations]
    assert sum("no insert explains it" in summary for summary in summaries) == 1


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(deadlocks=0), "held"),
        (Evidence(deadlocks=1), "violated"),
        (Evidence(server_log=()), "held"),
        (Evidence(server_log=("ERROR:  deadlock detected",)), "violated"),
        (Evidence(), "unknown"),
    ],
)
def test_a_deadlock_that_the_caller_swallowed_is_seen_by_the_server(evidence: Evidence, verdict: str) -> None:
    assert sound().of("no-deadlock", evidence=evidence).verdict == verdict


def test_without_a_ledger_what_rests_on_it_is_unknown_for_the_reason_given() -> None:
    evidence = msgspec.structs.replace(AT_REST, no_ledger="set wal_level = logical", exercises=None)
    trace = full()
    for rule in PICKER_RULES:
        judgement = trace.of(rule.name, evidence=evidence)
        expected = ("unknown", "set wal_level = logical") if rule.needs_ledger else ("held", None)
        assert (judgement.verdict, judgement.reason) == expected


def test_a_ledger_that_differs_from_the_table_is_not_trusted_even_where_it_is_violated() -> None:
    trace = Trace()
    two_rows_of_one_key(trace)
    summary = LedgerSummary(complete=True, differences=("row 1 is done in the table",))
    judgement = trace.of("k1-exclusion", summary=summary)
    assert judgement.verdict == "unknown"
    assert "not to be trusted" in (judgement.reason or "")


def test_a_ledger_that_was_cut_holds_nothing_and_violates_still() -> None:
    cut = LedgerSummary(complete=False, reason="interrupted by SIGINT")
    assert sound().of("lifecycle", summary=cut).verdict == "unknown"
    trace = Trace()
    two_rows_of_one_key(trace)
    assert trace.of("k1-exclusion", summary=cut).verdict == "violated"


def test_without_rest_or_history_what_needs_it_is_unknown() -> None:
    assert sound().of("no-lost-job", evidence=Evidence(deadlocks=0)).verdict == "unknown"
    assert sound().of("single-owner", history=False).verdict == "unknown"
    assert sound().of("lifecycle", history=False).verdict == "held"


def test_nothing_checked_is_unknown() -> None:
    judgements = Trace().judge(Evidence(at_rest=True), COMPLETE).judgements
    expected = ALL | {rule.name for rule in RECONCILING}
    assert {j.verdict for j in judgements if j.invariant in expected} == {"unknown"}
    assert {j.verdict for j in judgements if j.invariant not in expected} == {"not_exercised"}


def test_a_wrong_generated_column_breaks_the_lifecycle() -> None:
    summary = LedgerSummary(complete=True, generated=("row 1: concurrency_name is x",))
    assert sound().of("lifecycle", summary=summary).verdict == "violated"


@pytest.mark.parametrize(
    ("name", "guard", "right"),
    [("k", "c", True), ("k:1", "c", False), ("k", None, False), (None, "c", False)],
)
def test_generated_columns_are_recomputed(name: str | None, guard: str | None, right: bool) -> None:
    row = {
        "id": "1", "status": "runnable", "concurrency_key": "k:1", "concurrency_name": name,
        "correlation_key": "c", "correlation_scope": "{runnable,done}", "correlation_guard": guard,
    }  # fmt: skip
    assert (check_generated(row) is None) == right


@pytest.mark.parametrize(("turn", "verdict"), [(0, "held"), (1, "violated"), (2, "held")])
def test_a_flush_may_leave_out_an_outcome_of_another_turn_than_the_claim_stands_at(
    turn: int, verdict: str
) -> None:
    """Of an earlier turn: sent again after its answer was lost. Of a later one: a failover has lost the one between."""
    trace = Trace()
    trace.insert(1)
    trace.insert(2)
    trace.claim(1, 2, name="a.1", lease=0.5)
    trace.outcome(2, "a.1", "continue", "executing", step="more", turn="1").flushed()
    xid = trace.change(1, status="done", locked_by=None, lease_expires_at=None).commit()
    value = {"outcomes": [[1, "a.1", "done"], [2, "a.1", "continue"]], "turns": [0, turn]}
    trace.did("node", "flush", value, {"xid": xid, "committed": [[1, "a.1"]]})
    trace.release(2, "a.1", turn="0")
    assert trace.of("batch-independence").verdict == verdict
