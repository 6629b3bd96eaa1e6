"""What a run is asked for: checked once, at the front door, before anything starts."""

from __future__ import annotations

import difflib
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import UsageError
from engine.postgres import Source, parse_pg
from engine.postgres.standby import OLDEST
from invariants.folder import JUDGE_LIMIT_S
from invariants.mutants import REGISTRY
from stress.faults import FAULTS, FaultKind
from stress.faults.plan import FAILOVERS
from stress.mutants.concerns import breaks_the_store
from stress.scenarios import SCENARIOS
from stress.subjects.peers import PEERS
from stress.subjects.subject import Subject
from stress.swarm.child import LOOPBACK

SUBJECTS = ("reference", *PEERS)

# Of a list that a sentence may hold: all faults and scenarios, a few of the mutants.
MOST_NAMES = 24
MAX_NODES = 64
MAX_SERVERS = 8
MAX_SECONDS = 24 * 3600.0
MAX_JOIN_S = 3600.0
MIN_PORT, MAX_PORT = 1024, 65_535
# Locust's own.
UI_PORT = 8089

# A run's leases are short, so that a fault that outlasts them fits many times into a short run.
LEASE_TTL_MS = 1_500.0
HEARTBEAT_INTERVAL_MS = 300.0
REAP_INTERVAL_MS = 200.0
# Often, so that a reconciler meets claims, ends and late credits.
RECONCILE_INTERVAL_MS = 300.0
MAX_POLL_INTERVAL_MS = 200.0
MAX_DELAY_MS = 4.0
DRAIN_TIMEOUT_MS = 5_000.0
LOCUST_WORKERS = 2

DEFAULT_PORT = 5670


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """A run on several hosts: how many workers there are, and where the master listens for them. Locust's own master
    listens on the next port. `join_seconds`: how long it waits for them."""

    workers: int
    bind: str = LOOPBACK
    port: int = DEFAULT_PORT
    join_seconds: float = 60.0

    @property
    def locust_port(self) -> int:
        """Of Locust's own protocol."""
        return self.port + 1

    def command(self) -> str:
        """The part of the command line that asks for it."""
        words = [f"--master --workers {self.workers}"]
        words += [f"--bind {self.bind}"] if self.bind != LOOPBACK else []
        words += [f"--port {self.port}"] if self.port != DEFAULT_PORT else []
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A checked request. `sources`: where each server comes from, in the order of their shards. `faults` are names in
    the order in which they were given, without repetition; `left_out` says in a sentence each which of `all` this run
    cannot have. `retention_ms`: no node keeps what has ended for longer; None: as the scenario says. `judge_seconds`:
    how long judging may take. `until_violated`: the load ends with the first violation. `ui`: the port of Locust's
    page, None for none. `hosts`: those that nodes and clients run on; None: this machine."""

    sources: tuple[Source, ...]
    seconds: float
    nodes: int
    seed: int
    faults: tuple[str, ...]
    scenario: str
    subject: str
    mutant: str | None
    ui: int | None = None
    left_out: tuple[str, ...] = ()
    retention_ms: float | None = None
    judge_seconds: float = JUDGE_LIMIT_S
    until_violated: bool = False
    hosts: Hosts | None = None

    @property
    def client_processes(self) -> int:
        """How many Locust workers there are: one on each host at least."""
        return LOCUST_WORKERS if self.hosts is None else max(LOCUST_WORKERS, self.hosts.workers)

    def command(self) -> str:
        """The command line that asks for the same again."""
        words = [
            f"--scenario {self.scenario}" if self.subject == "reference" else f"--subject {self.subject}",
            f"--seconds {self.seconds:g}",
            f"--nodes {self.nodes}",
            f"--faults {','.join(self.faults) or 'none'}",
            f"--seed {self.seed}",
            *(asked(place, source) for place, source in enumerate(self.sources)),
        ]
        if self.mutant is not None:
            words.append(f"--mutant {self.mutant}")
        if self.until_violated:
            words.append("--until-violated")
        if self.hosts is not None:
            words.append(self.hosts.command())
        return "nox -s stress -- " + " ".join(words)


def asked(place: int, source: Source) -> str:
    """The words that ask for the server in that place."""
    # Secrets are recorded nowhere: whoever runs it again sets the variable.
    if source.kind == "dsn":
        return f'--pg "dsn:$PGREFEREE_DSN{"" if place == 0 else f"_{place + 1}"}"'
    return f"--pg {source}"


def checked(
    *,
    pg: Sequence[str],
    seconds: float,
    nodes: int,
    seed: int,
    faults: str,
    scenario: str,
    subject: str,
    mutant: str | None,
    judge_seconds: float = JUDGE_LIMIT_S,
    until_violated: bool = False,
    ui: int | None = None,
    hosts: Hosts | None = None,
) -> RunConfig:
    """A `RunConfig`. Raises UsageError with one sentence that says what is possible instead."""
    check_size(seconds, nodes)
    scenario = known("scenario", scenario, SCENARIOS)
    if not 1 <= len(pg) <= MAX_SERVERS:
        raise UsageError(f"--pg must be given 1 to {MAX_SERVERS} times, not {len(pg)}")
    if len(pg) > 1 and not SCENARIOS[scenario].subject.shards:
        able = (name for name, other in SCENARIOS.items() if other.subject.shards)
        raise UsageError(
            f"scenario {scenario!r} runs on one server; --pg may be given several times for: {', '.join(able)}"
        )
    if mutant is not None and not meets(scenario, known("mutant", mutant, REGISTRY)):
        others = ", ".join(name for name in SCENARIOS if meets(name, mutant))
        raise UsageError(f"mutant {mutant!r} breaks nothing of scenario {scenario!r}: use one of {others}")
    sources = tuple(parse_pg(each) for each in pg)
    if hosts is not None:
        _check_hosts(hosts, nodes, sources)
    names, left_out = chosen_faults(faults, sources, SCENARIOS[scenario].subject)
    return RunConfig(
        sources=sources,
        seconds=seconds,
        nodes=nodes,
        seed=seed,
        faults=names,
        scenario=scenario,
        subject=known("subject", subject, SUBJECTS),
        mutant=mutant,
        left_out=left_out,
        judge_seconds=judge_seconds,
        until_violated=until_violated,
        ui=None if ui is None else _free(ui),
        hosts=hosts,
    )


def default_scenario(mutant: str | None) -> str:
    """What a run takes without `--scenario`: one that meets the mutant."""
    return "statechart" if mutant in REGISTRY and not meets("mixed", str(mutant)) else "mixed"


def meets(scenario: str, mutant: str) -> bool:
    """Whether nodes of that scenario run what the mutant breaks: the store and its transport, or the queue."""
    return ("store" in SCENARIOS[scenario].subject.areas) == breaks_the_store(REGISTRY[mutant])


def check_size(seconds: float, nodes: int) -> None:
    """Raises UsageError where a run would be too short, too long, or too large."""
    if not 1 <= seconds <= MAX_SECONDS:
        raise UsageError(f"--seconds must be 1 to {MAX_SECONDS:.0f}, not {seconds:g}")
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"--nodes must be 1 to {MAX_NODES}, not {nodes}")


def _check_hosts(hosts: Hosts, nodes: int, sources: Sequence[Source]) -> None:
    if not 1 <= hosts.workers <= nodes:
        raise UsageError(
            f"--workers must be 1 to {nodes}, as many as there are --nodes: each worker runs one at least"
        )
    if not MIN_PORT <= hosts.port < MAX_PORT:
        raise UsageError(
            f"--port must be {MIN_PORT} to {MAX_PORT - 1}, not {hosts.port}: the next one is used as well"
        )
    if not 1 <= hosts.join_seconds <= MAX_JOIN_S:
        raise UsageError(f"--join-seconds must be 1 to {MAX_JOIN_S:.0f}, not {hosts.join_seconds:g}")
    try:
        ipaddress.IPv4Address(hosts.bind)
    except ValueError:
        raise UsageError(
            f"--bind must be an IPv4 address of this machine, as 10.0.0.5, or 0.0.0.0 for all; not {hosts.bind!r}"
        ) from None
    if any(source.kind == "container" for source in sources):
        raise UsageError(
            "a server in a container of this machine cannot be reached from others: use another --pg with --master"
        )


def _free(port: int) -> int:
    """Raises UsageError for a port that no page can have."""
    if not MIN_PORT <= port <= MAX_PORT:
        raise UsageError(f"--ui must be a port from {MIN_PORT} to {MAX_PORT}, not {port}")
    with socket.socket() as probe:
        # As the page's server does: what was closed a moment ago does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            raise UsageError(f"port {port} is taken; `--ui` with another puts the page elsewhere") from None
    return port


def chosen_faults(
    words: str, sources: Sequence[Source], subject: Subject
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those that are asked for, and why some of `all` are not. Raises UsageError for one that was named."""
    if words == "none":
        return (), ()
    impossible = {
        name: reason
        for name, kind in FAULTS.items()
        if (reason := _why_impossible(kind, sources, subject)) is not None
    }
    if words == "all":
        possible = tuple(name for name, kind in FAULTS.items() if not kind.loses and name not in impossible)
        return possible, tuple(reason for name, reason in impossible.items() if not FAULTS[name].loses)
    names = tuple(dict.fromkeys(known("fault", word.strip(), FAULTS) for word in words.split(",")))
    for name in names:
        if name in impossible:
            raise UsageError(impossible[name])
    return names, ()


