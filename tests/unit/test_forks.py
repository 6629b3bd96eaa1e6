"""What a failover lost is known by name: it is excused where it is remembered, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from invariants.evidence import Evidence
from invariants.forks import Fork, Lost, read_lost, survive, write_fork
from invariants.history import Operation
from invariants.judge import judge
from invariants.ledger.frames import FrameWriter
from invariants.ledger.pgoutput import Transaction, format_lsn
from invariants.verdict import Judgement, Report
from tests.fixtures.pgoutput_writer import write
from tests.fixtures.traces import AT_REST, COMPLETE, START_US, Trace
from tests.unit.test_picker_rules import BROKEN

SECOND_NS = 1_000_000_000
GONE_NS = START_US * 1000 + 50 * SECOND_NS
LATER_NS = 100 * SECOND_NS


class Forked:
    """A trace whose last transactions are lost. What is done in `trace` before `fork` is in both logs, what is done
    between `fork` and `fail_over` in the old one alone."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.lost: tuple[Transaction, ...] = ()
        self._before = self.trace
        self._old = 0

    def fork(self) -> None:
        self._before = deepcopy(self.trace)

    def fail_over(self) -> None:
        there = len(self._before.transactions)
        self.lost = tuple(self.trace.transactions[there:])
        operations = self.trace.operations
        self.trace.__dict__.update(deepcopy(self._before).__dict__)
        self.trace.operations = operations
        self._old = len(operations)

    @property
    def operations(self) -> list[Operation]:
        old, new = self.trace.operations[: self._old], self.trace.operations[self._old :]
        return old + [
            msgspec.structs.replace(
                o, start_ns=o.start_ns + LATER_NS, end_ns=None if o.end_ns is None else o.end_ns + LATER_NS
            )
            for o in new
        ]

    def told(self, received: int | None = None, known_ns: int | None = None) -> Lost:
        fork = self._before.transactions[-1].lsn
        end = self.lost[-1].lsn if self.lost else fork
        received = fork if received is None else received
        return Lost(
            Fork(
                fork=format_lsn(fork), end=format_lsn(end), received=format_lsn(received), known_ns=known_ns,
                stopped_ns=GONE_NS - 1, gone_ns=GONE_NS, stopped_us=START_US + 40_000_000, tail="lost-1.pgoutput",
            ),
            self.lost,
        )  # fmt: skip

    def judge(self, losses: list[Lost] | None = None, evidence: Evidence = AT_REST) -> Report:
        told = [self.told()] if losses is None else losses
        transactions = self.trace.transactions
        return judge(lambda: transactions, self.operations, evidence, COMPLETE, losses=told)


def of(report: Report, invariant: str) -> Judgement:
    return next(j for j in report.judgements if j.invariant == invariant)


def violated(report: Report) -> set[str]:
    return {j.invariant for j in report.judgements if j.verdict == "violated"}


def rest(trace: Trace, row: int) -> None:
    trace.claim(row, name=f"z.{row}")
    trace.finish(row, f"z.{row}", "done", result="1")


DONE = {"status": "done", "result": 1}


def lost_work() -> Forked:
    """Of two jobs, one is finished in the old log alone and again in the new one; a third is inserted in the old
    alone."""
    forked = Forked()
    trace = forked.trace
    for row in (1, 2):
        trace.insert(row, DONE)
    trace.claim(1, 2, name="a.1", lease=1.0)
    trace.finish(2, "a.1", "done", result="1")
    forked.fork()
    trace.finish(1, "a.1", "done", result="1")
    trace.insert(3, DONE)
    forked.fail_over()
    trace.reap(1, "a.1")
    rest(trace, 1)
    return forked


def test_what_was_acknowledged_and_lost_is_excused_and_named() -> None:
    forked = lost_work()
    report = forked.judge()
    assert violated(report) == set()
    assert of(report, "loss-bounded").verdict == "held"
    [loss] = report.losses
    assert loss.transactions == 2
    assert loss.acknowledged == {"flush": 1, "insert": 1}
    assert "insert" in " ".join(loss.operations)
    assert (loss.bytes, loss.bound_bytes) == (512, 512)
    assert loss.ms > 0


def test_the_same_is_a_violation_where_no_failover_explains_it() -> None:
    assert "no-lost-job" in violated(lost_work().judge([]))


def test_what_is_missing_in_both_logs_is_a_violation_beside_a_failover_too() -> None:
    forked = lost_work()
    forked.trace.did("client", "insert", {"job": forked.trace.operations[0].value["job"]}, {"id": 77})
    forked._old += 1
    forked.trace.operations.insert(0, forked.trace.operations.pop())
    assert violated(forked.judge()) == {"no-lost-job", "seen-executed", "told-is-done"}


def test_a_commit_that_the_standby_had_and_that_is_lost_is_beyond_the_bound() -> None:
    forked = lost_work()
    report = forked.judge([forked.told(received=forked.lost[0].lsn)])
    bounded = of(report, "loss-bounded")
    assert bounded.verdict == "violated"
    assert "1 commits are lost that it had (transaction" in bounded.violations[0].summary


def test_an_answer_given_before_the_log_had_grown_beyond_the_standby_is_beyond_the_bound() -> None:
    forked = lost_work()
    answered = max(o.end_ns or 0 for o in forked.trace.operations[: forked._old])
    assert of(forked.judge([forked.told(known_ns=answered + 1)]), "loss-bounded").verdict == "violated"
    first = min(o.end_ns or 0 for o in forked.trace.operations[: forked._old] if o.value.get("outcomes"))
    assert of(forked.judge([forked.told(known_ns=first)]), "loss-bounded").verdict == "held"


