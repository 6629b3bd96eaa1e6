from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from invariants.changes import Changes
from invariants.judge import LOOK_EVERY, Judge, judge
from invariants.ledger.pgoutput import Transaction
from invariants.render import print_report, print_verdict
from invariants.verdict import MAX_VIOLATIONS, Report, Verdict, Violation, judgement, overall
from tests.fixtures.traces import AT_REST, COMPLETE, Trace
from tests.unit.test_picker_rules import outcome_of_another_claim, sound


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "unknown"),
        (["held"], "held"),
        (["held", "unknown"], "unknown"),
        (["unknown", "violated", "held"], "violated"),
    ],
)
def test_violated_beats_unknown_beats_held(verdicts: list[Verdict], expected: Verdict) -> None:
    assert overall(verdicts) == expected


def test_nothing_checked_is_never_held() -> None:
    assert judgement("x", 0, 0, ()).verdict == "unknown"
    assert judgement("x", 0, 0, ()).reason == "nothing in this run was subject to it"


@pytest.mark.parametrize(
    ("checked", "violated", "expected", "verdict"),
    [
        (0, 0, False, "not_exercised"),
        (0, 0, True, "unknown"),
        (1, 0, False, "held"),
        (1, 1, False, "violated"),
        (0, 1, False, "violated"),
    ],
)
def test_what_a_run_does_not_declare_is_judged_where_something_was_subject_to_it(
    checked: int, violated: int, expected: bool, verdict: str
) -> None:
    assert judgement("x", checked, violated, [], expected=expected).verdict == verdict


def test_what_was_not_exercised_has_no_say_and_nothing_exercised_is_unknown() -> None:
    assert overall(["held", "not_exercised"]) == "held"
    assert overall(["not_exercised"]) == "unknown"


def test_a_declared_invariant_that_nothing_was_subject_to_is_unknown() -> None:
    declared = msgspec.structs.replace(AT_REST, exercises=("gate-cap",))
    report = sound().judge(declared)
    assert report.reason == "gate-cap: nothing in this run was subject to it"
    undeclared = msgspec.structs.replace(AT_REST, exercises=None)
    assert sound().judge(undeclared).verdict == "unknown"
    assert sound().judge().verdict == "held"


def test_a_reason_does_not_hide_a_violation() -> None:
    assert judgement("x", 1, 1, [Violation("bad")], "cut off").verdict == "violated"
    assert judgement("x", 1, 0, [], "cut off").verdict == "unknown"


def test_violations_are_bounded_and_counted() -> None:
    trace = Trace()
    for row in range(1, 50):
        trace.insert(row, state="[]")
    found = trace.of("lifecycle")
    assert (found.violated, len(found.violations)) == (49, MAX_VIOLATIONS)


def test_a_rule_that_raises_is_unknown_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, transaction: Transaction, changes: Changes) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("invariants.picker.LeaseRespect.transaction", fail)
    report = sound().judge()
    verdicts = {j.invariant: (j.verdict, j.reason) for j in report.judgements}
    assert verdicts.pop("lease-respect") == ("unknown", "the checker raised ZeroDivisionError: a bug")
    assert {verdict for verdict, _ in verdicts.values()} == {"held", "not_exercised"}
    assert report.exit_code == 4


def test_a_rule_that_raises_at_the_end_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, rest: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("invariants.picker.NoLostJob.conclude", fail)
    assert "KeyError" in (sound().of("no-lost-job").reason or "")


def test_a_ledger_that_cannot_be_replayed_is_unknown() -> None:
    trace = sound()
    del trace.transactions[0]
    report = trace.judge()
    assert report.verdict == "unknown"
    assert "cannot be replayed" in (report.reason or "")


def test_the_json_is_that_of_verdict_json() -> None:
    trace = Trace()
    outcome_of_another_claim(trace)
    told = trace.judge().invariants()["single-owner"]
    assert (told["verdict"], told["checked"], told["violated"]) == ("violated", 5, 1)
    assert told["violations"][0]["transactions"][0]["number"] == 1
    msgspec.json.encode(told)
    assert "reason" not in told


def test_a_violation_is_shown_with_its_transactions_in_order() -> None:
    trace = Trace()
    outcome_of_another_claim(trace)
    console = Console(width=200, record=True, file=io.StringIO())
    report = trace.judge()
    print_report(console, report)
    print_verdict(console, report.verdict, report.reason)
    text = console.export_text()
    assert "verdict: violated" in text
    assert (
        text.index("inserted: ") < text.index("status runnable → executing") < text.index("locked_by a.2 → ∅")
    )
    assert "seen by node flush" in text


def test_on_line_the_judge_counts_violations_from_the_ledger_alone() -> None:
    trace = Trace()
    trace.insert(1, concurrency_key="k")
    trace.insert(2, concurrency_key="k")
    trace.claim(1, name="a.1")
    judge = Judge()
    for transaction in trace.transactions:
        judge.observe(transaction)
    assert judge.violations == 0
    trace.claim(2, name="b.1")
    judge.observe(trace.transactions[-1])
    assert judge.violations == 1


def test_a_report_without_judgements_is_unknown() -> None:
    assert (Report(()).verdict, Report(()).reason) == ("unknown", "nothing was judged")
    assert Trace().judge(AT_REST, COMPLETE).exit_code == 4


def test_what_was_not_decided_in_time_is_unknown_and_what_was_found_by_then_stands() -> None:
    trace = Trace()
    trace.insert(1)
    trace.change(1, status="done", attempt="7").commit()
    for row in range(2, 2 * LOOK_EVERY):
        trace.insert(row)
    looks = iter([False, True])
    report = judge(
        lambda: trace.transactions, trace.operations, AT_REST, COMPLETE, is_over=lambda: next(looks, True)
    )
    found = {judgement.invariant: judgement for judgement in report.judgements}
    assert found["lifecycle"].verdict == "violated"
    assert found["no-lost-job"].verdict == "unknown"
    assert (
        found["no-lost-job"].reason
        == f"the checker ran out of time at transaction {LOOK_EVERY + 1} of the ledger"
    )
    assert "held" not in {judgement.verdict for judgement in report.judgements}
