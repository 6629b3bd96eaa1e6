"""Each operation of the picker on a real server, by the system's own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.operation import Call, Operation, T, perform
from engine.picker import LIVE, Claim, Commit, Ended, Hold, Job, Picker
from stress.scripts.race import Race

LEASE_MS = 60_000.0


def job(**fields: Any) -> Job:
    return Job(fsm="machine", step="first", **fields)


def insert(race: Race, **fields: Any) -> int:
    row_id = race.do(race.picker.insert(job(**fields)))
    assert row_id is not None
    return row_id


def claim(race: Race, name: str, batch: int = 10, lease_ms: float = LEASE_MS, **options: Any) -> list[int]:
    operation = race.picker.claim(queue="default", batch=batch, claim=name, lease_ms=lease_ms, **options)
    return [row.id for row in race.do(operation).rows]


def counted(operation: Operation[T], calls: list[Call]) -> Operation[T]:
    """The same operation, its statements noted as they pass."""
    try:
        pending = next(operation)
        while True:
            sent = pending if isinstance(pending, tuple) else (pending,)
            calls.extend(request for request in sent if isinstance(request, Call))
            pending = operation.send((yield pending))
    except StopIteration as stop:
        result: T = stop.value
        return result


OPERATIONS: dict[str, Callable[[Picker], Operation[Any]]] = {
    "insert": lambda picker: picker.insert(job()),
    "insert_many": lambda picker: picker.insert_many([job()] * 500),
    "claim": lambda picker: picker.claim(queue="default", batch=100, claim="c", lease_ms=LEASE_MS),
    "flush": lambda picker: picker.flush([Commit(id=i, claim="c", kind="done") for i in range(100)]),
    "heartbeat": lambda picker: picker.heartbeat([Hold(i, "c") for i in range(100)], LEASE_MS),
    "release": lambda picker: picker.release([Hold(i, "c") for i in range(100)]),
    "reap": lambda picker: picker.reap(100),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_one_statement_whatever_its_batch(race: Race, name: str) -> None:
    race.do(race.picker.insert_many([job()] * 200))
    calls: list[Call] = []

    race.do(counted(OPERATIONS[name](race.picker), calls))

    assert [call.statement.name for call in calls] == [f"picker/{name}"]


def test_an_empty_batch_asks_the_server_nothing() -> None:
    picker = Picker()
    operations: Sequence[Operation[Any]] = (
        picker.insert_many([]),
        picker.flush([]),
        picker.heartbeat([], 1.0),
        picker.release([]),
    )
    for operation in operations:
        with pytest.raises(StopIteration):
            next(operation)


def test_more_than_6000_jobs_are_inserted_in_one_call(race: Race) -> None:
    # One placeholder per value would need 84,000 parameters; the protocol ends at 65,535.
    ids = race.do(race.picker.insert_many([job(correlation_key=str(n)) for n in range(7_000)]))

    assert len(set(ids)) == 7_000
    assert None not in ids
    assert race.rows("SELECT count(*) FROM gen_durable WHERE correlation_guard IS NOT NULL") == [(7_000,)]


def test_insert_many_answers_each_job_in_the_order_given(race: Race) -> None:
    taken = insert(race, correlation_key="b")

    keys = ["c", "b", "a", "c", None, "a"]
    ids = race.do(race.picker.insert_many([job(correlation_key=key) for key in keys]))

    assert [row_id is not None for row_id in ids] == [True, False, True, False, True, False]
    stored = race.rows("SELECT id, correlation_key FROM gen_durable WHERE id <> %s ORDER BY id", taken)
    assert stored == [(ids[0], "c"), (ids[2], "a"), (ids[4], None)]


def test_an_identity_is_free_again_once_its_row_has_left_the_scope(race: Race) -> None:
    first = insert(race, correlation_key="k", correlation_scope=LIVE)
    assert race.do(race.picker.insert(job(correlation_key="k"))) is None
    claim(race, "c")
    assert race.do(race.picker.insert(job(correlation_key="k"))) is None
    race.do(race.picker.flush([Commit(id=first, claim="c", kind="done")]))

    assert race.do(race.picker.insert(job(correlation_key="k"))) is not None


def test_an_identity_given_up_is_not_retaken_by_a_row_that_returns_to_its_scope(race: Race) -> None:
    first = insert(race, correlation_key="k", correlation_scope=("runnable",))
    claim(race, "c")
    second = insert(race, correlation_key="k", correlation_scope=("runnable",))

    assert [hold.id for hold in race.do(race.picker.release([Hold(first, "c")])).holds] == [first]
    guards = race.rows("SELECT id FROM gen_durable WHERE correlation_guard = 'k'")
    assert guards == [(second,)]


def test_a_claim_brings_the_most_urgent_jobs_in_pick_order(race: Race) -> None:
    now = datetime.now(UTC)
    ids = {
        (priority, age): insert(race, priority=priority, eligible_at=now - timedelta(seconds=age))
        for priority, age in [(1, 9), (0, 1), (-32_768, 0), (32_767, 99), (0, 5)]
    }

    assert claim(race, "c", batch=4) == [ids[-32_768, 0], ids[0, 5], ids[0, 1], ids[1, 9]]


def test_a_claim_leaves_other_queues_and_what_is_not_yet_eligible(race: Race) -> None:
    insert(race, queue="other")
    insert(race, eligible_at=datetime.now(UTC) + timedelta(hours=1))
    insert(race, eligible_at=datetime.max.replace(tzinfo=UTC))
    here = insert(race, eligible_at=datetime.min.replace(tzinfo=UTC))

    assert claim(race, "c") == [here]


def test_a_batch_of_none_claims_nothing(race: Race) -> None:
    insert(race)

    assert claim(race, "c", batch=0) == []


def test_two_sessions_share_a_queue_without_sharing_a_row(race: Race) -> None:
    ids = [insert(race) for _ in range(6)]

    claimed = []
    for turn, session in enumerate(["one", "two", "one"]):
        operation = race.picker.claim(queue="default", batch=2, claim=f"c{turn}", lease_ms=LEASE_MS)
        claimed += [row.id for row in race.do(operation, session).rows]

    assert sorted(claimed) == ids


def test_a_claim_takes_the_next_row_where_another_session_has_the_first(race: Race) -> None:
    first, second = insert(race, priority=0), insert(race, priority=1)

    with race.locked(first):
        assert claim(race, "c", batch=1) == [second]


def test_one_row_of_a_key_is_claimed_at_a_time(race: Race) -> None:
    urgent, later = (
        insert(race, concurrency_key="k", priority=0),
        insert(race, concurrency_key="k", priority=1),
    )

    assert claim(race, "a") == [urgent]
    assert claim(race, "b") == []
    race.do(race.picker.flush([Commit(id=urgent, claim="a", kind="done")]))
    assert claim(race, "c") == [later]


def test_the_window_is_cut_before_the_rows_of_one_key_are_reduced_to_one(race: Race) -> None:
    first = insert(race, concurrency_key="k")
    insert(race, concurrency_key="k", priority=1)
    insert(race, priority=2)

    assert claim(race, "c", batch=2) == [first]


def test_a_key_that_reads_like_the_id_of_a_row_takes_nothing_from_that_row(race: Race) -> None:
    plain = insert(race)
    keyed = insert(race, concurrency_key=str(plain))

    assert sorted(claim(race, "c")) == [plain, keyed]


def test_a_configured_gate_keeps_all_its_rows(race: Race) -> None:
    ids = [insert(race, concurrency_key=f"gate:{n % 2}") for n in range(4)]

    assert claim(race, "c", gates=["gate"]) == ids
    assert race.rows("SELECT DISTINCT concurrency_shard FROM gen_durable") == [(-1,)]


@pytest.mark.parametrize(
    ("commit", "status", "attempt"),
    [
        ({"kind": "next", "step": "second", "state": '{"n": 2}'}, "runnable", 0),
        ({"kind": "retry", "error": "why"}, "runnable", 6),
        ({"kind": "done", "result": "null"}, "done", 5),
        ({"kind": "stop", "error": "why"}, "failed", 5),
    ],
    ids=["next", "retry", "done", "stop"],
)
def test_an_outcome_ends_the_claim(race: Race, commit: dict[str, Any], status: str, attempt: int) -> None:
    row_id = insert(race, concurrency_key="k", state={"n": 1})
    race.rows("UPDATE gen_durable SET attempt = 5")
    claim(race, "c")

    ended = race.do(race.picker.flush([Commit(id=row_id, claim="c", **commit)]))

    assert ended.holds == (Hold(row_id, "c"),)
    assert ended.xid is not None
    found = race.row(row_id, "status::text, attempt, locked_by, lease_expires_at, step, state, last_error")
    step, state = commit.get("step", "first"), {"n": 2} if "state" in commit else {"n": 1}
    assert found == (status, attempt, None, None, step, state, commit.get("error"))


def test_a_result_of_json_null_is_not_an_absent_result(race: Race) -> None:
    row_id = insert(race)
    claim(race, "c")
    race.do(race.picker.flush([Commit(id=row_id, claim="c", kind="done", result="null")]))

    assert race.row(row_id, "result::text, result IS NULL") == ("null", False)


def test_a_stale_outcome_changes_nothing_and_its_companions_commit(race: Race) -> None:
    stale, good = insert(race), insert(race)
    claim(race, "old", lease_ms=-1)
    race.do(race.picker.reap(10))
    claim(race, "new")
    before = race.row(stale, "gen_durable.*::text")

    ended = race.do(
        race.picker.flush(
            [Commit(id=stale, claim="old", kind="done"), Commit(id=good, claim="new", kind="done")]
        )
    )

    assert ended.holds == (Hold(good, "new"),)
    assert race.row(stale, "gen_durable.*::text") == before


def test_nothing_is_done_for_a_claim_that_has_ended(race: Race) -> None:
    row_id = insert(race)
    claim(race, "c")
    hold = Hold(row_id, "c")
    race.do(race.picker.release([hold]))

    assert race.do(race.picker.release([hold])) == Ended((), None)
    assert race.do(race.picker.heartbeat([hold], LEASE_MS)) == ()
    assert race.do(race.picker.flush([Commit(id=row_id, claim="c", kind="done")])) == Ended((), None)


def test_release_keeps_attempt_and_eligible_at(race: Race) -> None:
    row_id = insert(race, eligible_at=datetime(2020, 1, 1, tzinfo=UTC))
    race.rows("UPDATE gen_durable SET attempt = 3")
    claim(race, "c")
    race.do(race.picker.release([Hold(row_id, "c")]))

    assert race.row(row_id, "attempt, eligible_at") == (3, datetime(2020, 1, 1, tzinfo=UTC))


def test_a_retry_waits_for_its_delay(race: Race) -> None:
    row_id = insert(race)
    claim(race, "c")
    race.do(race.picker.flush([Commit(id=row_id, claim="c", kind="retry", delay_ms=3_600_000)]))

    assert claim(race, "d") == []
    assert race.row(row_id, "extract(epoch FROM eligible_at - updated_at)::int") == (3_600,)


def test_the_reaper_takes_only_what_has_expired_and_the_oldest_first(race: Race) -> None:
    for name, lease_ms in [("newer", -1.0), ("older", -60_000.0), ("held", LEASE_MS)]:
        insert(race)
        claim(race, name, lease_ms=lease_ms)

    assert [hold.claim for hold in race.do(race.picker.reap(1)).holds] == ["older"]
    assert [hold.claim for hold in race.do(race.picker.reap(10)).holds] == ["newer"]
    assert race.do(race.picker.reap(10)) == Ended((), None)
    assert race.rows("SELECT attempt, status::text FROM gen_durable ORDER BY id") == [
        (1, "runnable"),
        (1, "runnable"),
        (0, "executing"),
    ]


def test_a_lease_that_ran_out_is_extended_while_nobody_took_the_row(race: Race) -> None:
    row_id = insert(race)
    claim(race, "c", lease_ms=-1)

    assert race.do(race.picker.heartbeat([Hold(row_id, "c")], LEASE_MS)) == (Hold(row_id, "c"),)
    assert race.do(race.picker.reap(10)).holds == ()


def test_what_another_session_has_locked_is_neither_extended_nor_reaped(race: Race) -> None:
    locked, free = insert(race), insert(race)
    claim(race, "c", lease_ms=-1)

    with race.locked(locked):
        holds = [Hold(locked, "c"), Hold(free, "c")]
        assert race.do(race.picker.heartbeat(holds, -1)) == (Hold(free, "c"),)
        assert race.do(race.picker.reap(10)).holds == (Hold(free, "c"),)


def test_a_claim_that_loses_every_race_answers_with_nothing_and_no_error(race: Race) -> None:
    insert(race)
    operation = race.picker.claim(queue="default", batch=1, claim="c", lease_ms=LEASE_MS)
    race.rows("CREATE UNIQUE INDEX always_lost ON gen_durable ((1)) WHERE status = 'executing'")
    insert_other = race.picker.claim(queue="default", batch=1, claim="first", lease_ms=LEASE_MS)
    assert len(race.do(insert_other).rows) == 1
    insert(race)

    assert perform(race.session("one"), operation) == Claim((), 4)
