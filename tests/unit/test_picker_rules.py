"""Each rule both ways: a sound trace holds, and every way to break it is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from invariants.evidence import Evidence, LedgerSummary
from invariants.picker import PICKER_RULES, check_generated
from tests.fixtures.traces import AT_REST, COMPLETE, LIVE_SCOPE, Trace, at, job


def sound() -> Trace:
    """Two jobs of one key and identity in turn, a retry, a reaping, a release, a stop; everything ends."""
    trace = Trace()
    keyed: dict[str, Any] = {"concurrency_key": "k", "correlation_key": "c", "correlation_scope": LIVE_SCOPE}
    trace.insert(1, {"status": "done", "result": 1}, **keyed)
    trace.did("client", "insert", {"job": job(**keyed)}, {"id": None})
    trace.insert(2, {"status": "failed", "result": None}, priority="5")
    trace.claim(1, 2, name="a.1", lease=1.0)
    trace.finish(1, "a.1", "next", step="ship", state='{"n": 1}')
    trace.reap(2, "a.1")
    trace.claim(1, name="a.2")
    trace.change(1, lease_expires_at=at(2e6)).commit()
    trace.finish(1, "a.2", "retry", attempt="1", eligible_at=at(8))
    trace.claim(1, 2, name="a.3")
    trace.finish(1, "a.3", "done", result="1")
    trace.release(2, "a.3")
    trace.insert(3, {"status": "done", "result": None}, **keyed)
    trace.claim(2, 3, name="b.1", told=[3, 2])
    trace.finish(2, "b.1", "stop", last_error="boom")
    trace.finish(3, "b.1", "done", result="null")
    return trace


def test_a_sound_trace_holds_every_invariant() -> None:
    report = sound().judge()
    assert [(j.invariant, j.verdict, j.reason) for j in report.judgements] == [
        (rule.name, "held", None) for rule in PICKER_RULES
    ]
    assert report.exit_code == 0
    assert report.transactions == 15


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


def deadlock_surfaces(trace: Trace) -> None:
    trace.insert(1)
    error = {"error": "DeadlockDetected", "sqlstate": "40P01", "message": "deadlock detected"}
    trace.did("client", "insert_many", {"jobs": [job()]}, error, "fail")


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
    ("lifecycle", heartbeat_changes_state, "changed while executing"),
    ("lifecycle", reap_without_attempt, "went from attempt 0 to 2"),
    ("lifecycle", done_counts_an_attempt, "changed more than a done may: "),
    ("lifecycle", awaits_from_executing, "went from executing to awaiting_signal"),
    ("lifecycle", owner_left_behind, "is done with locked_by a.1"),
    ("pick-order", urgent_row_second, "handed out row 1 (priority 5) before row 2 (priority 1)"),
    ("pick-order", younger_row_first, "handed out row 1"),
    ("pick-order", started_early, "98.000 s before it was eligible"),
    ("lease-respect", reaped_in_time, "97.000 s of its lease left"),
    ("contention-quiet", lost_race_surfaces, "claim of node ended with UniqueViolation (23505)"),
    ("no-deadlock", deadlock_surfaces, "insert_many of client ended in deadlock"),
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
    evidence = msgspec.structs.replace(AT_REST, no_ledger="set wal_level = logical")
    trace = sound()
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
    assert {j.verdict for j in Trace().judge(Evidence(at_rest=True), COMPLETE).judgements} == {"unknown"}


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
