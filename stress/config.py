"""What a run is asked for: checked once, at the front door, before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import UsageError
from engine.postgres import Source, parse_pg
from invariants.mutants import REGISTRY
from stress.faults import FAULTS
from stress.scenarios import SCENARIOS

SUBJECTS = ("reference",)

MAX_NODES = 64
MAX_SERVERS = 8
MAX_SECONDS = 24 * 3600.0

# A run's leases are short, so that a fault that outlasts them fits many times into a short run.
LEASE_TTL_MS = 1_500.0
HEARTBEAT_INTERVAL_MS = 300.0
REAP_INTERVAL_MS = 200.0
MAX_DELAY_MS = 4.0
DRAIN_TIMEOUT_MS = 5_000.0
LOCUST_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A checked request. `sources`: where each server comes from, in the order of their shards. `faults` are names in
    the order in which they were given, without repetition."""

    sources: tuple[Source, ...]
    seconds: float
    nodes: int
    seed: int
    faults: tuple[str, ...]
    scenario: str
    subject: str
    mutant: str | None

    def command(self) -> str:
        """The command line that asks for the same again."""
        words = [
            f"--scenario {self.scenario}",
            f"--seconds {self.seconds:g}",
            f"--nodes {self.nodes}",
            f"--faults {','.join(self.faults) or 'none'}",
            f"--seed {self.seed}",
            *(_asked(place, source) for place, source in enumerate(self.sources)),
        ]
        if self.mutant is not None:
            words.append(f"--mutant {self.mutant}")
        return "nox -s stress -- " + " ".join(words)


def _asked(place: int, source: Source) -> str:
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
) -> RunConfig:
    """A `RunConfig`. Raises UsageError with one sentence that says what is possible instead."""
    if not 1 <= seconds <= MAX_SECONDS:
        raise UsageError(f"--seconds must be 1 to {MAX_SECONDS:.0f}, not {seconds:g}")
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"--nodes must be 1 to {MAX_NODES}, not {nodes}")
    scenario = _known("scenario", scenario, SCENARIOS)
    if not 1 <= len(pg) <= MAX_SERVERS:
        raise UsageError(f"--pg must be given 1 to {MAX_SERVERS} times, not {len(pg)}")
    if len(pg) > 1 and not SCENARIOS[scenario].subject.shards:
        able = (name for name, other in SCENARIOS.items() if other.subject.shards)
        raise UsageError(
            f"scenario {scenario!r} runs on one server; --pg may be given several times for: {', '.join(able)}"
        )
    return RunConfig(
        sources=tuple(parse_pg(each) for each in pg),
        seconds=seconds,
        nodes=nodes,
        seed=seed,
        faults=_faults(faults),
        scenario=scenario,
        subject=_known("subject", subject, SUBJECTS),
        mutant=None if mutant is None else _known("mutant", mutant, REGISTRY),
    )


def _faults(words: str) -> tuple[str, ...]:
    if words == "none":
        return ()
    if words == "all":
        return tuple(FAULTS)
    names = [word.strip() for word in words.split(",")]
    return tuple(dict.fromkeys(_known("fault", name, FAULTS) for name in names))


def _known(what: str, name: str, names: Iterable[str]) -> str:
    known = list(names)
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from: {', '.join(sorted(known))}"
    raise UsageError(f"there is no {what} {name!r}; {hint}")
