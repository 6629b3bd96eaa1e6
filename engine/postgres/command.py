"""`python -m engine postgres`: a throw-away server until Ctrl-C, or the list of what can be had here."""

from __future__ import annotations

import json
import sys
import threading

import click
from rich.console import Console
from rich.table import Table

from engine.postgres import availability
from engine.postgres.availability import Availability
from engine.postgres.cleanup import Stopped, signals_stop
from engine.postgres.profiles import Profile
from engine.postgres.provision import provision
from engine.postgres.server import Server

_MARKS = {"ready": "[green]yes[/]", "fetchable": "[yellow]after a download[/]", "unavailable": "[dim]no[/]"}


@click.command("postgres")
@click.option("--pg", "pg", metavar="SPEC", default="embedded", show_default=True, help="Which Postgres.")
@click.option(
    "--profile",
    type=click.Choice(["fast", "durable"]),
    default="fast",
    show_default=True,
    help="durable: fsync on, so that nothing committed is lost in a crash.",
)
@click.option(
    "--list", "list_", is_flag=True, help="Say for each major version whether and how it can be had here."
)
@click.option("--json", "as_json", is_flag=True, help="Print data instead of text on standard output.")
@click.option("--keep", is_flag=True, help="Keep the database that was made (dsn: only).")
def postgres(pg: str, profile: Profile, list_: bool, as_json: bool, keep: bool) -> None:
    """Start a throw-away server, print its DSN, and remove everything at Ctrl-C or SIGTERM.

    SPEC is embedded, 13 to 18, system:N, container:N, container:IMAGE or dsn:postgresql://...

    \b
        nox -s postgres
        nox -s postgres -- --list                         what can be had here
        nox -s postgres -- --pg 15 --profile durable

    Exit status: 0 stopped as meant, 2 wrong usage, 3 no Postgres.
    """
    if list_:
        _print_list(availability.survey(), as_json=as_json)
        return
    # Ctrl-C and SIGTERM are how this command is meant to end.
    try:
        with signals_stop(), provision(pg, profile, keep=keep) as server:
            _print_server(server, as_json=as_json)
            threading.Event().wait()
    except (KeyboardInterrupt, Stopped):
        click.echo("kept the database" if keep else "removed", err=True)


def _print_server(server: Server, *, as_json: bool) -> None:
    if as_json:
        shown = {
            "schema": 1,
            "dsn": server.dsn,
            "tcp_dsn": server.tcp_dsn,
            "admin_dsn": server.admin_dsn,
            "database": server.database,
            "source": server.source,
            "version": server.version_text,
            "why_no_ledger": server.why_no_ledger,
            "settings": dict(server.settings),
            "log_path": None if server.log_path is None else str(server.log_path),
        }
        click.echo(json.dumps(shown))
    else:
        click.echo(server.dsn)
    sys.stdout.flush()
    click.echo(
        f"Postgres {server.version_text} ({server.source}). Connect with: psql '{server.dsn}'", err=True
    )
    if server.tcp_dsn is not None and server.tcp_dsn != server.dsn:
        click.echo(f"Over TCP: {server.tcp_dsn}", err=True)
    for note in server.notes:
        click.echo(f"note: {note}", err=True)
    if server.why_no_ledger is not None:
        click.echo(f"no ledger: {server.why_no_ledger}", err=True)
    click.echo("Ctrl-C removes it.", err=True)


def _print_list(found: list[Availability], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"schema": 1, "majors": [each.to_object() for each in found]}))
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="Postgres on this machine")
    for heading in ("--pg", "to be had", "from", "how, or why not"):
        table.add_column(heading, no_wrap=heading != "how, or why not")
    for each in found:
        for number, way in enumerate(each.ways):
            first, last = number == 0, number == len(each.ways) - 1
            major, mark = (str(each.major), _MARKS[each.state]) if first else ("", "")
            style = "dim" if way.state == "unavailable" else None
            table.add_row(
                major,
                mark,
                f"[{style}]{way.source}[/]" if style else way.source,
                way.detail,
                end_section=last,
            )
    console.print(table)
