"""A node that is frozen or cut off between the round trips of a flush holds nobody up for longer than its silence may
last: the server ends its session, its locks go, and the reaper does the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from engine.operation import Operation, perform
from engine.picker import Claimed, Commit, Hold, Job
from engine.sessions import OutcomeUnknown, Sessions, connect
from stress.scripts.node import Notes
from stress.scripts.race import TIMEOUT_S, Race

SILENCE_MS = 300.0


def ends(row: Claimed) -> Commit:
    return Commit(id=row.id, claim=row.claim, kind="done", result="{}")


def spawns(row: Claimed) -> Commit:
    return Commit(
        id=row.id, claim=row.claim, kind="childs", step="joined", children=(Job(fsm="machine", step="first"),)
    )


def claimed(race: Race, rows: int) -> tuple[Claimed, ...]:
    """Rows whose lease has run out already."""
    for _ in range(rows):
        race.do(race.picker.insert(Job(fsm="machine", step="first")))
    return race.do(race.picker.claim(queue="default", batch=rows, claim="c", lease_ms=-1)).rows


@dataclass
class Frozen:
    """An operation that freezes its caller after the first round trip, until `thaw` says so."""

    race: Race
    operation: Operation[Any]
    meanwhile: Callable[[], object]
    seen: list[object] = field(default_factory=list)

    def __call__(self) -> Operation[Any]:
        answer = yield next(self.operation)
        [(state,)] = self.race.rows("SELECT state FROM pg_stat_activity WHERE application_name = 'frozen'")
        assert state == "idle in transaction"
        self.seen.append(self.meanwhile())
        try:
            while True:
                answer = yield self.operation.send(answer)
        except StopIteration as stop:
            return stop.value


def run_frozen(race: Race, frozen: Frozen) -> None:
    """In a session that the server ends while its client is frozen."""
    with closing(connect(race.dsn, "frozen", idle_in_transaction_ms=SILENCE_MS)) as node:
        # Whether the server's last word is read before the write fails is a matter of moments.
        with pytest.raises((psycopg.errors.IdleInTransactionSessionTimeout, psycopg.OperationalError)):
            perform(node, frozen())
        assert node.broken


@pytest.mark.parametrize("outcome", [ends, spawns])
def test_a_delivery_to_a_row_of_a_frozen_flush_waits_no_longer_than_a_client_may_be_silent(
    race: Race, outcome: Callable[[Claimed], Commit]
) -> None:
    (row,) = claimed(race, 1)

    def deliver() -> object:
        return race.begin("client", race.picker.signal(row.id, "hello")).result(TIMEOUT_S).target

    frozen = Frozen(race, race.picker.flush([outcome(row)]), deliver)
    run_frozen(race, frozen)
    assert frozen.seen == [row.id]
    assert race.row(row.id, "status, locked_by") == ("executing", "c")


def test_the_reaper_passes_over_a_row_of_a_frozen_flush_and_takes_it_when_its_session_was_ended(
    race: Race,
) -> None:
    (row,) = claimed(race, 1)

    def reap() -> object:
        passed_over = race.do(race.picker.reap(10)).holds
        deadline = time.monotonic() + TIMEOUT_S
        while not (taken := race.do(race.picker.reap(10)).holds):
            assert time.monotonic() < deadline
        return passed_over, taken

    frozen = Frozen(race, race.picker.flush([ends(row)]), reap)
    run_frozen(race, frozen)
    assert frozen.seen == [((), (Hold(row.id, "c"),))]


def test_a_node_that_was_frozen_takes_the_end_of_its_session_for_an_unknown_outcome(race: Race) -> None:
    (row,) = claimed(race, 1)
    frozen = Frozen(
        race, race.picker.flush([ends(row)]), lambda: race.do(race.picker.signal(row.id, "hello"))
    )

    async def main() -> None:
        async with Sessions(
            race.dsn, Notes(), size=1, name="frozen", idle_in_transaction_ms=SILENCE_MS
        ) as sessions:
            with pytest.raises(OutcomeUnknown):
                await sessions.run("flush", {}, frozen(), repr)
            again = await sessions.run("flush", {}, race.picker.flush([ends(row)]), repr)
            assert again.holds == (Hold(row.id, "c"),)

    asyncio.run(main())


def test_a_session_outside_of_a_transaction_may_be_silent_for_as_long_as_it_likes(race: Race) -> None:
    with connect(race.dsn, "quiet", idle_in_transaction_ms=1) as quiet:
        race.rows("SELECT pg_sleep(0.1)")
        assert quiet.execute("SELECT 1").fetchone() == (1,)
