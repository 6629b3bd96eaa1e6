"""What may be stored is taken up to its bounds and refused beyond them, in a sentence that names the field."""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any

import pytest

from engine import values
from engine.values import (
    MAX_INDEXED_BYTES,
    MAX_JSON_DEPTH,
    MAX_NUMBER_DIGITS,
    UnstorableValue,
    bytes_sent,
    check_instant,
    check_key,
    check_text,
    to_json,
    to_json_object,
    to_json_text,
)


class Colour(StrEnum):
    RED = "red"


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_text_is_counted_in_bytes_with_what_an_array_escapes() -> None:
    assert bytes_sent('é"\\') == len('"é\\"\\\\",'.encode())


def test_text_comes_back_as_plain_text() -> None:
    assert check_text("step", "a") == "a"
    assert type(check_text("step", Colour.RED)) is str
    assert check_text("step", Colour.RED) == "red"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1, "^step must be text, not int$"),
        ("a\x00", "^step holds a NUL"),
        ("\ud800", "^step holds half a surrogate pair"),
    ],
)
def test_what_is_no_text_is_refused(value: object, why: str) -> None:
    with pytest.raises(UnstorableValue, match=why):
        check_text("step", value)
    with pytest.raises(UnstorableValue, match=why):
        check_key("step", value)


def test_a_key_is_taken_up_to_its_bytes() -> None:
    assert check_key("queue", "é" * (MAX_INDEXED_BYTES // 2)) == "é" * (MAX_INDEXED_BYTES // 2)
    assert check_key("queue", "x" * MAX_INDEXED_BYTES)
    with pytest.raises(UnstorableValue, match=r"^queue is 2001 bytes"):
        check_key("queue", "x" * (MAX_INDEXED_BYTES + 1))


def test_an_instant_is_told_in_utc() -> None:
    zone = timezone(timedelta(hours=2))
    told = check_instant("at", datetime(2020, 1, 1, 1, tzinfo=zone))
    assert told == datetime(2019, 12, 31, 23, tzinfo=UTC)
    assert told.tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("2020", "^at must be a datetime, not str$"),
        (datetime(2020, 1, 1), "^at must carry a time zone$"),  # noqa: DTZ001
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "^at is 0001-01-01 00:00:00.02:00, outside"),
    ],
)
def test_what_is_no_instant_is_refused(value: object, why: str) -> None:
    with pytest.raises(UnstorableValue, match=why):
        check_instant("at", value)


def test_json_is_written_short_and_as_it_is() -> None:
    assert to_json("state", {"ä": [1, 2.5, None, True], "b": ()}) == '{"ä":[1,2.5,null,true],"b":[]}'
    assert to_json("state", None) == "null"
    assert to_json_text("data", "a\x00") == '"a\\u0000"'


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "^state cannot be written as JSON"),
        (object(), "^state cannot be written as JSON"),
        ("\ud800", "^state holds half a surrogate pair"),
        ({1: "a"}, "^state has the key 1, which is not text"),
        ([{"a": ({None: 1},)}], "^state has the key None, which is not text"),
        (nested(MAX_JSON_DEPTH + 1), f"^state nests more than {MAX_JSON_DEPTH} levels deep"),
    ],
)
def test_what_is_no_json_is_refused(value: object, why: str) -> None:
    for write in (to_json, to_json_text):
        with pytest.raises(UnstorableValue, match=why):
            write("state", value)


@pytest.mark.parametrize("text", ["a\x00", "\\\x00", "\\\\\x00"])
def test_a_nul_is_no_jsonb_however_it_is_escaped(text: str) -> None:
    with pytest.raises(UnstorableValue, match=r"^state holds a NUL character"):
        to_json("state", [text])


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "u0000"])
def test_a_text_that_shows_a_nul_holds_none(text: str) -> None:
    assert to_json("state", text)


def test_json_is_taken_up_to_its_depth_and_its_levels() -> None:
    assert to_json("state", nested(MAX_JSON_DEPTH))
    assert to_json_text("data", nested(3), levels=3)
    assert to_json_text("data", "[[[[" + "{{{{", levels=2)
    assert to_json_text("data", "[", levels=0)
    assert to_json_text("data", ["[", [[2]]], levels=3)
    with pytest.raises(UnstorableValue, match="more than 2 levels"):
        to_json_text("data", nested(3), levels=2)
    with pytest.raises(UnstorableValue, match="more than 2 levels"):
        to_json_text("data", [1, [2, ([3],)]], levels=2)


def test_json_is_taken_up_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_JSON_BYTES", 6)
    assert to_json("state", "éé") == '"éé"'
    with pytest.raises(UnstorableValue, match=r"^state is 7 bytes of JSON; the limit is 6"):
        to_json("state", "ééx")


@pytest.fixture
def long_numbers() -> Iterator[None]:
    """Python writes none of more than 4,300 digits, where it is not told to."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.usefixtures("long_numbers")
def test_a_number_is_taken_up_to_its_digits_and_a_text_of_digits_is_no_number() -> None:
    longest = 10 ** (MAX_NUMBER_DIGITS - 1)
    assert to_json("state", {"a": [longest]})
    assert to_json("state", ["9" * (MAX_NUMBER_DIGITS + 1), 10**50_000])
    assert to_json("state", [1] * MAX_NUMBER_DIGITS)
    with pytest.raises(UnstorableValue, match=rf"^state holds a number of more than {MAX_NUMBER_DIGITS}"):
        to_json("state", [{"a": -longest * 10}])


def test_an_object_is_a_mapping() -> None:
    assert to_json_object("state", {"a": 1}) == to_json_object("state", UserDict(a=1)) == '{"a":1}'
    with pytest.raises(UnstorableValue, match=r"^state cannot be written"):
        to_json_object("state", {"a": object()})
    with pytest.raises(UnstorableValue, match=r"^state must be a dict, not list$"):
        to_json_object("state", [])
