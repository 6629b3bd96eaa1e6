"""The picker's model, by itself: rules of picker.md that no comparison with the engine should have to find first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.picker import Commit, Hold, Job
from models import picker as model
from models.canonical import canonical_json, canonical_text
from models.outcomes import flush
from models.picker import Ended, Row, Table

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def job(**fields: Any) -> Job:
    return Job(fsm="machine", step="first", **fields)


def table_of(*jobs: Job) -> Table:
    return model.insert_many(Table(), NOW, jobs)[0]


def claimed(table: Table, now: datetime = NOW, **options: Any) -> tuple[Table, tuple[int, ...]]:
    options = {"queue": "default", "batch": 10, "claim": "c", "lease_ms": 1_000.0, **options}
    table, rows = model.claim(table, now, **options)
    return table, tuple(row.id for row in rows)


def test_an_identity_that_is_occupied_costs_an_id_and_inserts_nothing() -> None:
    table, answers = model.insert_many(
        Table(), NOW, [job(correlation_key=key) for key in ("k", "k", "other")]
    )

    assert answers == [1, None, 3]
    assert sorted(table.rows) == [1, 3]


def test_what_is_eligible_at_this_very_instant_is_claimed_and_what_comes_after_it_is_not() -> None:
    table = table_of(job(eligible_at=NOW), job(eligible_at=NOW + MICROSECOND))

    assert claimed(table)[1] == (1,)
    assert claimed(table, NOW + MICROSECOND)[1] == (1, 2)


def test_a_lease_that_ends_at_this_very_instant_is_not_reaped_and_a_microsecond_later_it_is() -> None:
    table, _ = claimed(table_of(job()), lease_ms=1_000.0)
    end = NOW + timedelta(seconds=1)

    assert model.reap(table, end, 10)[1].holds == ()
    assert model.reap(table, end + MICROSECOND, 10)[1].holds == (Hold(1, "c"),)


def test_the_window_is_cut_before_rows_of_one_key_are_reduced_to_one() -> None:
    table = table_of(job(concurrency_key="k"), job(concurrency_key="k"), job())

    assert claimed(table, batch=2)[1] == (1,)
    assert claimed(table, batch=3)[1] == (1, 3)


def test_a_row_under_a_gate_neither_blocks_its_key_nor_is_blocked_by_it() -> None:
    table = table_of(job(concurrency_key="g:1"), job(concurrency_key="g:1"))

    gated, ids = claimed(table, gates=["g"])
    assert ids == (1, 2)
    assert claimed(model.insert(gated, NOW, job(concurrency_key="g:1"))[0], claim="d")[1] == (3,)


def test_what_another_session_has_locked_takes_no_place_in_the_window() -> None:
    table = table_of(job(), job(priority=1), job(priority=2))

    assert claimed(table, batch=2, locked={1})[1] == (2, 3)


@pytest.mark.parametrize("preferred", [{1}, {2}, {3}])
def test_which_of_equal_rows_fills_the_window_is_left_to_the_engine(preferred: set[int]) -> None:
    assert claimed(table_of(job(), job(), job()), batch=1, preferred=preferred)[1] == tuple(preferred)


def test_a_preference_for_a_less_urgent_row_is_not_followed() -> None:
    assert claimed(table_of(job(), job(priority=1)), batch=1, preferred={2})[1] == (1,)


def test_a_tied_row_that_its_key_drops_may_have_filled_the_window_unseen() -> None:
    # The engine may have seen 1 and 2 in a window of two, and answered with 1 alone; or 1 and 3.
    table = table_of(job(concurrency_key="k"), job(concurrency_key="k"), job())

    assert claimed(table, batch=2, preferred={1})[1] == (1,)
    assert claimed(table, batch=2, preferred={1, 3})[1] == (1, 3)


def test_a_preference_cannot_bring_two_rows_of_one_key() -> None:
    table = table_of(job(concurrency_key="k"), job(concurrency_key="k"))

    assert claimed(table, preferred={1, 2})[1] == (1,)


def test_an_identity_is_given_up_for_good_when_its_row_leaves_the_scope() -> None:
    table, _ = claimed(table_of(job(correlation_key="k", correlation_scope=("runnable",))))
    table, _ = model.release(table, NOW, [Hold(1, "c")])

    assert table.rows[1].status == "runnable"
    assert table.rows[1].correlation_guard is None
    assert model.insert(table, NOW, job(correlation_key="k"))[1] == 2


@pytest.mark.parametrize("hold", [Hold(1, "other"), Hold(2, "c"), Hold(9, "c")])
def test_what_does_not_hold_the_row_changes_nothing(hold: Hold) -> None:
    table, _ = claimed(table_of(job(), job(queue="other")))

    assert flush(table, NOW, [Commit(id=hold.id, claim=hold.claim, kind="done")]) == (table, Ended())
    assert model.release(table, NOW, [hold]) == (table, Ended())
    assert model.heartbeat(table, NOW, [hold], 1.0) == (table, ())


def test_a_later_claim_of_a_row_is_not_ended_by_an_outcome_of_an_earlier_one() -> None:
    table, _ = claimed(table_of(job()), claim="first", lease_ms=-1.0)
    table, _ = model.reap(table, NOW, 1)
    table, _ = claimed(table, claim="second")

    assert flush(table, NOW, [Commit(id=1, claim="first", kind="done")]) == (table, Ended())


def test_attempts_are_counted_by_retry_and_reaper_and_cleared_by_next() -> None:
    table = table_of(job())
    attempts = []
    for turn, kind in enumerate(("retry", "reap", "release", "next")):
        table, _ = claimed(table, claim=str(turn), lease_ms=-1.0)
        hold = Hold(1, str(turn))
        if kind == "reap":
            table, _ = model.reap(table, NOW, 1)
        elif kind == "release":
            table, _ = model.release(table, NOW, [hold])
        else:
            commit = Commit(id=1, claim=str(turn), kind="retry" if kind == "retry" else "next")
            table, _ = flush(table, NOW, [commit])
        attempts.append(table.rows[1].attempt)

    assert attempts == [1, 2, 2, 0]


def test_no_operation_changes_the_table_it_was_given() -> None:
    table = table_of(job())
    rows = dict(table.rows)
    claimed(table)
    model.insert(table, NOW, job())

    assert table == Table(rows, 2)


def test_an_instant_is_kept_in_utc_whatever_zone_told_it() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=3)))
    row: Row = table_of(job(eligible_at=noon)).rows[1]

    assert row.eligible_at.isoformat() == "2026-01-01T09:00:00+00:00"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1e3", "1000"),
        ("-0.0", "0"),
        ('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1}'),
        ("1e308", "1" + "0" * 308),
    ],
)
def test_equal_json_has_one_canonical_text(one: str, other: str) -> None:
    assert canonical_text(one) == canonical_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "true"), ("null", '"None"'), ("[]", "{}"), ('"1"', "1"), ("0.1", "0.10000000000000001")],
)
def test_unequal_json_has_two_canonical_texts(one: str, other: str) -> None:
    assert canonical_text(one) != canonical_text(other)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(min_value=0, max_value=9))
def test_trailing_zeros_do_not_make_another_number(number: Decimal, zeros: int) -> None:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    longer = Decimal((sign, (*digits, *[0] * zeros), exponent - zeros))

    assert canonical_json(longer) == canonical_json(number)
