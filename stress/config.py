"""What a run is asked for: checked once, at the front door, before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import UsageError
from engine.postgres import Source, parse_pg
from invariants.mutants import REGISTRY
from stress.faults import FAULTS
from stress.scenarios import SCENARIOS

SUBJECTS = ("reference",)

MAX_NODES = 64
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
    """A checked request. `faults` are names in the order in which they were given, without repetition."""

    source: Source
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
            # Secrets are recorded nowhere: whoever runs it again sets the variable.
            '--pg "dsn:$PGREFEREE_DSN"' if self.source.kind == "dsn" else f"--pg {self.source}",
        ]
        if self.mutant is not None:
            words.append(f"--mutant {self.mutant}")
        return "nox -s stress -- " + " ".join(words)


def checked(
    *,
    pg: str,
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
    return RunConfig(
        source=parse_pg(pg),
        seconds=seconds,
        nodes=nodes,
        seed=seed,
        faults=_faults(faults),
        scenario=_known("scenario", scenario, SCENARIOS),
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
