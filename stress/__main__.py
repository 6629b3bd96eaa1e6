"""`python -m stress`: race nodes under faults, explore schedules, and judge."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from engine.ci import Files, ci_options
from engine.errors import UsageError
from engine.front_door import Amount, FrontDoor
from engine.postgres import signals_stop
from invariants.folder import JUDGE_LIMIT_S
from results.runs import runs_folder
from stress.bench.command import bench_command
from stress.ci_profile import ci_command, ci_request
from stress.config import UI_PORT, RunConfig, checked, default_scenario
from stress.display import Display
from stress.doctor import doctor_command
from stress.faults import FAULTS
from stress.figures import figures_command
from stress.hosts.command import checked_hosts, host_options, token_of_master, work
from stress.mutants.command import ablate_command, mutants_command
from stress.scenarios import SCENARIOS
from stress.schedules.commands import explore_command, fuzz_command, replay_command
from stress.soak_command import soak_command
from stress.subjects.asked import checked_own
from stress.subjects.loading import is_own
from stress.subjects.peers import PEERS
from stress.subjects.peers.environments import python_of
from stress.subjects.timing_command import time_command

NOT_FOR: Final = {
    "ci": (
        "seconds",
        "scenario",
        "subject",
        "python",
        "minutes",
        "resume",
        "judge_seconds",
        "until_violated",
        "ui",
    ),
    "soak": ("judge_seconds", "until_violated", "ui"),
}


@click.group(cls=FrontDoor)
def stress() -> None:
    """Trying to make it happen: swarms that race nodes under faults, and schedules that leave nothing to chance."""


@stress.command("run")
@click.option(
    "--pg",
    multiple=True,
    default=("embedded",),
    show_default="embedded",
    help="embedded, 13 to 18, system:N, container:N, dsn:...; several times: shards of a store.",
)
@click.option("--seconds", default=20.0, show_default=True, help="How long the load lasts.")
@click.option("--nodes", default=4, show_default=True, help="How many node processes race.")
@click.option(
    "--seed", type=int, default=None, help="Drives clients and faults; drawn and printed by default."
)
@click.option(
    "--faults", default="all", show_default=True, help=f"none, all, or some of: {', '.join(FAULTS)}."
)
@click.option(
    "--scenario",
    default=None,
    show_default="mixed, or all in a soak",
    help=f"One of: {', '.join(SCENARIOS)}.",
)
@click.option(
    "--subject",
    default="reference",
    show_default=True,
    help=f"reference, a system of your own (path/to/file.py:Class, module:Class), or {', '.join(PEERS)}.",
)
@click.option("--python", default=None, help="The interpreter that a system of your own runs in.")
@click.option(
    "--mutant",
    default=None,
    metavar="NAME",
    help="Break the engine on purpose; nox -s mutants -- --list says in which ways.",
)
@click.option(
    "--profile",
    type=click.Choice(("run", "ci", "soak")),
    default="run",
    show_default=True,
    help="ci: queue, store and a sample of races, in less than three minutes. soak: rounds of scenarios and faults at "
    "random, one after the other on the same tables.",
)
@click.option("--minutes", type=float, default=None, show_default="10", help="How long a soak lasts.")
@click.option(
    "--resume", type=click.Path(path_type=Path), default=None, help="Go on with the soak in that folder."
)
@click.option(
    "--judge-seconds",
    type=Amount(min=0),
    default=JUDGE_LIMIT_S,
    show_default=True,
    help="How long judging may take; what is not decided by then is unknown.",
)
@click.option(
    "--until-violated", is_flag=True, help="End the load with the first violation, --seconds at the latest."
)
@click.option(
    "--ui",
    type=int,
    is_flag=False,
    flag_value=UI_PORT,
    default=None,
    metavar="[PORT]",
    help=f"Locust's page on 127.0.0.1 while the load lasts, with the invariants beside it; {UI_PORT} by default.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the run's folder goes.")
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
@click.option(
    "--report/--no-report", "reports", default=True, help="Make the run's report.html; the default."
)
@host_options
@ci_options
def run_command(
    pg: tuple[str, ...],
    seconds: float,
    nodes: int,
    seed: int | None,
    faults: str,
    scenario: str | None,
    subject: str,
    python: str | None,
    mutant: str | None,
    profile: str,
    minutes: float | None,
    resume: Path | None,
    judge_seconds: float,
    until_violated: bool,
    ui: int | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    reports: bool,
    ci: Files,
    token_file: Path | None,
    worker: str | None,
    **_: Any,
) -> None:
    """Race nodes on a real Postgres under faults, and judge what was committed.

    \b
        nox -s stress                                       the default: 20 s, 4 nodes, every fault
        nox -s stress -- --seconds 60 --faults kill,pause
        nox -s stress -- --mutant outcome-unguarded         watch a broken engine being caught
        nox -s stress -- --profile ci --junit races.xml     what a pull request can wait for
        nox -s stress -- --profile soak --minutes 30        everything, at random, for half an hour
        nox -s stress -- --mutant insert-many-unordered --seconds 60 --until-violated
        nox -s stress -- --subject examples/blog_queue/blog_queue.py:BlogQueue
        nox -s stress -- --seconds 300 --ui                 watch it on http://127.0.0.1:8089

    \b
    On several hosts (docs/hosts.md), one command on the first and one on each other:
        nox -s stress -- --master --bind 10.0.0.5 --workers 2 --nodes 8 --seconds 120
        PGREFEREE_TOKEN=... nox -s stress -- --worker 10.0.0.5
    The same with a Postgres elsewhere, which all of them reach:
        nox -s stress -- --master --bind 10.0.0.5 --workers 2 --pg "dsn:$PGREFEREE_DSN"

    Exit status: 0 held, 1 violated, 2 wrong usage, 3 no Postgres, 4 unknown.
    """
    context = click.get_current_context()
    if worker is not None:
        with signals_stop():
            sys.exit(work(context))
    hosts = checked_hosts(context)
    if hosts is not None and (profile != "run" or resume is not None):
        raise UsageError("a soak, and the profile for CI, run on one host: leave out --master")
    if hosts is not None and (is_own(subject) or subject in PEERS):
        raise UsageError("only the reference engine runs on several hosts: leave out --master")
    refuse_strangers(profile)
    if profile == "ci":
        sys.exit(
            ci_command(
                ci_request(
                    pg=pg,
                    nodes=nodes,
                    seed=random.SystemRandom().randrange(2**31) if seed is None else seed,
                    faults=faults,
                    mutant=mutant,
                ),
                out,
                as_json=as_json,
                quiet=quiet,
                reports=reports,
                ci=ci,
            )
        )
    if profile == "soak" or resume is not None:
        if is_own(subject) or subject in PEERS:
            raise UsageError("a soak is of the reference engine; give a system of your own more --seconds")
        sys.exit(
            soak_command(
                pg=pg,
                minutes=minutes,
                seconds=seconds,
                nodes=nodes,
                seed=seed,
                faults=faults,
                scenario=scenario,
                subject=subject,
                mutant=mutant,
                resume=resume,
                out=out,
                as_json=as_json,
                quiet=quiet,
                ci=ci,
            )
        )
    if minutes is not None:
        raise UsageError("--minutes is for --profile soak; a run lasts for --seconds")
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    if subject in PEERS:
        if python is not None:
            raise UsageError(f"{subject} has an environment of its own: leave --python out")
        python = python_of(subject)
    if is_own(subject) or subject in PEERS:
        if ui is not None:
            raise UsageError("--ui is for the reference engine, whose clients are Locust's: leave it out")
        if until_violated:
            raise UsageError(
                "--until-violated is for the reference engine: others are judged when a run is over"
            )
        sys.exit(
            own_command(
                checked_own(
                    pg=pg,
                    seconds=seconds,
                    nodes=nodes,
                    seed=seed,
                    faults=faults,
                    scenario=scenario,
                    subject=subject,
                    mutant=mutant,
                    python=python,
                    judge_seconds=judge_seconds,
                ),
                python,
                out,
                as_json=as_json,
                quiet=quiet,
                reports=reports,
                ci=ci,
            )
        )
    if python is not None:
        raise UsageError(
            "--python is for a system of your own: name one with --subject path/to/file.py:Class"
        )
    config = checked(
        pg=pg,
        seconds=seconds,
        nodes=nodes,
        seed=seed,
        faults=faults,
        scenario=default_scenario(mutant) if scenario is None else scenario,
        subject=subject,
        mutant=mutant,
        judge_seconds=judge_seconds,
        until_violated=until_violated,
        hosts=hosts,
        ui=ui,
    )
    token = None if hosts is None else token_of_master(token_file, hosts, quiet=quiet)
    # Late, because it brings in all that a run needs, and a wrong argument should not wait for it.
    from results.report.making import tell
    from stress.outcomes import of_run
    from stress.run import run
    from stress.summary import print_summary

    with signals_stop():
        judged = run(config, out or runs_folder(), Display(quiet=quiet), token)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(judged.verdict) + b"\n")
    elif not quiet:
        print_summary(judged)
    if reports:
        tell(judged.folder)
    ci.write(of_run(judged))
    sys.exit(judged.exit_code)


def refuse_strangers(profile: str) -> None:
    """Options that a profile has no use for are refused: who gives one expects something of it."""
    context = click.get_current_context()
    for name in NOT_FOR.get(profile, ()):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is not for --profile {profile}, which decides that itself: leave it out"
            )


def own_command(
    config: RunConfig,
    python: str | None,
    out: Path | None,
    *,
    as_json: bool,
    quiet: bool,
    reports: bool,
    ci: Files,
) -> int:
    """A run of somebody else's system; its exit status."""
    from results.report.making import tell
    from stress.outcomes import of_run
    from stress.subjects.own_run import run_own
    from stress.subjects.own_summary import print_summary

    with signals_stop():
        judged = run_own(config, python, out or runs_folder(), Display(quiet=quiet))
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(judged.verdict) + b"\n")
    elif not quiet:
        print_summary(judged)
    if reports:
        tell(judged.folder)
    ci.write(of_run(judged))
    return judged.exit_code


stress.add_command(explore_command)
stress.add_command(mutants_command)
stress.add_command(ablate_command)
stress.add_command(replay_command)
stress.add_command(figures_command)
stress.add_command(bench_command)
stress.add_command(fuzz_command, "fuzz")
stress.add_command(time_command)
stress.add_command(doctor_command)


if __name__ == "__main__":
    stress(prog_name="python -m stress")
