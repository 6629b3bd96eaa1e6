"""The areas of the engine, each with its rules: what a run may be about.

A run says which areas it is about (`Evidence.areas`). A judge holds the rules of all: one of another area has a say
where something was subject to it after all, and is `not_exercised` otherwise. So is a rule of the clients' view
(`invariants/seen`) that nothing was subject to.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from invariants.acknowledged import ToldIsDone
from invariants.owners import DoneIsOwned
from invariants.picker import ALWAYS_EXERCISED, PICKER_RULES
from invariants.rules import Rule, Watcher
from invariants.seen.rules import SEEN_OF_PICKER, SEEN_OF_STORE, SEEN_OF_TRANSPORT
from invariants.store import STORE_ALWAYS, STORE_RULES
from invariants.transport import TRANSPORT_ALWAYS, TRANSPORT_RULES


class Area(msgspec.Struct, frozen=True):
    """Rules in the order of the report, and the names of those that every run of the area exercises. `seen`: those of
    the clients' view, which none is asked to exercise."""

    rules: tuple[type[Rule], ...]
    always: frozenset[str]
    seen: tuple[type[Watcher], ...]

    def expects(self, rule: str, exercises: Collection[str] | None) -> bool:
        """Whether a run of this area that declares these must have something subject to that rule; one that declares
        nothing must have it for every rule."""
        if any(each.name == rule for each in RECONCILING):
            return True
        mine = any(each.name == rule for each in self.rules)
        return mine and (exercises is None or rule in exercises or rule in self.always)


AREAS: Final[dict[str, Area]] = {
    "picker": Area(PICKER_RULES, ALWAYS_EXERCISED, SEEN_OF_PICKER),
    "store": Area(STORE_RULES, STORE_ALWAYS, SEEN_OF_STORE),
    "transport": Area(TRANSPORT_RULES, TRANSPORT_ALWAYS, SEEN_OF_TRANSPORT),
}
# Rules that need no columns of the picker's table.
STORED_RULES: Final[tuple[type[Watcher], ...]] = (*STORE_RULES, *TRANSPORT_RULES)
# The clients' view against the database's, in every area.
RECONCILING: Final[tuple[type[Watcher], ...]] = (ToldIsDone, DoneIsOwned)
SEEN_RULES: Final[tuple[type[Watcher], ...]] = tuple(rule for area in AREAS.values() for rule in area.seen)
WATCHERS: Final[tuple[type[Watcher], ...]] = (*STORED_RULES, *SEEN_RULES, *RECONCILING)
RULES: Final[tuple[type[Rule], ...]] = (
    *(rule for area in AREAS.values() for rule in area.rules),
    *SEEN_RULES,
    *RECONCILING,
)
