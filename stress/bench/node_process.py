"""An engine's node of the bench: `python -m stress.bench.node_process`, configured over standard input."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from engine.limiter import Gate, Limit, PostgresLimiter, RateLimit
from engine.machine import Await, Done, Machine, Next, Outcome, ScheduleChildren, Step
from engine.node import Node
from engine.picker import Job
from engine.policy import NodePolicy, QueuePolicy
from invariants.history import Recorder
from stress.swarm.child import lifeline, receive_config

GATE, RATE = "bench_gate", "bench_rate"
# Far above what any drain holds or takes: the limit never denies.
PLENTY = 1_000_000
INSTANCE = "bench"


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How one node is run. `gate_shards`, `rate_shards`: a limit with that many, none for 0. `history`: it records what
    it does, as the nodes of a swarm do, in a folder of its own, gone when it ends."""

    dsn: str
    name: str
    concurrency: int = 1_000
    prefetch: int = 1_000
    max_batch: int = 1_000
    max_delay_ms: float = 2.0
    poll_interval_ms: float = 50.0
    pokes: bool = False
    gate_shards: int = 0
    rate_shards: int = 0
    history: bool = False


class Bench(Machine):
    """Jobs of the bench: `noop` ends at once; `park` waits for a signal, again and again; `fan` has children."""

    name = "bench"

    async def noop(self, step: Step) -> Outcome:
        """Nothing to do."""
        return Done()

    async def park(self, step: Step) -> Outcome:
        """Waits for a signal; one that came is consumed by going on."""
        return Next("park") if step.awaited else Await("go", step="park")

    async def fan(self, step: Step) -> Outcome:
        """As many children as the state says."""
        children = [Job(fsm="bench", step="noop")] * int(step.state["children"])
        return ScheduleChildren(children, "join")

    async def join(self, step: Step) -> Outcome:
        """All children have ended."""
        return Done(len(step.children))


def limits_of(setup: NodeSetup) -> Sequence[Limit]:
    """What the node is configured with."""
    limits: list[Limit] = []
    if setup.gate_shards:
        limits.append(Gate(GATE, PLENTY, shards=setup.gate_shards))
    if setup.rate_shards:
        limits.append(RateLimit(RATE, PLENTY, PLENTY, shards=setup.rate_shards))
    return limits


def policy_of(setup: NodeSetup) -> NodePolicy:
    """The node's policy: sweeps as they come, large claims and large flushes."""
    queue = QueuePolicy(name="default", concurrency=setup.concurrency, prefetch=setup.prefetch)
    return NodePolicy(
        instance=INSTANCE,
        node=setup.name,
        queues=(queue,),
        max_batch=setup.max_batch,
        max_delay_ms=setup.max_delay_ms,
        poll_interval_ms=setup.poll_interval_ms,
        pokes=setup.pokes,
    )


async def serve(setup: NodeSetup) -> None:
    """Run until told to end."""
    limits = limits_of(setup)
    limiter: Any = PostgresLimiter(limits) if limits else None
    with ExitStack() as stack:
        observer = None
        if setup.history:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pgreferee-bench-"))
            observer = stack.enter_context(Recorder(Path(folder), setup.name))
        node = Node(setup.dsn, policy_of(setup), [Bench], limiter=limiter, observer=observer)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: lifeline(node.stop))
        await node.run()


if __name__ == "__main__":
    config = receive_config(NodeSetup)
    # As `python -m engine node` does.
    gc.collect()
    gc.freeze()
    asyncio.run(serve(config))
