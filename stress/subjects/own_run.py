"""A run of somebody else's system: the same phases, faults and ledger as a run of the reference engine, with rules that
look from outside (`invariants/foreign.py`).

1. start: server, `System.set_up`, ledger, workers, clients.
2. load: clients enqueue; faults as planned.
3. drain: until every acknowledged job has a run that ended well and the system, where it can be asked, has nothing
   waiting or running; or until nothing has moved for so long that the rules may say what that means.
4. rest: workers stop, the ledger ends, the system is asked once more what became of its jobs.
5. judge.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import psycopg
from typing_extensions import override

from engine.errors import HarnessError, InfrastructureError, UsageError
from engine.postgres import Profile, Server, Stopped, provision
from engine.postgres.cleanup import uninterrupted
from engine.statements import Catalogue
from invariants.evidence import RUN_FILE
from invariants.foreign import AREA, SUBJECT_FILE, Subject, job_in
from invariants.history.events import HistoryError, read_events
from invariants.ledger.process import RecorderError
from results.runs import create_run_folder, write_json
from stress.config import RunConfig
from stress.display import Display
from stress.faults.ground import FaultStuck, Ground
from stress.faults.plan import FAILOVERS, plan_faults
from stress.faults.ways import client_names, proxies_for, ways
from stress.gauges import Gauges
from stress.judgement import (
    INTERRUPTED,
    Judged,
    Told,
    described,
    judge_told,
    never_began,
    postgres_of,
)
from stress.recording import Recording
from stress.run import Run, Unfinished
from stress.subjects.asked import OWN
from stress.subjects.effects_file import absorb
from stress.subjects.own_swarm import MODULE, OwnSwarm
from stress.subjects.peers import words_of
from stress.subjects.process import NO_SUBJECT, SET_UP_RAISED, SubjectConfig
from stress.subjects.subject import Subject as HarnessSubject
from stress.swarm.child import Child, ChildDied
from stress.swarm.roll import Rolls

SET_UP_TIMEOUT_S: Final = 90.0
DRAIN_TIMEOUT_S: Final = 240.0
STUCK_S: Final = 15.0
# Faults that outlast a lease would last too long where leases are long.
LONGEST_LEASE_S: Final = 6.0
DEFAULT_LEASE_S: Final = 1.5
QUIET_S: Final = 1.0
# Any session but the harness's own, whatever it calls itself.
SESSIONS: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND application_name NOT IN ('pgreferee', 'pgreferee recorder', 'pgreferee fault')
"""
STATES: Final = ("waiting", "running", "done", "failed")


@dataclass(slots=True)
class Seen:
    """What the histories have said so far, read as they grow."""

    folder: Path
    acknowledged: set[str] = field(default_factory=set)
    well: set[str] = field(default_factory=set)
    begun: int = 0
    _read: dict[Path, int] = field(default_factory=dict)
    _jobs: dict[tuple[str, int], str] = field(default_factory=dict)

    def look(self) -> None:
        """Take in what is new."""
        absorb(self.folder)
        for path in sorted(self.folder.glob("history-*.msgpack")):
            size = path.stat().st_size
            if self._read.get(path) == size:
                continue
            self._read[path] = size
            with suppress(HistoryError, OSError):
                self._take(path)

    def _take(self, path: Path) -> None:
        _, events = read_events(path)
        for event in events:
            if event.f not in ("enqueue", "run"):
                continue
            if event.type == "invoke":
                self._jobs[event.process, event.index] = event.value["job"]
            elif event.type == "ok":
                job = self._jobs[event.process, event.index]
                (self.acknowledged if event.f == "enqueue" else self.well).add(job)
        self.begun = len(self._jobs)

    @property
    def missing(self) -> int:
        """How many acknowledged jobs have no run that ended well."""
        return len(self.acknowledged - self.well)


