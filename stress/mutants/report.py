"""The matrix for a terminal, as Markdown, and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import polars
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.errors import UsageError
from invariants.mutants import PLANS, REGISTRY
from results.runs import write_json
from stress.mutants.matrix import Matrix, Row, by_instrument
from stress.mutants.seen import DRAWING, FULL_SEEDS, INSTRUMENTS, STEPS, Instrument, Seen

CONTROL = "(none: the sound engine)"


def print_matrix(console: Console, matrix: Matrix) -> None:
    """The table, the figures, and what has to be looked at."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("mutant")
    for instrument in INSTRUMENTS:
        table.add_column(instrument, justify="right")
    table.add_column("caught by")
    if matrix.control:
        table.add_row(f"[bold]{CONTROL}[/]", *(_styled(matrix.control_cell(i)) for i in INSTRUMENTS), "")
    for row in matrix.rows.values():
        caught = row.catch
        by = "[bold red]NOTHING[/]" if caught is None else escape(", ".join(caught.by))
        table.add_row(row.mutant, *(_styled(row.cell(i)) for i in INSTRUMENTS), by)
    console.print(table)
    for line in sentences(matrix):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _styled(cell: str) -> str:
    style = {"held": "dim", "apart": "dim", "": "dim", "unknown": "yellow", "VIOLATED": "bold red"}.get(cell)
    return f"[{style}]{escape(cell)}[/]" if style else cell


def sentences(matrix: Matrix) -> Iterator[str]:
    """What the figures are, and what is wrong."""
    figures = matrix.figures()
    yield (
        f"{figures['caught']} of {figures['mutants']} mutants caught; seconds to the catch: median "
        f"{figures['median_s']:.1f}, longest {figures['longest_s']:.1f}; {figures['seconds']:.0f} s in all"
    )
    counts = by_instrument(matrix.rows.values())
    yield "first to catch: " + ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    for name in matrix.survivors:
        row = matrix.rows[name]
        said = [
            f"{seen.instrument}: {seen.sight} {seen.detail}".strip()
            for seen in row.seen
            if seen.sight != "apart"
        ]
        yield f"SURVIVOR {name}: {'; '.join(said) or 'shown to nobody'}"
    for instrument, item in matrix.accused:
        told = "; ".join(matrix.control[instrument, item].evidence)
        yield f"THE SOUND ENGINE IS ACCUSED by {instrument} ({item}): {told}"
    for instrument, item in matrix.undecided:
        yield f"undecided of the sound engine: {instrument} ({item}): {matrix.control[instrument, item].detail}"


def print_evidence(console: Console, row: Row) -> None:
    """All that was seen of one mutant."""
    console.print(f"\n{row.mutant}: {row.summary}", style="bold", highlight=False, markup=False)
    for seen in row.seen:
        head = f"  {seen.instrument}: {seen.sight}"
        if seen.sight != "apart":
            head += f" after {seen.seconds:.2f} s, {seen.steps} {STEPS[seen.instrument]}"
        head += f" (seed {seen.seed})" if seen.seed is not None else ""
        head += f" · {seen.detail}" if seen.detail else ""
        head += f" · {', '.join(seen.by)}" if seen.by else ""
        console.print(head, highlight=False, markup=False, soft_wrap=True)
        for line in seen.evidence:
            for part in line.splitlines():
                console.print(f"      {part}", highlight=False, markup=False, soft_wrap=True)


def document(matrix: Matrix, how: str) -> str:
    """The page `docs/mutants.md`. `how`: the command, the server and the machine."""
    return "\n".join((*_document(matrix, how), ""))


def compared(matrix: Matrix, how: str) -> str:
    """The page `docs/instruments.md`: of a run in which every instrument was asked about every mutant."""
    return "\n".join((*_compared(matrix, how), ""))


def _compared(matrix: Matrix, how: str) -> Iterator[str]:
    rows, everyone = list(matrix.rows.values()), len(REGISTRY) + len(PLANS)
    yield "# The instruments compared\n"
    yield (
        "What `nox -s mutants -- --full` found; written by it, do not edit. [mutants.md](mutants.md) says who is the "
        "first to catch each mutant; here every instrument is asked about every mutant by itself, whatever another has "
        f"seen, and one that draws ({', '.join(sorted(DRAWING))}) over {FULL_SEEDS} seeds. What several catch is seen "
        "from several sides; a `held` says what an instrument is not for, or what it needs luck for.\n"
    )
    yield f"{how}\n"
    if len(rows) < everyone:
        yield f"There are {everyone} mutants; these {len(rows)} were asked about.\n"
    if left := unanswered(matrix):
        yield f"It was interrupted, or could not tell. Still to be asked: {', '.join(left)}.\n"
    yield "| instrument | shown | caught | with every seed | median | the sound engine |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name in INSTRUMENTS:
        shown = [seen for row in rows if (seen := row.of(name)) and seen[0].sight != "apart"]
        caught = [[one for one in seen if one.sight == "caught"] for seen in shown]
        seconds = [one.seconds for each in caught for one in each]
        always = sum(len(each) == len(seen) for each, seen in zip(caught, shown, strict=True))
        yield (
            f"| {name} | {len(shown)} | {sum(map(bool, caught))} | {always} "
            f"| {f'{median(seconds):.1f} s' if seconds else ''} | {matrix.control_cell(name)} |"
        )
    steps = ", ".join(f"{word} ({name})" for name, word in STEPS.items())
    yield ""
    yield (
        "A cell has the seconds to the first catch, the slowest seed's, and the steps until then; of a swarm those of "
        "the whole run, with the nodes' start and the judging to the end. Or it says how many seeds caught it, if not "
        "all did; or `held`, with the steps that were in vain. `apart`: the instrument has nothing to show it to. "
        f"Steps are {steps}.\n"
    )
    yield f"| mutant | {' | '.join(INSTRUMENTS)} | what is broken |"
    yield f"|---|{'---:|' * len(INSTRUMENTS)}---|"
    for row in rows:
        yield f"| `{row.mutant}` | {' | '.join(map(row.full_cell, INSTRUMENTS))} | {row.summary} |"