def _why_impossible(kind: FaultKind, sources: Sequence[Source], subject: Subject) -> str | None:
    """A sentence, or None."""
    if kind.own_server and any(source.kind == "dsn" for source in sources):
        return f"the fault {kind.name!r} needs a server that the harness started: leave it out, or use another --pg"
    if kind.name in FAILOVERS and any(
        source.kind == "container" or (source.major or OLDEST) < OLDEST for source in sources
    ):
        return (
            f"the fault {kind.name!r} needs Postgres {OLDEST} or newer, for slots that outlive it, in processes of "
            f"this machine: leave it out, or use another --pg"
        )
    if kind.loses and "picker" not in subject.areas:
        return (
            f"the fault {kind.name!r} needs a scenario of the picker: of the store's operations nobody can say which "
            "ones ran on the server that is gone"
        )
    if kind.name in subject.spared:
        return f"the fault {kind.name!r} is done to the reference engine only: leave it out"
    if kind.name == "poison" and subject.poison is None:
        return f"the fault 'poison' needs rows that nobody can run, and the subject {subject.name!r} has none"
    return None


def known(what: str, name: str, names: Iterable[str]) -> str:
    """The name. Raises UsageError, with the one that was probably meant, where it is none of `names`."""
    there = list(names)
    if name in there:
        return name
    close = difflib.get_close_matches(name, there, n=1)
    some = ", ".join(sorted(there)[:MOST_NAMES]) + (" …" if len(there) > MOST_NAMES else "")
    hint = f"did you mean {close[0]!r}?" if close else f"choose from: {some}"
    raise UsageError(f"there is no {what} {name!r}; {hint}")
