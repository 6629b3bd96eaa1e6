"""Mutants: the reference engine with one thing broken, and the invariant that must notice.

A mutant patches statement texts (exact pieces, so that one whose statement has changed fails loudly instead
of testing nothing), the schema, or one protocol step of the processes that the harness starts. The engine
knows nothing of them. `REGISTRY` holds by name those that break an invariant, `PLANS` those that break a plan.
"""

from invariants.mutants.coordination import COORDINATION_MUTANTS
from invariants.mutants.limiter import LIMITER_MUTANTS
from invariants.mutants.maintenance import MAINTENANCE_MUTANTS
from invariants.mutants.mutant import DriftedPatchError, Mutant, Patch, ProtocolStep
from invariants.mutants.node import NODE_MUTANTS
from invariants.mutants.picker import PICKER_MUTANTS
from invariants.mutants.plans import FREE_PLANS, KEPT_PLANS, PLANS
from invariants.mutants.store import STORE_MUTANTS
from invariants.mutants.transport import TRANSPORT_MUTANTS

REGISTRY: dict[str, Mutant] = {
    mutant.name: mutant
    for mutants in (
        PICKER_MUTANTS,
        COORDINATION_MUTANTS,
        LIMITER_MUTANTS,
        MAINTENANCE_MUTANTS,
        NODE_MUTANTS,
        STORE_MUTANTS,
        TRANSPORT_MUTANTS,
    )
    for mutant in mutants
}

__all__ = [
    "FREE_PLANS",
    "KEPT_PLANS",
    "PLANS",
    "REGISTRY",
    "STORE_MUTANTS",
    "TRANSPORT_MUTANTS",
    "DriftedPatchError",
    "Mutant",
    "Patch",
    "ProtocolStep",
]
