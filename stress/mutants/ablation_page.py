"""The page `docs/ablation.md`: what was taken out, who missed it, and what nobody can miss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from stress.mutants.ablating import Ablation
from stress.mutants.ablation import Kind
from stress.mutants.trial import STAGES

KINDS: Final[dict[Kind, str]] = {
    "conjunct": "a conjunct of a WHERE, ON, HAVING or FILTER, at any depth",
    "order": "an ORDER BY of a query",
    "lock": "a lock clause",
    "skip": "SKIP LOCKED",
    "conflict": "an ON CONFLICT",
    "distinct": "a DISTINCT",
    "constraint": "a constraint of a table",
    "not-null": "a NOT NULL",
    "index": "an index",
}


def document(ablation: Ablation, went_on: bool) -> str:
    """The page. `went_on`: with an earlier run's trials."""
    return "\n".join((*_document(ablation, went_on), ""))


def _document(ablation: Ablation, went_on: bool) -> Iterator[str]:
    yield "# Ablation\n"
    yield (
        "What `nox -s ablate` found; written by it (`--document`), do not edit. It takes one thing out of the SQL at a "
        "time and asks the instruments, the cheapest first, whether they miss it: the server itself, changes that the "
        "schema must refuse (`stress/mutants/refusals.py`), situations of the statement (`stress/situations`), the "
        "shapes of plans, the scripts of mutants of the same statement, the models, and the races that send it. "
        "Postgres's own scanner (pglast) says where a clause begins and ends.\n"
    )
    yield (
        "A situation is a few rows that tell the conditions of a statement apart, and what it must answer, leave, wait "
        "for and hold in them, beside another session that has something locked or changed; it is taken under "
        "settings of the planner that give five kinds of plan, for what is right does not depend on one, and where an "
        "order of many rows is at stake, under a hash join that spills to disk. `--where picker/claim` tries one "
        "statement, `--control` the statements and functions as they are too, which nothing may notice, and `--again "
        "ablation.json` goes on with an earlier run. What is tried is counted in examples and schedules, not in "
        "seconds.\n"
    )
    figures = ablation.figures()
    spent = sum(trial.seconds for trial in ablation.trials.values()) - sum(
        t.seconds for t in ablation.control
    )
    yield (
        f"{figures['tried']} of {figures['variants']} tried: {figures['caught']} caught, {figures['explained']} "
        f"explained below, {figures['open']} open. The trials took {spent:.0f} s"
        + (", some of them in an earlier run." if went_on else ".")
        + "\n"
    )
    if sound := figures["sound"]["variants"]:
        yield (
            f"As they are, {figures['sound']['tried']} of {sound} statements and functions met the same instruments, "
            f"each machine, race and script once: {figures['sound']['accused']} were noticed.\n"
        )
    yield from _table(ablation)
    if ablation.open:
        yield "\n## Missed by nothing, and not explained\n"
        yield from (f"- `{trial.variant}` ({trial.outcome})" for trial in ablation.open)
    yield "\n## What nothing can miss\n"
    yield (
        "Reviewed in [redundant.toml](../invariants/mutants/redundant.toml). These meet only the instruments that draw "
        "nothing; where one notices after all, the run says so. An order that is said to stay was looked for in other "
        "plans: on PostgreSQL 13 and 18, a thousand rows each, under 250 settings drawn at random from all that sways "
        "the planner (what `enable_…` takes away, costs, 64 kB of memory, parallel plans, JIT, collapse limits, "
        "generic and custom plans, statistics that are gone or wrong).\n"
    )
    yield "| taken out | why nothing can notice |"
    yield "|---|---|"
    for variant in ablation.variants:
        if variant.name in ablation.explained:
            yield f"| `{_cell(variant.name)}` | {_cell(ablation.explained[variant.name])} |"


def _table(ablation: Ablation) -> Iterator[str]:
    kind_of = {variant.name: variant.kind for variant in ablation.variants}
    seen = Counter((kind_of[t.variant], t.stage) for t in ablation.trials.values() if t.outcome == "caught")
    stages = [stage for stage in STAGES if any(by == stage for _, by in seen)]
    free = {variant.name for variant in ablation.variants if variant.kind == "nothing"}
    open_ = Counter(kind_of[trial.variant] for trial in ablation.open)
    explained = Counter(
        kind_of[trial.variant]
        for trial in ablation.trials.values()
        if trial.outcome != "caught" and trial.variant in ablation.explained.keys() - free
    )
    columns: Sequence[str] = ("how many", *stages, "explained", "open")
    yield f"| taken out | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for kind, told in KINDS.items():
        count = sum(one == kind for one in kind_of.values())
        if count:
            cells = [count, *(seen[kind, stage] for stage in stages), explained[kind], open_[kind]]
            yield f"| {told} | {' | '.join(str(cell or '') for cell in cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
