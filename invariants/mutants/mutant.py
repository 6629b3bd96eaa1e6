"""What a mutant is, and how it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.statements import AREAS, Catalogue, load_migrations

# Steps of the protocol that a node's process takes differently. `claims-named-by-worker`: every claim of a
# node carries one name, the worker's, as in picker.md; the node is given `name_claim` accordingly. The others are
# pickers, limiters and nodes of `invariants/mutants/protocol.py`, relays of `invariants/mutants/handover.py`, or stores
# of `invariants/mutants/stores.py`.
ProtocolStep = Literal[
    "claims-named-by-worker", "riders-of-the-stale", "children-after-update", "placeholder-per-value",
    "serialise-outside-guard", "min-demand-unclamped", "inline-onto-any-key", "admits-before-it-continues",
    "sleep-until-poked",
    "acks-first", "keeps-cursor", "sweeps-in-steps", "deletes-by-instant",
    "emits-apart", "pages-by-offset", "forgets-rollback", "keeps-snapshot", "commits-again",
]  # fmt: skip


class DriftedPatchError(ValueError):
    """A patch whose text is no longer there, or there more than once: the mutant must be written anew."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Replace one piece of a statement. `old` must occur exactly once."""

    old: str
    new: str

    def apply(self, name: str, text: str) -> str:
        """The patched text. Raises DriftedPatchError."""
        found = text.count(self.old)
        if found != 1:
            raise DriftedPatchError(f"{name} holds {self.old!r} {found} times, not once")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken variant.

    `caught_by` names the invariants of which at least one must be violated; `schema` is run after the
    migrations; `functions` are patches of functions in the database, such as `transport_ack`; `protocol` is for the
    harness's node processes to act on.
    """

    name: str
    summary: str
    caught_by: tuple[str, ...]
    statements: Mapping[str, tuple[Patch, ...]] = field(default_factory=dict)
    schema: tuple[str, ...] = ()
    functions: Mapping[str, tuple[Patch, ...]] = field(default_factory=dict)
    protocol: frozenset[ProtocolStep] = frozenset()

    def apply(self, catalogue: Catalogue) -> Catalogue:
        """The catalogue with the mutant's texts. Raises DriftedPatchError, KeyError for an unknown
        statement."""
        texts = {}
        for name, patches in self.statements.items():
            text = catalogue[name].text
            for patch in patches:
                text = patch.apply(name, text)
            texts[name] = text
        return catalogue.patched(texts)

    def alterations(self) -> tuple[str, ...]:
        """What is to be run in a migrated database: `schema`, and the patched functions. Raises DriftedPatchError,
        KeyError for an unknown function."""
        replaced = []
        for name, patches in self.functions.items():
            text = _definition(name)
            for patch in patches:
                text = patch.apply(name, text)
            replaced.append(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1))
        return (*self.schema, *replaced)


def _definition(name: str) -> str:
    """A function as the last migration that has it makes it."""
    start, end = f"CREATE FUNCTION {name}(", "\n$$;\n"
    for area in AREAS:
        for migration in reversed(load_migrations(area)):
            _, found, rest = migration.text.partition(start)
            if found:
                return start + rest[: rest.index(end)] + end
    raise KeyError(name)
