"""Plans under conditions that are not those of a quiet capture: on other data, while a swarm runs, with an old snapshot
held, with stale statistics, with another planner. Told and recorded beside the quiet capture, not judged but for one
thing: whatever the plan, a claim brings no more rows than it was asked for.

    swarm              sessions claim, commit and insert meanwhile
    old-snapshot       one snapshot is held while they did, so nothing that they left could be cleaned
    stale-statistics   the tables were analysed when a tenth of the rows was there, and next to nothing was at work
    hot-key            the head of the backlog, a third of it, is of one key, which is held
    far-future         as much stands at an urgent priority and is not yet due
    saturated-gate     as much stands at the head for one gate, of which every slot is taken
    many-executing     ten times as many rows execute
    free-planner       sequential and bitmap scans are allowed, as in a session that is not the engine's
    no-nestloop, no-index-scan, little-memory     the planner is forced

Each is a capture in `OUT/<major>/under/<condition>`, with `differences.json` in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from engine.postgres import Server, fresh_database
from engine.statements import Catalogue
from results.plans import folder, sample
from results.plans.arguments import CASES, Case
from results.plans.capture import Session, create, empty, fill, prepare
from results.plans.comparing import Difference, compare
from results.plans.folder import Capture, Captured
from results.plans.hazards import HOT
from results.plans.load import Load
from results.plans.profiles import TROUBLES, Profile, add_trouble
from results.runs import write_json

FORCED: Final[Mapping[str, Mapping[str, str]]] = {
    "free-planner": {"enable_seqscan": "on", "enable_bitmapscan": "on"},
    "no-nestloop": {"enable_nestloop": "off"},
    "no-index-scan": {"enable_indexscan": "off", "enable_indexonlyscan": "off"},
    "little-memory": {"work_mem": "64kB"},
}
BUSY: Final = "many-executing"
CONDITIONS: Final = ("swarm", "old-snapshot", "stale-statistics", *TROUBLES, BUSY, *FORCED)
# By how many times there are more of them.
BUSIER: Final = 10
# What runs for every batch, and the sweeps.
WATCHED: Final = tuple(
    case
    for case in CASES
    if case.statement in HOT
    or case.statement
    in ("picker/reap", "picker/expire_awaits", "maintenance/gc_select", "maintenance/gc_delete")
)
# Batches of each session of the load while a snapshot is held, and before a capture beside it begins.
TURNS: Final = 20
WARM: Final = 4
# A statement that loses a race against the swarm is asked again.
RACES: Final = 5


@dataclass(frozen=True, slots=True)
class Under:
    """What one condition changed. `note`: what was done meanwhile. `overclaims`: claims that brought too much."""

    condition: str
    note: str
    differences: tuple[Difference, ...]
    overclaims: tuple[str, ...]


def expected(conditions: Sequence[str], cases: Sequence[Case] = WATCHED) -> int:
    """How often `captured_under` ticks."""
    return len(cases) * (len(conditions) + 1) if conditions else 0


def captured_under(
    server: Server,
    profile: Profile,
    out: Path,
    conditions: Sequence[str],
    *,
    cases: Sequence[Case] = WATCHED,
    tick: Callable[[str], None] = lambda _: None,
) -> list[Under]:
    """Capture under each of the conditions, in the order of `CONDITIONS`. Raises psycopg.Error."""
    captures: dict[str, Capture] = {}
    with fresh_database(server) as dsn:
        prepare(dsn, profile)
        once = _Once(server, dsn, profile, cases, tick)
        quiet = once.capture("quiet")
        for name, settings in FORCED.items():
            if name in conditions:
                captures[name] = once.capture(
                    name, settings, note=", ".join(f"{k} = {v}" for k, v in settings.items())
                )
        if "old-snapshot" in conditions:
            with _old_snapshot(dsn):
                with Load(dsn, batch=profile.batch, turns=TURNS) as load:
                    pass
                captures["old-snapshot"] = once.capture(
                    "old-snapshot", note=f"{load.batches} batches were done under a snapshot"
                )
        if "swarm" in conditions:
            with Load(dsn, batch=profile.batch) as load:
                load.wait(WARM)
                before = load.batches
                capture = once.capture("swarm")
                meanwhile = load.batches - before
            note = f"{meanwhile} batches were done meanwhile"
            captures["swarm"] = Capture(
                environment=msgspec.structs.replace(capture.environment, note=note),
                statements=capture.statements,
            )
    if "stale-statistics" in conditions:
        captures["stale-statistics"] = _stale(server, profile, cases, tick)
    for name in TROUBLES:
        if name in conditions:
            captures[name] = _troubled(server, profile, cases, tick, name)
    if BUSY in conditions:
        captures[BUSY] = _busy(server, profile, cases, tick)
    answer = []
    for name in CONDITIONS:
        if name in captures:
            answer.append(_under(name, quiet, captures[name]))
            _write(out / "under" / name, captures[name], answer[-1])
    return answer


def overclaims(capture: Capture) -> tuple[str, ...]:
    """The claims of a capture that brought more rows than their batch, in sentences. Pure."""
    batch = capture.environment.profile.batch
    return tuple(
        f"{each.label} ({mode}): over-claim: {explained.plan.rows:,.0f} rows for a batch of {batch}"
        for each in capture.statements.values()
        if each.statement in ("picker/claim", "picker/reap", "picker/expire_awaits", "maintenance/gc_select")
        for mode, explained in each.plans.items()
        if explained.plan.rows * explained.plan.loops > batch
    )


class _Once:
    """One database, captured again and again."""

    def __init__(
        self, server: Server, dsn: str, profile: Profile, cases: Sequence[Case], tick: Callable[[str], None]
    ) -> None:
        self._server, self._dsn, self._profile, self._cases, self._tick = server, dsn, profile, cases, tick

    def capture(self, name: str, settings: Mapping[str, str] | None = None, *, note: str = "") -> Capture:
        """The cases as they are now, once each: what comes in between is what is looked for."""
        catalogue = Catalogue.load()
        with closing(Session(self._dsn, repetitions=1)) as session:
            for key, value in (settings or {}).items():
                session.set(key, value)
            there = sample.read(session.connection, self._profile.rows, self._profile.batch)
            statements: dict[str, Captured] = {}
            for case in self._cases:
                self._tick(f"{name}: {case.label}")
                statement = catalogue[case.statement]
                for _ in range(RACES):
                    statements[case.label] = session.capture(statement, case.make(there), case.label, "")
                    if not statements[case.label].error:
                        break
            environment = session.environment(
                source=self._server.source, profile=self._profile, labels=statements, note=note
            )
        return Capture(environment=environment, statements=statements)


def _stale(server: Server, profile: Profile, cases: Sequence[Case], tick: Callable[[str], None]) -> Capture:
    small = msgspec.structs.replace(
        profile,
        name="before",
        rows=profile.rows // 10,
        runnable=10,
        executing=5,
        expired=2,
        parked=20,
        joining=5,
    )
    with fresh_database(server) as dsn:
        create(dsn)
        fill(dsn, small)
        empty(dsn)
        fill(dsn, profile, analysed=False)
        return _Once(server, dsn, profile, cases, tick).capture(
            "stale-statistics", note=f"analysed with {small.rows:,} rows, {small.runnable} of them runnable"
        )


def _troubled(
    server: Server, profile: Profile, cases: Sequence[Case], tick: Callable[[str], None], name: str
) -> Capture:
    backlog = profile.runnable // 3
    with fresh_database(server) as dsn:
        create(dsn)
        fill(dsn, profile, analysed=False)
        with psycopg.connect(dsn, autocommit=True) as connection:
            add_trouble(connection, name, backlog)
            connection.execute("VACUUM (ANALYZE)")
        note = f"{backlog:,} jobs more"
        return _Once(server, dsn, profile, cases, tick).capture(name, note=note)


def _busy(server: Server, profile: Profile, cases: Sequence[Case], tick: Callable[[str], None]) -> Capture:
    busy = msgspec.structs.replace(profile, name=BUSY, executing=profile.executing * BUSIER)
    with fresh_database(server) as dsn:
        prepare(dsn, busy)
        note = f"{busy.executing:,} rows execute, in place of {profile.executing:,}"
        return _Once(server, dsn, profile, cases, tick).capture(BUSY, note=note)


@contextmanager
def _old_snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM gen_durable")
        yield


def _under(name: str, quiet: Capture, capture: Capture) -> Under:
    # That other settings are the reason goes without saying.
    differences = tuple(
        replace(each, reason="") for each in compare(quiet, capture).differences if each.severity != "tie"
    )
    return Under(name, capture.environment.note, differences, overclaims(capture))


def _write(place: Path, capture: Capture, under: Under) -> None:
    for each in capture.statements.values():
        folder.write_statement(place, each)
    folder.write_environment(place, capture.environment)
    write_json(
        place / "differences.json",
        {
            "condition": under.condition,
            "note": under.note,
            "overclaims": under.overclaims,
            "differences": [
                {
                    "statement": d.label,
                    "mode": d.mode,
                    "severity": d.severity,
                    "where": d.path,
                    "what": d.message,
                }
                for d in under.differences
            ],
        },
    )