def test_a_transaction_id_that_is_given_out_again_belongs_to_the_new_transaction() -> None:
    forked = lost_work()
    assert forked.lost[0].xid == forked.trace.transactions[-3].xid
    left = survive(forked.operations, [forked.told()]).operations
    flushes = [o for o in left if o.f == "flush" and o.result["xid"] == forked.lost[0].xid]
    assert flushes == []
    assert of(forked.judge(), "single-owner").verdict == "held"


def test_an_answer_that_may_have_seen_what_is_lost_is_unknown_and_one_before_it_stands() -> None:
    forked = Forked()
    trace = forked.trace
    trace.insert(1, DONE)
    seen = {"target": 1, "key": None, "name": "go", "dedup": "d"}
    duplicate: dict[str, Any] = {"outcome": "duplicate", "target": 1, "signal": None}
    trace.did("client", "heartbeat", {"holds": []}, {"ids": []})
    forked.fork()
    trace.signal(1, "go", "d")
    trace.commit()
    trace.did("client", "signal", seen, duplicate)
    forked.fail_over()
    rest(trace, 1)
    survived = survive(forked.operations, [forked.told()])
    assert [o.type for o in survived.operations if o.f == "heartbeat"] == ["ok"]
    assert [o.type for o in survived.operations if o.f == "signal"] == ["info"]
    assert survived.losses[0].acknowledged == {"signal": 1}
    assert violated(forked.judge()) == set()
    assert violated(forked.judge([])) >= {"signal-dedup", "no-lost-signal"}


def credited(process: str) -> Forked:
    """The end of a row that held the one slot of a gate is lost, and the slot given back after the failover."""
    forked = Forked()
    trace = forked.trace
    trace.gate("g", 1)
    trace.insert(1, DONE, concurrency_key="g")
    trace.claim(1, name="a.1", lease=1.0, concurrency_shard="0")
    trace.level("conc", "g", 0, 1, 0).change(1, concurrency_shard="0").commit()
    trace.admit("a.1", 1)
    forked.fork()
    freed_by = trace.xid
    trace.finish(1, "a.1", "done", result="1", concurrency_shard=None)
    forked.fail_over()
    trace.level("conc", "g", 0, 1, 1).commit()
    trace.did(process, "credit", {"slots": [["g", 0]], "freed_by": freed_by}, {})
    trace.reap(1, "a.1", concurrency_shard=None)
    rest(trace, 1)
    return forked


def test_a_slot_given_back_for_a_commit_that_is_lost_is_excused_and_for_any_other_it_is_not() -> None:
    assert violated(credited("node").judge()) == set()
    assert violated(credited("another").judge()) == {"slot-conservation"}


def reborn(status: str) -> Forked:
    """The id of a lost job is given to another, which comes to another end than its own machine prescribes."""
    forked = Forked()
    trace = forked.trace
    trace.insert(1, DONE)
    rest(trace, 1)
    forked.fork()
    trace.insert(2, DONE)
    forked.fail_over()
    trace.insert(2, {"status": "failed", "result": None})
    trace.claim(2, name="b.1")
    trace.finish(2, "b.1", "done", result="1", status=status)
    return forked


def test_who_has_the_id_of_a_lost_row_need_not_end_as_prescribed_but_has_to_end() -> None:
    assert violated(reborn("done").judge()) == set()
    assert "no-lost-job" in violated(reborn("runnable").judge())


def test_the_lost_transactions_are_those_whose_commits_end_behind_the_fork(tmp_path: Path) -> None:
    assert read_lost(tmp_path) == ()
    forked = lost_work()
    with FrameWriter(tmp_path / "lost-1.pgoutput") as file:
        for message in write(forked.lost):
            file.append(0, message)
    fork = msgspec.structs.replace(forked.told().fork, fork=format_lsn(forked.lost[0].lsn))
    write_fork(tmp_path, fork)
    [read] = read_lost(tmp_path)
    assert read.fork == fork
    assert [each.xid for each in read.transactions] == [forked.lost[1].xid]


def loses_something(trace: Trace, forked: Forked) -> None:
    trace.insert(901, DONE)
    trace.claim(901, name="f.1", lease=1.0)
    forked.fork()
    trace.finish(901, "f.1", "done", result="1")
    forked.fail_over()
    trace.reap(901, "f.1")
    rest(trace, 901)


# Their leases are counted from the beginning of a trace, or they say less of a credit than nodes do.
ONLY_BEFORE = ("reclaimed_beside_its_owner", "lone_credit_fails")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("invariant", "breach"), [each[:2] for each in BROKEN], ids=[f"{b[0]}-{b[1].__name__}" for b in BROKEN]
)
def test_what_is_broken_beside_a_failover_that_loses_commits_is_found_as_without_one(
    invariant: str, breach: Callable[[Trace], None], when: str
) -> None:
    if when == "after" and breach.__name__ in ONLY_BEFORE:
        when = "before"
    forked = Forked()
    if when == "before":
        breach(forked.trace)
    loses_something(forked.trace, forked)
    if when == "after":
        breach(forked.trace)
    report = forked.judge()
    assert len(report.losses) == 1
    assert of(report, invariant).verdict == "violated"
