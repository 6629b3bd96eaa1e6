"""How a mutant enters a process that the harness starts: its catalogue, and its way of naming claims."""

from __future__ import annotations

from collections.abc import Callable

from engine.limiter import Limit, PostgresLimiter
from engine.maintenance import Maintenance
from engine.node import ClaimNames
from engine.picker import Picker
from engine.policy import NodePolicy
from engine.relay import AsyncStoreRelay
from engine.relay.handover import Handover
from engine.statements import Catalogue
from engine.transport.queue import Queue
from invariants.mutants import REGISTRY
from invariants.mutants.handover import across_of, handover_of
from invariants.mutants.protocol import limiter_of, maintenance_of, picker_of


def picker_for(mutant: str | None) -> Picker:
    """A picker over the sound catalogue, or over the mutant's."""
    return picker_of(None if mutant is None else REGISTRY[mutant])


def limiter_for(mutant: str | None, limits: tuple[Limit, ...]) -> PostgresLimiter | None:
    """A limiter over the same catalogue, where there is something to limit."""
    if not limits:
        return None
    return limiter_of(None if mutant is None else REGISTRY[mutant], limits)


def maintenance_for(mutant: str | None) -> Maintenance:
    """The sweeps over the same catalogue."""
    return maintenance_of(None if mutant is None else REGISTRY[mutant])


def claim_names_for(mutant: str | None, policy: NodePolicy) -> Callable[[str], str]:
    """Names of claims; under the protocol step `claims-named-by-worker` a worker's claims all share one name."""
    names = ClaimNames(policy)
    if mutant is None or "claims-named-by-worker" not in REGISTRY[mutant].protocol:
        return names.next
    workers: dict[str, str] = {}

    def name_by_worker(queue: str) -> str:
        if queue not in workers:
            workers[queue] = names.next(queue)
        return workers[queue]

    return name_by_worker


def catalogue_for(mutant: str | None) -> Catalogue:
    """The sound statements, or the mutant's."""
    catalogue = Catalogue.load()
    return catalogue if mutant is None else REGISTRY[mutant].apply(catalogue)


def queue_for(mutant: str | None) -> Queue:
    """The transport's operations over those statements."""
    return Queue(catalogue_for(mutant))


def handover_for(mutant: str | None) -> Handover:
    """The relay's, as the mutant takes its steps."""
    return handover_of(None if mutant is None else REGISTRY[mutant])


def across_for(mutant: str | None) -> Callable[..., AsyncStoreRelay]:
    """The relay's between databases."""
    return AsyncStoreRelay if mutant is None else across_of(REGISTRY[mutant])
