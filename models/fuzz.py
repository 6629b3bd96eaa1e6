"""Fuzzing under a time budget: run the machines in rounds, each with a seed of its own, until the time is up.

A round is a fixed number of examples, so a round is repeated by its seed, as far as Hypothesis allows: it also draws
constants of the modules that are loaded. The seed of the first round is the run's, each later one is greater by one. A
violation ends its machine; Hypothesis shrinks it as far as the budget allows. What cannot be decided is `unknown`,
never `held`: no example in the budget, a server that failed, a machine that broke for a reason of its own.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import count
from typing import Literal

import psycopg
from hypothesis import HealthCheck, seed, settings
from hypothesis.errors import Flaky, HypothesisException
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from engine.picker import Picker
from engine.statements import Catalogue
from models.coordination_machine import coordination_machine
from models.limiter_machine import limiter_machine
from models.machine import OutOfTime, Tally, picker_machine
from models.sessions import Sessions
from models.store_machine import on_postgres, on_shards, on_sqlite
from models.strategies import START
from models.transport_machine import on_transport

Verdict = Literal["held", "violated", "unknown"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How much is tried: `seconds` by default, `round_examples` a round, at most `example_steps` in an example."""

    seconds: float
    round_examples: int
    example_steps: int


PROFILES: Mapping[str, Profile] = {
    # The command is to end within two minutes, the starting and the stopping of a server included.
    "ci": Profile(seconds=100, round_examples=50, example_steps=30),
    "nightly": Profile(seconds=3600, round_examples=200, example_steps=80),
}

MachineFactory = Callable[[Sessions, Tally, Catalogue | None], type[RuleBasedStateMachine]]

# Machines by the name of what they hold against its model, and the instant at which their clock starts.
MACHINES: Mapping[str, tuple[MachineFactory, datetime]] = {
    "picker": (picker_machine, START),
    "coordination": (coordination_machine, START),
    "limiter": (limiter_machine, START),
}

Binding = Callable[[Tally], type[RuleBasedStateMachine]]

# Machines that open what they are held against themselves.
OPENED: Mapping[str, Callable[[str, Catalogue | None, Sequence[str]], AbstractContextManager[Binding]]] = {
    "store": on_postgres,
    "store-sqlite": on_sqlite,
    "store-sharded": on_shards,
    "transport": on_transport,
}
NAMES = (*MACHINES, *OPENED)
# The innermost frames that are told of a machine that broke.
TRACED_FRAMES = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """What one machine found. `seed` is the last round's; `evidence` is for a person to read.

    `found_after_s` is when the first failing example was seen; what follows is shrinking.
    """

    machine: str
    verdict: Verdict
    reason: str
    steps: int
    examples: int
    seconds: float
    seed: int
    evidence: str = ""
    found_after_s: float | None = None


def fuzz(
    machine: str,
    dsn: str,
    *,
    seconds: float,
    seed: int,
    profile: Profile = PROFILES["ci"],
    catalogue: Catalogue | None = None,
    schema: Sequence[str] = (),
    shrink_seconds: float = float("inf"),
    rounds: int | None = None,
    pickers: Callable[[Catalogue | None], Picker] = Picker,
) -> Finding:
    """Run one machine on an empty database for about `seconds`, `shrink_seconds` of them at most on a smaller example.

    `rounds` ends it earlier: so many rounds are the same work on a slow machine and on a fast one.

    `catalogue` puts other statements in the place of the engine's; `schema` are run after its migrations; `pickers`
    makes the picker that the machine `coordination` works with.

    Raises ValueError for a database that is not empty, and psycopg.OperationalError where it cannot be reached at the
    start.
    """
    with _bound(machine, dsn, catalogue, schema, pickers) as bound:
        return fuzz_bound(
            machine,
            bound,
            seconds=seconds,
            seed=seed,
            profile=profile,
            shrink_seconds=shrink_seconds,
            rounds=rounds,
        )


def bind(
    machine: str,
    sessions: Sessions,
    catalogue: Catalogue | None,
    pickers: Callable[[Catalogue | None], Picker] = Picker,
) -> Binding:
    """Binds a machine of `MACHINES` to sessions that are open already, and may serve one machine after the other."""
    factory, _ = MACHINES[machine]
    if factory is coordination_machine:
        factory = partial(coordination_machine, picker=pickers)
    return lambda tally: factory(sessions, tally, catalogue)


def fuzz_bound(
    machine: str,
    bound: Binding,
    *,
    seconds: float,
    seed: int,
    profile: Profile = PROFILES["ci"],
    shrink_seconds: float = float("inf"),
    rounds: int | None = None,
) -> Finding:
    """As `fuzz`, of a machine that is bound already."""
    began = time.monotonic()
    tally = Tally(deadline=began + seconds, shrink_seconds=shrink_seconds)
    for done in count(1):
        verdict, reason, evidence = _round(bound(tally), tally, seed, profile)
        spent = time.monotonic() - began
        if verdict != "held" or spent >= seconds or done == rounds:
            found = None if tally.first_failure is None else tally.first_failure - began
            return Finding(
                machine, verdict, reason, tally.steps, tally.examples, spent, seed, evidence, found
            )
        seed += 1
    raise AssertionError("unreachable: the loop ends by returning")


@contextmanager
def _bound(
    machine: str,
    dsn: str,
    catalogue: Catalogue | None,
    schema: Sequence[str],
    pickers: Callable[[Catalogue | None], Picker],
) -> Iterator[Binding]:
    if machine in OPENED:
        with OPENED[machine](dsn, catalogue, schema) as binding:
            yield binding
        return
    with Sessions.opened(dsn, MACHINES[machine][1], schema) as sessions:
        yield bind(machine, sessions, catalogue, pickers)


def _round(
    machine: type[RuleBasedStateMachine], tally: Tally, round_seed: int, profile: Profile
) -> tuple[Verdict, str, str]:
    seed(round_seed)(machine)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=profile.round_examples,
                stateful_step_count=profile.example_steps,
                database=None,
                deadline=None,
                derandomize=False,
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except (OutOfTime, Flaky) as error:
        # Cut short in the middle of an example, Hypothesis may take the cut itself for a flaky test.
        if tally.shortest_failure:
            # A wrong answer is wrong, also when the same steps went well another time: where rows lie on disk decides
            # between plans and between rows that tie, and no example controls that.
            reason = "the budget ended before the example was small"
            if not tally.out_of_time:
                reason = "the same steps did not fail when they were repeated"
            return "violated", reason, "\n".join(tally.shortest_failure)
        if not tally.out_of_time:
            return "unknown", f"Hypothesis saw another run than before: {error}", ""
        if not tally.examples:
            return "unknown", "no example was finished in the budget", ""
        return "held", "", ""
    except psycopg.OperationalError as error:
        return "unknown", f"the server failed: {error}", "\n".join(tally.shortest_failure)
    except HypothesisException as error:
        return "unknown", f"Hypothesis gave up: {error}", ""
    except Exception as error:  # noqa: BLE001  # an operation may fail with anything; the example tells
        if not tally.shortest_failure:
            # No fault of the engine's: whoever mends the machine needs to know where.
            trace = "".join(traceback.format_exception(error, limit=-TRACED_FRAMES))
            return "unknown", f"the machine itself broke: {type(error).__name__}: {error}", trace
        notes = "\n".join(getattr(error, "__notes__", ()))
        return "violated", f"{type(error).__name__}: {error}", notes or "\n".join(tally.shortest_failure)
    return "held", "", ""
