"""One run: provision, load under faults, drain, rest, judge, record.

Phases, and what each waits for:

1. start: server, schema, ledger, nodes, clients. The load's clock starts when the clients have joined.
2. load: `seconds` long; faults as planned.
3. drain: clients stop, faults are healed, nodes work until nothing waits. A drain that makes no progress for
   `STUCK_S` ends: what still waits is judged as lost. One that makes progress but never ends is `unknown`.
4. rest: nodes stop gracefully; the recorder reads the last transaction and the tables as they are.
5. judge: ledger, history and evidence decide every invariant.

Ctrl-C and SIGTERM end the run early at any point: children and server go, what was recorded stays, and the verdict is
`unknown: interrupted`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from engine.postgres import HarnessError, InfrastructureError, Profile, Server, Stopped, conninfo, provision
from engine.postgres.cleanup import uninterrupted
from engine.schema import migrate
from invariants.ledger.process import RecorderError
from invariants.mutants import REGISTRY
from results.runs import create_run_folder
from stress import config as knobs
from stress.config import RunConfig
from stress.display import Display, Snapshot
from stress.faults import FAULTS, PlannedFault, plan_faults
from stress.faults.acts import ACTS
from stress.faults.ground import Fault, FaultStuck, Ground
from stress.faults.plan import NODE, SERVER
from stress.faults.proxy import LOOPBACK, Proxies
from stress.judgement import INTERRUPTED, Judged, judge_run, never_began, stopped_run
from stress.recording import DEADLOCKS, Recording
from stress.scenarios import SCENARIOS
from stress.subjects import Subject
from stress.swarm.swarm import ChildDied, Swarm

TICK_S = 0.05
JOIN_TIMEOUT_S = 120.0
STUCK_S = 10.0
DRAIN_TIMEOUT_S = 90.0
# A drain whose ledger already shows a violation has nothing more to prove.
VIOLATED_DRAIN_S = 8.0
LOOK_S = 0.25


class Unfinished(Exception):
    """The run cannot be judged whole; the message says why."""


@dataclass(slots=True)
class Active:
    """A fault in force."""

    planned: PlannedFault
    heal_at: float
    fault: Fault
    token: int


@dataclass(slots=True)
class Run:
    """The state of a run in its phases."""

    config: RunConfig
    servers: tuple[Server, ...]
    folder: Path
    display: Display
    swarm: Swarm
    recording: Recording
    connections: list[psycopg.Connection[Any]]
    ground: Ground
    planned: list[PlannedFault]
    active: list[Active] = field(default_factory=list)
    phase: str = "start"
    load_began: float = 0.0
    load_seconds: float = 0.0
    waiting: tuple[int, tuple[str | None, ...]] = (0, ())
    looked_at: float = 0.0
    deadlocks: int = 0

    @property
    def subject(self) -> Subject:
        """The system that is driven."""
        return SCENARIOS[self.config.scenario].subject

    def load(self) -> None:
        """Phases 1 and 2."""
        self.recording.phase("start")
        # Locust takes longest to come up.
        self.swarm.start_load()
        self.swarm.start_nodes()
        self._tick_until(
            lambda: (report := self.swarm.read_load_report()) is not None and report.phase == "running",
            timeout_s=JOIN_TIMEOUT_S,
            otherwise="the clients did not join in time",
        )
        self._enter("load")
        self.load_began = time.monotonic()
        self._tick_until(lambda: self._loaded_s() >= self.config.seconds or self._has_what_it_wanted())
        self.load_seconds = self._loaded_s()

    def _has_what_it_wanted(self) -> bool:
        """Whether a run that ends with its first violation has one: in the ledger, or a deadlock."""
        return self.config.until_violated and (self.deadlocks or self.recording.progress().violations) > 0

    def drain(self) -> None:
        """Phase 3."""
        self._enter("drain")
        for active in self._in_healing_order(everything=True):
            self._heal(active)
        self.swarm.stop_load()
        began = progressed = time.monotonic()
        last = self._look()
        while self.waiting[0] > 0:
            self._tick()
            if self.waiting != last:
                last, progressed = self.waiting, time.monotonic()
            if time.monotonic() - progressed > STUCK_S:
                self.display.say(
                    f"{self.waiting[0]} jobs still wait and nothing moves: the rules say whether they may"
                )
                return
            if time.monotonic() - began > VIOLATED_DRAIN_S and self.recording.progress().violations:
                raise Unfinished(
                    f"{self.waiting[0]} jobs still waited when the ledger already showed violations"
                )
            if time.monotonic() - began > DRAIN_TIMEOUT_S:
                raise Unfinished(
                    f"{self.waiting[0]} jobs still waited {DRAIN_TIMEOUT_S:.0f} s after the load"
                )

    def rest(self) -> None:
        """Phase 4."""
        self._enter("rest")
        self.swarm.stop_nodes()
        settling = self.subject.settling(SCENARIOS[self.config.scenario], self.config.mutant)
        if settling is not None:
            name, settle = settling
            for connection in self.connections:
                self.recording.did(name, partial(settle, connection))
        self.recording.finish(self.connections, counters_lost=self.ground.crashes > 0)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.recording.phase(phase)

    def _loaded_s(self) -> float:
        return time.monotonic() - self.load_began if self.load_began else 0.0

    def _tick_until(
        self, done: Callable[[], bool], *, timeout_s: float = float("inf"), otherwise: str = ""
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise Unfinished(otherwise)
            self._tick()

    def _tick(self) -> None:
        """Whatever is due: faults, their heals, the health of the children, the display."""
        self.swarm.check_alive()
        self.recording.check_alive()
        if self.phase == "load":
            self._disturb()
        report = self.swarm.read_load_report()
        progress = self.recording.progress()
        if time.monotonic() - self.looked_at >= LOOK_S:
            self._look()
        self.display.show(
            Snapshot(
                phase=self.phase,
                seconds=min(self._loaded_s(), self.config.seconds),
                of_seconds=self.config.seconds,
                nodes=len(self.swarm.nodes) - len(self.swarm.frozen),
                of_nodes=self.config.nodes,
                faults=tuple(_shown(fault.planned) for fault in self.active),
                requests=0 if report is None else report.requests,
                waiting=self.waiting[0],
                transactions=progress.transactions,
                violations=progress.violations,
            )
        )
        time.sleep(TICK_S)

    def _disturb(self) -> None:
        now = time.monotonic()
        for active in [active for active in self._in_healing_order() if now >= active.heal_at]:
            if active.fault.ready:
                self._heal(active)
        if self.ground.down:
            return
        for active in self.active:
            active.fault.tick()
        for planned in [planned for planned in self.planned if planned.at_s <= self._loaded_s()]:
            if self._has_room(planned):
                self.planned.remove(planned)
                self._inject(planned)

    def _in_healing_order(self, *, everything: bool = False) -> list[Active]:
        """A server that is down comes first, and unless `everything` is to be healed alone: the rest may need it."""
        servers = [active for active in self.active if FAULTS[active.planned.name].site == SERVER]
        if self.ground.down and not everything:
            return servers
        return servers + [active for active in self.active if active not in servers]

    def _has_room(self, planned: PlannedFault) -> bool:
        """A fault waits while one that began late is where the plan has it no longer."""
        site = FAULTS[planned.name].site
        if site != NODE:
            return all(FAULTS[active.planned.name].site != site for active in self.active)
        taken = {active.planned.place for active in self.active} - {None}
        return planned.place not in taken and (len(taken) + 1 < self.config.nodes or self.config.nodes == 1)

    def _inject(self, planned: PlannedFault) -> None:
        victim = None if planned.place is None else self.swarm.nodes[planned.place]
        who = ("server", 0) if victim is None else (victim.name, victim.pid)
        token = self.recording.fault(planned.name, *who)
        fault = ACTS[planned.name](self.ground, planned)
        self.active.append(Active(planned, time.monotonic() + planned.lasts_s, fault, token))

    def _heal(self, active: Active) -> None:
        active.fault.heal()
        self.active.remove(active)
        self.recording.healed(active.token, active.fault.did)
        if FAULTS[active.planned.name].site == SERVER:
            # It does not know yet that its server is another process now.
            place = self.servers.index(active.fault.server)
            self.connections[place].close()
            self.connections[place] = self.ground.connect(active.fault.server)

    def _look(self) -> tuple[int, tuple[str | None, ...]]:
        """How much waits, and what changes when any of it moves."""
        self.looked_at = time.monotonic()
        if self.ground.down:
            return self.waiting
        query = self.subject.unfinished if self.phase == "drain" else self.subject.waiting
        rows = [row for each in self.connections for row in each.execute(query.encode()).fetchall()]
        if self.config.until_violated:
            counted = [each.execute(DEADLOCKS).fetchone() for each in self.connections]
            self.deadlocks = sum(int(row[0]) for row in counted if row is not None)
        self.waiting = (sum(int(count) for count, _ in rows), tuple(mark for _, mark in rows))
        return self.waiting


def _shown(planned: PlannedFault) -> str:
    return planned.name if planned.place is None else f"{planned.name} {planned.place + 1}"


def run(config: RunConfig, out: Path, display: Display) -> Judged:
    """Carry out a run and record it in a new folder below `out`.

    Raises InfrastructureError where no server can be had, and leaves no folder then; whatever else happens ends in a
    verdict.
    """
    folder = create_run_folder(out, "-".join(filter(None, (config.scenario, config.mutant))))
    display.say(f"run {folder}")
    try:
        # What was acknowledged must survive a crash.
        profile: Profile = "durable" if {"crash", "failover"} & set(config.faults) else "fast"
        with display, ExitStack() as stack:
            servers = tuple(
                stack.enter_context(provision(source, profile=profile)) for source in config.sources
            )
            told = " + ".join(f"PostgreSQL {server.version_text} ({server.source})" for server in servers)
            display.say(
                f"{told} · scenario {config.scenario} · seed {config.seed}"
                f" · faults {', '.join(config.faults) or 'none'}"
                + (f" · MUTANT {config.mutant}" if config.mutant else "")
            )
            for sentence in config.left_out:
                display.say(sentence)
            return _on_servers(config, servers, folder, display)
    except HarnessError:
        shutil.rmtree(folder)
        raise
    except (KeyboardInterrupt, Stopped):
        with uninterrupted():
            return never_began(config, folder, INTERRUPTED)


def _on_servers(config: RunConfig, servers: tuple[Server, ...], folder: Path, display: Display) -> Judged:
    with ExitStack() as stack:
        connections = tuple(
            stack.enter_context(psycopg.connect(server.dsn, autocommit=True)) for server in servers
        )
        for connection in connections:
            for area in SCENARIOS[config.scenario].subject.areas:
                migrate(connection, area)
            for statement in () if config.mutant is None else REGISTRY[config.mutant].alterations():
                connection.execute(statement.encode())
        with _run(config, servers, folder, display, connections) as started:
            stopped = _carry_out(started)
            with uninterrupted():
                return judge_run(started) if stopped is None else stopped_run(started, stopped)


def _carry_out(started: Run) -> str | None:
    """The phases; why the run ended early, None when it came to rest."""
    try:
        started.load()
        started.drain()
        started.rest()
    except (Unfinished, ChildDied, RecorderError, FaultStuck, InfrastructureError) as error:
        return str(error)
    except psycopg.OperationalError as error:
        return f"the server went away: {type(error).__name__}"
    except (KeyboardInterrupt, Stopped):
        return INTERRUPTED
    return None


@contextmanager
def _run(
    config: RunConfig,
    servers: tuple[Server, ...],
    folder: Path,
    display: Display,
    connections: tuple[psycopg.Connection[Any], ...],
) -> Iterator[Run]:
    planned = plan_faults(
        config.faults,
        seed=config.seed,
        seconds=config.seconds,
        nodes=config.nodes,
        lease_s=knobs.LEASE_TTL_MS / 1000,
    )
    scenario = SCENARIOS[config.scenario]
    with ExitStack() as stack:
        proxies = tuple(stack.enter_context(each) for each in _proxies(config, servers))
        recording = stack.enter_context(
            Recording.started(servers, folder, failover="failover" in config.faults)
        )
        dsns = tuple(server.dsn for server in servers)
        swarm = Swarm(config, dsns, folder, ways=_ways(config, servers, proxies))
        ground = Ground(swarm, servers, scenario.subject, scenario, recording.notes, proxies)
        run = Run(
            config, servers, folder, display, swarm, recording, list(connections), ground, list(planned)
        )
        try:
            yield run
        finally:
            swarm.destroy()
            for active in run.active:
                with suppress(FaultStuck):
                    active.fault.abandon()
            for connection in run.connections:
                connection.close()


def _proxies(config: RunConfig, servers: Sequence[Server]) -> Iterator[Proxies]:
    """For each server one in front of each place, where a fault of the run needs them."""
    for server in servers if {"partition", "slow"} & set(config.faults) else ():
        assert server.tcp_dsn is not None
        params = conninfo.parse(server.tcp_dsn)
        yield Proxies((params["host"], int(params["port"])), range(config.nodes))


def _ways(
    config: RunConfig, servers: Sequence[Server], proxies: Sequence[Proxies]
) -> dict[int, tuple[str, ...]]:
    """The DSNs of each place through its proxies, if there are any."""
    if not proxies:
        return {}
    return {
        place: tuple(_way(server, each.port(place)) for server, each in zip(servers, proxies, strict=True))
        for place in range(config.nodes)
    }


def _way(server: Server, port: int) -> str:
    """In plain text, for a proxy can see no COMMIT in what is encrypted."""
    assert server.tcp_dsn is not None
    plain = {"sslmode": "disable", "gssencmode": "disable", "host": LOOPBACK, "port": str(port)}
    return conninfo.to_uri({**conninfo.parse(server.tcp_dsn), **plain})
