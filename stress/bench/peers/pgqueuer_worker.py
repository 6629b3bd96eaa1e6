"""PgQueuer as it recommends itself: `asyncpg` pool, uvloop, batches of 500, its durable tables. Run in an environment
of its own, so nothing of this project is imported. Reads one line of JSON, {"act", "dsn", "name", ...}:

    install                 its tables
    load     jobs, batch    enqueue so many in batches of that size
    drain    batch          work until the queue is empty
    serve    batch          work until standard input says otherwise
"""

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode


async def main(config: dict[str, Any]) -> None:
    settings = {"application_name": str(config["name"])}
    async with asyncpg.create_pool(config["dsn"], min_size=2, max_size=20, server_settings=settings) as pool:
        driver = AsyncpgPoolDriver(pool)
        match config["act"]:
            case "install":
                await Queries(driver).install()
            case "load":
                await load(Queries(driver), int(config["jobs"]), int(config["batch"]))
            case act:
                await work(PgQueuer(driver), int(config["batch"]), drains=act == "drain")


async def load(queries: Queries, jobs: int, batch: int) -> None:
    for first in range(0, jobs, batch):
        size = min(batch, jobs - first)
        if size == 1:
            await queries.enqueue("noop", None)
        else:
            await queries.enqueue(["noop"] * size, [None] * size, [0] * size)


async def work(queuer: PgQueuer, batch: int, *, drains: bool) -> None:
    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    mode = QueueExecutionMode.drain if drains else QueueExecutionMode.continuous
    if not drains:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), queuer.shutdown.set)
    await queuer.run(batch_size=batch, dequeue_timeout=timedelta(seconds=1), mode=mode)


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.stdin.readline())))
