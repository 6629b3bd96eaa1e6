"""The page `docs/invariants.md`: every invariant with its statement, and the mutants that prove that it can fail. Pure.

`python -m invariants list --markdown` prints it; a test holds the file against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from invariants.areas import AREAS, RECONCILING
from invariants.foreign import OUTSIDE, ROWS
from invariants.foreign_schedules import STATEMENTS
from invariants.mutants import PLANS, REGISTRY
from invariants.plans import PLAN_INVARIANTS
from invariants.rules import Rule

HEAD: Final = """\
# Invariants

What must never happen, one sentence each. This page is written by `python -m invariants list --markdown`.

Each rule is a small state machine in `invariants/` that sees every committed transaction, in commit order, as the
[ledger](formats.md#ledger-pgoutput) has it, and what nodes and clients were told, as their
[histories](histories.md) have it. It answers `held`, `violated` with the transactions that prove it, or `unknown` with
the reason; how often it had something to decide is told as `checked`. What nothing in a run was subject to is
`not exercised`, which is never taken for `held`.

The [mutants](mutants.md) beside a rule are engines that were broken on purpose; a mutant names the rules of which at
least one must be violated.
"""
TITLES: Final[Mapping[str, tuple[str, str]]] = {
    "picker": ("The queue", "Judged in every run of a scenario of the queue."),
    "store": ("The store", "Judged in the scenarios `store` and `statechart`."),
    "transport": ("The transport", "Judged in the scenarios `store` and `statechart`."),
}


def invariants_page() -> str:
    """The whole page, as Markdown."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield HEAD
    for name, area in AREAS.items():
        title, where = TITLES[name]
        yield f"## {title}\n\n{where}\n"
        yield from _table(area.rules)
    yield "## What clients were told\n"
    yield "Judged on the histories alone, so also where a server allows no ledger.\n"
    yield from _table([rule for area in AREAS.values() for rule in area.seen])
    yield "## Told and done\n"
    yield "What histories say, held against what the ledger says.\n"
    yield from _table(RECONCILING)
    yield "## Systems of others\n"
    yield "Judged of any queue ([your system](your-system.md)): from outside, and from the rows of its table.\n"
    yield from _rows((*OUTSIDE.items(), *ROWS.items()))
    yield "Of a schedule of its statements:\n"
    yield from _rows(STATEMENTS.items())
    yield "## Plans\n"
    yield "Judged by `nox -s plans` on captured plans ([plans](plans.md)).\n"
    yield from _rows((name, statement) for name, statement in PLAN_INVARIANTS.items())


def _table(rules: Sequence[type[Rule]]) -> Iterator[str]:
    return _rows((rule.name, rule.statement) for rule in rules)


def _rows(rules: Iterable[tuple[str, str]]) -> Iterator[str]:
    catches = [*REGISTRY.values(), *PLANS.values()]
    yield "| invariant | what it says | mutants |"
    yield "|---|---|---|"
    for name, statement in rules:
        mutants = ", ".join(f"`{mutant.name}`" for mutant in catches if name in mutant.caught_by)
        yield f"| `{name}` | {_cell(statement)} | {mutants} |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
