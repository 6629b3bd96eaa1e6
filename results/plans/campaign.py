"""One server's captures: the profile, the smaller tables and batches that growth is fitted on. Nothing is captured
anew that has not changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.errors import UsageError
from engine.postgres import Server, fresh_database
from engine.statements import Catalogue
from results.plans import arguments, folder
from results.plans.arguments import CASES, Case
from results.plans.capture import Session, capture_all, create, fill, key_of, with_ties
from results.plans.folder import Capture, Captured
from results.plans.growth import BY_DESIGN, growths
from results.plans.kept import Kept, with_kept
from results.plans.profiles import Profile, grown
from results.plans.verdict import Judged

# The growth is fitted on smaller tables too, and with a smaller batch: parts of the profile.
SIZES: Final = (0.1, 0.3)
BATCH: Final = 0.25

Tick = Callable[[str], None]


def sizes(profile: Profile) -> list[Profile]:
    """What growth is fitted on, beside the profile itself."""
    rows = [round(profile.rows * part) for part in SIZES]
    return [
        *(grown(each, like=profile, batch=profile.batch) for each in rows),
        grown(rows[-1], like=profile, batch=max(1, round(profile.batch * BATCH))),
    ]


@dataclass(frozen=True, slots=True)
class Job:
    """One database to seed and capture: the part of a server's campaign that runs beside the others."""

    server: Server
    profile: Profile
    out: Path
    repetitions: int
    alone: bool = False

    def run(self, catalogue: Catalogue, *, fresh: bool, tick: Tick) -> Capture:
        """Capture into the folder what is not yet there. Raises psycopg.Error."""
        return capture_into(
            self.server,
            catalogue,
            self.profile,
            self.out,
            fresh=fresh,
            repetitions=self.repetitions,
            alone=self.alone,
            tick=tick,
        )


def jobs(server: Server, profile: Profile, out: Path, *, growth: bool, repetitions: int) -> list[Job]:
    """The profile, and with `growth` what its growth is fitted on."""
    parts = sizes(profile) if growth else []
    return [
        Job(server, profile, out, repetitions),
        *(Job(server, part, out / "growth" / part.name, 1, alone=True) for part in parts),
    ]


def judged(captures: Sequence[Capture], catalogue: Catalogue) -> Judged:
    """What came of the jobs of one server, in their order. Pure."""
    fits = growths(captures) if len(captures) > 1 else []
    slow = [
        f"{each.label} ({each.mode}): growth: {each.broken}"
        for each in fits
        if each.broken and each.label not in BY_DESIGN and each.label.partition("@")[0] not in BY_DESIGN
    ]
    return Judged(captures[0], excess=slow, fits=len(fits), missing=arguments.missing(catalogue))


def capture_into(
    server: Server,
    catalogue: Catalogue,
    profile: Profile,
    out: Path,
    *,
    cases: Sequence[Case] = CASES,
    fresh: bool = False,
    repetitions: int = 3,
    alone: bool = False,
    tick: Tick = lambda _: None,
) -> Capture:
    """Capture what is not yet in the folder, and write it. Nothing is seeded where all is there. `alone`: without the
    plans that a session keeps, and without a look for ties."""
    with fresh_database(server) as dsn:
        session = Session(dsn, repetitions=repetitions)
        try:
            version, settings = session.version(), session.settings()
        finally:
            session.close()
        known = {} if fresh else _known(out, catalogue, cases, profile, version, settings)
        if len(known) == len(cases):
            there = _whole(out, profile, version, settings, [case.label for case in cases])
            if there is not None:
                for case in cases:
                    tick(case.label)
                return there
            known = {}
        wanted = [case for case in cases if case.label not in known]
        create(dsn)
        kept = None if alone else Kept(dsn, catalogue, wanted)
        fill(dsn, profile, analysed=False)
        plans = {} if kept is None else kept.explained(profile)
        if kept is not None:
            kept.close()
        session = Session(dsn, repetitions=repetitions)
        try:
            session.connection.execute("VACUUM (ANALYZE)")
            statements = capture_all(session, catalogue, profile, cases=cases, known=known, tick=tick)
            if not alone:
                statements = with_ties(session, catalogue, profile, statements, cases)
            statements = with_kept(statements, plans)
            environment = session.environment(source=server.source, profile=profile, labels=statements)
        finally:
            session.close()
    for each in statements.values():
        folder.write_statement(out, each)
    folder.write_environment(out, environment)
    return Capture(environment=environment, statements=statements)


def _whole(
    out: Path, profile: Profile, version: str, settings: Mapping[str, str], labels: Sequence[str]
) -> Capture | None:
    """The capture in that folder, where it is this one: an interrupted session may have left another one's."""
    try:
        there = folder.read(out)
    except UsageError:
        return None
    environment = there.environment
    same = (environment.profile, environment.version, environment.settings) == (profile, version, settings)
    return there if same and environment.labels == list(labels) else None


def _known(
    out: Path,
    catalogue: Catalogue,
    cases: Sequence[Case],
    profile: Profile,
    version: str,
    settings: dict[str, str],
) -> dict[str, Captured]:
    known = {}
    for case in cases:
        was = folder.read_statement(out, case.label)
        key = key_of(catalogue[case.statement], case.label, profile, version, settings)
        if was is not None and was.key == key and not was.error:
            known[case.label] = was
    return known
