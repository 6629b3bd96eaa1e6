"""Where statements of the picker wait, they wait in one order: none of these races ends in a deadlock."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from engine.operation import Operation
from engine.picker import Commit, Ended, Hold, Job
from stress.scripts.race import TIMEOUT_S, Race

PLANNERS: tuple[dict[str, str], ...] = (
    {},
    {"enable_hashjoin": "off", "enable_mergejoin": "off"},
    {"enable_nestloop": "off"},
    {"enable_nestloop": "off", "enable_hashjoin": "off"},
)


def ending(race: Race, kind: str, holds: list[Hold]) -> Operation[Ended]:
    if kind == "release":
        return race.picker.release(holds)
    return race.picker.flush([Commit(id=hold.id, claim=hold.claim, kind="done") for hold in holds])


@pytest.mark.parametrize("planner", PLANNERS, ids=" ".join)
@pytest.mark.parametrize("kind", ["flush", "release"])
def test_ending_claims_waits_for_no_row_once_it_has_changed_one(
    race: Race, kind: str, planner: dict[str, str]
) -> None:
    # A claim keeps the lock on a row that was claimed by another between its snapshot and the lock. The flush of that
    # other waits for it. Had the flush changed a row of a key by then, the claim could wait for the flush in turn, at
    # the arbiter of that key.
    keyed = race.do(race.picker.insert(Job(fsm="m", step="s", queue="other", concurrency_key="k")))
    plain = race.do(race.picker.insert(Job(fsm="m", step="s")))
    race.do(race.picker.insert(Job(fsm="m", step="s", concurrency_key="k", priority=1)))
    # The planner finds one row of each batch among many, as on a table that is in use.
    race.rows(
        "INSERT INTO gen_durable (fsm, step, status) SELECT 'm', 's', 'done' FROM generate_series(1, 5000)"
    )
    race.rows("ANALYZE gen_durable")
    race.install_gates()
    at_start = race.gate_at_start("claimer")
    at_row = race.gate_at_row("claimer", 3)

    claim = race.begin("claimer", race.picker.claim(queue="default", batch=9, claim="late", lease_ms=60_000))
    holds = []
    for queue in ("other", "default"):
        rows = race.do(race.picker.claim(queue=queue, batch=1, claim="first", lease_ms=60_000)).rows
        holds += [Hold(row.id, "first") for row in rows]
    assert [hold.id for hold in holds] == [keyed, plain]
    race.open_gate(at_start)
    race.until_blocked("claimer")

    race.session("ender", planner)
    ended: Future[Ended] = race.begin("ender", ending(race, kind, holds))
    race.open_gate(at_row)

    assert sorted(hold.id for hold in ended.result(TIMEOUT_S).holds) == [keyed, plain]
    assert claim.result(TIMEOUT_S).contended == 1
