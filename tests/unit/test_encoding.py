"""Cursors and keys: what may be stored, at its bounds, and what is none."""

from __future__ import annotations

import json
from math import copysign
from types import MappingProxyType
from typing import Any

import pytest

from engine.store import encoding
from engine.store.encoding import (
    MAX_EFFECTS,
    MAX_KEY_BYTES,
    MAX_ROWS,
    MAX_TRACE,
    bounded,
    cursor_of,
    derived_id,
    instant,
    key,
    page_of_rows,
    place_of,
    prepare,
    ring,
    seq_of,
    step,
    summary_of,
)
from engine.store.execution import Commit, Emit, Event, Execution, Spawn, TimerOp
from engine.values import TooLarge, UnstorableValue


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
        ({"timers": [TimerOp("cancel", "p\x00")]}, "path"),
        ({"emits": [Emit("t", Event(id="a", kind="k", payload={"a": object()}))]}, "event"),
        ({"processed_event_id": "p\x00"}, "processed_event_id"),
        ({"trace": {"a": object()}}, "trace"),
    ],
)
def test_an_effect_that_cannot_be_stored_is_told_by_its_field(effects: dict[str, Any], field: str) -> None:
    with pytest.raises(UnstorableValue, match=f"^{field} "):
        prepare(Commit(execution=Execution(id="e", definition_id="d"), **effects))


@pytest.mark.parametrize("field", ["id", "definition_id", "outcome", "active_path", "parent_id"])
def test_a_column_that_cannot_be_stored_is_told_by_its_name(field: str) -> None:
    columns: dict[str, Any] = {"id": "e", "definition_id": "d", field: "x\x00"}
    with pytest.raises(UnstorableValue, match=f"^{field} "):
        prepare(Commit(execution=Execution(**columns)))


def test_a_context_that_is_no_json_is_told_to_be_the_executions() -> None:
    with pytest.raises(UnstorableValue, match=r"^execution "):
        prepare(Commit(execution=Execution(id="e", definition_id="d", context={"a": object()})))


def test_a_child_that_is_none_is_refused() -> None:
    with pytest.raises(UnstorableValue, match=r"^execution: "):
        prepare(Commit(execution=Execution(id="e", definition_id="d", children={"c": "no child"})))  # type: ignore[dict-item]


def test_the_version_has_a_column_and_is_nowhere_else() -> None:
    prepared = prepare(Commit(execution=Execution(id="e", definition_id="d", version=7)))
    assert prepared.expected == 7
    assert "version" not in json.loads(prepared.data)


def test_a_context_may_be_any_mapping() -> None:
    commit = Commit(
        execution=Execution(id="e", definition_id="d"), spawns=[Spawn("c", "r", MappingProxyType({"a": 1}))]
    )
    assert prepare(commit).spawns == (("c", "r", '{"a":1}'),)


def test_a_commit_has_as_many_effects_as_it_may_and_no_more() -> None:
    execution = Execution(id="e", definition_id="d")
    most = [TimerOp("cancel", f"p{n}") for n in range(MAX_EFFECTS)]
    assert len(prepare(Commit(execution=execution, timers=most)).timers) == MAX_EFFECTS
    with pytest.raises(UnstorableValue, match=rf"^timers are more than {MAX_EFFECTS}$"):
        prepare(Commit(execution=execution, timers=[*most, TimerOp("cancel", "q")]))


def test_a_commit_is_as_large_as_it_may_be_and_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Commit(execution=Execution(id="e", definition_id="d"), trace={"a": "x" * 100})
    size = prepare(commit).bytes_sent
    monkeypatch.setattr(encoding, "MAX_SENT_BYTES", size)
    assert prepare(commit).bytes_sent == size
    monkeypatch.setattr(encoding, "MAX_SENT_BYTES", size - 1)
    with pytest.raises(TooLarge, match=rf"^a commit is {size} bytes"):
        prepare(commit)


def test_a_step_of_a_trace_is_an_object() -> None:
    assert step({"a": 1}) == '{"a":1}'
    with pytest.raises(UnstorableValue, match=r"^trace must be a dict, not list$"):
        step([])


def test_a_trace_keeps_one_step_at_least_and_as_many_as_it_may() -> None:
    assert [ring(1), ring(MAX_TRACE)] == [1, MAX_TRACE]
    for size in (0, MAX_TRACE + 1, True):
        with pytest.raises(ValueError, match=r"^trace_max is "):
            ring(size)


def test_an_instant_is_a_number_that_a_float_holds_exactly() -> None:
    assert [instant("at", value) for value in (5, 2.5, 2**53)] == [5.0, 2.5, float(2**53)]
    for value in (True, "5", None, 2**53 + 1, 10**400, float("inf")):
        with pytest.raises(UnstorableValue, match=r"^at "):
            instant("at", value)


def test_the_sign_of_a_zero_is_not_kept() -> None:
    assert copysign(1.0, instant("at", -0.0)) == 1.0


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