@dataclass(slots=True)
class OwnRun(Run):
    """The state of such a run."""

    opened: Subject = field(kw_only=True)
    seen: Seen = field(kw_only=True)
    stuck_s: float = STUCK_S

    @property
    @override
    def subject(self) -> HarnessSubject:
        return OWN

    @override
    def load(self) -> None:
        self.recording.phase("start")
        self.swarm.start_nodes()
        self.tick_until(
            self.swarm.have_come_up,
            timeout_s=SET_UP_TIMEOUT_S,
            otherwise="the workers did not come up in time",
        )
        self.swarm.start_load()
        self.tick_until(
            self.swarm.have_come_up,
            timeout_s=SET_UP_TIMEOUT_S,
            otherwise="the clients did not come up in time",
        )
        self._enter("load")
        self.load_began = time.monotonic()
        self.tick_until(lambda: self._loaded_s() >= self.config.seconds)
        self.load_seconds = self._loaded_s()

    @override
    def drain(self) -> None:
        self._enter("drain")
        for active in self._in_healing_order(everything=True):
            self._heal(active)
        self.swarm.stop_load()
        began = progressed = time.monotonic()
        last: object = None
        quiet_since: float | None = None
        while True:
            self._tick()
            now = time.monotonic()
            if self.waiting[0] == 0:
                quiet_since = quiet_since or now
                if now - quiet_since >= QUIET_S:
                    return
            else:
                quiet_since = None
            moved = (self.waiting, self.seen.begun)
            if moved != last or not self.swarm.have_come_up():
                last, progressed = moved, now
            if now - progressed > self.stuck_s:
                self.display.say(
                    f"{self.waiting[0]} jobs are not done and nothing moves: the rules say what that means"
                )
                return
            if now - began > DRAIN_TIMEOUT_S:
                raise Unfinished(
                    f"{self.waiting[0]} jobs were not done {DRAIN_TIMEOUT_S:.0f} s after the load, and workers still "
                    "run jobs: lower jobs_per_s, or raise --nodes"
                )

    @override
    def rest(self) -> None:
        self._enter("rest")
        self.swarm.stop_nodes()
        self._observe()
        self.recording.finish(self.connections, counters_lost=self.ground.crashes > 0)

    def _observe(self) -> None:
        if self.opened.observe is None:
            return
        token = self.recording.notes.invoke("observe", {})
        jobs = [[job, state] for job, state in self._asked()]
        self.recording.notes.complete(token, "ok", {"jobs": jobs})

    def _asked(self) -> list[tuple[str, str]]:
        """What the system says of each job. Raises Unfinished where the query is wrong."""
        assert self.opened.observe is not None
        try:
            rows = self.connections[0].execute(self.opened.observe.encode()).fetchall()
        except (psycopg.ProgrammingError, psycopg.DataError) as error:
            raise Unfinished(f"the query `observe` failed: {str(error).splitlines()[0]}") from None
        found = []
        for row in rows:
            if len(row) != 2 or row[1] not in STATES:
                raise Unfinished(
                    f"`observe` must answer a text and one of {', '.join(STATES)}; it answered {row!r}"
                )
            if (job := job_in(row[0])) is not None:
                found.append((job, str(row[1])))
        return found

    @override
    def _look(self) -> tuple[int, tuple[str | None, ...]]:
        self.looked_at = time.monotonic()
        self.seen.look()
        left = self.seen.missing
        if self.phase == "drain" and not self.ground.down and self.opened.observe is not None:
            # Faults have ended: a system may still have to complete what was run.
            left = max(left, sum(state in ("waiting", "running") for _, state in self._asked()))
        if not self.ground.down:
            self.gauges.look(self.connections)
        self.waiting = (left, ())
        return self.waiting


def run_own(config: RunConfig, python: str | None, out: Path, display: Display) -> Judged:
    """Carry out a run and record it in a new folder below `out`. Raises UsageError where the subject is none, or its
    set-up raises; InfrastructureError where no server can be had. Neither leaves a folder."""
    folder = create_run_folder(out, config.subject.rpartition(":")[2].lower())
    display.say(f"run {folder}")
    try:
        (folder / "raised").mkdir()
        with display, ExitStack() as stack:
            profile: Profile = "durable" if {"crash", *FAILOVERS} & set(config.faults) else "fast"
            server = stack.enter_context(provision(config.sources[0], profile=profile))
            display.say(
                f"PostgreSQL {server.version_text} ({server.source}) · {config.subject} · seed {config.seed}"
                f" · faults {', '.join(config.faults) or 'none'}"
            )
            for sentence in config.left_out:
                display.say(sentence)
            opened = open_subject(config.subject, python, address(server), folder)
            try:
                return _run_on(config, python, opened, server, folder, display)
            finally:
                _part("close", config.subject, python, address(server), folder)
    except HarnessError:
        shutil.rmtree(folder)
        raise
    except (KeyboardInterrupt, Stopped):
        with uninterrupted():
            return never_began(config, folder, INTERRUPTED)


def address(server: Server) -> str:
    """Over TCP where there is: drivers differ in what they make of a socket's folder."""
    return server.tcp_dsn or server.dsn


