"""`python -m engine node`: one node process for machines of the user's own."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import psycopg

from engine.errors import InfrastructureError, UsageError
from engine.machine import Machine, Registry
from engine.node import Node
from engine.policy import NodePolicy, PolicyError, QueuePolicy
from engine.schema import migrate

DSN_VARIABLE = "PGREFEREE_DSN"


@click.command("node")
@click.argument("machines", metavar="MODULE:NAME...", nargs=-1, required=True)
@click.option(
    "--dsn", envvar=DSN_VARIABLE, help=f"Where the jobs are. Better given as ${DSN_VARIABLE}: arguments show."
)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME[:CONCURRENCY]", help="A queue to serve; repeatable."
)
@click.option("--instance", default="pgreferee", show_default=True, help="Name of the application.")
@click.option(
    "--name",
    default=None,
    help="Name of this node, by default host and process. One kept over restarts gets its claims back at once.",
)
@click.option(
    "--lease-ms", default=30_000.0, show_default=True, help="How long a claim lives without a heartbeat."
)
def node_command(
    machines: tuple[str, ...],
    dsn: str | None,
    queues: tuple[str, ...],
    instance: str,
    name: str | None,
    lease_ms: float,
) -> None:
    """Run steps of your machines until SIGTERM or Ctrl-C.

    MODULE:NAME is a Machine class, an instance of one, or a list of them, found as Python finds modules, the working
    directory first.

    \b
        export PGREFEREE_DSN='postgresql://...'
        python -m engine node shop.machines:Order
        python -m engine node shop.machines:ALL --queue default:20 --queue mail:2 --name shop-1

    Exit status: 0 stopped as meant, 1 steps had to be abandoned, 2 wrong usage, 3 no database.
    """
    if not dsn:
        raise UsageError(f"no database: set {DSN_VARIABLE} or give --dsn")
    found = [machine for spec in machines for machine in load_machines(spec)]
    try:
        Registry(found)
        policy = NodePolicy(
            instance=instance,
            node=name or f"{socket.gethostname()}.{os.getpid()}".replace("@", "-"),
            queues=tuple(_queue(spec) for spec in queues or ("default",)),
            lease_ttl_ms=lease_ms,
            heartbeat_interval_ms=lease_ms / 3,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
    except psycopg.Error as error:
        raise InfrastructureError(
            f"the database cannot be used ({type(error).__name__}): check {DSN_VARIABLE}"
        ) from None
    # What was imported stays: no collection has to look at it again.
    gc.collect()
    gc.freeze()
    sys.exit(asyncio.run(_serve(Node(dsn, policy, found))))


def load_machines(spec: str) -> list[Machine | type[Machine]]:
    """The machines that `module:name` names. Raises UsageError with one sentence where it names none."""
    module_name, colon, attribute = spec.partition(":")
    if not colon:
        raise UsageError(f"{spec!r} names no machine: write it as module:name")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"module {module_name!r} cannot be imported: {error}") from None
    found: Any = getattr(module, attribute, None)
    items = list(found) if isinstance(found, Iterable) else [found]
    for item in items:
        if not isinstance(item, Machine) and not (isinstance(item, type) and issubclass(item, Machine)):
            raise UsageError(f"{spec!r} is not a Machine class, an instance of one, or a list of them")
    return items


def _queue(spec: str) -> QueuePolicy:
    name, colon, number = spec.rpartition(":")
    if not colon:
        return QueuePolicy(name=spec)
    if not number.isdecimal():
        raise PolicyError(f"{spec!r} names no queue: write it as name or name:concurrency")
    return QueuePolicy(name=name, concurrency=int(number), prefetch=int(number))


async def _serve(node: Node) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    await node.run()
    if node.abandoned_steps:
        # Threads of abandoned steps would hold up the interpreter's exit.
        os._exit(1)
    return 0
