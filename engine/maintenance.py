"""What a node does beside running steps: take back what its earlier self left, delete what has long ended (picker.md
§3). The reaper and the await expiry are operations of the picker.

Rules:

1. Every sweep takes at most `limit` rows in an order of its own, skips what another session has locked, and so waits
   for nobody: sweeps of many nodes share the work.
2. A sweep that fails, or a node that never sweeps, loses nothing: the next one finds the same rows.
3. Only the server's clock decides, as everywhere.

Each function returns an `Operation` for `engine.operation`'s drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from engine.limiter import Limit
from engine.limits import Limiter
from engine.operation import Operation, call
from engine.picker import BATCH, MAX_LEASE_MS, Ended, Hold
from engine.statements import Catalogue
from engine.values import UnstorableValue, check_text

# Before every instant that a row can carry.
EVER = "-infinity"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the order in which collected rows ended: garbage collection goes on behind it."""

    ended_at: datetime | str = EVER
    id: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """One page of garbage collection.

    `ids` were deleted, by transaction `xid`. `looked_at` counts the rows of the page, deleted or spared; fewer than the
    limit means that the page was the last. `place` is where the next page begins.
    """

    ids: tuple[int, ...]
    xid: int | None
    looked_at: int
    place: Place


class NodeLimiter(Limiter, Protocol):
    """What a node needs of a limiter beyond what its scheduler asks of it: to set it up, and to keep it right."""

    @property
    def limits(self) -> Sequence[Limit]:
        """What is configured."""

    def sync_config(self) -> Operation[Any]:
        """Write down what is configured, before the first claim."""

    def reconcile(self, limit: int) -> Operation[Any]:
        """Recompute gate counters from the rows that execute."""

    def sweep_buckets(self, limit: int) -> Operation[Any]:
        """Drop rate buckets that are full, idle or without a config."""


class Maintenance:
    """The sweeps, bound to one catalogue of statements."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self._sql = Catalogue.load() if catalogue is None else catalogue

    def reclaim(
        self, *, prefixes: Sequence[str], session: str, sessions: str, margin_ms: float, limit: int
    ) -> Operation[Ended]:
        """Take back up to `limit` claims of an earlier process of this node: runnable, one attempt more.

        `prefixes`: what its claims' names begin with, `<instance>:<queue>@<node>-`. `session`: what the names of this
        process's own database sessions begin with; `sessions`: what those of every process of this node begin with.
        `margin_ms`: a lease that has longer to live is left alone. Nothing is taken while a session of another process
        of this node is open.
        """
        _check_prefixes([*prefixes, sessions])
        if not session.startswith(sessions):
            raise UnstorableValue(f"session {session!r} does not begin with {sessions!r}")
        if not 0 <= margin_ms <= MAX_LEASE_MS:
            raise UnstorableValue(f"margin_ms must be from 0 to a hundred years, not {margin_ms}")
        _check_limit(limit)
        rows = yield call(
            self._sql["maintenance/reclaim"], list(prefixes), float(margin_ms), limit, session, sessions
        )
        return Ended(tuple(Hold(row[0], row[1]) for row in rows), int(rows[0][2]) if rows else None)

    def collect(self, *, retention_ms: float, limit: int, after: Place | None = None) -> Operation[Collected]:
        """Delete what may go of the next `limit` rows that have been terminal for `retention_ms`.

        Two statements, one when nothing may go. `after`: the place of the page before.
        """
        if not 0 <= retention_ms <= MAX_LEASE_MS:
            raise UnstorableValue(f"retention_ms must be from 0 to a hundred years, not {retention_ms}")
        _check_limit(limit)
        place = Place() if after is None else after
        page = yield call(
            self._sql["maintenance/gc_select"], float(retention_ms), limit, place.ended_at, place.id
        )
        if page:
            place = Place(page[-1][1], page[-1][0])
        candidates = [row[0] for row in page if row[2]]
        if not candidates:
            return Collected((), None, len(page), place)
        rows = yield call(self._sql["maintenance/gc_delete"], candidates)
        ids = tuple(sorted(row[0] for row in rows))
        return Collected(ids, int(rows[0][1]) if rows else None, len(page), place)


def _check_prefixes(prefixes: Sequence[str]) -> None:
    for prefix in prefixes:
        check_text("prefix", prefix)
        if not prefix.endswith("-"):
            raise UnstorableValue(f"prefix {prefix!r} does not end in the hyphen that ends a node's name")


def _check_limit(limit: int) -> None:
    value: object = limit
    if not isinstance(value, int) or isinstance(value, bool) or value not in BATCH:
        raise UnstorableValue(f"limit must be an integer within 0 and {BATCH.stop - 1}, not {limit!r}")
