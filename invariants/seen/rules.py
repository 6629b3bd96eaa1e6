"""The rules of the clients' view by area, in the order of the report."""

from __future__ import annotations

from typing import Final

from invariants.rules import Watcher
from invariants.seen.limits import SeenExclusion, SeenGateCap, SeenRateBudget
from invariants.seen.ownership import SeenExecuted, SeenSingleOwner
from invariants.seen.signals import SeenSignals
from invariants.seen.store import SeenCasChain, SeenEffectOnce, SeenGroupExclusive, SeenOutbox

SEEN_OF_PICKER: Final[tuple[type[Watcher], ...]] = (
    SeenSingleOwner, SeenExecuted, SeenExclusion, SeenGateCap, SeenRateBudget, SeenSignals,
)  # fmt: skip
SEEN_OF_STORE: Final[tuple[type[Watcher], ...]] = (SeenCasChain, SeenEffectOnce, SeenOutbox)
SEEN_OF_TRANSPORT: Final[tuple[type[Watcher], ...]] = (SeenGroupExclusive,)
