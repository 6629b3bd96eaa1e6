"""Puts every ablated text on trial, in several processes, and says what is open."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

from engine.errors import UsageError
from engine.postgres import Server, Stopped, fresh_database, provision
from engine.schema import migrate
from engine.statements import AREAS, Catalogue
from invariants.verdict import Verdict
from results.runs import write_json
from stress.mutants.ablation import CONSTRAINTS, Variant, of_functions, of_schema, of_statements, untouched
from stress.mutants.pool import Lost, Pool
from stress.mutants.progress import Bar
from stress.mutants.redundancy import reasons
from stress.mutants.trial import QUICK, STAGES, Ground, Patience, Stage, Trial, try_variant

STATEMENT_AREAS: Final = (
    "picker",
    "limiter",
    "maintenance",
    "store",
    "relay",
    "transport",
    "client",
    "pokes",
)


@dataclass(slots=True)
class Ablation:
    """All trials. `explained`: by variant, the reviewed reason."""

    variants: Sequence[Variant]
    explained: dict[str, str]
    trials: dict[str, Trial] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def open(self) -> list[Trial]:
        """Neither noticed nor explained."""
        free = {variant.name for variant in self.variants if variant.kind == "nothing"} | set(self.explained)
        return [t for t in self.trials.values() if t.outcome != "caught" and t.variant not in free]

    @property
    def control(self) -> list[Trial]:
        """Of the statements and functions as they are."""
        sound = {variant.name for variant in self.variants if variant.kind == "nothing"}
        return [t for t in self.trials.values() if t.variant in sound]

    @property
    def accused(self) -> list[Trial]:
        """A statement as it is was said to be broken."""
        return [trial for trial in self.control if trial.outcome == "caught"]

    @property
    def doubtful(self) -> list[Trial]:
        """Where nothing could be said of a statement as it is."""
        return [trial for trial in self.control if trial.outcome == "unknown"]

    @property
    def wrongly_explained(self) -> list[Trial]:
        """Said to show nothing, and noticed."""
        return [t for t in self.trials.values() if t.outcome == "caught" and t.variant in self.explained]

    @property
    def verdict(self) -> Verdict:
        """Violated: something survived that nobody has explained, or a sound statement was accused. Unknown: it could
        not be tried to the end."""
        if self.accused or any(trial.outcome == "survived" for trial in self.open):
            return "violated"
        return "unknown" if self.open or self.doubtful or self.interrupted else "held"

    def figures(self) -> dict[str, Any]:
        """Counts; of what is taken out, and beside it of what is `sound`."""
        sound = {variant.name for variant in self.variants if variant.kind == "nothing"}
        trials = [trial for trial in self.trials.values() if trial.variant not in sound]
        stages = Counter(trial.stage for trial in trials if trial.outcome == "caught")
        return {
            "variants": len(self.variants) - len(sound),
            "tried": len(trials),
            "caught": sum(stages.values()),
            "caught_by_stage": {str(stage): count for stage, count in stages.most_common()},
            "explained": sum(t.variant in self.explained for t in trials if t.outcome != "caught"),
            "open": len(self.open),
            "kinds": dict(Counter(variant.kind for variant in self.variants)),
            "sound": {"variants": len(sound), "tried": len(self.control), "accused": len(self.accused)},
            "seconds": round(self.seconds, 1),
        }


def variants_within(connection: psycopg.Connection[Any]) -> list[Variant]:
    """All that may be taken out. The database has the whole schema."""
    found = list(of_schema(connection.execute(CONSTRAINTS.encode()).fetchall()))
    found += of_functions()
    statements = of_statements(Catalogue.load(), dict.fromkeys(STATEMENT_AREAS))
    return found + sorted(statements, key=lambda one: STATEMENT_AREAS.index(one.where.partition("/")[0]))


def open_ground(server: Server, stack: ExitStack) -> Ground:
    """What a worker has."""
    return Ground(server, stack)


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to try."""

    variant: Variant
    patience: Patience
    stages: tuple[Stage, ...]


def work(ground: Ground, task: Task) -> Trial:
    """Runs in a worker."""
    ground.patience = task.patience
    try:
        return try_variant(ground, task.variant, task.stages)
    except Exception as error:  # noqa: BLE001  # a crash is `unknown`, never `caught`
        ground.forget()
        return _undecided(task.variant, f"{type(error).__name__}: {error}"[:300])


def _undecided(variant: Variant, doubt: str) -> Trial:
    return Trial(variant=variant.name, digest=variant.digest, outcome="unknown", doubts=(doubt,))


