"""`python -m stress time`: how fast a system works off jobs that do nothing, on any server, alone."""

from __future__ import annotations

import dataclasses
import sys

import click
import msgspec

from engine.errors import UsageError
from engine.postgres import provision, signals_stop
from stress.subjects.loading import NoSubject, is_own, load
from stress.subjects.peers import PEERS
from stress.subjects.peers.environments import python_of

MOST_JOBS = 10_000_000
MOST_PROCESSES = 64


@click.command("time")
@click.argument("subject")
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_JOBS),
    default=10_000,
    show_default=True,
    help="How many are put in and worked off.",
)
@click.option(
    "--processes", type=click.IntRange(1, MOST_PROCESSES), default=1, show_default=True, help="How many work."
)
@click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres; durable.")
@click.option("--python", default=None, help="The interpreter that a system of your own runs in.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    help="How long it may take to work them off.",
)
@click.option("--json", "as_json", is_flag=True, help="The figures on standard output, nothing else.")
def time_command(
    subject: str, jobs: int, processes: int, pg: str, python: str | None, seconds: float, as_json: bool
) -> None:
    """Fill the queue of SUBJECT with jobs that do nothing, start workers, and time them until none is left.

    \b
        python -m stress time pgqueuer --jobs 50000 --processes 2
        python -m stress time examples/blog_queue/blog_queue.py:FencedQueue --json

    Exit status: 0 timed, 2 wrong usage, 3 no Postgres, or it did not come to an end in time.
    """
    if subject in PEERS:
        python = python_of(subject)
    elif not is_own(subject):
        raise UsageError(
            f"there is no subject {subject!r}; name a file and class, or one of: {', '.join(PEERS)}"
        )
    elif python is None:
        try:
            load(subject)
        except NoSubject as error:
            raise UsageError(str(error)) from error
    # Late, because it brings in all that a run needs.
    from stress.subjects.timing import timed

    with signals_stop(), provision(pg, profile="durable") as server:
        figures = timed(server, subject, python, jobs=jobs, processes=processes, timeout_s=seconds)
    if as_json:
        told = {"subject": subject, "postgres": server.version_text, **dataclasses.asdict(figures)}
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    else:
        click.echo(
            f"{subject} on PostgreSQL {server.version_text}: {figures.jobs:,} jobs by {figures.processes} processes in "
            f"{figures.whole_s:.2f} s, {figures.steady_per_s:,.0f} a second; enqueued in {figures.fill_s:.2f} s"
        )
