"""A soak: round after round on one server and the same tables, until its minutes are over.

1. A round is a run like any other, of a scenario, faults and a seed that are drawn from the soak's seed by the round's
   number (`stress/rounds.py`). It has a ledger and histories of its own, and is judged as a whole when it is at rest.
2. Between rounds the tables are emptied of rows and keep their files, with all that is dead in them. What has ended the
   nodes collect themselves: in a soak no scenario keeps it for longer than `RETENTION_MS`, and a round waits until it
   is gone. The rest, which waits for nobody who will come, is deleted.
3. The harness stays as small as it was: a history is read, and a ledger judged, by a process that ends with its round.
   Of a round that held only the verdict stays on disk.
4. A server that is lost costs the round that lost it, which is unknown, and another one is started.
5. An interrupted soak goes on with the round that was interrupted (`--resume`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from engine.errors import HarnessError
from engine.postgres import Profile, Server, Stopped, parse_pg, provision
from invariants.verdict import Report
from results.runs import read_verdict
from stress.config import RunConfig, checked
from stress.display import Display
from stress.growth import total_bytes, total_dead
from stress.judge_process import JudgeConfig
from stress.judgement import INTERRUPTED, Judged, Told, never_began
from stress.memory import Memory, measure
from stress.rounds import Round, draw_round
from stress.run import run_on
from stress.soak_folder import Finished, Request, Sample, SoakFolder, SoakVerdict
from stress.soak_verdict import MB, conclude
from stress.swarm.child import Child
from stress.tables import empty, sizes

RETENTION_MS = 2_000.0
SAMPLE_S, SUMMARY_S = 20.0, 60.0
# A judge that takes longer for a round has lost its way; it says unknown.
JUDGE_TIMEOUT_S = 300.0
JUDGE_PAUSE_S = 0.1
# Servers in a row on which no round came to its verdict.
MAX_LOST_SERVERS = 3
STATEMENT_TIMEOUT = "-c statement_timeout=5s"
ENDED = "SELECT count(*) FROM gen_durable WHERE status IN ('done', 'failed')"


class ServerLost(Exception):
    """There is no going on with this server; the message says why."""


@dataclass
class Soak:
    """A soak that goes on. `done`: the rounds that have their verdict; `spent_s`: what they and the samples say of the
    time that it has had already."""

    request: Request
    pg: str
    possible: dict[str, tuple[str, ...]]
    folder: SoakFolder
    display: Display
    done: list[Finished] = field(default_factory=list)
    server_number: int = 0
    spent_s: float = 0.0
    stopped: str | None = None

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.sampled_at = self.said_at = self.began
        self.rested = False
        self.source = parse_pg(self.pg)

    def elapsed_s(self) -> float:
        """Of all that it has had, before an interruption too."""
        return self.spent_s + time.monotonic() - self.began

    @property
    def over(self) -> bool:
        """Whether its minutes are over."""
        return self.elapsed_s() >= self.request.minutes * 60

    def go_on(self) -> None:
        """Rounds until the time is up, on as many servers as it takes."""
        faults = {fault for each in self.possible.values() for fault in each}
        profile: Profile = "durable" if {"crash", "failover"} & faults else "fast"
        lost = 0
        while not self.over:
            before = len(self.done)
            try:
                with provision(self.source, profile=profile) as server:
                    self.display.say(f"PostgreSQL {server.version_text} ({server.source})")
                    self._rounds_on(server)
            except ServerLost as error:
                self.display.say(f"another server: {error}")
                lost = lost + 1 if not any(each.verdict != "unknown" for each in self.done[before:]) else 0
                if lost >= MAX_LOST_SERVERS:
                    self.stopped = f"{lost} servers in a row were lost, the last one because {error}"
                    return
            self.server_number += 1

    def _rounds_on(self, server: Server) -> None:
        self._sample(server, between=True)
        while not self.over:
            number = len(self.done)
            drawn = draw_round(self.request.seed, number, self.possible)
            finished = self._round(server, drawn)
            self.folder.add(finished)
            self.done.append(finished)
            self.display.say(
                f"round {number} · {drawn.scenario} · faults {', '.join(drawn.faults) or 'none'} · seed {drawn.seed} · "
                f"{finished.transactions:,} transactions · {finished.verdict}"
                + (f": {finished.reason}" if finished.reason else "")
            )
            try:
                with psycopg.connect(server.dsn, autocommit=True, connect_timeout=10) as connection:
                    empty(connection)
            except psycopg.Error as error:
                raise ServerLost(f"its tables could not be emptied ({type(error).__name__})") from error
            self._sample(server, between=True)

    def _round(self, server: Server, drawn: Round) -> Finished:
        config, folder, began = self._config(drawn), self.folder.new_round(drawn.number), time.monotonic()
        self.rested = False
        try:
            judged = run_on(
                config,
                (server,),
                folder,
                self.display,
                judge=partial(self._judge, config, server),
                each_tick=partial(self._look, server),
            )
        except (HarnessError, psycopg.Error) as error:
            judged = never_began(config, folder, f"it could not begin: {type(error).__name__}")
        verdict = judged.verdict
        kept = self._kept(server) if self.rested else 0
        if verdict.verdict == "held" and not kept:
            self.folder.thin(folder)
        return Finished(
            round=drawn,
            verdict=verdict.verdict,
            reason=verdict.reason,
            server=self.server_number,
            took_s=round(time.monotonic() - began, 3),
            rested=self.rested,
            kept=kept,
            transactions=verdict.ledger["transactions"],
            invariants={name: found["verdict"] for name, found in verdict.invariants.items()},
        )

    def _config(self, drawn: Round) -> RunConfig:
        return RunConfig(
            sources=(self.source,),
            seconds=self.request.seconds,
            nodes=self.request.nodes,
            seed=drawn.seed,
            faults=drawn.faults,
            scenario=drawn.scenario,
            subject=self.request.subject,
            mutant=self.request.mutant,
            retention_ms=RETENTION_MS,
        )

    def _judge(self, config: RunConfig, server: Server, folder: Path, told: Told) -> Judged:
        """In a process of its own. A person's Ctrl-C is an order not to judge: the round is carried out again."""
        if told.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        self.rested = told.stopped is None
        child = Child.start(
            "judge",
            "stress.judge_process",
            JudgeConfig(folder=str(folder), told=told),
            folder / "logs" / "judge.log",
        )
        deadline = time.monotonic() + JUDGE_TIMEOUT_S
        try:
            while child.status is None and time.monotonic() < deadline:
                self._look(server)
                time.sleep(JUDGE_PAUSE_S)
            if child.status == 0:
                return Judged(read_verdict(folder), Report(()), folder)
            why = "ran out of time" if child.status is None else f"ended: {child.last_words()}"
            return never_began(config, folder, f"the judge {why}")
        finally:
            child.destroy()

    def _kept(self, server: Server) -> int:
        """Rows that have ended and that no node has collected; of a store nothing is."""
        with suppress(psycopg.Error), psycopg.connect(server.dsn, connect_timeout=10) as connection:
            row = connection.execute(ENDED).fetchone()
            return 0 if row is None else int(row[0])
        return 0

    def _look(self, server: Server) -> None:
        """Whatever is due: a sample, a summary."""
        if time.monotonic() - self.sampled_at >= SAMPLE_S:
            self._sample(server, between=False)

    def _sample(self, server: Server, *, between: bool) -> None:
        self.sampled_at = time.monotonic()
        try:
            with psycopg.connect(
                server.dsn, autocommit=True, connect_timeout=3, options=STATEMENT_TIMEOUT
            ) as connection:
                tables = sizes(connection)
        except psycopg.Error as error:
            if between:
                raise ServerLost(f"it could not be asked for its tables ({type(error).__name__})") from error
            # A fault has it; another sample follows.
            return
        sample = Sample(
            at_s=round(self.elapsed_s(), 3),
            server=self.server_number,
            round=len(self.done),
            between=between,
            memory=measure().bytes,
            tables=tables,
        )
        self.folder.add(sample)
        if time.monotonic() - self.said_at >= SUMMARY_S:
            self.said_at = time.monotonic()
            self.display.say(self._summary(sample))

    def _summary(self, sample: Sample) -> str:
        verdicts = [finished.verdict for finished in self.done]
        memory, size = Memory(sample.memory), total_bytes(sample.tables) / MB
        return (
            f"minute {self.elapsed_s() / 60:.1f}/{self.request.minutes:g} · rounds {len(self.done)}: "
            + ", ".join(f"{verdicts.count(word)} {word}" for word in ("held", "violated", "unknown"))
            + f" · harness {memory.harness / MB:,.0f} MB, its children "
            f"{(sum(memory.bytes.values()) - memory.harness) / MB:,.0f} MB · tables {size:,.1f} MB, "
            f"{total_dead(sample.tables):,} dead rows"
        )


