"""Cursors and keys: what may be stored, at its bounds, and what is none."""

from __future__ import annotations

import pytest

from engine.store.encoding import MAX_KEY_BYTES, cursor_of, derived_id, key, place_of, seq_of
from engine.values import UnstorableValue


@pytest.mark.parametrize("last", ["", "a", "ab", "abc", "é", "1:", "x" * MAX_KEY_BYTES])
def test_a_cursor_names_its_place_and_needs_no_escaping_in_an_address(last: str) -> None:
    cursor = cursor_of(last)
    assert place_of(cursor) == last
    assert not set(cursor) & set("=+/&?# ")


def test_a_cursor_of_any_length_and_ending_names_its_place() -> None:
    for last in (*("x" * n for n in range(4, 20)), *(f"{n:x}" for n in range(4_096))):
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
