"""`python -m results plans`: capture the plans of every statement, and compare two captures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import click
import msgspec
import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.ci import Files, ci_options
from engine.errors import InfrastructureError, UsageError
from engine.front_door import NEW_FILE, FrontDoor
from engine.postgres import Server, Stopped, provision, signals_stop
from engine.postgres.availability import survey
from engine.statements import Catalogue
from results.plans import campaign, foreign, render
from results.plans.abreast import Abreast
from results.plans.arguments import CASES
from results.plans.campaign import Tick
from results.plans.comparing import compare as compare_captures
from results.plans.comparing import read_explanations
from results.plans.conditions import CONDITIONS, captured_under, expected
from results.plans.foreign import Own
from results.plans.hazards import hazards
from results.plans.profiles import PROFILES, Profile
from results.plans.reference import baselines, named, nearest
from results.plans.verdict import Judged, Verdict, judge, with_conditions
from results.report import look
from results.runs import write_json

OWN_BATCH = 1_000


@click.group(cls=FrontDoor)
def plans() -> None:
    """Query plans: captured, held against their shapes, compared."""


@plans.command("capture")
@click.option(
    "--pg", "pgs", multiple=True, metavar="SPEC", help="Which Postgres; may be repeated. Default: all here."
)
@click.option(
    "--profile",
    "name",
    type=click.Choice(list(PROFILES)),
    default="medium",
    show_default=True,
    help="How many rows: ten thousand, a hundred thousand, a million.",
)
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
@click.option(
    "--repetitions",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How often each plan is run; the run with the median of buffers is kept.",
)
@click.option(
    "--sql", "own_sql", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Your statements."
)
@click.option(
    "--schema",
    "own_schema",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="SQL that makes your tables; goes with --sql.",
)
@click.option(
    "--seed",
    "own_seed",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="SQL that fills them; without it they are empty.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000_000),
    help="Rows that one of your statements is asked for. Default: 1000.",
)
@click.option(
    "--under",
    default="",
    metavar="LIST",
    help=f"Capture also under conditions, and say what they change: all, or some of {', '.join(CONDITIONS)}.",
)
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress, no hazards, no table.")
@ci_options
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
    batch: int | None,
    under: str,
    as_json: bool,
    quiet: bool,
    ci: Files,
) -> None:
    """Capture every statement's plans and judge the invariants of plans.

    One folder a server: OUT/<major>, OUT/verdict.json, and all of it for people, OUT/report.html. A statement that has
    not changed is not captured again. With --sql, --schema and --seed the statements are yours: `DIR/*.sql`, with
    arguments as a JSON array in `NAME.json` beside each; and OUT is results/runs/plans-own.

    \b
        nox -s plans -- --pg 18
        nox -s plans -- --pg 15 --pg 18 --profile small     and what 18 does otherwise
        nox -s plans -- --pg 18 --under all
        nox -s plans -- --pg 18 --sql sql/ --schema schema.sql --seed rows.sql

    Exit status: 0 held, 1 violated, 2 wrong usage, 3 no Postgres, 4 unknown.
    """
    if bool(own_sql) != bool(own_schema) or (own_seed and not own_sql):
        raise UsageError("--sql and --schema go together, and --seed with them")
    if batch and not own_sql:
        raise UsageError("--batch is for your own statements, with --sql: a profile has its own")
    conditions = CONDITIONS if under == "all" else tuple(filter(None, under.split(",")))
    if strangers := sorted(set(conditions) - set(CONDITIONS)):
        raise UsageError(f"--under {', '.join(strangers)}: give all, or some of {', '.join(CONDITIONS)}")
    if conditions and own_sql:
        raise UsageError("--under is for the engine's statements: leave out --sql")
    own = Own(own_sql, own_schema, own_seed, batch or OWN_BATCH) if own_sql and own_schema else None
    if own:
        foreign.statements(own.sql)
    out = out or Path("results/runs/plans-own" if own else "results/runs/plans")
    specs = pgs or tuple(str(each.major) for each in survey() if each.state == "ready")
    try:
        # The servers are stopped before the threads are waited for, which ends what these wait for.
        with signals_stop(), Abreast() as abreast, ExitStack() as stack:
            servers = _servers(stack, specs)
            places = {
                server.major: out
                if len(specs) == 1 and pgs and out.name.isdigit()
                else out / str(server.major)
                for server in servers
            }
            if own:
                captures = _foreign(abreast, servers, places, own)
            else:
                captures = _captured(
                    abreast,
                    servers,
                    places,
                    PROFILES[name],
                    conditions,
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
    verdict = judge(
        _beside(captures, own=own_sql is not None), read_explanations(baselines() / "explanations.toml")
    )
    write_json(out / "verdict.json", verdict)
    look.put(out / look.NAME, render.page("Plans", captures, verdict))
    _tell(captures, verdict, as_json=as_json, quiet=quiet)
    ci.write(render.outcome(verdict))
    sys.exit(verdict.exit_code)


@plans.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--markdown", type=NEW_FILE, help="Write Markdown here.")
@click.option("--html", type=NEW_FILE, help="Write a page here, trees side by side.")
@click.option(
    "--explanations",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Accepted differences, as results/baselines/plans/explanations.toml has them, which is the default.",
)
@click.option("--quiet", is_flag=True, help="The verdict only.")
@ci_options
def compare_command(
    a: str,
    b: str,
    markdown: Path | None,
    html: Path | None,
    explanations: Path | None,
    quiet: bool,
    ci: Files,
) -> None:
    """Compare two captures: folders, majors of the committed baselines (18), or those of a revision (HEAD~3:18).

    \b
        nox -s compare -- 17 18
        nox -s compare -- HEAD~3:18 18 --markdown plans.md
        nox -s compare -- 18 results/runs/plans/18 --html plans.html

    Exit status: 0 same or explained, 1 regressed, 2 wrong usage.
    """
    reasons = read_explanations(explanations or baselines() / "explanations.toml")
    comparison = compare_captures(named(a), named(b), reasons)
    if markdown:
        markdown.write_text(render.markdown(comparison), "utf-8")
    if html:
        look.put(html, render.html(comparison))
    click.echo(f"verdict: {comparison.verdict}" if quiet else render.text(comparison))
    ci.write(render.compared(comparison, f"nox -s compare -- {shlex.join((a, b))}"))
    sys.exit(comparison.exit_code)


def _servers(stack: ExitStack, specs: Sequence[str]) -> list[Server]:
    """All servers, running for as long as the stack is open. Raises UsageError for two of one major version."""
    servers: dict[int, tuple[str, Server]] = {}
    for spec in specs:
        settings = None if spec.startswith(("dsn:", "postgres")) else {"autovacuum": "off"}
        server = stack.enter_context(provision(spec, settings=settings))
        if server.major in servers:
            raise UsageError(
                f"--pg {servers[server.major][0]} and --pg {spec} are both Postgres {server.major}, and a folder holds"
                " one: give one of them, or another --out for each"
            )
        servers[server.major] = spec, server
    return [server for _, server in servers.values()]


def _captured(
    abreast: Abreast,
    servers: Sequence[Server],
    places: Mapping[int, Path],
    profile: Profile,
    conditions: Sequence[str],
    *,
    growth: bool,
    fresh: bool,
    repetitions: int,
    quiet: bool,
) -> list[Judged]:
    catalogue = Catalogue.load()
    jobs = {
        server.major: campaign.jobs(
            server, profile, places[server.major], growth=growth, repetitions=repetitions
        )
        for server in servers
    }
    total = len(CASES) * (1 + (len(campaign.sizes(profile)) if growth else 0)) + expected(conditions)
    with _progress([f"Postgres {server.version_text}" for server in servers], total, quiet=quiet) as ticks:

        def tick(server: Server) -> Tick:
            told = ticks[servers.index(server)]

            def checked(label: str) -> None:
                abreast.check()
                told(label)

            return checked

        captured = abreast.all(
            [
                partial(job.run, catalogue, fresh=fresh, tick=tick(job.server))
                for each in jobs.values()
                for job in each
            ]
        )
        under = abreast.all(
            [
                partial(captured_under, server, profile, places[server.major], conditions, tick=tick(server))
                for server in servers
                if conditions
            ]
        )
    each = iter(captured)
    judged = [campaign.judged([next(each) for _ in jobs[server.major]], catalogue) for server in servers]
    return [with_conditions(one, what) for one, what in zip(judged, under, strict=True)] if under else judged


def _foreign(
    abreast: Abreast, servers: Sequence[Server], places: Mapping[int, Path], own: Own
) -> list[Judged]:
    works = [
        partial(foreign.capture, server.dsn, server.source, places[server.major], own) for server in servers
    ]
    return [Judged(capture) for capture in abreast.all(works)]


def _beside(captures: Sequence[Judged], *, own: bool) -> list[Judged]:
    """Each capture with what it is held against for `plan-stable`: the next lower version of this session; of a single
    one, the nearest committed baseline."""
    ordered = sorted(captures, key=lambda each: each.capture.environment.major)
    if len(ordered) == 1 and not own:
        [only] = ordered
        environment = only.capture.environment
        other = nearest(environment.major, environment.profile.name)
        return [replace(only, others=[other] if other else [])]
    pairs = {id(later): earlier.capture for earlier, later in pairwise(ordered)}
    return [replace(each, others=[pairs[id(each)]] if id(each) in pairs else []) for each in ordered]


def _tell(captures: Sequence[Judged], verdict: Verdict, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(verdict).decode())
        return
    if not quiet:
        _tell_hazards(captures)
        for each in captures:
            for under in each.under:
                click.echo(render.under(each.capture.environment.major, under))
    for judgement in verdict.invariants:
        for violation in judgement.violations:
            click.echo(f"{judgement.invariant}: {violation}")
        if judgement.violated > len(judgement.violations):
            click.echo(
                f"and {judgement.violated - len(judgement.violations)} more violations of {judgement.invariant}"
            )
    for each in captures:
        environment = each.capture.environment
        click.echo(
            f"Postgres {environment.version} ({environment.source}), {environment.profile.name}:"
            f" {len(each.capture.statements)} captures"
        )
    if not quiet:
        Console(highlight=False).print(render.invariants(verdict))
    click.echo(f"verdict: {verdict.verdict}" + (f": {verdict.reason}" if verdict.reason else ""))


def _tell_hazards(captures: Sequence[Judged]) -> None:
    for each in captures:
        major = each.capture.environment.major
        for hazard in hazards(each.capture):
            click.echo(f"{major}: hazard: {hazard}", err=True)
        for statement in each.capture.statements.values():
            if statement.functions.startswith("not captured"):
                click.echo(
                    f"{major}: {statement.label}: inside its functions {statement.functions}", err=True
                )


@contextmanager
def _progress(titles: Sequence[str], total: int, *, quiet: bool) -> Iterator[list[Tick]]:
    """A bar for each title, and what moves it; may be moved by any thread."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        for title in titles if not quiet else ():
            click.echo(f"{title}: {total} captures", err=True)
        yield [lambda _: None for _ in titles]
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def bar(title: str) -> Tick:
            task = progress.add_task(title, total=total)
            return lambda label: progress.update(task, advance=1, description=f"{title} {label}")

        yield [bar(title) for title in titles]