def soak(request: Request, pg: str, folder: SoakFolder, display: Display) -> SoakVerdict:
    """Begin a soak or go on with one, until its time is up or somebody interrupts it. `pg`: the server, as the command
    line has it; with its secrets, which are recorded nowhere."""
    done, samples = folder.finished(), folder.samples()
    going = Soak(
        request,
        pg,
        possible_rounds(request, pg),
        folder,
        display,
        done=done,
        server_number=1 + max((sample.server for sample in samples), default=-1),
        spent_s=max((sample.at_s for sample in samples), default=0.0),
    )
    try:
        with display:
            going.go_on()
    except (KeyboardInterrupt, Stopped):
        going.stopped = INTERRUPTED
    verdict = conclude(request, going.done, folder.samples(), going.stopped, command(request))
    folder.conclude(verdict)
    return verdict


def possible_rounds(request: Request, pg: str) -> dict[str, tuple[str, ...]]:
    """By scenario the faults that its rounds may have: of those asked for, what can be done to it on that server."""
    wanted = (
        None if request.faults in ("all", "none") else {word.strip() for word in request.faults.split(",")}
    )
    found = {}
    for name in request.scenarios:
        config = checked(
            pg=(pg,),
            seconds=request.seconds,
            nodes=request.nodes,
            seed=request.seed,
            faults="none" if request.faults == "none" else "all",
            scenario=name,
            subject=request.subject,
            mutant=request.mutant,
        )
        found[name] = tuple(fault for fault in config.faults if wanted is None or fault in wanted)
    return found


def command(request: Request) -> str:
    """The command line that asks for the same soak again."""
    words = [
        "nox -s stress -- --profile soak",
        f"--minutes {request.minutes:g} --seconds {request.seconds:g} --nodes {request.nodes}",
        f"--faults {request.faults} --seed {request.seed}",
        '--pg "dsn:$PGREFEREE_DSN"' if request.pg == "dsn" else f"--pg {request.pg}",
    ]
    if len(request.scenarios) == 1:
        words.append(f"--scenario {request.scenarios[0]}")
    if request.mutant is not None:
        words.append(f"--mutant {request.mutant}")
    return " ".join(words)
