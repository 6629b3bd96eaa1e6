"""What the mutants of the node are put through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from engine.observer import Observers
from engine.pokes import channel
from invariants.history import Recorder
from invariants.mutants.protocol import nodes_of
from stress.swarm.deaf_node import DeafNode
from tests.fixtures.arena import Arena
from tests.fixtures.node import Notes
from tests.fixtures.node import policy as node_policy
from tests.fixtures.steps import job
from tests.integration.mutant_scripts.picker import Unstorable


def unheard_poke(arena: Arena) -> None:
    """A job comes to a node that has found its queue empty, and the poke for it does not get through."""
    one, notes = arena.session("one"), Notes()
    poke = f"SELECT pg_notify('{channel('test')}', 'default')"

    async def until(done: Callable[[], object], timeout_s: float) -> bool:
        """Whether it came true in time."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def dropped() -> bool:
        arena.execute(poke)
        return notes.counts.get("poke_dropped", 0) > 0

    async def run(recorder: Recorder) -> None:
        node = DeafNode(
            arena.dsn,
            node_policy(pokes=True),
            [Unstorable],
            picker=arena.picker,
            observer=Observers(recorder, notes),
        )
        running = asyncio.create_task(node.run())
        assert await until(lambda: any(name == "claim" for _, name, _ in notes.completions), 20)
        row = one.insert(job())
        assert await until(dropped, 20)
        await until(
            lambda: arena.execute(f"SELECT status FROM gen_durable WHERE id = {row}") == [("failed",)], 2
        )
        node.stop()
        await running

    with Recorder(arena.folder, "node") as recorder, nodes_of(arena.mutant):
        asyncio.run(run(recorder))


SCRIPTS: dict[str, Callable[[Arena], None]] = {"poked-only": unheard_poke}
