"""Takes a script of a mutant, or of the sound engine in its place, and says what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from engine.statements import Catalogue
from invariants.mutants import DriftedPatchError, Mutant
from invariants.mutants.protocol import picker_of
from invariants.verdict import Report, Verdict
from stress.scripts import SCRIPTS, TO_REST, store
from stress.scripts.arena import Arena
from stress.scripts.courier import Courier, install
from stress.scripts.depot import Depot
from stress.scripts.forms import FORMS
from stress.scripts.race import Race
from stress.scripts.transport import QUESTIONS

# What a script raises where the engine answers otherwise than the sound one: an operation fails, or brings another
# number of rows than there must be.
_DEPARTS: Final = (psycopg.Error, ValueError)
# What it raises where it cannot be taken: somebody never waits, or never comes to a gate.
_STOPS: Final = (AssertionError, TimeoutError)

MAX_VIOLATIONS: Final = 3


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of it. `violated`: invariants, empty for a question, whose wrong answer is in `evidence`."""

    verdict: Verdict
    violated: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


def has_script(name: str) -> bool:
    """Whether there is a script of that name."""
    return name in SCRIPTS or name in store.SCRIPTS or name in QUESTIONS


def names() -> Iterator[str]:
    """Every script, each once."""
    yield from dict.fromkeys((*SCRIPTS, *store.SCRIPTS, *QUESTIONS))


def take(name: str, mutant: Mutant | None, dsn: str, folder: Path) -> Taken:
    """Take the script of that name on an empty database; what it records goes into `folder`, which must be empty."""
    if name in SCRIPTS:
        return _guarded(lambda: _in_arena(name, mutant, dsn, folder))
    if name in store.SCRIPTS:
        return _guarded(lambda: _in_depot(name, mutant, dsn, folder))
    return _guarded(lambda: _asked(name, mutant, dsn))


def ask_form(name: str, mutant: Mutant | None, dsn: str) -> Taken:
    """Ask the question of that name in `stress.scripts.forms`, on an empty database. Nothing is recorded."""

    def asked() -> Taken:
        with ExitStack() as stack:
            race = Race(dsn, stack)
            for statement in () if mutant is None else mutant.alterations():
                race.rows(statement)
            return _answered(FORMS[name].script(race, picker_of(mutant)), FORMS[name].sound)

    return _guarded(asked)


def _guarded(script: Callable[[], Taken]) -> Taken:
    try:
        return script()
    except DriftedPatchError as error:
        return Taken("unknown", evidence=(f"the script looks for a text that is gone: {error}",))
    except _DEPARTS as error:
        return Taken("violated", evidence=(f"the script broke off: {type(error).__name__}: {error}",))
    except _STOPS as error:
        return Taken("unknown", evidence=(f"the script cannot be taken: {type(error).__name__}: {error}",))


def _in_arena(name: str, mutant: Mutant | None, dsn: str, folder: Path) -> Taken:
    with closing(Arena(dsn, folder, mutant)) as arena:
        SCRIPTS[name](arena)
        return _judged(arena.judge(at_rest=name in TO_REST))


def _in_depot(name: str, mutant: Mutant | None, dsn: str, folder: Path) -> Taken:
    with ExitStack() as stack:
        depot = Depot(dsn, folder, mutant, stack)
        store.SCRIPTS[name](depot)
        return _judged(depot.judge(at_rest=name in store.TO_REST))


def _asked(name: str, mutant: Mutant | None, dsn: str) -> Taken:
    script, right = QUESTIONS[name]
    with ExitStack() as stack:
        courier = Courier(Race(dsn, stack), Catalogue.load())
        install(dsn)
        if mutant is not None:
            courier.break_by(mutant)
        return _answered(script(courier), right)


def _judged(report: Report) -> Taken:
    violated = tuple(j.invariant for j in report.judgements if j.verdict == "violated")
    told = tuple(
        f"{j.invariant}: {violation.summary}"
        for j in report.judgements
        for violation in j.violations[:MAX_VIOLATIONS]
    )
    if violated:
        return Taken("violated", violated, told)
    # What a short script does not exercise is no doubt about what it does.
    doubts = [
        j.reason or "" for j in report.judgements if j.verdict == "unknown" and "raised" in (j.reason or "")
    ]
    return Taken("unknown", evidence=tuple(doubts)) if doubts else Taken("held")


def _answered(answer: object, right: object) -> Taken:
    if answer == right:
        return Taken("held")
    return Taken("violated", evidence=(f"the answer is {answer!r}, not {right!r}",))
