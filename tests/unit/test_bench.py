"""Ratios of a bench, and what its proof from the write-ahead log refuses to count."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.sql import Identifier

from invariants.claims import Rows
from invariants.ledger.pgoutput import Change, Relation, Transaction
from results.bench import render
from results.bench.samples import Bench, Goal, Sample, judged, standings
from stress.bench import commits, cost
from stress.bench.contenders import read_raw
from stress.bench.ledger import Account
from stress.bench.peers import _Rows, unfinished

JOB = Relation(1, "public", "job", ("id", "status"), (0,))
ROW = Relation(2, "public", "executions", ("id", "version"), (0,))


def sample(contender: str, kind: Any, repetition: int, per_s: float, **fields: Any) -> Sample:
    fields = {"workload": "drain 1", "verdict": "held", "figures": {"per_s": per_s}} | fields
    return Sample(contender=contender, kind=kind, repetition=repetition, **fields)


def told(*statuses: tuple[int, str]) -> list[Transaction]:
    """One transaction each: a job and what it became."""
    return [
        Transaction(n, n, n, n * 1_000, (Change(JOB, "update", None, (b"%d" % job, status.encode())),))
        for n, (job, status) in enumerate(statuses, 1)
    ]


def test_a_ratio_is_the_median_of_those_within_each_repetition() -> None:
    # The machine was three times as slow in the second repetition; nobody's ratio changes.
    measured = [
        sample("raw 100", "floor", 0, 300.0),
        sample("engine", "engine", 0, 150.0),
        sample("raw 100", "floor", 1, 100.0),
        sample("engine", "engine", 1, 50.0),
    ]
    assert [each.of_floor for each in standings(measured)] == [1.0, 0.5]


def test_what_does_not_hold_is_in_no_ratio() -> None:
    measured = [
        sample("raw 100", "floor", 0, 100.0),
        sample("engine", "engine", 0, 1_000_000.0, verdict="violated", reason="12 jobs were not ended"),
        sample("engine", "engine", 1, 80.0),
        sample("raw 100", "floor", 1, 100.0),
    ]
    engine = standings(measured)[1]
    assert (engine.median, engine.of_floor, engine.verdict) == (80.0, 0.8, "violated")
    bench = Bench(machine={}, postgres={}, settings={}, samples=tuple(measured))
    assert bench.verdict == "violated"
    assert render.faults(bench) == ["drain 1, engine, repetition 0: violated: 12 jobs were not ended"]


def test_less_is_better_of_a_latency() -> None:
    measured = [
        sample("floor", "floor", 0, 0, figures={"p50_ms": 2.0}),
        sample("engine", "engine", 0, 0, figures={"p50_ms": 4.0}),
    ]
    assert [each.of_floor for each in standings(measured)] == [1.0, 0.5]


def test_the_best_peer_is_the_one_to_beat() -> None:
    measured = [
        sample("slow", "peer", 0, 10.0),
        sample("fast", "peer", 0, 100.0),
        sample("engine", "engine", 0, 120.0),
    ]
    goal = Goal(workload="drain 1", contender="engine", against="best peer", at_least=1.3)
    [found] = judged(measured, [goal])
    assert (found.ratio, found.is_met) == (1.2, False)


def test_jobs_that_were_taken_and_then_ended_once_each_are_counted() -> None:
    account = Account.of(told((1, "taken"), (2, "taken"), (2, "ended"), (1, "ended")), read_raw)
    assert account.objection(2) is None
    assert account.last_us == 4_000


def test_a_job_that_was_given_back_may_be_taken_again() -> None:
    account = Account.of(told((1, "taken"), (1, "queued"), (1, "taken"), (1, "ended")), read_raw)
    assert account.objection(1) is None


@pytest.mark.parametrize(
    ("statuses", "objection"),
    [
        ([(1, "taken"), (1, "ended"), (2, "taken")], "1 jobs were not ended"),
        (
            [(1, "taken"), (1, "ended"), (1, "ended"), (2, "taken"), (2, "ended")],
            "1 jobs were ended more than once",
        ),
        (
            [(1, "taken"), (1, "taken"), (1, "ended"), (2, "taken"), (2, "ended")],
            "1 jobs were taken more than once",
        ),
        ([(1, "ended"), (2, "taken"), (2, "ended")], "1 jobs were ended that nobody had taken"),
    ],
)
def test_jobs_are_not_counted_where(statuses: list[tuple[int, str]], objection: str) -> None:
    assert Account.of(told(*statuses), read_raw).objection(2) == objection


@pytest.mark.parametrize(
    ("versions", "expected", "objection"),
    [
        ([1, 2, 3], 3, None),
        ([1, 3], 2, "version 3 of b'e' came after 1"),
        ([1, 2, 2], 3, "version 2 of b'e' came after 2"),
        ([1, 2], 3, "the log has 2 commits, the table 3"),
    ],
)
def test_commits_are_counted_where_each_follows_the_one_before(
    versions: list[int], expected: int, objection: str | None
) -> None:
    transactions = [
        Transaction(n, n, n, n, (Change(ROW, "update", None, (b"e", b"%d" % version)),))
        for n, version in enumerate(versions, 1)
    ]
    assert commits.objection(transactions, expected) == objection


QUEUE = Relation(3, "theirs", "jobs", ("id", "state", "worker"), (0,))
ROWS = Rows(
    table="jobs", status="state", waiting=("todo",), running=("doing",), ended=("done",), claim=("worker",)
)


def history(*states: tuple[str, str]) -> Account:
    """What becomes of one job of a peer: its state, and whose it is."""
    changes = [
        Change(QUEUE, "update", None, (b"1", state.encode(), worker.encode())) for state, worker in states
    ]
    transactions = [Transaction(n, n, n, n * 1_000, (each,)) for n, each in enumerate(changes, 1)]
    return Account.of(transactions, _Rows("theirs", "jobs", ROWS).read)


def test_a_row_of_a_peer_that_is_tidied_up_has_not_ended_twice() -> None:
    assert history(("todo", ""), ("doing", "a"), ("done", "a"), ("done", "")).objection(1) is None


def test_a_job_that_two_workers_of_a_peer_took_is_not_counted() -> None:
    taken = history(("todo", ""), ("doing", "a"), ("doing", "b"), ("done", "b"))
    assert taken.objection(1) == "1 jobs were taken more than once"


def test_whether_a_peer_has_anything_left_is_asked_of_one_status_at_a_time() -> None:
    assert unfinished(Identifier("theirs", "jobs"), ROWS).as_string(None) == (
        """SELECT EXISTS (SELECT FROM "theirs"."jobs" WHERE "state" = 'todo') """
        """OR EXISTS (SELECT FROM "theirs"."jobs" WHERE "state" = 'doing')"""
    )


def test_what_a_job_costs_is_counted_in_batches_of_one_size() -> None:
    for workload, _, contender in (*cost.variants(), *cost.sharded()):
        batch = int(contender.name) if workload == "cost by batch" else cost.BATCHES[-1]
        assert [contender.config[name] for name in ("concurrency", "prefetch", "max_batch")] == [batch] * 3