def open_subject(words: str, python: str | None, dsn: str, folder: Path, *, bench: bool = False) -> Subject:
    """Set the system up; what it claims. Writes `subject.json`. Raises UsageError."""
    child = _started("open", words, python, dsn, folder, bench=bench)
    name = words.rpartition(":")[2]
    try:
        try:
            out, _ = child.process.communicate(timeout=SET_UP_TIMEOUT_S)
        except Exception as error:
            if type(error).__name__ != "TimeoutExpired":
                raise
            raise UsageError(f"{name}.set_up did not return within {SET_UP_TIMEOUT_S:.0f} s") from None
        status = child.process.returncode
        if status == NO_SUBJECT:
            raise UsageError(child.last_words())
        if status == SET_UP_RAISED:
            raise UsageError(f"{name}.set_up raised {child.last_words()}")
        if status != 0:
            raise UsageError(f"{words} could not be opened, exit status {status}: {child.last_words()}")
    finally:
        child.destroy()
    try:
        opened = msgspec.json.decode(out.strip().splitlines()[-1], type=Subject)
    except (msgspec.DecodeError, IndexError) as error:
        raise UsageError(f"what {name} claims cannot be read: {error}") from None
    write_json(folder / SUBJECT_FILE, opened)
    return opened


def _part(part: str, words: str, python: str | None, dsn: str, folder: Path) -> None:
    child = _started(part, words, python, dsn, folder)
    child.wait(SET_UP_TIMEOUT_S)
    child.destroy()


def _started(
    part: str, words: str, python: str | None, dsn: str, folder: Path, *, bench: bool = False
) -> Child:
    told = SubjectConfig(
        part=part, subject=words_of(words), dsn=dsn, name=part, folder=str(folder), bench=bench
    )
    return Child.start(part, MODULE, told, folder / "logs" / f"{part}.log", answers=True, python=python)


def _run_on(
    config: RunConfig, python: str | None, opened: Subject, server: Server, folder: Path, display: Display
) -> Judged:
    with _run(config, python, opened, server, folder, display) as started:
        stopped = _carry_out(started)
        with uninterrupted():
            if stopped is not None:
                started.swarm.destroy()
                started.recording.abandon(f"the run was {stopped}" if stopped == INTERRUPTED else stopped)
            absorb(folder)
            started.gauges.write(folder)
            return judge_told(folder, _told(started, stopped))


def _carry_out(started: OwnRun) -> str | None:
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


def _told(run: OwnRun, stopped: str | None) -> Told:
    [recording], [server] = run.recording.servers, run.servers
    evidence = msgspec.structs.replace(
        recording.evidence, areas=(AREA,), shares_clock=server.source != "dsn", exercises=()
    )
    write_json(run.folder / RUN_FILE, described(run.config, run.servers) | msgspec.to_builtins(evidence))
    return Told(
        seed=run.config.seed,
        scenario=run.config.scenario,
        subject=run.config.subject,
        mutant=None,
        nodes=run.config.nodes,
        postgres=postgres_of(run.servers),
        load_seconds=run.load_seconds,
        judge_seconds=run.config.judge_seconds,
        faulty=bool(run.config.faults),
        reproduce=run.config.command(),
        stopped=stopped,
    )


@contextmanager
def _run(
    config: RunConfig, python: str | None, opened: Subject, server: Server, folder: Path, display: Display
) -> Iterator[OwnRun]:
    claims = opened.claims
    lease_s = DEFAULT_LEASE_S if claims.lease_ms is None else claims.lease_ms / 1000
    planned = plan_faults(
        config.faults,
        seed=config.seed,
        seconds=config.seconds,
        nodes=config.nodes,
        lease_s=min(lease_s, LONGEST_LEASE_S),
    )
    servers = (server,)
    with ExitStack() as stack:
        proxies = tuple(stack.enter_context(each) for each in proxies_for(config, servers))
        recording = stack.enter_context(
            Recording.started(servers, folder, failover=not set(FAILOVERS).isdisjoint(config.faults))
        )
        swarm = OwnSwarm(
            config, address(server), folder, opened.jobs_per_s, python, ways(config, servers, proxies)
        )
        ground = Ground(
            cast(Any, swarm),
            servers,
            OWN,
            None,
            recording.notes,
            proxies,
            client_names(config) if proxies else (),
            sessions=SESSIONS,
        )

        def exited(name: str) -> None:
            token = recording.notes.invoke("exited", {"process": name})
            recording.notes.complete(token, "ok", {})

        swarm.exited = exited
        connection: psycopg.Connection[Any] = psycopg.connect(
            server.dsn, autocommit=True, application_name="pgreferee"
        )
        # The machinery of a run asks no more of its swarm than this one has.
        places = cast(Any, swarm)
        run = OwnRun(
            config,
            servers,
            folder,
            display,
            places,
            recording,
            [connection],
            ground,
            list(planned),
            Rolls(places, [], recording.notes, lambda _: 0),
            Gauges(Catalogue({})),
            opened=opened,
            seen=Seen(folder),
            stuck_s=max(STUCK_S, 3 * lease_s + (claims.recovery_ms or 0) / 1000),
        )
        swarm.is_disturbed = lambda: ground.down or bool(run.active)
        try:
            yield run
        finally:
            swarm.destroy()
            for active in run.active:
                with suppress(FaultStuck):
                    active.fault.abandon()
            for each in run.connections:
                each.close()
