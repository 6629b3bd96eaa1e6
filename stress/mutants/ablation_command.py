"""`python -m stress ablate`: take one thing out of the SQL at a time, and see who notices."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import psycopg
from rich.console import Console

from engine.errors import UsageError
from engine.postgres import Server, Stopped, fresh_database, provision, signals_stop
from engine.schema import migrate
from engine.statements import AREAS, Catalogue
from invariants.verdict import EXIT_CODES, Verdict
from results.runs import create_run_folder, runs_folder, write_json
from stress.mutants.ablation import CONSTRAINTS, Variant, of_functions, of_schema, of_statements
from stress.mutants.command import Bar
from stress.mutants.pool import Lost, Pool
from stress.mutants.redundancy import reasons
from stress.mutants.trial import EXPLORE_S, MODEL_S, Ground, Patience, Trial, try_variant

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
        return [t for t in self.trials.values() if t.outcome != "caught" and t.variant not in self.explained]

    @property
    def wrongly_explained(self) -> list[Trial]:
        """Said to show nothing, and noticed."""
        return [t for t in self.trials.values() if t.outcome == "caught" and t.variant in self.explained]

    @property
    def verdict(self) -> Verdict:
        """Violated: something survived that nobody has explained. Unknown: it could not be tried to the end."""
        if any(trial.outcome == "survived" for trial in self.open):
            return "violated"
        return "unknown" if self.open or self.interrupted else "held"

    def figures(self) -> dict[str, Any]:
        """Counts."""
        stages = Counter(t.stage for t in self.trials.values() if t.outcome == "caught")
        return {
            "variants": len(self.variants),
            "tried": len(self.trials),
            "caught": sum(stages.values()),
            "caught_by_stage": {str(stage): count for stage, count in stages.most_common()},
            "explained": sum(
                t.variant in self.explained for t in self.trials.values() if t.outcome != "caught"
            ),
            "open": len(self.open),
            "kinds": dict(Counter(variant.kind for variant in self.variants)),
            "seconds": round(self.seconds, 1),
        }


def variants_of(connection: psycopg.Connection[Any]) -> list[Variant]:
    """All that may be taken out. The database has the whole schema."""
    found = list(of_statements(Catalogue.load(), dict.fromkeys(STATEMENT_AREAS)))
    found += of_functions()
    return found + list(of_schema(connection.execute(CONSTRAINTS.encode()).fetchall()))


def open_ground(server: Server, stack: ExitStack) -> Ground:
    """What a worker has."""
    return Ground(server, stack)


def work(ground: Ground, task: tuple[Variant, Patience]) -> Trial:
    """Runs in a worker."""
    variant, ground.patience = task
    try:
        return try_variant(ground, variant)
    except Exception as error:  # noqa: BLE001  # a crash is `unknown`, never `caught`
        ground.forget()
        doubt = f"{type(error).__name__}: {error}"[:300]
        return Trial(variant=variant.name, outcome="unknown", doubts=(doubt,))


@click.command("ablate")
@click.option(
    "--where",
    "places",
    multiple=True,
    metavar="NAME",
    help="A statement, a function or a table; default: all.",
)
@click.option(
    "--again",
    type=click.Path(path_type=Path, exists=True),
    help="Only what that run's ablation.json has open.",
)
@click.option("--list", "list_", is_flag=True, help="List what would be taken out, and end.")
@click.option("--model-seconds", type=click.FloatRange(min=0.1), default=MODEL_S, show_default=True)
@click.option("--explore-seconds", type=click.FloatRange(min=0.1), default=EXPLORE_S, show_default=True)
@click.option("--workers", type=click.IntRange(1, 32), default=None, help="Default: one a core, at most 4.")
@click.option("--pg", default="embedded", show_default=True, metavar="SPEC", help="Which Postgres.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the run's folder goes.")
@click.option("--json", "as_json", is_flag=True, help="The verdict on standard output, nothing else.")
@click.option("--quiet", is_flag=True, help="No progress, no table.")
@click.pass_context
def ablate_command(
    context: click.Context,
    places: tuple[str, ...],
    again: Path | None,
    list_: bool,
    model_seconds: float,
    explore_seconds: float,
    workers: int | None,
    pg: str,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Take one thing out of the SQL at a time: a conjunct, a lock, an order, a constraint; and see who notices.

    \b
        nox -s ablate                               everything: some hundred variants
        nox -s ablate -- --where picker/claim       one statement

    Exit status: 0 everything was noticed or is explained in invariants/mutants/redundant.toml, 1 something was not,
    2 wrong usage, 3 no Postgres, 4 unknown.
    """
    with (
        signals_stop(),
        provision(pg) as server,
        fresh_database(server) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        for area in AREAS:
            migrate(connection, area)
        variants = variants_of(connection)
    known = {variant.where for variant in variants}
    for place in places:
        if place not in known:
            raise UsageError(f"nothing can be taken out of {place!r}; --list shows where something can")
    if again is not None:
        left = {trial["variant"] for trial in msgspec.json.decode(again.read_bytes())["open"]}
        variants = [variant for variant in variants if variant.name in left]
    variants = [variant for variant in variants if not places or variant.where in places]
    if list_:
        for variant in variants:
            click.echo(variant.name)
        context.exit(0)
    ablation = Ablation(variants, dict(reasons(variants)))
    workers = min(4, os.cpu_count() or 1) if workers is None else workers
    folder = create_run_folder(out or runs_folder(), "ablate")
    began = time.monotonic()
    tasks = [(variant, Patience(model_seconds, explore_seconds)) for variant in variants]
    with signals_stop():
        try:
            with (
                Pool(min(workers, max(1, len(tasks))), pg, open_ground, work) as pool,
                Bar(len(tasks), quiet) as bar,
            ):
                for (variant, _), answer in pool.answers(tasks):
                    trial = answer
                    if isinstance(answer, Lost | Exception):
                        why = answer.why if isinstance(answer, Lost) else str(answer)
                        trial = Trial(variant=variant.name, outcome="unknown", doubts=(why,))
                    ablation.trials[variant.name] = trial
                    ablation.seconds = time.monotonic() - began
                    _write(ablation, folder)
                    bar.step(variant.where)
        except (Stopped, KeyboardInterrupt):
            ablation.interrupted = True
    verdict = _write(ablation, folder)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    elif not quiet:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        for line in told(ablation):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"recorded in {folder}\nverdict: {ablation.verdict}", soft_wrap=True)
    context.exit(EXIT_CODES[ablation.verdict])


def told(ablation: Ablation) -> Iterator[str]:
    """What is open, and the figures."""
    for trial in ablation.open:
        yield f"{'OPEN' if trial.outcome == 'survived' else 'unknown'}  {trial.variant}"
        yield from (f"        {doubt}" for doubt in trial.doubts)
    for trial in ablation.wrongly_explained:
        yield f"explained as redundant, and noticed by {trial.stage} ({trial.by}): {trial.variant}"
    figures = ablation.figures()
    stages = ", ".join(f"{stage} {count}" for stage, count in figures["caught_by_stage"].items())
    yield (
        f"{figures['tried']} of {figures['variants']} tried: {figures['caught']} caught ({stages}), "
        f"{figures['explained']} explained, {figures['open']} open; {figures['seconds']:.0f} s"
    )


def _write(ablation: Ablation, folder: Path) -> dict[str, Any]:
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
