"""What the children of a run are told. Sent over standard input, so the DSN may carry its password."""

from __future__ import annotations

import msgspec

from stress.swarm.child import LOOPBACK

# The name of the application that all nodes and clients of a run are of.
INSTANCE = "swarm"
# The exit status of a node that stopped in order, but left steps to the reaper, because it could not drain in time.
ABANDONED = 4


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A node process. Times in milliseconds. `mutant` names a patch of the statements, None for the sound engine.
    `place`: where among the nodes it runs, from 0. `max_sessions`: as in `NodePolicy`; `clock_offset_s`: its clock is
    off by that. `release`: how many rolling restarts came before it. `retention_ms`: for how long it keeps what has
    ended, None: for ever."""

    dsns: tuple[str, ...]
    name: str
    scenario: str
    mutant: str | None
    history: str
    lease_ttl_ms: float
    heartbeat_interval_ms: float
    reap_interval_ms: float
    max_delay_ms: float
    drain_timeout_ms: float
    place: int
    max_sessions: int | None = None
    clock_offset_s: float = 0.0
    release: int = 0
    retention_ms: float | None = None


class ClientsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A Locust worker: its users' connections, seed and histories. `number` tells workers apart. `token`: what the
    master asks for."""

    dsns: tuple[str, ...]
    number: int
    seed: int
    scenario: str
    mutant: str | None
    history: str
    master_host: str
    master_port: int
    token: str | None = None


class LocustMasterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The Locust master. It listens at `bind` and waits for `workers` workers; they need the token, if there is one.
    `ui`: the port of its page, None for none."""

    bind: str = LOOPBACK
    port: int
    token: str | None = None
    workers: int
    users: int
    scenario: str
    ui: int | None = None


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is now, for the page: a line on the master's standard input. `waiting`: rows that nodes could work
    on; `invariants`: by name, how often each was decided on the ledger so far, and how often it was violated."""

    phase: str = "start"
    seconds: float = 0.0
    of_seconds: float = 0.0
    nodes: int = 0
    of_nodes: int = 0
    faults: tuple[str, ...] = ()
    waiting: int = 0
    transactions: int = 0
    violations: int = 0
    invariants: dict[str, tuple[int, int]] = {}


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the master's standard output, once a second. `phase`: waiting, running, ended."""

    phase: str
    workers: int
    users: int
    requests: int
    failures: int
