"""Where an execution lives is for ever, and one answer out of several hides none of them."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.store import ExecutionSummary, Page
from engine.store.encoding import place_of
from engine.store.shards import (
    MAX_SHARDS,
    addressed,
    check_count,
    gathered,
    grouped,
    oldest,
    page_of,
    shard_of,
    shared_out,
    ticket,
    ticketed,
)


def test_an_execution_lives_where_it_always_did() -> None:
    pinned = {"": 876, "a": 343, "é": 743, "00000000000000000000000000000000": 697}
    assert {id_: shard_of(id_, 1000) for id_ in pinned} == pinned


def test_an_id_that_is_no_text_has_a_place_all_the_same() -> None:
    assert shard_of("\ud800", 1000) == shard_of("\ud800", 1000)
    assert shard_of(7, 1000) == shard_of("7", 1000)  # type: ignore[arg-type]


def test_executions_are_spread_evenly() -> None:
    counts = Counter(shard_of(f"{n:032x}", 4) for n in range(4000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 850


def test_a_ticket_names_its_shard_and_seq_whatever_their_number() -> None:
    for shard, seq in ((0, 1), (2, 1), (1, 2**50)):
        assert addressed(ticket(shard, seq), 3) == (shard, seq)
    with pytest.raises(ValueError, match="shard 3"):
        addressed(ticket(3, 1), 3)


@pytest.mark.parametrize("count", [0, MAX_SHARDS + 1])
def test_a_number_of_shards_that_there_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)):
        check_count(count)


def test_a_batch_is_divided_by_shard_and_its_answers_put_together_again() -> None:
    groups = grouped([2, 0, 2, 1])
    assert groups == {2: [0, 2], 0: [1], 1: [3]}
    assert gathered(groups.values(), [("a", "c"), ("b",), ("d",)]) == ["a", "b", "c", "d"]
    outcomes: list[tuple[str, ...] | BaseException] = [("a", "c"), KeyError("lost"), ("d",)]
    with pytest.raises(KeyError, match="lost"):
        gathered(groups.values(), outcomes)
    for answers in ([("a",), ("b",), ("d",)], [("a", "c"), ("b",)]):
        with pytest.raises(ValueError, match="shorter"):
            gathered(groups.values(), answers)


def test_rows_of_a_shard_come_by_ticket() -> None:
    assert ticketed(2, [(5, "x"), (6, "y", 7)]) == [(ticket(2, 5), "x"), (ticket(2, 6), "y", 7)]


def test_a_backlog_of_one_shard_does_not_hide_another() -> None:
    backlog = [(seq, "x") for seq in range(1, 101)]
    late = [(seq, "y") for seq in range(10_001, 10_004)]

    assert Counter(row[1] for row in shared_out([backlog, late], 10)) == {"x": 7, "y": 3}
    rows = shared_out([backlog, late], 10)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert [row[1] for row in shared_out([backlog, late], 1)] == ["x"]
    assert shared_out([[], []], 10) == []
    assert shared_out([backlog[:3], late], 1_000) == [*backlog[:3], *late]
    # Of rows that begin alike each stays where it was.
    assert shared_out([[(1, "b"), (1, "a")]], 2) == [(1, "b"), (1, "a")]


def test_due_timers_of_all_shards_come_oldest_first() -> None:
    assert oldest([[("a", "p", 1.0), ("b", "p", 4.0)], [("c", "p", 2.0)]], 2) == [
        ("a", "p", 1.0),
        ("c", "p", 2.0),
    ]


def test_a_page_of_shards_goes_on_while_any_of_them_does() -> None:
    def page(*ids: str, more: bool = False) -> Page:
        items = tuple(ExecutionSummary(id=id_, definition_id="d", version=1, status="DONE") for id_ in ids)
        return Page(items, "more" if more else None)

    first = page_of([page("a", "d"), page("b", "c", more=True)], 2)
    assert [item.id for item in first.items] == ["a", "b"]
    assert place_of(first.next_cursor) == "b"
    assert page_of([page("a"), page("b")], 2).next_cursor is None
    assert page_of([page(), page()], 2) == page()


@pytest.mark.parametrize("count", [1, 2, MAX_SHARDS])
def test_from_one_shard_to_the_most_there_may_be_any_number(count: int) -> None:
    check_count(count)


def test_what_is_shared_out_stops_at_the_limit_and_comes_by_ticket() -> None:
    # What follows a ticket decides nothing: it may be of kinds that no one can compare.
    rows: list[list[tuple[int, object]]] = [[(3, None), (9, None)], [(1, {})], [(2, ())]]
    assert [row[0] for row in shared_out(rows, 3)] == [1, 2, 3]
    assert [row[0] for row in shared_out(rows, 99)] == [1, 2, 3, 9]
    assert [row[0] for row in shared_out(rows, 2)] == [1, 3]


def test_timers_of_one_instant_come_by_execution_and_path() -> None:
    one, other = [("a", "q", 1.0), ("b", "a", 1.0)], [("a", "p", 1.0), ("b", "p", 1.0)]
    assert oldest([one, other], 3) == [("a", "p", 1.0), ("a", "q", 1.0), ("b", "a", 1.0)]


def test_a_page_that_is_full_and_was_the_last_of_every_shard_ends_the_listing() -> None:
    def page(*ids: str, more: bool = False) -> Page:
        items = tuple(ExecutionSummary(id=id_, definition_id="d", version=1, status="DONE") for id_ in ids)
        return Page(items, "more" if more else None)

    assert page_of([page("a"), page("b")], 2).next_cursor is None
    assert place_of(page_of([page("a", "c"), page("b")], 2).next_cursor) == "b"
    assert place_of(page_of([page("a", more=True), page("b")], 2).next_cursor) == "b"
    assert place_of(page_of([page("a", "c"), page("b", "d")], 3).next_cursor) == "c"
