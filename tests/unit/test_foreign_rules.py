"""Each rule for a system whose insides are unknown: a sound story holds, and every way to break it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from invariants.claims import Claims, Rows
from invariants.evidence import Evidence, LedgerSummary
from invariants.foreign import OUTSIDE, ROWS, Subject, job_in, judge
from invariants.history import Operation
from invariants.ledger.pgoutput import Change, Relation, Transaction
from invariants.verdict import Report

WALL_NS = 1_700_000_000_000_000_000
RELATION = Relation(1, "public", "jobs", ("id", "payload", "status", "attempts"), (0,))
MAPPED = Rows(
    table="jobs", status="status", waiting=("pending",), running=("running",), ended=("done",), claim=("attempts",)
)  # fmt: skip
CLAIMS = Claims(
    lease_ms=1_000, heartbeat=False, per_key=1, side_by_side=1, recovery_ms=1_000, in_order=True, retries=True
)


class Tale:
    """A history with its ledger, in milliseconds."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.transactions: list[Transaction] = []
        self.rows: dict[str, tuple[bytes, ...]] = {}

    def did(
        self,
        process: str,
        f: str,
        value: Any,
        result: Any,
        begin_ms: float,
        end_ms: float | None,
        kind: Literal["ok", "fail", "info"] = "ok",
    ) -> Tale:
        end = None if end_ms is None else round(end_ms * 1e6)
        one = Operation(
            process, len(self.operations), f, kind, value, result, round(begin_ms * 1e6), end, WALL_NS
        )
        self.operations.append(one)
        return self

    def sent(
        self, job: str, at_ms: float, key: str | None = None, kind: Literal["ok", "info"] = "ok"
    ) -> Tale:
        return self.did("client-0", "enqueue", {"job": job, "key": key}, {}, at_ms, at_ms + 1, kind)

    def ran(
        self, process: str, job: str, begin_ms: float, end_ms: float | None, key: str | None = None, *,
        fails: bool = False,
    ) -> Tale:  # fmt: skip
        kind: Literal["ok", "fail", "info"] = "info" if end_ms is None else "fail" if fails else "ok"
        return self.did(process, "run", {"job": job, "key": key}, {}, begin_ms, end_ms, kind)

    def fault(self, name: str, target: str, begin_ms: float, end_ms: float) -> Tale:
        return self.did(
            "harness", "fault", {"fault": name, "target": target, "pid": 1}, {"did": {}}, begin_ms, end_ms
        )

    def row(self, job: str, status: str, at_ms: float, attempts: int = 1) -> Tale:
        old = self.rows.get(job)
        new = (job.encode(), f'{{"job": "{job}"}}'.encode(), status.encode(), str(attempts).encode())
        self.rows[job] = new
        change = Change(RELATION, "insert" if old is None else "update", None, new)
        number = len(self.transactions) + 1
        at_us = WALL_NS // 1_000 + round(at_ms * 1_000)
        self.transactions.append(Transaction(number, number, number, at_us, (change,)))
        return self

    def judged(
        self,
        claims: Claims = CLAIMS,
        rows: Rows | None = MAPPED,
        *,
        at_rest: bool = True,
        clock: bool = True,
    ) -> Report:
        operations = sorted(self.operations, key=lambda one: one.start_ns)
        return judge(
            lambda: self.transactions,
            operations,
            Evidence(at_rest=at_rest, shares_clock=clock),
            LedgerSummary(complete=True),
            Subject(claims=claims, rows=rows),
        )


def sound() -> Tale:
    """Two jobs in order; the second fails once and is run again after its lease."""
    tale = Tale().sent("job-1-1", 0, "a").sent("job-1-2", 5, "b")
    tale.row("job-1-1", "pending", 0.5, 0).row("job-1-2", "pending", 5.5, 0)
    tale.row("job-1-1", "running", 9).ran("worker-1.1", "job-1-1", 10, 20, "a").row("job-1-1", "done", 21)
    tale.row("job-1-2", "running", 29).ran("worker-1.1", "job-1-2", 30, 40, "b", fails=True)
    tale.row("job-1-2", "pending", 1_100).row("job-1-2", "running", 1_200, 2)
    tale.ran("worker-1.1", "job-1-2", 1_210, 1_220, "b").row("job-1-2", "done", 1_222, 2)
    tale.did("worker-1.1", "took", {"limit": 1, "jobs": ["job-1-1"]}, {}, 9, 9.5)
    jobs = [["job-1-1", "done"], ["job-1-2", "done"]]
    return tale.did("harness", "observe", {}, {"jobs": jobs}, 2_000, 2_001)


