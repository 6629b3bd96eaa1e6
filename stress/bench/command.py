"""`python -m stress bench`: floors, the engine and its peers, by turns."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import psycopg

from engine.errors import InfrastructureError, UsageError
from engine.postgres import Server, provision, signals_stop
from invariants.verdict import EXIT_CODES
from results.bench.command import FILE, show
from results.bench.samples import Bench, Sample
from results.runs import create_run_folder, runs_folder
from stress.bench.commits import CLIENTS, Writer, commits, writers
from stress.bench.contenders import Contender, engine, grown, limited, raw, swarmed
from stress.bench.cost import counted, messages, variants
from stress.bench.drain import drain
from stress.bench.flow import BATCH, enqueue, families, latency, signals
from stress.bench.peers import PEERS

# One measurement: what it is called while it runs, and how it is taken.
Turn = tuple[str, Callable[[Server, int, Path], Sample]]
SETTINGS: Final = ("fsync", "synchronous_commit", "wal_level", "shared_buffers", "full_page_writes", "jit")


def drains(peers: Sequence[Contender], jobs: int | None) -> Iterator[Turn]:
    """Floors, engine and peers, with one process and with two."""
    for processes in (1, 2):
        for contender in (raw(100), raw(1_000), engine(), *peers):
            yield _drain(contender, processes, jobs)


def limits(_: Sequence[Contender], jobs: int | None) -> Iterator[Turn]:
    """What limits cost that never deny."""
    for processes in (1, 2):
        for contender in (engine(), *limited()):
            yield _drain(contender, processes, jobs)


def growth(_: Sequence[Contender], jobs: int | None) -> Iterator[Turn]:
    """What rows cost that have ended."""
    for contender in grown():
        yield _drain(contender, 1, jobs)


def swarms(_: Sequence[Contender], jobs: int | None) -> Iterator[Turn]:
    """What it costs nodes to be watched."""
    for processes in (1, 2):
        for contender in swarmed():
            yield _drain(contender, processes, jobs)


def costs(_: Sequence[Contender], __: int | None) -> Iterator[Turn]:
    """What a job costs, and how that grows."""
    for kind, batch, limits in messages():
        yield f"cost in messages, {kind}, {batch}", partial(_counted, kind, batch, limits)
    for workload, processes, contender in variants():
        yield f"{workload}, {contender.name}", partial(_cost, workload, processes, contender)


def puts(peers: Sequence[Contender], _: int | None) -> Iterator[Turn]:
    """Jobs put in by one client, one by one and in batches."""
    for batch in (1, BATCH):
        for contender in (raw(100), engine(), *peers):
            yield f"enqueue {batch}, {contender.name}", partial(_enqueue, contender, batch)


def trips(_: Sequence[Contender], __: int | None) -> Iterator[Turn]:
    """Latency below saturation, signals, families: the engine alone, by polling and with pokes."""
    told = engine("engine, pokes", pokes=True)
    for contender in (engine(), told):
        yield f"latency, {contender.name}", partial(_flow, latency, contender)
        yield f"signals, {contender.name}", partial(_flow, signals, contender)
    yield "families", partial(_flow, families, engine())


def writes(_: Sequence[Contender], __: int | None) -> Iterator[Turn]:
    """Compare-and-set commits."""
    for clients in CLIENTS:
        for writer in writers():
            yield f"commits {clients}, {writer.name}", partial(_commits, writer, clients)


def _counted(
    kind: str, batch: int, limits: dict[str, int], server: Server, repetition: int, logs: Path
) -> Sample:
    return counted(server, kind, batch, limits, repetition, logs)


def _cost(
    workload: str, processes: int, contender: Contender, server: Server, repetition: int, logs: Path
) -> Sample:
    return drain(server, contender, processes, repetition, logs, workload=workload, counts=True)


def _flow(
    measure: Callable[[Server, Contender, int, Path], Sample],
    contender: Contender,
    server: Server,
    repetition: int,
    logs: Path,
) -> Sample:
    return measure(server, contender, repetition, logs)


def _commits(writer: Writer, clients: int, server: Server, repetition: int, logs: Path) -> Sample:
    return commits(server, writer, clients, repetition, logs)


def _enqueue(contender: Contender, batch: int, server: Server, repetition: int, logs: Path) -> Sample:
    return enqueue(server, contender, batch, repetition, logs)


def _drain(contender: Contender, processes: int, jobs: int | None) -> Turn:
    if jobs is not None:
        contender = replace(contender, jobs=jobs)

    def take(server: Server, repetition: int, logs: Path) -> Sample:
        return drain(server, contender, processes, repetition, logs)

    return f"drain {processes}, {contender.name}", take


WORKLOADS: Final[dict[str, Callable[[Sequence[Contender], int | None], Iterator[Turn]]]] = {
    "drain": drains,
    "enqueue": puts,
    "latency": trips,
    "commits": writes,
    "limits": limits,
    "growth": growth,
    "swarm": swarms,
    "cost": costs,
}


@click.command("bench")
@click.option(
    "--pg", default="embedded", show_default=True, help="embedded, 13 to 18, system:N, container:N."
)
@click.option(
    "--workloads", default=",".join(WORKLOADS), show_default=True, help="Some of them, with commas between."
)
@click.option("--peers", default="", help=f"Peers beside the engine: {', '.join(PEERS)}, or all.")
@click.option(
    "--jobs", type=click.IntRange(1), default=None, help="Of every drain, instead of as many as it needs."
)
@click.option(
    "--repetitions",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="How often each is measured.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the bench's folder goes.")
@click.option("--json", "as_json", is_flag=True, help="The record on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress.")
def bench_command(
    pg: str,
    workloads: str,
    peers: str,
    jobs: int | None,
    repetitions: int,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure floors, engine and peers by turns, on one server with fsync on; only what the log proves counts.

    \b
        nox -s bench                                             floors and engine
        nox -s bench -- --workloads drain --peers pgqueuer       beside a peer, in an environment of its own
        python -m results bench FOLDER                           tell it again

    Exit status: 0 every job held, 1 some did not, 2 wrong usage, 3 no Postgres.
    """
    chosen = [WORKLOADS[name] for name in _names("workload", workloads, WORKLOADS)]
    rivals = [PEERS[name]() for name in _names("peer", ",".join(PEERS) if peers == "all" else peers, PEERS)]
    turns = [turn for workload in chosen for turn in workload(rivals, jobs)]
    folder = create_run_folder(out or runs_folder(), "bench")
    try:
        with (
            signals_stop(),
            provision(pg, profile="durable") as server,
            tempfile.TemporaryDirectory() as logs,
        ):
            samples = list(_measured(server, turns, repetitions, Path(logs), quiet=quiet))
            bench = Bench(
                machine=_machine(),
                postgres=_postgres(server),
                settings={each.name: each.settings for each in (raw(100), raw(1_000), engine(), *rivals)},
                samples=tuple(samples),
            )
    except psycopg.OperationalError as error:
        raise InfrastructureError(f"the server failed: {str(error).strip().splitlines()[0]}") from error
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(bench)))
    if as_json:
        click.echo(msgspec.json.encode(bench))
    else:
        show(bench)
        click.echo(f"recorded in {folder}", err=True)
    sys.exit(EXIT_CODES[bench.verdict])


def _measured(
    server: Server, turns: Sequence[Turn], repetitions: int, logs: Path, *, quiet: bool
) -> Iterator[Sample]:
    for repetition in range(repetitions):
        for name, take in turns:
            sample = take(server, repetition, logs)
            if not quiet:
                told = ", ".join(f"{_short(value)} {figure}" for figure, value in sample.figures.items())
                click.echo(f"{repetition + 1}/{repetitions} {name}: {told}, {sample.verdict}", err=True)
            yield sample


def _short(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.3g}"


def _names(kind: str, text: str, known: dict[str, Any]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r}: choose from {', '.join(known)}")
    return names


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "psycopg": psycopg.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _postgres(server: Server) -> dict[str, Any]:
    return {
        "version": server.version_text,
        "source": server.source,
        **{name: server.settings.get(name) for name in SETTINGS},
    }
