"""One run: provision, load under faults, drain, rest, judge, record.

Phases, and what each waits for:

1. start: server, schema, ledger, what the scenario has in the tables before, nodes, clients; of a quiet scenario an
   idle time, in which the nodes are alone. The load's clock starts when the clients have joined.
2. load: `seconds` long, or until rolling restarts are over; faults as planned.
3. drain: clients stop, faults are healed, nodes work until nothing waits. A drain that makes no progress for
   `STUCK_S`, though all nodes have come up, ends: what still waits is judged as lost. One that makes progress but never
   ends is `unknown`.
4. collect, in a soak: nodes work until what has ended is gone from the tables.
5. rest: nodes stop gracefully; the recorder reads the last transaction and the tables as they are.
6. judge: ledger, history and evidence decide every invariant.

Ctrl-C and SIGTERM end the run early at any point: children and server go, what was recorded stays, and the verdict is
`unknown: interrupted`.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from engine.postgres import HarnessError, InfrastructureError, Profile, Server, Stopped, provision
from engine.postgres.cleanup import uninterrupted
from engine.schema import migrate
from invariants.ledger.process import RecorderError
from invariants.mutants import REGISTRY
from results.plans import generic
from results.runs import create_run_folder
from stress import config as knobs
from stress.config import RunConfig
from stress.display import Display, Snapshot
from stress.faults import FAULTS, PlannedFault, plan_faults
from stress.faults.acts import ACTS
from stress.faults.ground import Fault, FaultStuck, Ground
from stress.faults.plan import FAILOVERS, NODE, SERVER, SETTLE_S, is_left_out
from stress.faults.proxy import Waysides
from stress.faults.ways import client_names, proxies_for, ways
from stress.gauges import Gauges
from stress.hosts.master import HostLost, Master, NotAllCame
from stress.hosts.proxies import open_ways
from stress.judgement import (
    INTERRUPTED,
    Judge,
    Judged,
    judge_told,
    never_began,
    told_by,
    told_when_stopped,
)
from stress.opening import open_run
from stress.recording import DEADLOCKS, Recording
from stress.scenarios import SCENARIOS, Scenario
from stress.subjects.subject import Subject
from stress.swarm.child import LOOPBACK, ChildDied
from stress.swarm.configs import Live
from stress.swarm.herd import migrate_at_once
from stress.swarm.mutation import catalogue_for
from stress.swarm.roll import Rolls, roll_times, sessions_named
from stress.swarm.swarm import Swarm

TICK_S = 0.05
JOIN_TIMEOUT_S = 120.0
STUCK_S = 15.0
DRAIN_TIMEOUT_S = 240.0
# A drain whose ledger already shows a violation has nothing more to prove.
VIOLATED_DRAIN_S = 8.0
LOOK_S = 0.25
# How often the page learns how the run is.
SHOW_S = 0.5
# How much longer a load may last in order to see the end of its rolling restarts.
ROLL_GRACE_S = 40.0


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
    rolls: Rolls
    gauges: Gauges
    master: Master | None = None
    active: list[Active] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    phase: str = "start"
    # When the latest fault that was to be alone has settled.
    settled_at: float = 0.0
    each_tick: Callable[[], None] = lambda: None
    load_began: float = 0.0
    load_seconds: float = 0.0
    waiting: tuple[int, tuple[str | None, ...]] = (0, ())
    looked_at: float = 0.0
    shown_at: float = 0.0
    deadlocks: int = 0

    @property
    def subject(self) -> Subject:
        """The system that is driven."""
        return SCENARIOS[self.config.scenario].subject

    def load(self) -> None:
        """Phases 1 and 2."""
        self.recording.phase("start")
        open_run(self)
        self.tick_until(
            lambda: (report := self.swarm.read_load_report()) is not None and report.phase == "running",
            timeout_s=JOIN_TIMEOUT_S,
            otherwise="the clients did not join in time",
        )
        self._enter("load")
        if self.config.ui is not None:
            self.display.say(f"watch it on http://{LOOPBACK}:{self.config.ui}/ until the load ends")
        self.load_began = time.monotonic()
        self.tick_until(lambda: self._loaded_s() >= self.config.seconds or self._has_what_it_wanted())
        longest_s = self.config.seconds + ROLL_GRACE_S
        self.tick_until(
            lambda: self.rolls.over or self._loaded_s() >= longest_s or self._has_what_it_wanted()
        )
        self.load_seconds = self._loaded_s()

    def _has_what_it_wanted(self) -> bool:
        """Whether a run that ends with its first violation has one: in the ledger, or a deadlock."""
        return self.config.until_violated and (self.deadlocks or self.recording.progress().violations) > 0

    def drain(self) -> None:
        """Phase 3."""
        self._enter("drain")
        self.rolls.end()
        for active in self._in_healing_order(everything=True):
            self._heal(active)
        self.swarm.stop_load()
        with suppress(psycopg.Error):
            generic.write(
                self.folder, generic.generic(self.servers[0].dsn, catalogue_for(self.config.mutant))
            )
        self._exhausted("jobs still wait")

    def collect(self) -> None:
        """Phase 4, of a run whose nodes keep what has ended for some time only: until it is gone."""
        if self.config.retention_ms is not None and self.subject.ended is not None:
            self._enter("collect")
            self._exhausted("jobs that have ended are still kept")

    def _exhausted(self, what: str) -> None:
        """Until nothing waits, or nothing moves. Raises Unfinished."""
        began = progressed = time.monotonic()
        last = self._look()
        while self.waiting[0] > 0:
            self._tick()
            if self.waiting != last or not self.swarm.have_come_up():
                last, progressed = self.waiting, time.monotonic()
            if time.monotonic() - progressed > STUCK_S:
                self.display.say(
                    f"{self.waiting[0]} {what} and nothing moves: the rules say whether they may"
                )
                return
            if time.monotonic() - began > VIOLATED_DRAIN_S and self.recording.progress().violations:
                raise Unfinished(f"{self.waiting[0]} {what} when the ledger already showed violations")
            if time.monotonic() - began > DRAIN_TIMEOUT_S:
                raise Unfinished(f"{self.waiting[0]} {what} {DRAIN_TIMEOUT_S:.0f} s after the load")

    def rest(self) -> None:
        """Phase 5."""
        self._enter("rest")
        self.swarm.stop_nodes()
        if self.master is not None and (gap := self.master.collect()) is not None:
            raise Unfinished(gap)
        for name, settle in self.subject.settling(SCENARIOS[self.config.scenario], self.config.mutant):
            for connection in self.connections:
                self.recording.did(name, partial(settle, connection))
        self.recording.finish(self.connections, counters_lost=self.ground.crashes > 0)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.recording.phase(phase)

    def _loaded_s(self) -> float:
        return time.monotonic() - self.load_began if self.load_began else 0.0

    def tick_until(
        self, done: Callable[[], bool], *, timeout_s: float = float("inf"), otherwise: str = ""
    ) -> None:
        """Do what is due until `done`. Raises Unfinished, with `otherwise`, when the time is up."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise Unfinished(otherwise)
            self._tick()

    def _tick(self) -> None:
        """Whatever is due: faults, their heals, the health of the children, the display."""
        self.each_tick()
        self.swarm.check_alive()
        self.recording.check_alive()
        if self.phase == "load":
            self._disturb()
            self._roll()
        report = self.swarm.read_load_report()
        progress = self.recording.progress()
        if time.monotonic() - self.looked_at >= LOOK_S:
            self._look()
        snapshot = Snapshot(
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
        self.display.show(snapshot)
        self._show(snapshot, progress.rules)
        time.sleep(TICK_S)

    def _show(self, snapshot: Snapshot, rules: Mapping[str, tuple[int, int]]) -> None:
        """The same for the page, with what the rules say."""
        if self.config.ui is None or time.monotonic() - self.shown_at < SHOW_S:
            return
        self.shown_at = time.monotonic()
        told = {name: getattr(snapshot, name) for name in Live.__struct_fields__ if name != "invariants"}
        self.swarm.show(Live(**told, invariants=dict(rules)))

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
            if self.ground.down:
                # What is due with a crash would wait for the server, and the server's heal for that.
                return
            if is_left_out(planned, self._loaded_s(), self.fired[planned.name]):
                self.planned.remove(planned)
            elif self._has_room(planned):
                self.planned.remove(planned)
                self._inject(planned)
            elif planned.alone:
                # What is due after it would take its room.
                return

    def _roll(self) -> None:
        if not self.ground.down:
            disturbed = {active.planned.place for active in self.active if active.planned.place is not None}
            self.rolls.tick(self._loaded_s(), disturbed)

    def _in_healing_order(self, *, everything: bool = False) -> list[Active]:
        """A server that is down comes first, and unless `everything` is to be healed alone: the rest may need it."""
        servers = [active for active in self.active if FAULTS[active.planned.name].site == SERVER]
        if self.ground.down and not everything:
            return servers
        return servers + [active for active in self.active if active not in servers]

    def _has_room(self, planned: PlannedFault) -> bool:
        """A fault waits while one that began late is where the plan has it no longer, or wants to be alone."""
        alone = any(active.planned.alone for active in self.active) or (planned.alone and self.active)
        if alone or time.monotonic() < self.settled_at:
            return False
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
        self.fired[planned.name] += 1
        self.active.append(Active(planned, time.monotonic() + planned.lasts_s, fault, token))

    def _heal(self, active: Active) -> None:
        active.fault.heal()
        self.active.remove(active)
        if active.planned.alone:
            self.settled_at = time.monotonic() + SETTLE_S
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
        query = {"drain": self.subject.unfinished, "collect": self.subject.ended or ""}.get(
            self.phase, self.subject.waiting
        )
        rows = [row for each in self.connections for row in each.execute(query.encode()).fetchall()]
        if self.config.until_violated:
            counted = [each.execute(DEADLOCKS).fetchone() for each in self.connections]
            self.deadlocks = sum(int(row[0]) for row in counted if row is not None)
        self.gauges.look(self.connections)
        self.waiting = (sum(int(count) for count, _ in rows), tuple(mark for _, mark in rows))
        return self.waiting


def _shown(planned: PlannedFault) -> str:
    return planned.name if planned.place is None else f"{planned.name} {planned.place + 1}"


def run(config: RunConfig, out: Path, display: Display, token: str | None = None) -> Judged:
    """Carry out a run and record it in a new folder below `out`. `token`: that of its hosts, where it has any.

    Raises InfrastructureError where no server can be had, and leaves no folder then; whatever else happens ends in a
    verdict.
    """
    folder = create_run_folder(out, "-".join(filter(None, (config.scenario, config.mutant))))
    display.say(f"run {folder}")
    try:
        # What was acknowledged must survive a crash.
        profile: Profile = "durable" if {"crash", *FAILOVERS} & set(config.faults) else "fast"
        with display, ExitStack() as stack:
            master = _gathered(config, folder, display, token, stack)
            listen = None if config.hosts is None else config.hosts.bind
            servers = tuple(
                stack.enter_context(provision(source, profile=profile, listen=listen))
                for source in config.sources
            )
            told = " + ".join(f"PostgreSQL {server.version_text} ({server.source})" for server in servers)
            display.say(
                f"{told} · scenario {config.scenario} · seed {config.seed}"
                f" · faults {', '.join(config.faults) or 'none'}"
                + (f" · MUTANT {config.mutant}" if config.mutant else "")
            )
            for sentence in config.left_out:
                display.say(sentence)
            judged = run_on(config, servers, folder, display, master=master)
            if master is not None:
                master.release(judged.verdict.verdict)
            return judged
    except (NotAllCame, HostLost) as error:
        return never_began(config, folder, str(error))
    except HarnessError:
        shutil.rmtree(folder)
        raise
    except (KeyboardInterrupt, Stopped):
        with uninterrupted():
            return never_began(config, folder, INTERRUPTED)


def _gathered(
    config: RunConfig, folder: Path, display: Display, token: str | None, stack: ExitStack
) -> Master | None:
    """The master of a run on several hosts, when all its workers have come. Raises NotAllCame."""
    if config.hosts is None:
        return None
    assert token is not None
    asked = config.hosts
    master = stack.enter_context(Master(asked.bind, asked.port, token, asked.workers, folder, display.say))
    display.say(f"waiting for {asked.workers} workers at {asked.bind}:{asked.port}")
    master.gather(asked.join_seconds)
    return master


def run_on(
    config: RunConfig,
    servers: tuple[Server, ...],
    folder: Path,
    display: Display,
    judge: Judge | None = None,
    each_tick: Callable[[], None] = lambda: None,
    master: Master | None = None,
) -> Judged:
    """Carry out a run on servers that are there, in a folder that is there; on the hosts of `master`, if there is one.

    `judge` comes to the verdict, and may be interrupted; None: as every run does, which may not. `each_tick` is called
    again and again meanwhile. Raises psycopg.Error where the schema cannot be made, and ChildDied where a host is lost
    before the run has begun.
    """
    with ExitStack() as stack:
        connections = tuple(
            stack.enter_context(psycopg.connect(server.dsn, autocommit=True)) for server in servers
        )
        scenario = SCENARIOS[config.scenario]
        if isinstance(scenario, Scenario) and scenario.herd:
            migrate_at_once(servers[0].dsn, scenario.subject.areas, config.nodes)
        for connection in connections:
            for area in scenario.subject.areas:
                migrate(connection, area)
            for statement in () if config.mutant is None else REGISTRY[config.mutant].alterations():
                connection.execute(statement.encode())
        with _run(config, servers, folder, display, connections, master) as started:
            started.each_tick = each_tick
            stopped = _carry_out(started)
            started.gauges.write(folder)
            with uninterrupted():
                told = told_by(started) if stopped is None else told_when_stopped(started, stopped)
                if judge is None:
                    return judge_told(folder, told)
            return judge(folder, told)


def _carry_out(started: Run) -> str | None:
    """The phases; why the run ended early, None when it came to rest."""
    try:
        started.load()
        started.drain()
        started.collect()
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
    master: Master | None,
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
        proxies: tuple[Waysides, ...]
        if master is None:
            here = tuple(stack.enter_context(each) for each in proxies_for(config, servers))
            proxies, found = here, ways(config, servers, here)
        else:
            proxies, found = open_ways(config, servers, master.hosts)
        recording = stack.enter_context(
            Recording.started(servers, folder, failover=not set(FAILOVERS).isdisjoint(config.faults))
        )
        dsns = tuple(server.dsn for server in servers)
        swarm = (
            Swarm(config, dsns, folder, ways=found)
            if master is None
            else Swarm(config, dsns, folder, ways=found, hosts=master.hosts, token=master.token)
        )
        clients = client_names(config) if proxies else ()
        ground = Ground(swarm, servers, scenario.subject, scenario, recording.notes, proxies, clients)
        open_connections = list(connections)
        releases = len(scenario.releases) if isinstance(scenario, Scenario) else 0
        rolls = Rolls(
            swarm,
            roll_times(releases, config.seconds),
            recording.notes,
            lambda prefix: sessions_named(open_connections[0], prefix),
        )
        gauges = Gauges(catalogue_for(config.mutant))
        run = Run(
            config, servers, folder, display, swarm, recording, open_connections, ground, list(planned), rolls,
            gauges, master,
        )  # fmt: skip
        try:
            yield run
        finally:
            swarm.destroy()
            for active in run.active:
                with suppress(FaultStuck):
                    active.fault.abandon()
            for connection in run.connections:
                connection.close()
