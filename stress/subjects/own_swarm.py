"""The processes of a run of somebody else's system: workers by place, and clients.

A worker that ends by itself is started again under a new name, as a supervisor would do it, and that it ended is on
record; one that ends again and again at once has a mistake, and the run is over.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from invariants.history.events import history_path
from stress import config as knobs
from stress.config import RunConfig
from stress.subjects.peers import words_of
from stress.subjects.process import SubjectConfig
from stress.swarm.child import Child, ChildDied
from stress.swarm.configs import LoadReport
from stress.swarm.swarm import client_name

MODULE: Final = "stress.subjects.process"
# A worker that has not lived longer than that ended at once; after so many of them in a row the run is over.
AT_ONCE_S: Final = 5.0
MOST_AT_ONCE: Final = 4
RESTART_PAUSE_S: Final = 0.2
STOP_TIMEOUT_S: Final = 45.0


@dataclass(slots=True)
class OwnSwarm:
    """Starts, disturbs and ends the processes. All in the runner's main thread. `python`: their interpreter; `exited`
    is told the name of a worker that ended by itself."""

    config: RunConfig
    dsn: str
    folder: Path
    jobs_per_s: float
    python: str | None = None
    ways: Mapping[int | str, tuple[str, ...]] = field(default_factory=dict)
    exited: Callable[[str], None] = lambda _: None
    is_disturbed: Callable[[], bool] = lambda: False
    nodes: dict[int, Child] = field(default_factory=dict)
    clients: list[Child] = field(default_factory=list)
    frozen: set[int] = field(default_factory=set)
    leaving: list[tuple[Child, float]] = field(default_factory=list)
    _generation: int = 0
    _began: dict[str, float] = field(default_factory=dict)
    _at_once: Counter[int] = field(default_factory=Counter)
    _due: dict[int, float] = field(default_factory=dict)

    def start_nodes(self) -> None:
        """One worker in every place."""
        for place in range(self.config.nodes):
            self.start_node(place)

    def start_node(self, place: int, *, settings: Mapping[str, str] | None = None) -> Child:
        """A new worker in a place that has none. `settings`: of its sessions, where its driver reads PGOPTIONS."""
        self._generation += 1
        name = f"worker-{place + 1}.{self._generation}"
        self.nodes[place] = self._start("worker", name, self._dsn(place), settings=dict(settings or {}))
        self._began[name] = time.monotonic()
        self._due.pop(place, None)
        return self.nodes[place]

    def replace_node(self, place: int, **changes: Any) -> Child:
        """Ask the worker in a place to stop; another takes it at once."""
        old = self.nodes.pop(place)
        old.ask_to_end()
        self.leaving.append((old, time.monotonic() + STOP_TIMEOUT_S))
        return self.start_node(place, **changes)

    def kill_node(self, place: int) -> Child:
        """SIGKILL the worker in a place, and all that it started."""
        node = self.nodes.pop(place)
        _signal_all(node, signal.SIGKILL)
        node.destroy()
        return node

    def freeze_node(self, place: int) -> Child:
        """SIGSTOP it, likewise."""
        _signal_all(self.nodes[place], signal.SIGSTOP)
        self.frozen.add(place)
        return self.nodes[place]

    def thaw_node(self, place: int) -> None:
        """SIGCONT it."""
        self.frozen.discard(place)
        if place in self.nodes:
            _signal_all(self.nodes[place], signal.SIGCONT)

    def start_load(self) -> None:
        """The clients."""
        for number in range(knobs.LOCUST_WORKERS):
            name = client_name(number)
            rate = self.jobs_per_s / knobs.LOCUST_WORKERS
            self.clients.append(
                self._start("client", name, self._dsn(name), number=number + 1, jobs_per_s=rate)
            )

    def stop_load(self) -> None:
        """Let the clients end their call. Raises ChildDied for one that does not end well."""
        for client in self.clients:
            client.ask_to_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for client in self.clients:
            # A call that never returns is the system's: it stays open in the history.
            client.wait(max(0.1, deadline - time.monotonic()))
            client.destroy()
        self.clients.clear()

    def stop_nodes(self) -> None:
        """Ask every worker to stop; one that does not in time is killed, for its jobs have all been run."""
        for place in list(self.nodes):
            node = self.nodes.pop(place)
            node.ask_to_end()
            self.leaving.append((node, time.monotonic() + STOP_TIMEOUT_S))
        for node, deadline in self.leaving:
            node.wait(max(0.1, deadline - time.monotonic()))
            _signal_all(node, signal.SIGKILL)
            node.destroy()
        self.leaving.clear()

    def read_load_report(self) -> LoadReport | None:
        """Clients say nothing while they run."""
        return None

    def check_alive(self) -> None:
        """Start what has ended anew. Raises ChildDied where that is no use, or a client has ended by itself."""
        for entry in list(self.leaving):
            node, deadline = entry
            if node.status is not None or time.monotonic() > deadline:
                self.leaving.remove(entry)
                _signal_all(node, signal.SIGKILL)
                node.destroy()
        for client in self.clients:
            if client.status is not None:
                raise ChildDied(f"{client.name} exited with status {client.status}: {client.last_words()}")
        for place, node in list(self.nodes.items()):
            if node.status is not None:
                self._has_ended(place, node)
        for place, at in list(self._due.items()):
            if time.monotonic() >= at:
                self.start_node(place)

    def _has_ended(self, place: int, node: Child) -> None:
        self.nodes.pop(place)
        self.exited(node.name)
        lived_s = time.monotonic() - self._began[node.name]
        words = node.last_words()
        _signal_all(node, signal.SIGKILL)
        node.destroy()
        # What a system does while a fault is in force is its own business.
        if lived_s < AT_ONCE_S and not self.is_disturbed():
            self._at_once[place] += 1
            if self._at_once[place] >= MOST_AT_ONCE:
                raise ChildDied(
                    f"the worker ends as soon as it is started, {MOST_AT_ONCE} times now; its last words are: {words}"
                )
        elif lived_s >= AT_ONCE_S:
            self._at_once[place] = 0
        self._due[place] = time.monotonic() + RESTART_PAUSE_S

    def have_come_up(self) -> bool:
        """Whether every process has begun its history, and none is to be started again."""
        return not self._due and all(
            history_path(self.folder, child.name).exists() for child in (*self.nodes.values(), *self.clients)
        )

    def destroy(self) -> None:
        """End everything now."""
        for child in (*(node for node, _ in self.leaving), *self.nodes.values(), *self.clients):
            _signal_all(child, signal.SIGKILL)
            child.destroy()
        self.leaving.clear()
        self.nodes.clear()
        self.clients.clear()
        self._due.clear()

    def _dsn(self, place: int | str) -> str:
        return self.ways.get(place, (self.dsn,))[0]

    def _start(
        self,
        part: str,
        name: str,
        dsn: str,
        *,
        number: int = 0,
        jobs_per_s: float = 0.0,
        settings: dict[str, str] | None = None,
    ) -> Child:
        told = SubjectConfig(
            part=part,
            subject=words_of(self.config.subject),
            dsn=dsn,
            name=name,
            folder=str(self.folder),
            seed=self.config.seed,
            number=number,
            jobs_per_s=jobs_per_s,
            settings=settings or {},
        )
        return Child.start(name, MODULE, told, self.folder / "logs" / f"{name}.log", python=self.python)


def _signal_all(child: Child, number: signal.Signals) -> None:
    """To the process group that a child leads; it is there until the last of it has ended and the child was waited
    for."""
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        pass
