"""A cancellation is heeded whenever it comes, and what is cancelled ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.operation import Operation, call
from engine.sessions import Sessions
from engine.statements import Statement
from engine.tasks import end
from stress.scripts.node import Notes
from tests.fixtures.node import Jobs

NAP = Statement.parse("test/nap", "SELECT pg_sleep($1::double precision)")
DEADLINE_S = 60.0
# As many turns of the loop as it takes to hand a session over, and some.
TURNS = 12


def nap(seconds: float) -> Operation[Any]:
    return (yield call(NAP, seconds))


@pytest.mark.parametrize("turns", range(TURNS))
def test_a_cancellation_that_meets_the_session_that_was_waited_for_is_heeded(jobs: Jobs, turns: int) -> None:
    async def main() -> None:
        async with Sessions(jobs.dsn, Notes(), size=1, name="one") as sessions:
            first = asyncio.create_task(sessions.run("nap", {}, nap(0.1), repr))
            await asyncio.sleep(0)
            second = asyncio.create_task(sessions.run("nap", {}, nap(600.0), repr))
            await first
            for _ in range(turns):
                await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(DEADLINE_S):
                    await second

    asyncio.run(main())


def test_a_task_to_which_a_cancellation_gets_lost_ends_all_the_same() -> None:
    async def deaf(times: int) -> None:
        while times > 0:
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                times -= 1

    async def main() -> None:
        tasks = [asyncio.create_task(deaf(times)) for times in (1, 2)]
        await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            await end(tasks)
        assert all(task.done() for task in tasks)

    asyncio.run(main())
