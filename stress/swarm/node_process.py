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
from pathlib import Path

from engine.node import Node
from engine.policy import NodePolicy
from invariants.history import Recorder
from invariants.mutants import REGISTRY
from invariants.mutants.protocol import nodes_of
from stress import config as knobs
from stress.scenarios import SCENARIOS, Scenario
from stress.swarm.child import lifeline, receive_config
from stress.swarm.clock import set_clock_off
from stress.swarm.configs import ABANDONED, INSTANCE, NodeConfig
from stress.swarm.deaf_node import DeafNode
from stress.swarm.mutation import claim_names_for, limiter_for, maintenance_for, picker_for

# Often enough for a short run to have many; a node that keeps all it has ended has nothing to look for.
GC_INTERVAL_MS = 500.0
EXPIRE_INTERVAL_MS = 200.0


async def serve(config: NodeConfig) -> int:
    """Run the node until SIGTERM; the process's exit status."""
    scenario = SCENARIOS[config.scenario]
    assert isinstance(scenario, Scenario)
    policy = NodePolicy(
        instance=INSTANCE,
        node=config.name,
        queues=scenario.queues,
        lease_ttl_ms=config.lease_ttl_ms,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        reap_interval_ms=config.reap_interval_ms,
        reconcile_interval_ms=knobs.RECONCILE_INTERVAL_MS,
        expire_interval_ms=EXPIRE_INTERVAL_MS,
        gc_interval_ms=GC_INTERVAL_MS,
        gc=scenario.retention_ms is not None,
        retention_ms=scenario.retention_ms or 0.0,
        pokes=scenario.pokes_at(config.place),
        poll_interval_ms=20.0,
        max_poll_interval_ms=knobs.MAX_POLL_INTERVAL_MS,
        max_delay_ms=config.max_delay_ms,
        drain_timeout_ms=config.drain_timeout_ms,
        max_sessions=config.max_sessions,
    )
    with Recorder(Path(config.history), config.name) as recorder:
        # The recorder's own clock is the harness's, and is read before.
        set_clock_off(config.clock_offset_s)
        kind = DeafNode if scenario.pokes == "dropped" else Node
        node = kind(
            config.dsns[0],
            policy,
            scenario.machines,
            picker=picker_for(config.mutant),
            limiter=limiter_for(config.mutant, scenario.limits),
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
