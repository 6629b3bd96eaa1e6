"""The children of one run: nodes by place, the Locust master and its workers.

A place is where a node runs; a killed node's successor takes its place under a new name, for it is another node.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from psycopg.conninfo import make_conninfo

from invariants.history.events import history_path
from stress import config as knobs
from stress.config import RunConfig
from stress.scenarios import SCENARIOS, Scenario
from stress.swarm.child import LOOPBACK, Child, ChildDied, Here, Host, Process
from stress.swarm.configs import ABANDONED, ClientsConfig, Live, LoadReport, LocustMasterConfig, NodeConfig

# Users end their current call, the master its workers.
LOAD_STOP_TIMEOUT_S = 60.0
# A node may be asked to stop before it has come up, by a fault, on a machine that has other things to do, and find the
# server down meanwhile.
STOP_TIMEOUT_S = knobs.DRAIN_TIMEOUT_MS / 1000 + 85

# A node that leaves while faults go on may be cut off from the server, or find none.
DISTURBED = (0, ABANDONED)


@dataclass(slots=True)
class Swarm:
    """Starts, disturbs and ends the children. All in the runner's main thread."""

    config: RunConfig
    dsns: tuple[str, ...]
    folder: Path
    # Where the node in a place, or the clients of that name, find the server: those that go another way than `dsns`.
    ways: Mapping[int | str, tuple[str, ...]] = field(default_factory=dict)
    # Where nodes and clients run, dealt out in turn; none: here.
    hosts: Sequence[Host] = ()
    # Of the Locust master, for workers of other hosts.
    token: str | None = None
    nodes: dict[int, Process] = field(default_factory=dict)
    clients: list[Process] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)
    # Nodes that were asked to stop and whose place another has taken, and until when they may take.
    leaving: list[tuple[Process, float]] = field(default_factory=list)
    latest: LoadReport | None = None
    calm: bool = False
    # How many rolling restarts the node in a place has seen.
    releases: dict[int, int] = field(default_factory=dict)
    _master: Child | None = None
    _unread: bytes = b""
    _generation: int = 0

    def start_nodes(self) -> None:
        """One node in every place."""
        for place in range(self.config.nodes):
            self.start_node(place)

    def start_node(
        self,
        place: int,
        *,
        settings: Mapping[str, str] | None = None,
        max_sessions: int | None = None,
        clock_offset_s: float = 0.0,
    ) -> Process:
        """A new node in a place that has none. `settings` are those of its sessions."""
        scenario = SCENARIOS[self.config.scenario]
        self._generation += 1
        name = f"node-{place + 1}.{self._generation}"
        dsns = self.ways.get(place, self.dsns)
        if settings:
            options = " ".join(f"-c {setting}={value}" for setting, value in settings.items())
            dsns = tuple(make_conninfo(dsn, options=options) for dsn in dsns)
        node = NodeConfig(
            dsns=dsns,
            name=name,
            scenario=self.config.scenario,
            mutant=self.config.mutant,
            history=str(self.folder),
            lease_ttl_ms=knobs.LEASE_TTL_MS,
            heartbeat_interval_ms=knobs.HEARTBEAT_INTERVAL_MS,
            reap_interval_ms=knobs.REAP_INTERVAL_MS,
            max_delay_ms=knobs.MAX_DELAY_MS,
            drain_timeout_ms=knobs.DRAIN_TIMEOUT_MS,
            place=place,
            max_sessions=max_sessions,
            clock_offset_s=clock_offset_s,
            release=self.releases.get(place, 0),
            retention_ms=self._retention_ms(),
        )
        self.nodes[place] = self._host(place).start(name, scenario.subject.node, node)
        if self.calm:
            self.nodes[place].ask_to_stop()
        return self.nodes[place]

    def replace_node(self, place: int, **changes: Any) -> Process:
        """Ask the node in a place to stop; another, with these `changes` (see `start_node`), takes it at once."""
        old = self.nodes.pop(place)
        old.ask_to_end()
        self.leaving.append((old, time.monotonic() + STOP_TIMEOUT_S))
        return self.start_node(place, **changes)

    def kill_node(self, place: int) -> Process:
        """SIGKILL the node in a place; the place is empty after."""
        node = self.nodes.pop(place)
        node.destroy()
        return node

    def freeze_node(self, place: int) -> Process:
        """SIGSTOP the node in a place."""
        self.nodes[place].signal(signal.SIGSTOP)
        self.frozen.add(place)
        return self.nodes[place]

    def thaw_node(self, place: int) -> None:
        """SIGCONT it."""
        self.frozen.discard(place)
        self.nodes[place].signal(signal.SIGCONT)

    def start_load(self) -> None:
        """The Locust master and its workers, which start their users as soon as all have joined."""
        scenario = SCENARIOS[self.config.scenario]
        hosts = self.config.hosts
        master = LocustMasterConfig(
            bind=LOOPBACK if hosts is None else hosts.bind,
            port=_free_port() if hosts is None else hosts.locust_port,
            token=self.token,
            workers=self.config.client_processes,
            users=scenario.clients,
            scenario=self.config.scenario,
            ui=self.config.ui,
        )
        log = self.folder / "logs" / "locust.log"
        self._master = Child.start("locust", "stress.swarm.locust_master", master, log, answers=True)
        assert self._master.process.stdout is not None
        os.set_blocking(self._master.process.stdout.fileno(), False)
        for number in range(self.config.client_processes):
            name, host = client_name(number), self._host(number)
            worker = ClientsConfig(
                dsns=self.ways.get(name, self.dsns),
                number=number,
                seed=self.config.seed,
                scenario=self.config.scenario,
                mutant=self.config.mutant,
                history=str(self.folder),
                master_host=host.way_here,
                master_port=master.port,
                token=self.token,
            )
            self.clients.append(host.start(name, "stress.swarm.locust_worker", worker))

    def show(self, live: Live) -> None:
        """Tell the master's page how the run is."""
        if self._master is not None:
            self._master.tell(live)

    def stop_load(self) -> None:
        """Let the users end their calls, and nodes make no load. Raises ChildDied when Locust does not end in time."""
        self.calm = True
        for node in self.nodes.values():
            node.ask_to_stop()
        if self._master is None:
            return
        self._master.ask_to_stop()
        deadline = time.monotonic() + LOAD_STOP_TIMEOUT_S
        everybody: tuple[Process, ...] = (self._master, *self.clients)
        for child in everybody:
            if child.wait(max(0.1, deadline - time.monotonic())) is None:
                raise ChildDied(f"{child.name} did not stop within {LOAD_STOP_TIMEOUT_S:.0f} s")
            self.read_load_report()
            if child.status != 0:
                raise ChildDied(f"{child.name} exited with status {child.status}: {child.last_words()}")
        for child in everybody:
            child.destroy()
        self._master, self.clients = None, []

    def stop_nodes(self) -> None:
        """Ask every node to stop and wait for its drain. Raises ChildDied for one that does not end well."""
        last: list[tuple[Process, float]] = []
        for place in list(self.nodes):
            node = self.nodes.pop(place)
            node.ask_to_end()
            last.append((node, time.monotonic() + STOP_TIMEOUT_S))
        for nodes, allowed in ((self.leaving, DISTURBED), (last, (0,))):
            for node, deadline in nodes:
                node.wait(max(0.1, deadline - time.monotonic()))
                _ended_well(node, allowed)
        self.leaving.clear()

    def read_load_report(self) -> LoadReport | None:
        """The latest report of the master, None before the first."""
        if self._master is not None and self._master.process.stdout is not None:
            while chunk := self._master.process.stdout.read(65536):
                self._unread += chunk
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                self.latest = msgspec.json.decode(line, type=LoadReport)
        return self.latest

    def check_alive(self) -> None:
        """Raises ChildDied when a child has ended by itself, or one that was asked to has not, or a host is lost."""
        for host in self.hosts:
            host.check()
        for entry in list(self.leaving):
            node, deadline = entry
            if node.status is not None or time.monotonic() > deadline:
                self.leaving.remove(entry)
                _ended_well(node, DISTURBED)
        for child in self._everybody():
            if child.status is not None:
                raise ChildDied(f"{child.name} exited with status {child.status}: {child.last_words()}")

    def have_come_up(self) -> bool:
        """Whether every node has come so far that it works: it begins with its history."""
        return all(history_path(self.folder, node.name).exists() for node in self.nodes.values())

    def destroy(self) -> None:
        """End every child now."""
        for child in (*(node for node, _ in self.leaving), *self._everybody()):
            child.destroy()
        self.leaving.clear()
        self.nodes.clear()
        self.clients.clear()
        self._master = None

    def _retention_ms(self) -> float | None:
        """The scenario's, or the run's where that is shorter; of the store nothing is collected."""
        scenario = SCENARIOS[self.config.scenario]
        asked = scenario.retention_ms if isinstance(scenario, Scenario) else None
        known = [each for each in (asked, self.config.retention_ms) if each is not None]
        return min(known, default=None)

    def _host(self, number: int) -> Host:
        """Of the node in that place, or of the process of clients of that number."""
        return self.hosts[number % len(self.hosts)] if self.hosts else Here(self.folder)

    def _everybody(self) -> list[Process]:
        return [*self.nodes.values(), *self.clients, *([] if self._master is None else [self._master])]


def client_name(number: int) -> str:
    """Of a Locust worker."""
    return f"client-{number}"


def _ended_well(node: Process, allowed: tuple[int, ...]) -> None:
    """Raises ChildDied unless it has ended with one of these."""
    status, words = node.status, node.last_words()
    node.destroy()
    if status is None:
        raise ChildDied(f"{node.name} did not stop when it was asked to")
    if status not in allowed:
        raise ChildDied(f"{node.name} exited with status {status}: {words}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
