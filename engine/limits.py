"""What a limiter is to the rest of the engine: the interface, and the values that cross it (picker.md §3, "admit").

The scheduler claims, then asks the limiter which of the claimed rows may start, and gives the others back. The flusher
tells the limiter which slots a committed batch freed. Neither knows where the limiter keeps its counters.

Rules that an implementation may rely on:

1. `admit` is asked only for rows that a committed claim or a committed inline continuation holds, so its stamp never
   lands on a row that another claim owns (picker.md §4, "the guarded commit always precedes admit").
2. `credit` is asked only after the commit that freed the slots, once per batch, with the id of that transaction, and
   never for a row that was denied: its provisional shard was never debited.
3. Where a process dies in between, a slot stays taken until `reconcile`; no slot is ever given twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from engine.operation import Operation
    from engine.picker import Claimed


class Slot(NamedTuple):
    """One place in a gate: the concurrency key and the counter shard that it was drawn from."""

    key: str
    shard: int


# What `concurrency_shard` holds from the claim to the admission: out of the K = 1 arbiter, and no slot yet. Not 0,
# which is a real shard: nobody could tell a row that holds a slot from one that only asks (docs/findings.md, "a
# provisional shard is a real one").
PROVISIONAL_SHARD = -1


@dataclass(frozen=True, slots=True)
class Refusal:
    """A claimed row that no wait will ever let start, and why: an unknown limit, or a weight above the burst."""

    row: Claimed
    reason: str


@dataclass(frozen=True, slots=True)
class Admission:
    """What a limiter answered: rows that may start, with the shard that was stamped on them, and rows that may not.

    `contended`: how many times a race for a counter was lost on the way. `refused`: those of the denied that only a
    change of the configuration will help. Given back like the others they would be claimed again at once, in silence
    and ahead of rows that may start; the caller ends them with a retry after a delay, and the reason as their error.
    """

    admitted: tuple[Claimed, ...]
    denied: tuple[Claimed, ...]
    contended: int = 0
    refused: tuple[Refusal, ...] = ()


class Limiter(Protocol):
    """A limiter's operations. The engine's own is `engine.limiter`."""

    @property
    def gates(self) -> Sequence[str]:
        """Names of the configured gates: a concurrency key of such a name is not a K = 1 key."""

    def admit(self, rows: Sequence[Claimed]) -> Operation[Admission]:
        """Draw a slot and tokens for each row that needs them, in pick order.

        A row whose `concurrency_key` is None needs no slot, even where the stored row has a key: an inline step that
        keeps its slot asks for tokens only.
        """

    def credit(self, slots: Sequence[Slot], freed_by: int) -> Operation[Any]:
        """Give back slots that were freed by the transaction of that id (`Ended.xid`)."""

    def renew(self, slots: Sequence[Slot]) -> Operation[Any]:
        """Say that these slots are still used."""

    def sync_config(self) -> Operation[Any]:
        """Make the configured limits known; before the first claim."""

    def reconcile(self, limit: int) -> Operation[Any]:
        """Count the gates' slots anew, `limit` keys in a transaction."""

    def sweep_buckets(self, limit: int) -> Operation[Any]:
        """Drop up to `limit` counters that nobody needs, and mend those whose configuration changed."""
