"""All that lies in a folder of results, by kind, and the committed baselines: read for the overview.

A file that cannot be read is a sentence, never the end of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from engine.errors import UsageError
from results.plans import folder as captures
from results.plans.comparing import read_explanations
from results.plans.hazards import hazards
from results.plans.verdict import INVARIANTS, Judged, judge
from results.report import explored, kinds
from results.report.explored import Explored
from results.report.kinds import Kind, kind_of
from results.report.recorded import verdict_of
from results.runs import Verdict

# Newest first.
MOST: Final = 500
# From the cheapest to the dearest, as `nox -s mutants` asks them.
INSTRUMENTS: Final = ("script", "model", "explore", "swarm", "plans")


@dataclass(frozen=True, slots=True)
class Version:
    """The plans of one version: the word on each invariant, in the order of `INVARIANTS`, and how many hazards."""

    version: str
    profile: str
    statements: int
    words: tuple[str, ...]
    hazards: int


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant in the matrix: what each instrument says in a word, and what caught it."""

    mutant: str
    cells: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """What a run of mutants has found: `figures` as it wrote them, and the rows, survivors first."""

    folder: Path
    figures: Mapping[str, Any]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """One contender at one workload: the median of each figure over the repetitions that held, and the worst word."""

    workload: str
    contender: str
    figures: Mapping[str, float]
    repetitions: int
    verdict: str


@dataclass(slots=True)
class Collection:
    """Folders newest first, each with what was read of it. `checks`: of the `ci` profile; `unreadable`: sentences."""

    runs: list[tuple[Path, Verdict]] = field(default_factory=list)
    explorations: list[tuple[Path, Explored]] = field(default_factory=list)
    soaks: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    checks: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    plans: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    mutants: list[tuple[Path, Matrix]] = field(default_factory=list)
    ablations: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    benchmarks: list[tuple[Path, tuple[Standing, ...]]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show, not even something that cannot be read."""
        kept = (self.runs, self.explorations, self.soaks, self.checks, self.plans, self.mutants)
        return not any((*kept, self.ablations, self.benchmarks, self.unreadable))


def collect(folder: Path) -> Collection:
    """Everything below a folder of results."""
    found = Collection()
    readers: Mapping[Kind, tuple[list[Any], Callable[[Path], Any]]] = {
        "run": (found.runs, verdict_of),
        "exploration": (found.explorations, explored.read),
        "soak": (found.soaks, lambda path: kinds.read(path / kinds.VERDICT)),
        "ci": (found.checks, lambda path: kinds.read(path / kinds.VERDICT)),
        "plans": (found.plans, lambda path: kinds.read(path / kinds.VERDICT)),
        "mutants": (found.mutants, matrix),
        "ablation": (found.ablations, lambda path: kinds.read(path / "ablation.json")),
        "benchmark": (found.benchmarks, standings),
    }
    for each in sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)[:MOST]:
        try:
            kind = kind_of(each)
            if kind is not None:
                shelf, read = readers[kind]
                shelf.append((each, read(each)))
        except UsageError as error:
            found.unreadable.append(str(error))
    return found


def matrix(folder: Path) -> Matrix:
    """Of a run of mutants. Raises UsageError."""
    verdict = kinds.read(folder / kinds.VERDICT)
    try:
        rows = [
            Row(name, tuple(_cell(told["seen"], each) for each in INSTRUMENTS), _by(told["seen"]))
            for name, told in verdict["mutants"].items()
        ]
        return Matrix(folder, dict(verdict["figures"]), tuple(sorted(rows, key=lambda row: bool(row.by))))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder} is no run of mutants: {type(error).__name__}: {error}") from None


def _cell(seen: Sequence[Mapping[str, Any]], instrument: str) -> str:
    """The seconds to the catch, the slowest seed's; or what became of it. Empty: never asked."""
    mine = [one for one in seen if one["instrument"] == instrument]
    caught = [one for one in mine if one["sight"] == "caught"]
    if mine and len(caught) == len(mine):
        return f"{max(float(one.get('seconds', 0.0)) for one in caught):.1f} s"
    if caught:
        return f"{len(caught)} of {len(mine)}"
    words = {one["sight"] for one in mine}
    return next((word for word in ("unknown", "held", "apart") if word in words), "")


def _by(seen: Sequence[Mapping[str, Any]]) -> str:
    """What caught it first: the instrument, and the invariants. Empty where nothing did."""
    first = next((one for one in seen if one["sight"] == "caught"), None)
    return (
        "" if first is None else f"{first['instrument']}: {', '.join(first.get('by', ()))}".removesuffix(": ")
    )


def standings(folder: Path) -> tuple[Standing, ...]:
    """Of a benchmark: {"samples": [{"workload", "contender", "figures": {name: number}, "verdict"}]}. Raises
    UsageError."""
    told = kinds.read(folder / "bench.json")
    by_contender: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    try:
        for sample in told["samples"]:
            by_contender.setdefault((sample["workload"], sample["contender"]), []).append(sample)
        return tuple(
            Standing(workload, contender, _medians(samples), len(samples), _worst(samples))
            for (workload, contender), samples in by_contender.items()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{folder} is no benchmark: {type(error).__name__}: {error}") from None


def _medians(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the repetitions that held, of all where none did."""
    held = [sample for sample in samples if sample.get("verdict") == "held"] or samples
    names = dict.fromkeys(name for sample in held for name in sample["figures"])
    return {
        name: median(float(sample["figures"][name]) for sample in held if name in sample["figures"])
        for name in names
    }


def _worst(samples: Sequence[Mapping[str, Any]]) -> str:
    words = {sample.get("verdict", "unknown") for sample in samples}
    return next((word for word in ("violated", "unknown", "held") if word in words), "unknown")


def versions(folder: Path) -> Iterator[Version]:
    """The captures in a folder of majors, each held against its shapes and against the version before it. Raises
    UsageError."""
    explanations = read_explanations(folder / "explanations.toml")
    before = None
    for major in sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal()):
        capture = captures.read(folder / str(major))
        judged = judge([Judged(capture, others=[] if before is None else [before])], explanations)
        words = {each.invariant: each.verdict for each in judged.invariants}
        yield Version(
            capture.environment.version,
            capture.environment.profile.name,
            len(capture.statements),
            tuple(words[name] for name in INVARIANTS),
            len(list(hazards(capture))),
        )
        before = capture