def found(report: Report) -> dict[str, str]:
    return {one.invariant: one.verdict for one in report.judgements}


def test_a_sound_story_holds_under_every_rule_that_has_something_to_decide() -> None:
    verdicts = found(sound().judged())
    assert verdicts.pop("recovered-in-time") == "not_exercised"
    assert verdicts == dict.fromkeys({**OUTSIDE, **ROWS}.keys() - {"recovered-in-time"}, "held")


def lost(tale: Tale) -> None:
    tale.sent("job-1-3", 50)


def unasked(tale: Tale) -> None:
    tale.ran("worker-1.1", "job-9-9", 1_300, 1_301)


def again(tale: Tale) -> None:
    tale.ran("worker-1.1", "job-1-1", 1_300, 1_310, "a")


def overlap(tale: Tale) -> None:
    tale.ran("worker-2.2", "job-1-1", 15, 18, "a")


def key(tale: Tale) -> None:
    tale.sent("job-1-3", 1, "a").ran("worker-2.2", "job-1-3", 12, 18, "a")


def crowded(tale: Tale) -> None:
    tale.sent("job-1-3", 1, "c").ran("worker-1.1", "job-1-3", 12, 18, "c")


def greedy(tale: Tale) -> None:
    tale.did("worker-1.1", "took", {"limit": 1, "jobs": ["job-1-1", "job-1-2"]}, {}, 9, 9.5)


def out_of_order(tale: Tale) -> None:
    tale.sent("job-1-3", 7, "c").ran("worker-1.1", "job-1-3", 25, 26, "c")


def late(tale: Tale) -> None:
    tale.sent("job-1-3", 1_400, "c").ran("worker-2.2", "job-1-3", 1_401, None, "c")
    tale.fault("kill", "worker-2.2", 1_450, 1_500).ran("worker-1.1", "job-1-3", 9_000, 9_001, "c")


def never_run(tale: Tale) -> None:
    tale.sent("job-1-3", 50).did("harness", "observe", {}, {"jobs": [["job-1-3", "done"]]}, 3_000, 3_001)


def revived(tale: Tale) -> None:
    tale.row("job-1-1", "pending", 1_500)


def ended_again(tale: Tale) -> None:
    tale.fault("pause", "worker-2.2", 12, 1_000)
    tale.ran("worker-2.2", "job-1-1", 11, 1_400, "a").row("job-1-1", "done", 1_402)


def stolen(tale: Tale) -> None:
    tale.sent("job-1-3", 1_400).row("job-1-3", "pending", 1_401, 0).row("job-1-3", "running", 1_402)
    tale.ran("worker-1.1", "job-1-3", 1_403, 1_500).row("job-1-3", "running", 1_450, 2)


def by_a_former_holder(tale: Tale) -> None:
    tale.sent("job-1-3", 1_400).row("job-1-3", "pending", 1_401, 0).row("job-1-3", "running", 1_402)
    tale.fault("pause", "worker-1.1", 1_405, 3_000).ran("worker-1.1", "job-1-3", 1_404, 3_002)
    tale.row("job-1-3", "pending", 2_500, 1).row("job-1-3", "running", 2_600, 2)
    tale.ran("worker-2.2", "job-1-3", 2_601, 3_200).row("job-1-3", "done", 3_003, 2)


