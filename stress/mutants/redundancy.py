"""What may be taken out and nothing shows, with the reason why nothing can: `invariants/mutants/redundant.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

import msgspec

from stress.mutants.ablation import Kind, Variant


class Redundant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reviewed entry: `where`, `kind` and `text` as the variant has them, `nth` where a place has several that read
    alike. `reason`: why nothing can show, for a reader to check."""

    where: str
    kind: Kind
    text: str
    reason: str
    nth: int = 1

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What it is about."""
        return self.where, self.kind, self.text, self.nth


def reviewed() -> Sequence[Redundant]:
    """All entries. Raises msgspec.ValidationError."""
    text = (files("invariants.mutants") / "redundant.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text).get("redundant", []), list[Redundant])


def reasons(variants: Iterable[Variant]) -> Mapping[str, str]:
    """By a variant's name, the reason why it shows nothing."""
    known = {entry.key: entry.reason for entry in reviewed()}
    keys = {variant.name: (variant.where, variant.kind, variant.text, variant.nth) for variant in variants}
    return {name: known[key] for name, key in keys.items() if key in known}


def outdated(variants: Iterable[Variant]) -> list[Redundant]:
    """Entries about what is no longer there."""
    there = {(variant.where, variant.kind, variant.text, variant.nth) for variant in variants}
    return [entry for entry in reviewed() if entry.key not in there]
