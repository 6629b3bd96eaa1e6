"""A node of the store's swarm: `python -m stress.swarm.store_process`, configured over standard input.

It runs a stack (worker, relay, timer sweeper) and, where the scenario says so, loops that commit directly. SIGTERM,
or the byte for it on standard input, stops it gracefully.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from psycopg_pool import PoolTimeout

from engine.errors import InfrastructureError
from engine.relay import Polling
from engine.statechart.stack import POOL_SIZE, Stack
from engine.store import Commit
from invariants.history import Recorder
from stress.scenarios import SCENARIOS, StoreScenario
from stress.scenarios.store import HOT, bump
from stress.scenarios.store_scenario import Bump
from stress.swarm.child import lifeline, receive_config
from stress.swarm.clock import set_clock_off
from stress.swarm.configs import NodeConfig
from stress.swarm.contention import ATTEMPTS, bumped, refused
from stress.swarm.mutation import across_for, catalogue_for, handover_for, queue_for

POLLING = Polling(min_interval_ms=5.0, max_interval_ms=100.0)
CONTENDER_PAUSE_S = 0.02
OPENING_PAUSE_S = 0.2


class Contender:
    """A loop that commits to hot executions, as a client does."""

    def __init__(self, stack: Stack, scenario: StoreScenario, recorder: Recorder, seed: str) -> None:
        self._stack, self._scenario, self._recorder = stack, scenario, recorder
        self._random = Random(seed)

    async def run(self, calm: asyncio.Event, stop: asyncio.Event) -> None:
        """Until one of the two is set. It emits nothing: clients wait while there is a backlog, and it does not."""
        while not (calm.is_set() or stop.is_set()):
            try:
                await self._act(replace(bump(self._random, (self._random.choice(HOT),)), emits=()))
            except (psycopg.Error, PoolTimeout):
                self._recorder.count("tick_failed")
            await asyncio.sleep(self._random.expovariate(1 / CONTENDER_PAUSE_S))

    async def _act(self, act: Bump) -> None:
        [target] = act.targets
        for _ in range(ATTEMPTS):
            token = self._recorder.invoke("store.load", {"execution": target})
            try:
                loaded = await self._stack.store.load(target)
            except BaseException as error:
                self._recorder.complete(token, *refused(error))
                raise
            self._recorder.complete(token, "ok", {"version": None if loaded is None else loaded.version})
            if await self._commit(bumped(act, self._scenario.charts, target, loaded, time.time())):
                return

    async def _commit(self, commit: Commit) -> bool:
        token = self._recorder.invoke("store.commit", commit.told())
        try:
            [refusal] = await self._stack.store.commit_many([commit])
        except BaseException as error:
            self._recorder.complete(token, *refused(error))
            raise
        version = commit.execution.version
        if refusal is None:
            self._recorder.complete(token, "ok", {"version": version})
            return True
        kind, value = refused(refusal)
        self._recorder.complete(token, kind, value | {"version": version})
        return False


async def serve(config: NodeConfig) -> None:
    """Run the node until SIGTERM."""
    scenario = SCENARIOS[config.scenario]
    assert isinstance(scenario, StoreScenario)
    stop, calm = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), lambda: lifeline(stop.set, calm.set))
    with Recorder(Path(config.history), config.name) as recorder:
        # The recorder's own clock is the harness's, and is read before.
        set_clock_off(config.clock_offset_s)
        async with AsyncExitStack() as opened:
            stack = await _opened(config, scenario, recorder, opened, stop)
            if stack is None:
                return
            contenders = [
                Contender(stack, scenario, recorder, f"{config.name}/{number}")
                for number in range(scenario.contenders)
            ]
            await asyncio.gather(stack.run(stop), *(contender.run(calm, stop) for contender in contenders))


async def _opened(
    config: NodeConfig,
    scenario: StoreScenario,
    recorder: Recorder,
    opened: AsyncExitStack,
    stop: asyncio.Event,
) -> Stack | None:
    """The node's stack, tried for until `stop`: a server that is down comes back, and a session that was ended was one
    of many. None after `stop`."""
    while not stop.is_set():
        stack = Stack(
            config.dsns,
            scenario.charts,
            lease_s=config.lease_ttl_ms / 1_000,
            trace_max=scenario.trace_max,
            pool_size=config.max_sessions or POOL_SIZE,
            polling=POLLING,
            observer=recorder,
            catalogue=catalogue_for(config.mutant),
            queue=queue_for(config.mutant),
            handover=handover_for(config.mutant),
            across=across_for(config.mutant),
        )
        try:
            return await _unless(stop, opened.enter_async_context(stack))
        except (psycopg.Error, PoolTimeout, InfrastructureError):
            recorder.count("reconnect")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), OPENING_PAUSE_S)
    return None


async def _unless(stop: asyncio.Event, opening: Coroutine[Any, Any, Stack]) -> Stack | None:
    """What is opened; None where `stop` is set before. To open takes as long as a server stays away."""
    stopping, task = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(opening)
    try:
        await asyncio.wait((stopping, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None
    finally:
        stopping.cancel()


def main() -> None:
    """Entry point."""
    config = receive_config(NodeConfig)
    # Not `asyncio.run`, which waits for threads: one may be connecting to a server that is away.
    asyncio.Runner().run(serve(config))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
