"""The areas of the engine, each with its rules: what a run may be about.

A run says which areas it is about (`Evidence.areas`). A judge holds the rules of all: one of another area has a say
where something was subject to it after all, and is `not_exercised` otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Final

import msgspec

from invariants.picker import ALWAYS_EXERCISED, PICKER_RULES
from invariants.rules import Rule, Watcher
from invariants.store import STORE_ALWAYS, STORE_RULES
from invariants.transport import TRANSPORT_ALWAYS, TRANSPORT_RULES


@cache
def _names(rules: tuple[type[Rule], ...]) -> frozenset[str]:
    return frozenset(rule.name for rule in rules)


class Area(msgspec.Struct, frozen=True):
    """Rules in the order of the report, and the names of those that every run of the area exercises."""

    rules: tuple[type[Rule], ...]
    always: frozenset[str]

    def expects(self, rule: str, exercises: Collection[str] | None) -> bool:
        """Whether a run of this area that declares these must have something subject to that rule; one that declares
        nothing must have it for every rule."""
        return rule in _names(self.rules) and (exercises is None or rule in exercises or rule in self.always)


AREAS: Final[dict[str, Area]] = {
    "picker": Area(PICKER_RULES, ALWAYS_EXERCISED),
    "store": Area(STORE_RULES, STORE_ALWAYS),
    "transport": Area(TRANSPORT_RULES, TRANSPORT_ALWAYS),
}
# Rules that need no columns of the picker's table.
STORED_RULES: Final[tuple[type[Watcher], ...]] = (*STORE_RULES, *TRANSPORT_RULES)
RULES: Final[tuple[type[Rule], ...]] = tuple(rule for area in AREAS.values() for rule in area.rules)
