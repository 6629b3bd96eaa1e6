"""Two sessions meet on one row, one key or one identity: a lock or a constraint decides, and nobody gets an error."""

from __future__ import annotations

from engine.picker import Claim, Commit, Ended, Hold, Job
from stress.scripts.race import TIMEOUT_S, Race

LEASE_MS = 60_000.0


def insert(race: Race, **fields: object) -> int:
    row_id = race.do(race.picker.insert(Job(fsm="machine", step="first", **fields)))  # type: ignore[arg-type]
    assert row_id is not None
    return row_id


def claim(
    race: Race, name: str, session: str = "one", *, batch: int = 10, lease_ms: float = LEASE_MS
) -> Claim:
    operation = race.picker.claim(queue="default", batch=batch, claim=name, lease_ms=lease_ms)
    return race.do(operation, session)


def ids(claimed: Claim) -> list[int]:
    return [row.id for row in claimed.rows]


def test_of_two_claims_of_one_key_the_later_to_commit_is_retried_and_brings_less(race: Race) -> None:
    keyed = [insert(race, concurrency_key="k", priority=priority) for priority in (0, 1)]
    race.install_gates()
    gate = race.gate_at_start("late")  # both snapshots see nobody execute

    late = race.begin("late", race.picker.claim(queue="default", batch=10, claim="late", lease_ms=LEASE_MS))
    assert ids(claim(race, "early", batch=1)) == keyed[:1]
    race.open_gate(gate)

    assert late.result(TIMEOUT_S) == Claim((), 1)


def test_a_claim_waits_at_the_arbiter_and_wins_when_the_other_rolls_back(race: Race) -> None:
    insert(race, concurrency_key="k", priority=0)
    second = insert(race, concurrency_key="k", priority=1)
    other = race.session("other")
    with other.transaction(force_rollback=True):
        other.execute(
            "UPDATE gen_durable SET status = 'executing', locked_by = 'x', lease_expires_at = now() WHERE id = 1"
        )
        waiting = race.begin(
            "one", race.picker.claim(queue="default", batch=10, claim="c", lease_ms=LEASE_MS)
        )

    assert waiting.result(TIMEOUT_S).contended == 0
    assert ids(waiting.result()) == [second]


def test_a_claim_passes_over_a_row_that_another_claimed_after_its_snapshot(race: Race) -> None:
    first, second = insert(race, priority=0), insert(race, priority=1)
    race.install_gates()
    gate = race.gate_at_start("late")

    late = race.begin("late", race.picker.claim(queue="default", batch=10, claim="late", lease_ms=LEASE_MS))
    assert ids(claim(race, "early", batch=1)) == [first]
    race.open_gate(gate)

    assert ids(late.result(TIMEOUT_S)) == [second]
    assert race.row(first, "locked_by") == ("early",)


def test_a_row_claimed_and_given_back_after_the_snapshot_is_left_for_the_next_claim(race: Race) -> None:
    # The lock finds the row's newest version, which the statement's snapshot cannot see: there is nothing to update.
    row_id = insert(race)
    race.install_gates()
    gate = race.gate_at_start("late")

    late = race.begin("late", race.picker.claim(queue="default", batch=10, claim="late", lease_ms=LEASE_MS))
    claim(race, "early")
    race.do(race.picker.release([Hold(row_id, "early")]))
    race.open_gate(gate)

    assert late.result(TIMEOUT_S) == Claim((), 0)
    assert race.row(row_id, "status::text, locked_by") == ("runnable", None)
    assert ids(claim(race, "next")) == [row_id]


def test_the_reaper_sees_a_heartbeat_that_committed_after_its_snapshot(race: Race) -> None:
    row_id = insert(race)
    claim(race, "c", lease_ms=-1)
    race.install_gates()
    gate = race.gate_at_start("reaper")

    reaped = race.begin("reaper", race.picker.reap(10))
    assert race.do(race.picker.heartbeat([Hold(row_id, "c")], LEASE_MS)) == (Hold(row_id, "c"),)
    race.open_gate(gate)

    assert reaped.result(TIMEOUT_S) == Ended((), None)
    assert race.row(row_id, "status::text, locked_by, attempt") == ("executing", "c", 0)


