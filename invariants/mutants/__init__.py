"""Mutants: the reference engine with one thing broken, and the invariant that must notice.

A mutant patches statement texts (exact pieces, so that one whose statement has changed fails loudly instead
of testing nothing), the schema, or one protocol step of the processes that the harness starts. The engine
knows nothing of them. `REGISTRY` holds all by name.
"""

from invariants.mutants.mutant import DriftedPatchError, Mutant, Patch, ProtocolStep
from invariants.mutants.picker import PICKER_MUTANTS
from invariants.mutants.store import STORE_MUTANTS
from invariants.mutants.transport import TRANSPORT_MUTANTS

REGISTRY: dict[str, Mutant] = {
    mutant.name: mutant for mutant in (*PICKER_MUTANTS, *STORE_MUTANTS, *TRANSPORT_MUTANTS)
}

__all__ = [
    "PICKER_MUTANTS",
    "REGISTRY",
    "STORE_MUTANTS",
    "TRANSPORT_MUTANTS",
    "DriftedPatchError",
    "Mutant",
    "Patch",
    "ProtocolStep",
]