def variants_of(pg: str, *, control: bool) -> list[Variant]:
    """All that may be taken out, and with `control` every statement as it is. Starts a server for a moment."""
    with (
        provision(pg) as server,
        fresh_database(server) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        for area in AREAS:
            migrate(connection, area)
        found = variants_within(connection)
    return [*found, *(untouched(Catalogue.load(), dict.fromkeys(STATEMENT_AREAS)) if control else ())]


def settled(variants: Sequence[Variant], earlier: Path, anew: Sequence[str]) -> dict[str, Trial]:
    """By variant, an earlier run's trials that need no other: of the same text, and caught, or explained, or of what is
    sound and noticed by nothing.

    `anew`: not of these places. Raises UsageError where the file is no run's `ablation.json`.
    """
    try:
        trials = msgspec.convert(msgspec.json.decode(earlier.read_bytes())["trials"], list[Trial])
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise UsageError(f"{earlier} is no ablation.json of a run: {type(error).__name__}") from None
    digests = {variant.name: variant.digest for variant in variants if variant.where not in anew}
    sound = {variant.name for variant in variants if variant.kind == "nothing"}
    quiet = sound | reasons(variants).keys()
    return {
        t.variant: t
        for t in trials
        if digests.get(t.variant) == t.digest
        and (
            (t.outcome == "caught" and t.variant not in sound)
            or (t.outcome == "survived" and t.variant in quiet)
        )
    }


def ablate(
    variants: Sequence[Variant],
    patience: Patience,
    *,
    workers: int,
    pg: str,
    folder: Path,
    quiet: bool,
    known: Mapping[str, Trial] | None = None,
) -> Ablation:
    """Try them, but for those of which a trial is `known`. `folder` gets `ablation.json`, anew after every trial.

    Raises InfrastructureError.
    """
    explained = dict(reasons(variants))
    ablation = Ablation(variants, explained, dict(known or {}))
    tasks = [
        Task(variant, patience, QUICK if variant.name in explained else tuple(STAGES))
        for variant in variants
        if variant.name not in ablation.trials
    ]
    began = time.monotonic()
    try:
        with (
            Pool(min(workers, max(1, len(tasks))), pg, open_ground, work) as pool,
            Bar(len(tasks), quiet) as bar,
        ):
            for task, answer in pool.answers(tasks):
                trial = answer
                if isinstance(answer, Lost | Exception):
                    trial = _undecided(task.variant, answer.why if isinstance(answer, Lost) else str(answer))
                ablation.trials[task.variant.name] = trial
                ablation.seconds = time.monotonic() - began
                write(ablation, folder)
                bar.step(task.variant.where)
    except (Stopped, KeyboardInterrupt):
        ablation.interrupted = True
    return ablation


def told(ablation: Ablation) -> Iterator[str]:
    """What is open, and the figures."""
    for trial in ablation.open:
        yield f"{'OPEN' if trial.outcome == 'survived' else 'unknown'}  {trial.variant}"
        yield from (f"        {doubt}" for doubt in trial.doubts)
    for trial in ablation.doubtful:
        yield f"undecided of the sound engine: {trial.variant}: {'; '.join(trial.doubts)}"
    for trial in ablation.accused:
        yield f"THE SOUND ENGINE IS ACCUSED by {trial.stage} ({trial.by}): {trial.variant}"
    for trial in ablation.wrongly_explained:
        yield f"explained as redundant, and noticed by {trial.stage} ({trial.by}): {trial.variant}"
    figures = ablation.figures()
    stages = ", ".join(f"{stage} {count}" for stage, count in figures["caught_by_stage"].items())
    yield (
        f"{figures['tried']} of {figures['variants']} tried: {figures['caught']} caught ({stages}), "
        f"{figures['explained']} explained, {figures['open']} open; {figures['seconds']:.0f} s"
    )
    if sound := figures["sound"]["variants"]:
        yield f"as they are: {figures['sound']['tried']} of {sound} tried, {figures['sound']['accused']} accused"


def write(ablation: Ablation, folder: Path) -> dict[str, Any]:
    verdict = {
        "schema": 1,
        "verdict": ablation.verdict,
        "figures": ablation.figures(),
        "open": [msgspec.to_builtins(trial) for trial in ablation.open],
        "wrongly_explained": [msgspec.to_builtins(trial) for trial in ablation.wrongly_explained],
        "explained": ablation.explained,
        "trials": [msgspec.to_builtins(trial) for trial in ablation.trials.values()],
    }
    write_json(folder / "ablation.json", verdict)
    return verdict
