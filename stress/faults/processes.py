"""Faults of a node's process: killed, frozen, or started anew as another kind of node."""

from __future__ import annotations

from typing_extensions import override

from stress.faults.ground import Fault

# What a clock may be off by, in seconds.
CLOCK_OFFSETS_S = (-400 * 86_400.0, -3_600.0, -90.0, 90.0, 3_600.0, 400 * 86_400.0)


class Kill(Fault):
    """SIGKILL; heal: a new node in its place."""

    @override
    def begin(self) -> None:
        self.ground.swarm.kill_node(self.place)
        self.did["nodes killed"] = 1

    @override
    def heal(self) -> None:
        self.ground.swarm.start_node(self.place)


class Pause(Fault):
    """SIGSTOP; heal: SIGCONT."""

    @override
    def begin(self) -> None:
        self.ground.swarm.freeze_node(self.place)
        self.did["nodes frozen"] = 1

    @override
    def heal(self) -> None:
        self.ground.swarm.thaw_node(self.place)


class Skew(Fault):
    """The node is asked to stop, and another takes its place whose clock is wrong; heal: one whose clock is right."""

    @override
    def begin(self) -> None:
        offset_s = self.random.choice(CLOCK_OFFSETS_S)
        self.ground.swarm.replace_node(self.place, clock_offset_s=offset_s)
        self.did["clocks set off"] = 1

    @override
    def heal(self) -> None:
        self.ground.swarm.replace_node(self.place)


class Pool(Fault):
    """Likewise, with one connection for claims, flushes, heartbeats and sweeps."""

    @override
    def begin(self) -> None:
        self.ground.swarm.replace_node(self.place, max_sessions=1)
        self.did["nodes with one session"] = 1

    @override
    def heal(self) -> None:
        self.ground.swarm.replace_node(self.place)
