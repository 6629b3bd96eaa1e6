"""What faults act upon: the swarm, the server, and the proxies in front of the nodes; and what a fault in force is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from engine.postgres import Server
from invariants.history import Recorder
from stress.faults.plan import PlannedFault
from stress.faults.proxy import Waysides
from stress.subjects.subject import Subject
from stress.swarm.swarm import Swarm

# Sessions of faults are none of nodes or clients: nothing is done to them.
SESSION_NAME = "pgreferee fault"
CONNECT_DEADLINE_S = 60.0
CONNECT_PAUSE_S = 0.1
LOCK_TIMEOUT_MS = 2_000
# Nodes and clients name their sessions. Not the harness's own, which have no name, nor the recorder's, nor a fault's.
NAMED = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND application_name NOT IN ('', 'pgreferee recorder', 'pgreferee fault')
"""
THREAD_TIMEOUT_S = 60.0


class FaultStuck(Exception):
    """A fault that cannot be healed; the message says why."""


@dataclass(slots=True)
class Ground:
    """`proxies`: one for each server, none where nothing in the run needs them; `client_places`: where in them the
    processes of clients are, and `clients_taken`: which of those suffer a fault. `notes`: the harness's own history,
    for a fault that does what a client does. `down`: a server is stopped, and nobody is to ask it anything.
    `replicating`: commits wait for a standby, and one that is cancelled there is acknowledged without. `crashes`: how
    often a server has ended and its counters with it. `sessions`: a query for the sessions of nodes and clients."""

    swarm: Swarm
    servers: tuple[Server, ...]
    subject: Subject
    scenario: Any
    notes: Recorder
    proxies: tuple[Waysides, ...] = ()
    client_places: tuple[str, ...] = ()
    clients_taken: set[str] = field(default_factory=set)
    down: bool = False
    replicating: bool = False
    crashes: int = 0
    sessions: str = NAMED

    def connect(self, server: Server, over: threading.Event | None = None) -> psycopg.Connection[Any]:
        """A session of a fault, in autocommit mode; a server that is being started again is waited for, unless it is
        `over`. Raises psycopg.OperationalError."""
        deadline = time.monotonic() + CONNECT_DEADLINE_S
        while True:
            try:
                connection = psycopg.connect(
                    server.dsn, autocommit=True, application_name=SESSION_NAME, connect_timeout=5
                )
                connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}".encode())
                return connection
            except psycopg.OperationalError:
                if time.monotonic() > deadline or (over is not None and over.is_set()):
                    raise
                time.sleep(CONNECT_PAUSE_S)


@dataclass
class Fault:
    """A fault in force. `did` counts what it did, in words.

    `begin` is called once, `tick` every few hundredths of a second while it lasts, `heal` once at its end. None raises
    psycopg.Error: a session that another fault has ended is that fault's doing.
    """

    ground: Ground
    planned: PlannedFault
    did: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = Random(self.planned.seed)
        # What is done to a server is done to one of them.
        self.server = self.random.choice(self.ground.servers)
        self.began = time.monotonic()
        self.begin()

    @property
    def place(self) -> int:
        """The place of a node's fault."""
        assert self.planned.place is not None
        return self.planned.place

    def begin(self) -> None:
        """Do it."""

    @property
    def ready(self) -> bool:
        """Whether it has come so far that it can be healed; it is not healed before."""
        return True

    def tick(self) -> None:
        """Go on."""

    def heal(self) -> None:
        """Undo it."""

    def abandon(self) -> None:
        """The run is over before its time: let go of sessions and threads, undo nothing."""


class Background:
    """Work in a thread beside the run, until `stop`. It may be in the middle of a statement that waits: `stop` cancels
    that. `work(connection)` is called again and again; what it raises of psycopg.Error makes the connection anew."""

    def __init__(
        self, ground: Ground, server: Server, work: Callable[[psycopg.Connection[Any]], None]
    ) -> None:
        self._ground, self._server = ground, server
        self._work = work
        self._over = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="fault", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it and wait. Raises FaultStuck."""
        self._over.set()
        connection = self._connection
        if connection is not None and not connection.closed:
            try:
                connection.cancel_safe(timeout=2.0)
            except (psycopg.Error, TimeoutError):
                pass
        self._thread.join(THREAD_TIMEOUT_S)
        if self._thread.is_alive():
            raise FaultStuck("a fault's statement did not end when it was cancelled")

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._ground.connect(self._server, self._over) as self._connection:
                    while not self._over.is_set():
                        self._work(self._connection)
            except psycopg.Error:
                self._over.wait(CONNECT_PAUSE_S)
