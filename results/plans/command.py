"""`python -m results plans`: capture the plans of every statement, and compare two captures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.errors import InfrastructureError, UsageError
from engine.front_door import FrontDoor
from engine.postgres import MAJORS, Server, Stopped, fresh_database, provision, signals_stop
from engine.postgres.availability import survey
from engine.statements import Catalogue
from results.plans import arguments, folder, foreign, render, shapes
from results.plans.arguments import CASES, Case
from results.plans.capture import Session, capture_all, key_of, prepare, with_ties
from results.plans.comparing import compare as compare_captures
from results.plans.comparing import read_explanations
from results.plans.folder import Capture, Captured
from results.plans.growth import BY_DESIGN, growths
from results.plans.hazards import hazards
from results.plans.profiles import PROFILES, Profile, grown

# The growth is fitted on smaller tables too, and with a smaller batch: parts of the profile.
SIZES: Final = (0.1, 0.3)
BATCH: Final = 0.25

Tick = Callable[[str], None]


def baselines() -> Path:
    """The committed captures of this version of pgreferee."""
    return Path(__file__).resolve().parents[1] / "baselines" / "plans"


@click.group(cls=FrontDoor)
def plans() -> None:
    """Query plans: captured, held against their shapes, compared."""


@plans.command("capture")
@click.option(
    "--pg", "pgs", multiple=True, metavar="SPEC", help="Which Postgres; may be repeated. Default: all here."
)
@click.option("--profile", "name", type=click.Choice(list(PROFILES)), default="medium", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Default: results/runs/plans.",
)
@click.option(
    "--growth/--no-growth", default=True, show_default=True, help="Fit how work grows, on smaller tables too."
)
@click.option("--fresh", is_flag=True, help="Capture also what has not changed.")
@click.option("--repetitions", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option(
    "--sql", "own_sql", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Your statements."
)
@click.option("--schema", "own_schema", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--seed", "own_seed", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--quiet", is_flag=True, help="No progress, no hazards.")
def capture_command(
    pgs: tuple[str, ...],
    name: str,
    out: Path | None,
    growth: bool,
    fresh: bool,
    repetitions: int,
    own_sql: Path | None,
    own_schema: Path | None,
    own_seed: Path | None,
    quiet: bool,
) -> None:
    """Capture every statement's plans and check the shapes that must hold.

    One folder a server: OUT/<major>. A statement that has not changed is not captured again. With --sql, --schema and
    --seed the statements are yours: `DIR/*.sql`, with arguments as a JSON array in `NAME.json` beside each.

    Exit status: 0 all shapes hold, 1 one is broken, 2 wrong usage, 3 no Postgres, 4 unknown.
    """
    if bool(own_sql) != bool(own_schema) or (own_seed and not own_sql):
        raise UsageError("--sql and --schema go together, and --seed with them")
    out = out or Path("results/runs/plans")
    specs = pgs or tuple(str(each.major) for each in survey() if each.state == "ready")
    broken = 0
    try:
        with signals_stop():
            for spec in specs:
                with provision(
                    spec, settings=None if spec.startswith(("dsn:", "postgres")) else {"autovacuum": "off"}
                ) as server:
                    place = out if len(specs) == 1 and pgs and out.name.isdigit() else out / str(server.major)
                    if own_sql and own_schema:
                        capture = foreign.capture(
                            server.dsn, server.source, place, own_sql, own_schema, own_seed
                        )
                        broken += _told(capture, {}, quiet=quiet)
                        continue
                    broken += _captured(
                        server,
                        PROFILES[name],
                        place,
                        growth=growth,
                        fresh=fresh,
                        repetitions=repetitions,
                        quiet=quiet,
                    )
    except psycopg.OperationalError as error:
        raise InfrastructureError(f"the server failed: {str(error).strip().splitlines()[0]}") from error
    except (Stopped, KeyboardInterrupt):
        click.echo("unknown: interrupted", err=True)
        sys.exit(4)
    click.echo("verdict: " + ("violated" if broken else "held"))
    sys.exit(1 if broken else 0)


@plans.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write Markdown here.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page here, trees side by side."
)
@click.option("--explanations", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--quiet", is_flag=True, help="The verdict only.")
def compare_command(
    a: str, b: str, markdown: Path | None, html: Path | None, explanations: Path | None, quiet: bool
) -> None:
    """Compare two captures: folders, or major versions of the committed baselines.

    Exit status: 0 same or explained, 1 regressed, 2 wrong usage.
    """
    reasons = read_explanations(explanations or baselines() / "explanations.toml")
    comparison = compare_captures(_named(a), _named(b), reasons)
    if markdown:
        markdown.write_text(render.markdown(comparison), "utf-8")
    if html:
        html.write_text(render.html(comparison), "utf-8")
    click.echo(f"verdict: {comparison.verdict}" if quiet else render.text(comparison))
    sys.exit(comparison.exit_code)


def _named(name: str) -> Capture:
    place = Path(name)
    if name.isdigit() and int(name) in MAJORS and not place.is_dir():
        place = baselines() / name
    return folder.read(place)


def _captured(
    server: Server, profile: Profile, out: Path, *, growth: bool, fresh: bool, repetitions: int, quiet: bool
) -> int:
    """Capture, write, judge and tell. Returns how much is broken."""
    catalogue = Catalogue.load()
    missing = arguments.missing(catalogue)
    for label in missing:
        click.echo(f"{label}: no capture: results/plans/arguments.py has no arguments for it")
    sizes = _sizes(profile) if growth else []
    with _progress(f"Postgres {server.version_text}", len(CASES) * (1 + len(sizes)), quiet=quiet) as tick:
        capture = capture_into(
            server, catalogue, profile, out, fresh=fresh, repetitions=repetitions, tick=tick
        )
        points = [capture]
        for size in sizes:
            place = out / "growth" / size.name
            points.append(
                capture_into(
                    server, catalogue, size, place, fresh=fresh, repetitions=1, ties=False, tick=tick
                )
            )
    slow = {}
    if growth:
        for each in growths(points):
            if each.broken and each.label not in BY_DESIGN and each.label.partition("@")[0] not in BY_DESIGN:
                slow[f"{each.label} ({each.mode})"] = each.broken
    return len(missing) + _told(capture, slow, quiet=quiet)


def _sizes(profile: Profile) -> list[Profile]:
    rows = [round(profile.rows * part) for part in SIZES]
    return [
        *(grown(each, like=profile, batch=profile.batch) for each in rows),
        grown(rows[-1], like=profile, batch=max(1, round(profile.batch * BATCH))),
    ]


def capture_into(
    server: Server,
    catalogue: Catalogue,
    profile: Profile,
    out: Path,
    *,
    cases: Sequence[Case] = CASES,
    fresh: bool = False,
    repetitions: int = 3,
    ties: bool = True,
    tick: Tick = lambda _: None,
) -> Capture:
    """Capture what is not yet in the folder, and write it. Nothing is seeded where all is there."""
    with fresh_database(server) as dsn:
        session = Session(dsn, repetitions=repetitions)
        try:
            version, settings = session.version(), session.settings()
        finally:
            session.close()
        known = {} if fresh else _known(out, catalogue, cases, profile, version, settings)
        if len(known) == len(cases):
            try:
                there = folder.read(out)
                for case in cases:
                    tick(case.label)
                return there
            except UsageError:
                known = {}
        prepare(dsn, profile)
        session = Session(dsn, repetitions=repetitions)
        try:
            captured = capture_all(session, catalogue, profile, cases=cases, known=known, tick=tick)
            if ties:
                captured = with_ties(session, catalogue, profile, captured, cases)
            environment = session.environment(source=server.source, profile=profile, labels=captured)
        finally:
            session.close()
    for each in captured.values():
        folder.write_statement(out, each)
    folder.write_environment(out, environment)
    return Capture(environment=environment, statements=captured)


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


def _told(capture: Capture, slow: dict[str, str], *, quiet: bool) -> int:
    environment = capture.environment
    violations = shapes.check(capture)
    for violation in violations:
        click.echo(f"{environment.major}: {violation}")
    for label, what in slow.items():
        click.echo(f"{environment.major}: {label}: growth: {what}")
    if not quiet:
        for hazard in hazards(capture):
            click.echo(f"{environment.major}: hazard: {hazard}", err=True)
        for captured in capture.statements.values():
            if captured.functions.startswith("not captured"):
                click.echo(
                    f"{environment.major}: {captured.label}: inside its functions {captured.functions}",
                    err=True,
                )
    click.echo(
        f"Postgres {environment.version} ({environment.source}), {environment.profile.name}:"
        f" {len(capture.statements)} captures, {len(violations)} shapes broken, {len(slow)} grow too fast"
    )
    return len(violations) + len(slow)


@contextmanager
def _progress(title: str, total: int, *, quiet: bool) -> Iterator[Tick]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        if not quiet:
            click.echo(f"{title}: {total} captures", err=True)
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda label: progress.update(task, advance=1, description=f"{title} {label}")
