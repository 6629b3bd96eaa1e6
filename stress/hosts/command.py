"""The part of the front door that is about hosts: `--master`, `--worker` and what goes with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from engine.errors import UsageError
from stress.config import DEFAULT_PORT, Hosts
from stress.hosts.token import VARIABLE, given_token, new_token
from stress.swarm.child import LOOPBACK

OF_A_WORKER: Final = ("worker", "port", "token_file", "join_seconds", "quiet")
OF_A_MASTER: Final = ("workers", "bind", "port", "token_file", "join_seconds")


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare them."""
    options = (
        click.option(
            "--master", is_flag=True, help="Run nodes and clients on other hosts, those of --workers workers."
        ),
        click.option(
            "--worker", metavar="HOST", default=None, help="Be a worker of the master at HOST, or HOST:PORT."
        ),
        click.option(
            "--workers", default=1, show_default=True, help="How many workers the master waits for."
        ),
        click.option(
            "--bind", default=LOOPBACK, show_default=True, help="The master's address that workers can reach."
        ),
        click.option(
            "--port", default=DEFAULT_PORT, show_default=True, help="The master's port; the next is used too."
        ),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            default=None,
            help=f"Holds the token that master and workers share; else {VARIABLE} does, else the master draws one.",
        ),
        click.option(
            "--join-seconds",
            default=60.0,
            show_default=True,
            help="How long master and workers wait to meet.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def checked_hosts(context: click.Context) -> Hosts | None:
    """What a master is asked for; None for a run on this machine. Raises UsageError."""
    asked = context.params
    if not asked["master"]:
        for name in OF_A_MASTER:
            if _is_given(context, name):
                raise UsageError(f"{_option(name)} goes with --master, or with --worker")
        return None
    return Hosts(
        workers=asked["workers"], bind=asked["bind"], port=asked["port"], join_seconds=asked["join_seconds"]
    )


def token_of_master(file: Path | None, hosts: Hosts, *, quiet: bool) -> str:
    """The one that is given, or a new one, which is told. Raises UsageError."""
    token = given_token(file)
    if token is not None:
        return token
    if quiet:
        raise UsageError(
            f"--quiet would hide the token that the workers need: set {VARIABLE}, or --token-file"
        )
    token = new_token()
    where = hosts.bind if hosts.bind != "0.0.0.0" else "HOST"
    port = "" if hosts.port == DEFAULT_PORT else f" --port {hosts.port}"
    click.echo(
        f"on each of the {hosts.workers} hosts: {VARIABLE}={token} nox -s stress -- --worker {where}{port}",
        err=True,
    )
    return token


def work(context: click.Context) -> int:
    """Be a worker; the exit status. Raises UsageError and InfrastructureError."""
    asked = context.params
    if asked["master"]:
        raise UsageError("one is either a --master or a --worker")
    for name in asked:
        if name not in OF_A_WORKER and _is_given(context, name):
            raise UsageError(
                f"{_option(name)} is the master's to say: a worker takes --port, --token-file, --join-seconds and "
                "--quiet"
            )
    host, port = _address(asked["worker"], asked["port"])
    token = given_token(asked["token_file"])
    if token is None:
        raise UsageError(f"a worker needs the token of its master: set {VARIABLE}, or --token-file")
    # Late, as all that a run needs.
    from stress.hosts.worker import serve

    def say(sentence: str) -> None:
        if not asked["quiet"]:
            click.echo(sentence, err=True)

    word, started = serve(host, port, token, asked["join_seconds"], say)
    ran = ", ".join(f"{what} {count}" for what, count in sorted(started.items())) or "nothing"
    say(f"the run is over: {word}; started here: {ran}")
    return 0


def _address(worker: str, port: int) -> tuple[str, int]:
    host, separator, number = worker.partition(":")
    if not host or (separator and not number.isdecimal()):
        raise UsageError(f"--worker takes HOST or HOST:PORT, not {worker!r}")
    return host, int(number) if separator else port


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _option(name: str) -> str:
    return (
        "--json" if name == "as_json" else "--report" if name == "reports" else f"--{name.replace('_', '-')}"
    )