def left_over(tale: Tale) -> None:
    tale.sent("job-1-3", 1_400).ran("worker-1.1", "job-1-3", 1_404, 1_405).row("job-1-3", "pending", 1_401)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (lost, "nothing-lost"),
        (unasked, "nothing-unasked"),
        (again, "run-again-for-cause"),
        (overlap, "one-run-at-a-time"),
        (key, "key-limit"),
        (crowded, "worker-limit"),
        (greedy, "claim-within-limit"),
        (out_of_order, "begun-in-order"),
        (late, "recovered-in-time"),
        (never_run, "done-was-run"),
        (revived, "ended-is-final"),
        (ended_again, "ends-once"),
        (stolen, "claimed-when-free"),
        (by_a_former_holder, "ended-by-its-holder"),
        (left_over, "nothing-left"),
    ],
)
def test_each_way_to_break_it_is_found(broken: Callable[[Tale], None], rule: str) -> None:
    tale = sound()
    broken(tale)
    report = tale.judged()
    assert found(report)[rule] == "violated"
    judgement = next(one for one in report.judgements if one.invariant == rule)
    assert judgement.violations[0].summary


@pytest.mark.parametrize("name", ["kill", "pause", "partition"])
def test_a_run_after_a_disturbance_of_its_worker_is_not_held_against_the_system(name: str) -> None:
    tale = sound().fault(name, "worker-1.1", 15, 1_200)
    again(tale)
    overlap(tale)
    verdicts = found(tale.judged())
    assert verdicts["run-again-for-cause"] == verdicts["one-run-at-a-time"] == "held"


def test_a_worker_that_was_frozen_between_its_claim_and_its_run_may_begin_late() -> None:
    tale = sound().fault("pause", "worker-2.2", 5, 1_290)
    tale.ran("worker-2.2", "job-1-1", 1_300, 1_310, "a")
    assert found(tale.judged())["run-again-for-cause"] == "held"


def test_a_disturbance_of_another_worker_is_no_cause() -> None:
    tale = sound().fault("pause", "worker-7.7", 5, 1_200)
    overlap(tale)
    assert found(tale.judged())["run-again-for-cause"] == "violated"


def test_a_system_that_does_not_claim_fences_is_not_asked_for_them() -> None:
    tale = sound()
    by_a_former_holder(tale)
    assert found(tale.judged(Claims(lease_ms=1_000, fenced=False)))["ended-by-its-holder"] == "not_exercised"


def test_a_claim_of_at_most_once_allows_no_second_run_whatever_happened() -> None:
    claims = Claims(delivery="at-most-once")
    tale = sound().fault("kill", "worker-1.1", 35, 40)
    assert found(tale.judged(claims))["run-again-for-cause"] == "violated"


def test_a_job_of_unknown_outcome_may_be_run_or_not() -> None:
    tale = sound().sent("job-1-3", 50, kind="info").sent("job-1-4", 51, kind="info")
    tale.ran("worker-1.1", "job-1-3", 1_300, 1_301)
    assert found(tale.judged())["nothing-lost"] == "held"


def test_a_run_that_did_not_come_to_rest_lost_nothing_for_sure() -> None:
    tale = sound()
    lost(tale)
    assert found(tale.judged(at_rest=False))["nothing-lost"] == "unknown"


def test_what_the_subject_does_not_say_is_not_judged() -> None:
    verdicts = found(sound().judged(Claims(), None))
    assert {verdicts[name] for name in (*ROWS, "key-limit", "worker-limit", "begun-in-order")} == {
        "not_exercised"
    }


def test_a_row_whose_claim_is_forgotten_after_its_end_has_not_ended_again() -> None:
    tale = sound().fault("pause", "worker-2.2", 12, 1_000).ran("worker-2.2", "job-1-1", 11, 1_400, "a")
    assert found(tale.row("job-1-1", "done", 1_402, 9).judged())["ends-once"] == "held"


def test_a_status_that_the_subject_does_not_name_makes_its_rows_unknown() -> None:
    report = sound().row("job-1-1", "archived", 1_500).judged()
    assert found(report)["nothing-left"] == "unknown"
    assert "archived" in (report.reason or "")


def test_a_clock_of_another_machine_decides_no_order_of_commits_and_runs() -> None:
    assert found(sound().judged(clock=False))["ended-by-its-holder"] == "unknown"


def test_a_job_is_found_in_text_json_and_bytes() -> None:
    assert job_in('{"args": {"payload": "{\\"job\\": \\"job-2-17\\"}"}}') == "job-2-17"
    assert job_in("\\x" + b'{"job": "job-2-17"}'.hex()) == "job-2-17"
    assert job_in(b"job-2-17") == "job-2-17"
    assert job_in(None) is None
