"""How a mutant enters a process that the harness starts: its catalogue, and its way of naming claims."""

from __future__ import annotations

from collections.abc import Callable

from invariants.mutants import MUTANTS, Mutant

from engine.node import ClaimNames
from engine.picker import Picker
from engine.policy import NodePolicy
from engine.statements import Catalogue


def picker_for(mutant: str | None) -> Picker:
    """A picker over the sound catalogue, or over the mutant's."""
    return Picker() if mutant is None else Picker(MUTANTS[mutant].apply(Catalogue.load()))


def claim_names_for(mutant: str | None, policy: NodePolicy) -> Callable[[str], str]:
    """Names of claims; under the protocol mutant `worker-not-claim` a worker's claims all share one name."""
    names = ClaimNames(policy)
    if mutant is None or "claim-named-by-worker" not in _protocol(MUTANTS[mutant]):
        return names.next
    per_queue: dict[str, str] = {}
    return lambda queue: per_queue.setdefault(queue, names.next(queue))


def _protocol(mutant: Mutant) -> frozenset[str]:
    return mutant.protocol
