"""The inline continuation's commit on a real server: the handoff of keys and shards, the lease, and the fence."""

from __future__ import annotations

from typing import Any

import pytest

from engine.limits import PROVISIONAL_SHARD, Slot
from engine.picker import Hold, Picker
from invariants.mutants import REGISTRY
from invariants.mutants.protocol import picker_of
from stress.scripts.race import TIMEOUT_S, Race
from stress.scripts.steps import claim, held, insert, outcome


def go_on(race: Race, hold: Hold, turn: int = 0, picker: Picker | None = None, **fields: Any) -> Any:
    commit = outcome(hold, "continue", turn=turn, lease_ms=60_000.0, **fields)
    return race.do((picker or race.picker).flush([commit]))


@pytest.mark.parametrize(
    ("held_key", "shard", "fields", "after", "freed"),
    [
        ("k", None, {}, ("k", None), ()),
        ("k", None, {"sets_key": True}, (None, None), ()),
        ("k", None, {"sets_key": True, "concurrency_key": "g:1", "gated": True}, ("g:1", PROVISIONAL_SHARD), ()),
        ("g:1", 3, {}, ("g:1", 3), ()),
        ("g:1", 3, {"sets_key": True, "concurrency_key": "g:1", "gated": True}, ("g:1", 3), ()),
        ("g:1", 3, {"sets_key": True}, (None, None), (Slot("g:1", 3),)),
        (
            "g:1",
            3,
            {"sets_key": True, "concurrency_key": "g:2", "gated": True},
            ("g:2", PROVISIONAL_SHARD),
            (Slot("g:1", 3),),
        ),
        (None, None, {"sets_key": True, "concurrency_key": "g:2", "gated": True}, ("g:2", PROVISIONAL_SHARD), ()),
    ],
)  # fmt: skip
def test_the_handoff_of_keys_and_slots(
    race: Race, held_key: str | None, shard: int | None, fields: dict[str, Any], after: Any, freed: Any
) -> None:
    hold = held(race, lease_ms=-1)
    race.rows(
        "UPDATE gen_durable SET concurrency_key = %s, concurrency_shard = %s, attempt = 4", held_key, shard
    )
    ended = go_on(race, hold, step="second", state='{"n": 1}', **fields)
    assert (ended.holds, ended.freed) == ((hold,), freed)
    assert race.row(hold.id, "concurrency_key, concurrency_shard") == after
    assert race.row(hold.id, "status::text, locked_by, turn, step, attempt, lease_expires_at > now()") == (
        "executing", "c", 1, "second", 0, True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["next", "continue"])
def test_a_step_that_goes_on_has_the_rate_that_its_outcome_names(race: Race, kind: str) -> None:
    hold = held(race, rate_limit="old", weight=5)
    race.do(
        race.picker.flush([outcome(hold, kind, sets_rate=True, rate_limit="r", weight=2.5, lease_ms=1.0)])
    )
    assert race.row(hold.id, "rate_limit, weight") == ("r", 2.5)


def test_the_next_claim_counts_its_turns_from_zero(race: Race) -> None:
    hold = held(race)
    go_on(race, hold)
    go_on(race, hold, turn=1)
    race.do(race.picker.release([hold]))
    assert [(row.id, row.turn) for row in claim(race, "again")] == [(hold.id, 0)]
    assert race.row(hold.id, "turn") == (0,)
    assert go_on(race, hold, turn=0).holds == ()  # another claim's
    assert go_on(race, Hold(hold.id, "again"), turn=0).holds == (Hold(hold.id, "again"),)


def test_a_continuation_does_not_wait_for_a_sibling_of_the_key_it_drops(race: Race) -> None:
    hold = held(race, concurrency_key="k")
    waiting = insert(race, concurrency_key="k")
    assert claim(race, "early") == []
    go_on(race, hold, sets_key=True)
    assert [row.id for row in claim(race, "late")] == [waiting]


def arrives_late(race: Race, picker: Picker) -> tuple[str, int]:
    """A continuation into a connection that seemed dead stands at its first lock while its worker sends it again, and
    the step after it; then it goes on. Where the row stands in the end.

    It waits for a row of its batch that somebody holds; what is sent again is another batch, as a divided one is.
    """
    other, hold = held(race, "other"), held(race)
    first = outcome(hold, "continue", step="second", lease_ms=60_000.0)
    with race.locked(other.id):
        late = race.begin("dead", picker.flush([outcome(other, "retry"), first]))
        assert go_on(race, hold, step="second", picker=picker).holds == (hold,)
        assert go_on(race, hold, turn=1, step="third", picker=picker).holds == (hold,)
    late.result(TIMEOUT_S)
    step, turn = race.row(hold.id, "step, turn")
    return step, turn


def test_a_continuation_that_arrives_after_its_successors_changes_nothing(race: Race) -> None:
    assert arrives_late(race, race.picker) == ("third", 2)


def test_unfenced_it_takes_the_row_back_to_a_step_that_is_over(race: Race) -> None:
    assert arrives_late(race, picker_of(REGISTRY["continue-unfenced"]))[0] == "second"
