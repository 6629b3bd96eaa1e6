"""What a run of somebody else's system is asked for: checked at the front door, before a server starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.errors import UsageError
from engine.postgres import parse_pg
from invariants.folder import JUDGE_LIMIT_S
from stress.config import RunConfig, check_size, chosen_faults
from stress.subjects.loading import NoSubject, load
from stress.subjects.subject import Subject

# For those parts of the machinery that ask a subject of the harness's own kind.
OWN: Final = Subject(
    name="own", areas=(), node="", user="", unfinished="", waiting="", spared=("skew", "pool", "poison")
)
SCENARIO: Final = "own"


def checked_own(
    *,
    pg: Sequence[str],
    seconds: float,
    nodes: int,
    seed: int,
    faults: str,
    scenario: str | None,
    subject: str,
    mutant: str | None,
    python: str | None,
    judge_seconds: float = JUDGE_LIMIT_S,
) -> RunConfig:
    """A `RunConfig`. `python`: the interpreter that the system runs in, None: this one, which is asked at once whether
    there is such a class. Raises UsageError with one sentence that says what is possible instead."""
    check_size(seconds, nodes)
    if len(pg) != 1:
        raise UsageError("a system of your own runs on one server: give --pg once")
    for what, value in (("--scenario", scenario), ("--mutant", mutant)):
        if value is not None:
            raise UsageError(f"{what} is for the reference engine: leave it out, or leave --subject out")
    if python is not None and shutil.which(python) is None:
        raise UsageError(f"there is no interpreter {python!r}")
    place = subject.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise UsageError(f"there is no file {place}")
    if python is None:
        try:
            load(subject)
        except NoSubject as error:
            raise UsageError(str(error)) from error
    sources = tuple(parse_pg(each) for each in pg)
    names, left_out = chosen_faults(faults, sources, OWN)
    return RunConfig(
        sources=sources,
        seconds=seconds,
        nodes=nodes,
        seed=seed,
        faults=names,
        scenario=SCENARIO,
        subject=subject,
        mutant=None,
        left_out=left_out,
        judge_seconds=judge_seconds,
    )
