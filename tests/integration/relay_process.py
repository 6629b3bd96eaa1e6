"""A process that relays and sweeps until it is killed: `python -m tests.integration.relay_process DSN`."""

from __future__ import annotations

import asyncio
import sys

from engine.relay import AsyncRelay, AsyncTimerSweeper, Polling


async def work(dsn: str) -> None:
    polling = Polling(min_interval_ms=5.0, max_interval_ms=20.0)
    stop = asyncio.Event()
    async with AsyncRelay(dsn, polling=polling) as relay, AsyncTimerSweeper(dsn, polling=polling) as sweeper:
        await asyncio.gather(relay.run(stop), sweeper.run(stop))


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