def test_the_reaper_leaves_a_claim_that_was_made_after_its_snapshot(race: Race) -> None:
    row_id = insert(race)
    claim(race, "old", lease_ms=-1)
    race.install_gates()
    gate = race.gate_at_start("reaper")

    reaped = race.begin("reaper", race.picker.reap(10))
    race.do(race.picker.release([Hold(row_id, "old")]))
    claim(race, "new", lease_ms=-1)
    race.open_gate(gate)

    assert reaped.result(TIMEOUT_S) == Ended((), None)
    assert race.row(row_id, "locked_by, attempt") == ("new", 0)


def test_a_flush_that_waited_while_its_claim_was_reaped_is_stale(race: Race) -> None:
    row_id = insert(race)
    claim(race, "old", lease_ms=-1)
    reaper = race.session("reaper")
    with reaper.transaction():
        race.do(race.picker.reap(10), "reaper")
        flushed = race.begin("one", race.picker.flush([Commit(id=row_id, claim="old", kind="done")]))

    assert flushed.result(TIMEOUT_S) == Ended((), None)
    assert race.row(row_id, "status::text, attempt") == ("runnable", 1)


def test_a_flush_that_waited_for_a_heartbeat_commits(race: Race) -> None:
    row_id = insert(race)
    claim(race, "c")
    heart = race.session("heart")
    with heart.transaction():
        race.do(race.picker.heartbeat([Hold(row_id, "c")], LEASE_MS), "heart")
        flushed = race.begin("one", race.picker.flush([Commit(id=row_id, claim="c", kind="done")]))

    assert flushed.result(TIMEOUT_S).holds == (Hold(row_id, "c"),)


def test_an_outcome_of_an_earlier_claim_does_not_end_a_later_claim_of_the_same_row(race: Race) -> None:
    row_id = insert(race)
    claim(race, "first", lease_ms=-1)
    race.do(race.picker.reap(10))
    claim(race, "second", "two")

    assert race.do(race.picker.flush([Commit(id=row_id, claim="first", kind="done")])) == Ended((), None)
    assert race.row(row_id, "status::text, locked_by") == ("executing", "second")


def test_an_insert_waits_for_the_one_that_took_its_identity_and_answers_with_nothing(race: Race) -> None:
    other = race.session("other")
    twin = race.picker.insert(Job(fsm="m", step="s", correlation_key="k"))
    with other.transaction():
        race.do(race.picker.insert(Job(fsm="m", step="s", correlation_key="k")), "other")
        waiting = race.begin("one", twin)

    assert waiting.result(TIMEOUT_S) is None


def test_an_insert_gets_the_identity_that_the_other_did_not_commit(race: Race) -> None:
    other = race.session("other")
    with other.transaction(force_rollback=True):
        race.do(race.picker.insert(Job(fsm="m", step="s", correlation_key="k")), "other")
        waiting = race.begin("one", race.picker.insert(Job(fsm="m", step="s", correlation_key="k")))

    assert waiting.result(TIMEOUT_S) == 2


def test_two_batches_with_the_same_identities_in_opposite_orders_both_succeed(race: Race) -> None:
    def jobs(keys: str) -> list[Job]:
        return [Job(fsm="m", step="s", correlation_key=key) for key in keys]

    other = race.session("other")
    with other.transaction():
        first = race.do(race.picker.insert_many(jobs("bd")), "other")
        waiting = race.begin("one", race.picker.insert_many(jobs("edcba")))
    second = waiting.result(TIMEOUT_S)

    assert None not in first
    assert [row_id is not None for row_id in second] == [True, False, True, False, True]


def test_an_insert_of_an_identity_that_a_claim_gives_up_waits_for_the_claim(race: Race) -> None:
    row_id = insert(race, correlation_key="k", correlation_scope=("runnable",))
    claimer = race.session("claimer")
    with claimer.transaction():
        claim(race, "c", "claimer")
        waiting = race.begin("one", race.picker.insert(Job(fsm="m", step="s", correlation_key="k")))

    assert waiting.result(TIMEOUT_S) not in (None, row_id)


def test_a_claim_takes_another_row_while_an_insert_holds_an_uncommitted_one(race: Race) -> None:
    first = insert(race, priority=1)
    other = race.session("other")
    with other.transaction():
        race.do(race.picker.insert(Job(fsm="m", step="s")), "other")
        assert ids(claim(race, "c")) == [first]
