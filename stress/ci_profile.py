"""`nox -s stress -- --profile ci`: what a pull request can wait for, in less than three minutes on two cores.

Three parts, one after the other, each with a verdict of its own: the queue's scenario `mixed` and the store's scenario
`store`, both under all faults that lose nothing, and a sample of the written races, taken through their schedules. One
seed drives all three. The folder `<time>-ci` holds `verdict.json` (`CiVerdict`) and the folders of the parts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.ci import Files, Outcome
from engine.errors import UsageError
from engine.postgres import Source, Stopped, parse_pg, signals_stop
from invariants.mutants import REGISTRY
from invariants.render import STYLES, print_verdict
from invariants.verdict import EXIT_CODES, overall
from results.runs import VerdictWord, create_run_folder, runs_folder, write_json
from stress.config import RunConfig, asked, checked, known, meets
from stress.display import Display
from stress.judgement import INTERRUPTED

SCENARIOS: Final = ("mixed", "store")
LOAD_S: Final = 12.0
RACES: Final = 16
RACES_S: Final = 25.0
SCHEDULES: Final = 2_000


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of the three. `folder`: its name in the whole's."""

    verdict: VerdictWord
    reason: str | None
    seconds: float
    folder: str
    reproduce: str


class CiVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict.json` of the whole: the worst of the parts, by their names. `seconds`: all in all."""

    schema: int = 1
    profile: str = "ci"
    verdict: VerdictWord
    reason: str | None
    seed: int
    mutant: str | None
    seconds: float
    parts: Mapping[str, Part]
    reproduce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CiRequest:
    """What is asked for. `runs`: the parts that are runs; `races`: those of the sample."""

    pg: str
    source: Source
    seed: int
    mutant: str | None
    runs: tuple[RunConfig, ...]
    races: tuple[str, ...]

    def command(self) -> str:
        """The command line that asks for the same again."""
        words = [
            f"--profile ci --seed {self.seed}",
            asked(0, self.source),
        ]
        if self.mutant is not None:
            words.append(f"--mutant {self.mutant}")
        return "nox -s stress -- " + " ".join(words)


def ci_request(*, pg: tuple[str, ...], nodes: int, seed: int, faults: str, mutant: str | None) -> CiRequest:
    """A checked request; of a broken engine the runs that meet what is broken. Raises UsageError."""
    from stress.schedules.races import ALL

    if len(pg) != 1:
        raise UsageError(f"the profile ci runs on one server: give --pg once, not {len(pg)} times")
    if mutant is not None:
        known("mutant", mutant, REGISTRY)
    runs = tuple(
        checked(
            pg=pg, seconds=LOAD_S, nodes=nodes, seed=seed, faults=faults, scenario=scenario, subject="reference",
            mutant=mutant,
        )
        for scenario in SCENARIOS
        if mutant is None or meets(scenario, mutant)
    )  # fmt: skip
    races = tuple(Random(seed).sample(sorted(ALL), RACES))
    return CiRequest(pg=pg[0], source=parse_pg(pg[0]), seed=seed, mutant=mutant, runs=runs, races=races)


def ci_command(
    request: CiRequest, out: Path | None, *, as_json: bool, quiet: bool, reports: bool, ci: Files
) -> int:
    """Carry it out; the exit status."""
    began = time.monotonic()
    folder = create_run_folder(out or runs_folder(), "ci")
    parts: dict[str, Part] = {}
    outcomes: list[Outcome] = []
    reason = None
    try:
        with signals_stop():
            for name, part, outcome in _parts(request, folder, quiet=quiet, reports=reports):
                parts[name] = part
                outcomes.append(outcome)
    except (KeyboardInterrupt, Stopped):
        reason = INTERRUPTED
    worst = overall(part.verdict for part in parts.values())
    verdict = CiVerdict(
        verdict="unknown" if reason is not None and worst == "held" else worst,
        reason=reason
        or next((f"{name}: {part.reason}" for name, part in parts.items() if part.reason), None),
        seed=request.seed,
        mutant=request.mutant,
        seconds=round(time.monotonic() - began, 3),
        parts=parts,
        reproduce=request.command(),
    )
    write_json(folder / "verdict.json", verdict)
    ci.write(*outcomes)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    elif not quiet:
        _print(verdict, folder)
    return EXIT_CODES[verdict.verdict]


def _parts(
    request: CiRequest, folder: Path, *, quiet: bool, reports: bool
) -> Iterator[tuple[str, Part, Outcome]]:
    """Each as it ends; what was violated is told at once."""
    from results.report.making import tell
    from stress.outcomes import of_run
    from stress.run import run
    from stress.schedules.commands import carry_out
    from stress.schedules.display import print_exploration
    from stress.schedules.explore import Request, default_workers
    from stress.summary import print_summary

    for config in request.runs:
        began = time.monotonic()
        judged = run(config, folder, Display(quiet=quiet))
        if reports:
            tell(judged.folder)
        if not quiet and judged.verdict.verdict != "held":
            print_summary(judged)
        part = Part(
            verdict=judged.verdict.verdict,
            reason=judged.verdict.reason,
            seconds=round(time.monotonic() - began, 3),
            folder=judged.folder.name,
            reproduce=judged.verdict.reproduce,
        )
        yield config.scenario, part, of_run(judged)
        if judged.verdict.reason == INTERRUPTED:
            raise KeyboardInterrupt
    began = time.monotonic()
    wanted = Request(
        names=request.races,
        mutant=request.mutant,
        schedules=SCHEDULES,
        seconds=RACES_S,
        seed=request.seed,
        workers=default_workers(len(request.races)),
    )
    done = carry_out(wanted, request.pg, folder, quiet=quiet)
    if reports:
        tell(done.folder)
    if not quiet and done.exploration.verdict != "held":
        print_exploration(Console(highlight=False), done.exploration)
    part = Part(
        verdict=done.exploration.verdict,
        reason=INTERRUPTED if done.exploration.interrupted else done.outcome.reason,
        seconds=round(time.monotonic() - began, 3),
        folder=done.folder.name,
        reproduce=done.outcome.reproduce,
    )
    yield "explore", part, done.outcome


def _print(verdict: CiVerdict, folder: Path) -> None:
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("part", "verdict", "seconds", "recorded in"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for name, part in verdict.parts.items():
        table.add_row(name, Text(part.verdict, STYLES[part.verdict]), f"{part.seconds:,.0f}", part.folder)
    console.print(table)
    print_verdict(console, verdict.verdict, verdict.reason if verdict.verdict == "unknown" else None)
    console.print(f"recorded in {folder}, after {verdict.seconds:,.0f} s", soft_wrap=True)
    console.print(f"again: {verdict.reproduce}", soft_wrap=True)
