"""Cursors and keys: what may be stored, at its bounds, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from engine.store.encoding import (
    MAX_KEY_BYTES,
    MAX_ROWS,
    bounded,
    cursor_of,
    derived_id,
    key,
    page_of_rows,
    place_of,
    prepare,
    seq_of,
    summary_of,
)
from engine.store.execution import Commit, Emit, Event, Execution, Spawn, TimerOp
from engine.values import UnstorableValue


@pytest.mark.parametrize("last", ["", "a", "ab", "abc", "é", "1:", "x" * MAX_KEY_BYTES])
def test_a_cursor_names_its_place_and_needs_no_escaping_in_an_address(last: str) -> None:
    cursor = cursor_of(last)
    assert place_of(cursor) == last
    assert not set(cursor) & set("=+/&?# ")


def test_a_cursor_of_any_length_and_ending_names_its_place() -> None:
    for last in (*("x" * n + "W" for n in range(20)), *(f"{n:x}" for n in range(4_096))):
        assert place_of(cursor_of(last)) == last


def test_the_first_page_begins_before_everything() -> None:
    assert place_of(None) == ""


@pytest.mark.parametrize("cursor", ["", "more", "!!!", "ü", "Mjph", 7, b"MTph\xff"])
def test_what_is_no_cursor_is_refused(cursor: object) -> None:
    with pytest.raises(UnstorableValue, match=r"is no cursor of a page$"):
        place_of(cursor)  # type: ignore[arg-type]


def test_a_cursor_that_no_id_could_have_made_is_refused() -> None:
    with pytest.raises(UnstorableValue, match=r"^cursor"):
        place_of(cursor_of("x" * (MAX_KEY_BYTES + 1)))


def test_a_key_is_measured_in_bytes() -> None:
    assert key("id", "x" * MAX_KEY_BYTES) == "x" * MAX_KEY_BYTES
    with pytest.raises(
        UnstorableValue, match=rf"^id is {MAX_KEY_BYTES + 1} bytes long; the limit is {MAX_KEY_BYTES}$"
    ):
        key("id", "x" * (MAX_KEY_BYTES + 1))
    with pytest.raises(UnstorableValue, match=r"^id"):
        key("id", "é" * (MAX_KEY_BYTES // 2 + 1))
    with pytest.raises(UnstorableValue, match=r"^id must be text"):
        key("id", 7)


def test_an_id_made_of_others_names_them_while_there_is_room() -> None:
    assert derived_id("a", 1, "b") == "a:1:b"
    longest = "x" * MAX_KEY_BYTES
    assert derived_id(longest) == longest
    assert len(derived_id(longest, 1)) == 64
    assert derived_id(longest, 1) != derived_id(longest, 2)
    assert derived_id("\ud800") == "\ud800"


@pytest.mark.parametrize("seq", [True, 1.0, "1", 2**63, -(2**63) - 1])
def test_what_can_be_no_seq_is_refused(seq: object) -> None:
    with pytest.raises(UnstorableValue, match=r"^seq is "):
        seq_of(seq)


@pytest.mark.parametrize(
    ("effects", "field"),
    [
        ({"emits": [Emit("t", Event(id="a\x00", kind="k"))]}, r"event\.id"),
        ({"emits": [Emit("t", Event(id="a", kind="k\x00"))]}, r"event\.kind"),
        ({"emits": [Emit("t\x00", Event(id="a", kind="k"))]}, "target_id"),
        ({"spawns": [Spawn("c\x00", "r", {})]}, "child_id"),
        ({"spawns": [Spawn("", "r", {})]}, "child_id"),
        ({"spawns": [Spawn("c", "r\x00", {})]}, "root_path"),
        ({"spawns": [Spawn("c", "r", {"a": object()})]}, "context"),
        ({"timers": [TimerOp("schedule", "p", float("nan"))]}, "fire_at"),
    ],
)
def test_an_effect_that_cannot_be_stored_is_told_by_its_field(effects: dict[str, Any], field: str) -> None:
    with pytest.raises(UnstorableValue, match=f"^{field} "):
        prepare(Commit(execution=Execution(id="e", definition_id="d"), **effects))


def test_a_page_ends_where_there_is_no_row_more() -> None:
    rows = [(f"e{n}", "d", 1, "DONE", None, None, None) for n in range(3)]
    assert [item.id for item in page_of_rows(rows, 2).items] == ["e0", "e1"]
    assert place_of(page_of_rows(rows, 2).next_cursor) == "e1"
    assert page_of_rows(rows, 3).next_cursor is None
    with pytest.raises(ValueError, match="shorter"):
        summary_of(rows[0][:-1])


def test_a_limit_is_taken_up_to_the_most() -> None:
    assert [bounded(1), bounded(MAX_ROWS)] == [1, MAX_ROWS]
    for limit in (0, MAX_ROWS + 1, True):
        with pytest.raises(ValueError, match="limit is"):
            bounded(limit)
