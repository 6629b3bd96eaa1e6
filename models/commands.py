"""The command line of fuzzing: hold the engine against the pure models until the time is up, and give a verdict."""

from __future__ import annotations

import json
import random
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence

import click
import psycopg
from hypothesis.configuration import set_hypothesis_home_dir
from rich.console import Console
from rich.table import Table

from engine.ci import Case, Files, Outcome, ci_options
from engine.errors import InfrastructureError
from engine.front_door import Amount, Door
from engine.postgres import Server, Stopped, fresh_database, provision, signals_stop
from models.fuzz import NAMES, PROFILES, Finding, Profile, Verdict, fuzz

EXIT_CODES: dict[Verdict, int] = {"held": 0, "violated": 1, "unknown": 4}


# What is tried on a database of its own besides the machines, by name: given its DSN, seconds, a seed and a profile.
Fuzzer = Callable[[str, float, int, Profile], Finding]


def command(prefix: str, besides: Mapping[str, Fuzzer]) -> click.Command:
    """The command line over the machines, and what is tried besides; `prefix` is how a person starts it."""
    names = (*NAMES, *besides)

    @click.command(cls=Door)
    @click.option(
        "--profile",
        type=click.Choice(sorted(PROFILES)),
        default="ci",
        show_default=True,
        help="ci: two minutes; nightly: an hour, longer examples.",
    )
    @click.option(
        "--seconds",
        type=Amount(min=0, min_open=True, max=7 * 86_400),
        help="Default: the profile's.",
    )
    @click.option("--seed", type=click.IntRange(min=0), help="Default: a new one, which is printed.")
    @click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres.")
    @click.option(
        "--machine", "machines", multiple=True, type=click.Choice(sorted(names)), help="Default: all."
    )
    @click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
    @click.option("--quiet", is_flag=True, help="Print only what is not held.")
    @ci_options
    @click.pass_context
    def main(
        context: click.Context,
        profile: str,
        seconds: float | None,
        seed: int | None,
        pg: str,
        machines: tuple[str, ...],
        as_json: bool,
        quiet: bool,
        ci: Files,
    ) -> None:
        """Hold the engine against the models, and try schedules, until the time is up.

        \b
            nox -s fuzz                                       two minutes
            nox -s fuzz -- --machine limiter --seconds 30
            nox -s fuzz -- --profile nightly

        Exit status: 0 held, 1 violated, 2 wrong usage, 3 no Postgres, 4 unknown.
        """
        seed = random.SystemRandom().randrange(2**32) if seed is None else seed
        budget = PROFILES[profile].seconds if seconds is None else seconds
        chosen = machines or names
        try:
            with (
                signals_stop(),
                tempfile.TemporaryDirectory(prefix="pgreferee-hypothesis-") as home,
                provision(pg) as server,
            ):
                set_hypothesis_home_dir(home)
                findings = _findings(server, chosen, besides, profile, budget / len(chosen), seed)
                postgres = {"version": server.version_text, "source": server.source}
        except psycopg.OperationalError as error:
            raise InfrastructureError(f"the server failed: {type(error).__name__}") from error
        except (Stopped, KeyboardInterrupt):
            click.echo("unknown: interrupted", err=True)
            context.exit(EXIT_CODES["unknown"])
        verdict = _worst([finding.verdict for finding in findings])
        if as_json:
            click.echo(json.dumps(_report(prefix, verdict, profile, seed, postgres, findings), indent=2))
        elif not quiet or verdict != "held":
            _print(prefix, findings, profile, seed)
        ci.write(_outcome(prefix, verdict, profile, seed, postgres, findings))
        context.exit(EXIT_CODES[verdict])

    return main


def _findings(
    server: Server,
    machines: Sequence[str],
    besides: Mapping[str, Fuzzer],
    profile: str,
    seconds: float,
    seed: int,
) -> list[Finding]:
    findings = []
    for machine in machines:
        with fresh_database(server) as dsn:
            if machine in besides:
                findings.append(besides[machine](dsn, seconds, seed, PROFILES[profile]))
            else:
                findings.append(fuzz(machine, dsn, seconds=seconds, seed=seed, profile=PROFILES[profile]))
    return findings


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    order: tuple[Verdict, ...] = ("violated", "unknown", "held")
    return min(verdicts, key=order.index)


def _reproduce(prefix: str, finding: Finding, profile: str) -> str:
    words = [
        *prefix.split(),
        "--machine",
        finding.machine,
        "--profile",
        profile,
        "--seed",
        str(finding.seed),
    ]
    return shlex.join(words)


def _report(
    prefix: str,
    verdict: Verdict,
    profile: str,
    seed: int,
    postgres: dict[str, str],
    findings: Sequence[Finding],
) -> dict[str, object]:
    return {
        "schema": 1,
        "verdict": verdict,
        "seed": seed,
        "profile": profile,
        "postgres": postgres,
        "machines": {
            finding.machine: {
                "verdict": finding.verdict,
                "reason": finding.reason,
                "steps": finding.steps,
                "examples": finding.examples,
                "seconds": round(finding.seconds, 3),
                "evidence": finding.evidence,
                "reproduce": _reproduce(prefix, finding, profile),
            }
            for finding in findings
        },
    }


def _outcome(
    prefix: str,
    verdict: Verdict,
    profile: str,
    seed: int,
    postgres: dict[str, str],
    findings: Sequence[Finding],
) -> Outcome:
    server = f"{postgres['version']} ({postgres['source']})"
    return Outcome(
        title="fuzz",
        word=verdict,
        cases=[
            Case(
                name=each.machine,
                verdict=each.verdict,
                told=""
                if each.verdict == "held"
                else f"{each.reason}\n\n{each.evidence}\n\n{_reproduce(prefix, each, profile)}",
                checked=each.steps,
                seconds=each.seconds,
            )
            for each in findings
        ],
        facts={"PostgreSQL": server, "seed": str(seed), "profile": profile},
        reproduce=f"{prefix} --profile {profile} --seed {seed}",
        seconds=sum(each.seconds for each in findings),
    )


def _print(prefix: str, findings: Sequence[Finding], profile: str, seed: int) -> None:
    table = Table(title=f"seed {seed}", title_justify="left")
    for heading in ("machine", "verdict", "steps", "examples", "steps/s"):
        table.add_column(heading, justify="left" if heading in ("machine", "verdict") else "right")
    for finding in findings:
        rate = finding.steps / finding.seconds
        table.add_row(
            finding.machine, finding.verdict, f"{finding.steps:,}", f"{finding.examples:,}", f"{rate:,.0f}"
        )
    Console().print(table)
    for finding in findings:
        if finding.verdict != "held":
            click.echo(f"\n{finding.machine}: {finding.verdict}: {finding.reason}\n\n{finding.evidence}\n")
            click.echo(f"reproduce: {_reproduce(prefix, finding, profile)}")
