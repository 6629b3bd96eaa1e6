"""A flush that meets a server which takes no writes, as a standby does, waits for one that does."""

from __future__ import annotations

import asyncio

from engine.flusher import Flusher, Settled
from engine.picker import Commit, Job
from engine.sessions import Sessions
from stress.scripts.node import Notes
from tests.fixtures.node import DEADLINE_S, Jobs

SESSIONS = (
    "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name = 'flusher'"
)


def test_an_outcome_is_not_refused_by_a_server_that_takes_no_writes(jobs: Jobs) -> None:
    jobs.do(jobs.picker.insert(Job(fsm="f", step="s")))
    [row] = jobs.do(jobs.picker.claim(queue="default", batch=1, claim="c", lease_ms=60_000)).rows
    name = jobs.one("SELECT current_database()")
    notes = Notes()

    async def main() -> Settled:
        async with Sessions(jobs.dsn, notes, size=1, name="flusher") as sessions:
            flusher = Flusher(
                sessions,
                jobs.picker,
                notes,
                max_batch=1,
                max_delay_ms=0,
                give_up_ms=DEADLINE_S * 1000,
                committed=lambda _: None,
            )
            running = asyncio.create_task(flusher.run())
            settled = asyncio.create_task(
                flusher.submit(Commit(id=row.id, claim="c", kind="done", result='{"sum": 1}'))
            )
            async with asyncio.timeout(DEADLINE_S):
                while notes.counts.get("reconnect", 0) < 2:
                    await asyncio.sleep(0.01)
                jobs.connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
                jobs.one(SESSIONS)
                outcome = await settled
            running.cancel()
            return outcome

    jobs.connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    assert asyncio.run(main()) == "committed"
    assert jobs.rows("SELECT status::text, result FROM gen_durable") == [("done", {"sum": 1})]