def unanswered(matrix: Matrix) -> list[str]:
    """What a full run has not come to, with each seed, or could not tell: mutants with their instruments."""
    return [
        f"`{row.mutant}` ({', '.join(left)})"
        for row in matrix.rows.values()
        if (left := [name for name in INSTRUMENTS if not _is_answered(row, name)])
    ]


def _is_answered(row: Row, instrument: Instrument) -> bool:
    seen = row.of(instrument)
    if not seen or any(one.sight == "unknown" for one in seen):
        return False
    return seen[0].sight == "apart" or instrument not in DRAWING or len(seen) >= FULL_SEEDS


def _document(matrix: Matrix, how: str) -> Iterator[str]:
    yield "# Mutants\n"
    yield (
        "What `nox -s mutants` found; written by it, do not edit. A mutant is the engine with one thing broken "
        "(`invariants/mutants/`). It meets the instruments from the cheapest to the dearest until one catches it. A "
        "cell has the seconds to the catch, `held` where the instrument saw nothing, `apart` where it has nothing to "
        "show the mutant to. The first row is the engine as it is, under the same budgets. "
        "[known-bugs.md](known-bugs.md) says which bug of the world each mutant stands for, and "
        "[instruments.md](instruments.md) what each instrument sees by itself.\n"
    )
    yield f"{how}\n"
    for line in sentences(matrix):
        yield f"- {line}"
    yield ""
    yield f"| mutant | {' | '.join(INSTRUMENTS)} | caught by | what is broken |"
    yield f"|---|{'---:|' * len(INSTRUMENTS)}---|---|"
    if matrix.control:
        yield f"| {CONTROL} | {' | '.join(matrix.control_cell(i) for i in INSTRUMENTS)} | | |"
    for row in matrix.rows.values():
        by = "**nothing**" if row.catch is None else ", ".join(row.catch.by)
        yield f"| `{row.mutant}` | {' | '.join(row.cell(i) for i in INSTRUMENTS)} | {by} | {row.summary} |"


def written(matrix: Matrix, folder: Path, about: dict[str, Any], page: str) -> dict[str, Any]:
    """`verdict.json`, `matrix.parquet` (one row an answer) and the page `matrix.md` in the run's folder. Returns the
    first."""
    verdict = {
        "schema": 1,
        "verdict": matrix.verdict,
        **about,
        "figures": matrix.figures(),
        "first_to_catch": by_instrument(matrix.rows.values()),
        "survivors": matrix.survivors,
        "control": [
            {"item": item, **msgspec.to_builtins(seen)} for (_, item), seen in sorted(matrix.control.items())
        ],
        "mutants": {
            row.mutant: {"caught_after_s": row.caught_after_s, "seen": msgspec.to_builtins(row.seen)}
            for row in matrix.rows.values()
        },
    }
    write_json(folder / "verdict.json", verdict)
    cells = [_cell(row.mutant, seen) for row in matrix.rows.values() for seen in row.seen]
    cells += [_cell("", seen, item) for (_, item), seen in matrix.control.items()]
    polars.DataFrame(cells, schema=_COLUMNS).write_parquet(folder / "matrix.parquet")
    (folder / "matrix.md").write_text(page, encoding="utf-8")
    return verdict


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run to go on with: what was found, the seed, the mutants it was limited to, none means all, and whether each
    instrument was to say something of each."""

    matrix: Matrix
    seed: int
    only: tuple[str, ...]
    full: bool


def read(file: Path) -> Earlier:
    """The run of a `verdict.json`. Raises UsageError where it is none."""
    try:
        verdict = msgspec.json.decode(file.read_bytes())
        rows = {
            name: Row(
                name, (REGISTRY.get(name) or PLANS[name]).summary, msgspec.convert(told["seen"], list[Seen])
            )
            for name, told in verdict["mutants"].items()
            if name in REGISTRY or name in PLANS
        }
        control = {}
        for told in verdict["control"]:
            item = told.pop("item")
            seen = msgspec.convert(told, Seen)
            control[seen.instrument, item] = seen
        only = tuple(name for name in verdict.get("only", ()) if name in rows)
        matrix = Matrix(rows, control, float(verdict["figures"]["seconds"]))
        return Earlier(matrix, int(verdict["seed"]), only, bool(verdict.get("full")))
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{file} is no verdict of a run of mutants: {type(error).__name__}") from None


_COLUMNS: dict[str, Any] = {
    "mutant": polars.String, "kind": polars.String, "item": polars.String, "instrument": polars.String,
    "sight": polars.String, "seconds": polars.Float64, "steps": polars.Int64, "seed": polars.Int64, "by": polars.String,
}  # fmt: skip


def _cell(mutant: str, seen: Seen, item: str = "") -> dict[str, Any]:
    kind = (
        "control" if not mutant else "plan" if mutant in PLANS else "invariant" if mutant in REGISTRY else "?"
    )
    return {
        "mutant": mutant, "kind": kind, "item": item, "instrument": seen.instrument, "sight": seen.sight,
        "seconds": seen.seconds, "steps": seen.steps, "seed": seen.seed, "by": ", ".join(seen.by),
    }  # fmt: skip
