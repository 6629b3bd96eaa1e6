"""The store's and the relay's invariants (claims.md), judged on the ledger at every commit and on the history.

Each class is one rule, in the module of the noun that it is about; `STORE_RULES` lists them in the order of the report.

`boot-race` (any number of processes may create the schema at once) is no rule: a ledger begins when there are tables
to record, so no run shows how they came to be. It is a test, tests/integration/test_schema.py, for every area.
"""

from __future__ import annotations

from typing import Final

from invariants.commits import CasChain, CommitAtomic, ConflictTyped, EffectOnce, UnknownOutcome
from invariants.deliveries import OutboxNoLoss, SpawnOnce
from invariants.endings import ExecutionEnds
from invariants.readings import ListingComplete, ReadFresh, TraceRing
from invariants.rules import Watcher
from invariants.timers import TimerRearm

__all__ = ["STORE_ALWAYS", "STORE_RULES"]

STORE_RULES: Final[tuple[type[Watcher], ...]] = (
    CasChain, CommitAtomic, ConflictTyped, OutboxNoLoss, EffectOnce, TimerRearm, SpawnOnce, TraceRing, ReadFresh,
    ListingComplete, UnknownOutcome, ExecutionEnds,
)  # fmt: skip

# What every run exercises that commits anything, whatever it declares.
STORE_ALWAYS: Final = frozenset(("cas-chain", "commit-atomic"))
