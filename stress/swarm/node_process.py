"""A node of the swarm: `python -m stress.swarm.node_process`, configured over standard input.

SIGTERM stops it gracefully, and so does the byte for it on standard input, which can be sent before the process has
come so far as to understand a signal. A mutant is applied here, to this process's catalogue; the engine knows nothing
of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.limiter import Gate, Limit
from engine.node import Node
from engine.policy import NodePolicy
from invariants.history import Recorder
from invariants.mutants import REGISTRY
from invariants.mutants.protocol import nodes_of
from stress.scenarios import SCENARIOS, Scenario
from stress.swarm.child import lifeline, receive_config
from stress.swarm.clock import set_clock_off
from stress.swarm.configs import ABANDONED, INSTANCE, NodeConfig
from stress.swarm.deaf_node import DeafNode
from stress.swarm.herd import boot_with_the_herd
from stress.swarm.mutation import claim_names_for, limiter_for, maintenance_for, picker_for

# Often, so that a reconciler meets claims, ends and late credits.
RECONCILE_INTERVAL_MS = 300.0
# Often enough for a short run to have many; a node that keeps all it has ended has nothing to look for.
GC_INTERVAL_MS = 500.0
EXPIRE_INTERVAL_MS = 200.0
POLL_INTERVAL_MS, MAX_POLL_INTERVAL_MS = 20.0, 200.0


def policy_of(config: NodeConfig, scenario: Scenario) -> NodePolicy:
    """What a run asks of every node, and what the scenario has to say about it."""
    knobs: dict[str, Any] = {
        "lease_ttl_ms": config.lease_ttl_ms,
        "heartbeat_interval_ms": config.heartbeat_interval_ms,
        "reap_interval_ms": config.reap_interval_ms,
        "reconcile_interval_ms": RECONCILE_INTERVAL_MS,
        "expire_interval_ms": EXPIRE_INTERVAL_MS,
        "gc_interval_ms": GC_INTERVAL_MS,
        "gc": config.retention_ms is not None,
        "retention_ms": config.retention_ms or 0.0,
        "poll_interval_ms": POLL_INTERVAL_MS,
        "max_poll_interval_ms": MAX_POLL_INTERVAL_MS,
        "max_delay_ms": config.max_delay_ms,
        "drain_timeout_ms": config.drain_timeout_ms,
        **scenario.knobs,
    }
    return NodePolicy(
        instance=INSTANCE,
        node=config.name,
        queues=scenario.queues,
        pokes=scenario.pokes_at(config.place),
        max_sessions=config.max_sessions,
        **knobs,
    )


def described(limits: Sequence[Limit]) -> list[list[Any]]:
    """What the history says of them."""
    return [
        ["conc", limit.name, None, float(limit.capacity), limit.shards]
        if isinstance(limit, Gate)
        else ["rate", limit.name, float(limit.rate), float(limit.burst), limit.shards]
        for limit in limits
    ]


async def serve(config: NodeConfig) -> int:
    """Run the node until SIGTERM; the process's exit status."""
    scenario = SCENARIOS[config.scenario]
    assert isinstance(scenario, Scenario)
    policy = policy_of(config, scenario)
    limits = scenario.limits_at(config.place, config.release)
    with Recorder(Path(config.history), config.name) as recorder:
        # The recorder's own clock is the harness's, and is read before.
        set_clock_off(config.clock_offset_s)
        if scenario.releases:
            recorder.complete(recorder.invoke("limits", {"limits": described(limits)}), "ok", {})
        if scenario.herd:
            boot_with_the_herd(config.dsns[0], scenario.subject.areas)
        kind = DeafNode if scenario.pokes == "dropped" else Node
        node = kind(
            config.dsns[0],
            policy,
            scenario.machines,
            picker=picker_for(config.mutant),
            limiter=limiter_for(config.mutant, limits),
            maintenance=maintenance_for(config.mutant),
            observer=recorder,
            name_claim=claim_names_for(config.mutant, policy),
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, node.stop)
        loop.add_reader(sys.stdin.fileno(), lambda: lifeline(node.stop))
        await node.run()
    return node.abandoned_steps


def main() -> None:
    """Entry point."""
    config = receive_config(NodeConfig)
    with nodes_of(None if config.mutant is None else REGISTRY[config.mutant]):
        abandoned = asyncio.run(serve(config))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of abandoned steps would hold up the interpreter's exit.
    os._exit(0 if abandoned == 0 else ABANDONED)


if __name__ == "__main__":
    main()
