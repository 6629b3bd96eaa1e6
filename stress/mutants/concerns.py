"""Which machines and which races a mutant concerns. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final

from engine.statements import Catalogue
from invariants.mutants import STORE_MUTANTS, TRANSPORT_MUTANTS, Mutant

# Protocol steps that a picker takes, which the machine `coordination` can be given.
PICKERS_STEPS: Final = frozenset(("riders-of-the-stale", "children-after-update", "placeholder-per-value"))
# By the area of a statement, the machines that send it.
MACHINES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "picker": ("coordination", "picker"),
    "limiter": ("limiter",),
    "maintenance": ("coordination",),
    "store": ("store",),
    "transport": ("transport",),
}
STORE_AREAS: Final = frozenset(("store", "relay", "transport"))
# Statements that a claim's machine sees best.
CLAIMS: Final = frozenset(
    f"picker/{name}" for name in ("claim", "release", "reap", "heartbeat", "insert", "insert_many")
)
_TABLES: Final = (
    ("gen_durable_bucket", "limiter"),
    ("gen_durable", "picker"),
    ("signal", "picker"),
    ("transport_", "transport"),
    ("executions", "store"), ("outbox", "store"), ("timers", "store"), ("spawns", "store"), ("trace", "store"),
    ("processed_events", "store"),
)  # fmt: skip


@cache
def callers(function: str) -> frozenset[str]:
    """The statements that call a function of the database, directly or through another."""
    catalogue, texts = Catalogue.load(), _functions()
    calling, new = {function}, {function}
    while new:
        new = {name for name, text in texts.items() if name not in calling and _calls(text, new)}
        calling |= new
    return frozenset(name for name in catalogue if _calls(catalogue[name].text, calling))


def _calls(text: str, functions: Iterable[str]) -> bool:
    return any(re.search(rf"\b{function}\s*\(", text) for function in functions)


@cache
def _functions() -> dict[str, str]:
    """Every function of the schema, by name."""
    return dict(functions_of_schema())


def functions_of_schema() -> Iterator[tuple[str, str]]:
    """Name and text, from `CREATE FUNCTION` to its end, as the last migration has it."""
    from engine.statements import AREAS, load_migrations

    for area in AREAS:
        for migration in load_migrations(area):
            for found in re.finditer(
                r"^CREATE FUNCTION (\w+)\(.*?^\$\$;\n", migration.text, re.DOTALL | re.MULTILINE
            ):
                yield found.group(1), found.group(0)


def statements_of(mutant: Mutant) -> frozenset[str]:
    """The statements that a mutant changes, or whose functions it changes."""
    called = (callers(function) for function in mutant.functions)
    return frozenset(mutant.statements).union(*called)


def breaks_the_store(mutant: Mutant) -> bool:
    """Whether it is the store, its relay or its transport that it breaks, and not the queue."""
    areas = {name.partition("/")[0] for name in statements_of(mutant)}
    return not areas.isdisjoint(STORE_AREAS) or mutant in (*STORE_MUTANTS, *TRANSPORT_MUTANTS)


def machines_of(mutant: Mutant) -> tuple[str, ...]:
    """The machines that may find it, the best first; none where it breaks what no machine does."""
    steps = mutant.protocol - PICKERS_STEPS
    statements = statements_of(mutant)
    if steps and not statements:
        return ()
    areas = [name.partition("/")[0] for name in sorted(statements)]
    if mutant.protocol & PICKERS_STEPS:
        areas.append("picker")
    for text in mutant.schema:
        areas += [area for table, area in _TABLES if table in text][:1]
    found = dict.fromkeys(machine for area in areas for machine in MACHINES_OF.get(area, ()))
    if statements and statements <= CLAIMS:
        found = dict.fromkeys(("picker", *found))
    return tuple(found)
