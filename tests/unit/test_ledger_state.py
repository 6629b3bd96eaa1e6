from __future__ import annotations

import pytest

from invariants.ledger.pgoutput import UNCHANGED, Change, Relation, Row
from invariants.ledger.state import State, StateError

T = Relation(1, "public", "t", ("id", "body", "n"), (0,))


def insert(*row: bytes | None) -> Change:
    return Change(T, "insert", None, row)


def update(*row: bytes | None, old: Row | None = None, partial: bool = False) -> Change:
    return Change(T, "update", old, row, partial)


def test_an_update_is_given_its_old_row() -> None:
    state = State()
    state.apply(insert(b"1", b"a", None))
    [step] = state.apply(update(b"1", b"b", b"2"))
    assert (step.old, step.new) == ((b"1", b"a", None), (b"1", b"b", b"2"))


def test_a_value_that_the_server_left_out_is_the_old_one() -> None:
    state = State()
    state.apply(insert(b"1", b"long" * 1000, None))
    [step] = state.apply(update(b"1", UNCHANGED, b"2", partial=True))
    assert step.new == (b"1", b"long" * 1000, b"2")
    assert state.tables()["t"].get(b"1") == step.new


def test_an_update_of_the_key_moves_the_row() -> None:
    state = State()
    state.apply(insert(b"1", b"a", None))
    state.apply(update(b"2", b"a", None, old=(b"1", None, None)))
    assert list(state.tables()["t"].rows()) == [(b"2", b"a", None)]


def test_a_delete_is_given_its_whole_row() -> None:
    state = State()
    state.apply(insert(b"1", b"a", b"2"))
    [step] = state.apply(Change(T, "delete", (b"1", None, None), None))
    assert (step.old, step.new) == ((b"1", b"a", b"2"), None)
    assert len(state.tables()["t"]) == 0


def test_a_truncate_is_a_step_for_each_row() -> None:
    state = State()
    for number in (b"1", b"2"):
        state.apply(insert(number, None, None))
    steps = state.apply(Change(T, "truncate", None, None))
    assert [step.old for step in steps] == [(b"1", None, None), (b"2", None, None)]
    assert len(state.tables()["t"]) == 0


@pytest.mark.parametrize("change", [update(b"9", b"b", None), Change(T, "delete", (b"9", None, None), None)])
def test_a_change_of_a_row_never_seen_is_an_error(change: Change) -> None:
    with pytest.raises(StateError, match="never inserted"):
        State().apply(change)


def test_a_settled_row_is_kept_packed_and_comes_back_whole() -> None:
    state = State({"t": lambda row: row[2] == b"done"})
    state.apply(insert(b"1", "é".encode(), b"done"))
    table = state.tables()["t"]
    assert isinstance(table._rows[b"1"], bytes)
    assert table.get(b"1") == (b"1", "é".encode(), b"done")
    [step] = state.apply(update(b"1", b"b", b"open"))
    assert step.old == (b"1", "é".encode(), b"done")


def test_a_table_whose_columns_change_is_an_error() -> None:
    state = State()
    state.apply(insert(b"1", None, None))
    other = Relation(1, "public", "t", ("id", "n"), (0,))
    with pytest.raises(StateError, match="changed its columns"):
        state.apply(Change(other, "insert", None, (b"2", None)))
