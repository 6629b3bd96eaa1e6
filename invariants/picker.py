"""The picker's invariants (claims.md), judged on the ledger at every commit and on the history at rest.

Each class is one rule, in the module of the noun that it is about; `PICKER_RULES` lists them in the order of the
report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from invariants.changes import TABLE, TERMINAL, Columns
from invariants.children import JoinExact
from invariants.contention import ContentionQuiet, NoDeadlock
from invariants.ledger.pgoutput import Row
from invariants.lifecycle import GcSafe, IdentityUnique, Lifecycle, NoLostJob, PokeIsAHint
from invariants.limits import GateCap, QuietLimiter, ShardsWhole, SlotConservation
from invariants.liveness import RateLiveness
from invariants.ownership import BatchIndependence, ConcurrencyExclusion, LeaseRespect, PickOrder, SingleOwner
from invariants.rates import RateBudget
from invariants.rules import Rule, scope
from invariants.signals import NoLostSignal, NoLostWakeup, NoSpin, SignalDedup

__all__ = ["ALWAYS_EXERCISED", "PICKER_RULES", "TABLE", "check_generated", "is_settled"]

PICKER_RULES: Final[tuple[type[Rule], ...]] = (
    SingleOwner, ConcurrencyExclusion, GateCap, SlotConservation, RateBudget, RateLiveness, QuietLimiter,
    IdentityUnique, SignalDedup, NoLostWakeup, NoLostSignal, NoSpin, JoinExact, NoLostJob, Lifecycle, PickOrder,
    LeaseRespect, BatchIndependence, ShardsWhole, GcSafe, ContentionQuiet, NoDeadlock, PokeIsAHint,
)  # fmt: skip

# What every run exercises that runs jobs at all, whatever it declares.
ALWAYS_EXERCISED: Final = frozenset(
    (
        "single-owner", "no-lost-job", "lifecycle", "pick-order", "lease-respect", "batch-independence",
        "contention-quiet", "no-deadlock",
    )
)  # fmt: skip


def is_settled(columns: Columns) -> Callable[[Row], bool]:
    """Which rows are kept packed: terminal ones never change again."""
    status = columns.status
    return lambda row: row[status] in TERMINAL


def check_generated(row: dict[str, str | None]) -> str | None:
    """What is wrong with a row's generated columns, read from the table itself; None when nothing is."""
    key = row["concurrency_key"]
    name = None if key is None else key.split(":", 1)[0]
    if row["concurrency_name"] != name:
        return (
            f"row {row['id']}: concurrency_name is {row['concurrency_name']}, its key {key} makes it {name}"
        )
    occupied = (row["status"] or "").encode() in scope((row["correlation_scope"] or "{}").encode())
    guard = row["correlation_key"] if occupied else None
    if row["correlation_guard"] != guard:
        return (
            f"row {row['id']}: correlation_guard is {row['correlation_guard']}, key and scope make it {guard}"
        )
    return None
