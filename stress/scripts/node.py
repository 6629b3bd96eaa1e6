"""What the mutants of the node are put through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.machine import Done, Machine, Outcome, Step
from engine.node import Node
from engine.observer import Completion, Observers
from engine.pokes import channel
from engine.policy import NodePolicy, QueuePolicy
from invariants.history import Recorder
from invariants.mutants.protocol import nodes_of
from stress.scripts.arena import Arena
from stress.scripts.steps import job
from stress.swarm.deaf_node import DeafNode


@dataclass(slots=True)
class Notes:
    """An observer that remembers."""

    operations: list[tuple[str, object]] = field(default_factory=list)
    completions: list[tuple[Completion, str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def invoke(self, operation: str, value: object) -> int:
        self.operations.append((operation, value))
        return len(self.operations) - 1

    def complete(self, token: int, kind: Completion, value: object) -> None:
        self.completions.append((kind, self.operations[token][0], value))

    def count(self, event: str, amount: int = 1) -> None:
        self.counts[event] = self.counts.get(event, 0) + amount

    def sent(self, operation: str) -> list[Any]:
        """The values of all operations of that name."""
        return [value for name, value in self.operations if name == operation]


def policy(**changes: Any) -> NodePolicy:
    """A node's policy with short times."""
    defaults: dict[str, Any] = {
        "instance": "test",
        "node": "n",
        "queues": (QueuePolicy(name="default"),),
        "lease_ttl_ms": 1_000.0,
        "heartbeat_interval_ms": 100.0,
        "reap_interval_ms": 50.0,
        "poll_interval_ms": 5.0,
        "max_poll_interval_ms": 20.0,
        "max_delay_ms": 2.0,
        "drain_timeout_ms": 2_000.0,
    }
    return NodePolicy(**{**defaults, **changes})


class Unstorable(Machine):
    """Its result is no text of Postgres."""

    name = "order"

    def charge(self, _step: Step) -> Outcome:
        """One step."""
        return Done("\x00")


def work(arena: Arena, min_demand: int) -> None:
    """One job and a node that works until the job has ended, or for two seconds."""
    row = arena.session("one").insert(job(fsm="order", step="charge"))
    given = policy(
        queues=(QueuePolicy(name="default", concurrency=2, prefetch=2, min_demand=min_demand),),
        lease_ttl_ms=300.0,
        heartbeat_interval_ms=50.0,
        drain_timeout_ms=500.0,
    )

    async def run(recorder: Recorder) -> None:
        node = Node(arena.dsn, given, [Unstorable], picker=arena.picker, observer=recorder)
        running = asyncio.create_task(node.run())
        for _ in range(40):
            await asyncio.sleep(0.05)
            if arena.execute(f"SELECT status FROM gen_durable WHERE id = {row}") == [("failed",)]:
                break
        node.stop()
        await running

    with Recorder(arena.folder, "node") as recorder, nodes_of(arena.mutant):
        asyncio.run(run(recorder))


def unstorable_outcome(arena: Arena) -> None:
    """A step returns what cannot be stored."""
    work(arena, min_demand=1)


def demand_above_capacity(arena: Arena) -> None:
    """A queue is told to claim only when there is room for more than it can hold."""
    work(arena, min_demand=100)


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
            policy(pokes=True),
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


SCRIPTS: dict[str, Callable[[Arena], None]] = {
    "serialise-outside-guard": unstorable_outcome,
    "min-demand-unclamped": demand_above_capacity,
    "poked-only": unheard_poke,
}
