"""Relays that hand over in more steps than one, as documented: mutants that no edit of a statement can express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.observer import Observer
from engine.operation import Operation, call
from engine.relay import AsyncStoreRelay, StoreRelay
from engine.relay.handover import Fired, Handover
from engine.statements import Catalogue, Statement
from engine.store import Event
from engine.store.encoding import derived_id
from invariants.mutants.mutant import Mutant

_READ = Statement.parse(
    "relay/read",
    "SELECT o.seq, o.target_id, o.event FROM outbox AS o WHERE o.seq > $1::bigint AND o.target_id IS NOT NULL "
    "ORDER BY o.seq LIMIT $2::bigint",
)
_DUE = Statement.parse(
    "relay/due",
    "SELECT t.execution_id, t.path, t.fire_at FROM timers AS t "
    "WHERE t.fire_at <= coalesce($1::double precision, extract(EPOCH FROM clock_timestamp())) "
    "ORDER BY t.fire_at LIMIT $2::bigint",
)
_FIRE = Statement.parse(
    "relay/fire",
    "WITH gone AS (DELETE FROM timers AS t "
    "WHERE t.execution_id = $1::text AND t.path = $2::text AND t.fire_at = $3::double precision) "
    "INSERT INTO outbox AS o (target_id, event) VALUES ($1::text, json_build_object("
    "'id', concat_ws(':', 'timer', $1::text, $2::text, $3::double precision), 'kind', 'timer', "
    "'payload', json_build_object('path', $2::text, 'fire_at', $3::double precision))::text) RETURNING o.seq",
)


class AcksFirst(Handover):
    """Outbox rows are removed, and then delivered."""

    def move(self, lanes: int, limit: int, first_lane: int) -> Operation[list[int]]:
        """As the relay's, acknowledged first, without lanes."""
        del lanes, first_lane
        rows = yield call(_READ, 0, limit)
        yield call(self._sql["relay/ack"], [row[0] for row in rows])
        if rows:
            yield call(
                self._sql["transport/publish"], [row[1] for row in rows], [row[2] for row in rows], [], None
            )
        return [row[0] for row in rows]


class KeepsCursor(Handover):
    """The relay remembers the last seq that it delivered, and looks behind it."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        super().__init__(catalogue)
        self._last = 0

    def move(self, lanes: int, limit: int, first_lane: int) -> Operation[list[int]]:
        """As the relay's, of the rows behind the cursor, without lanes."""
        del lanes, first_lane
        rows = yield call(_READ, self._last, limit)
        if rows:
            yield call(
                self._sql["transport/publish"], [row[1] for row in rows], [row[2] for row in rows], [], None
            )
            yield call(self._sql["relay/ack"], [row[0] for row in rows])
            self._last = rows[-1][0]
        return [row[0] for row in rows]


class SweepsInSteps(Handover):
    """Due timers are read, then fired one by one, and deleted where `fire_at` still matches."""

    def sweep(self, limit: int, now: float | None) -> Operation[list[Fired]]:
        """As the sweeper's, in steps."""
        fired = []
        for execution_id, path, fire_at in (yield call(_DUE, now, limit)):
            [[seq]] = yield call(_FIRE, execution_id, path, fire_at)
            fired.append(Fired(execution_id, path, fire_at, seq))
        return fired


def handover_of(mutant: Mutant | None) -> Handover:
    """The hand-over of a relay, as the mutant has broken it."""
    if mutant is None:
        return Handover()
    kinds: dict[str, type[Handover]] = {
        "acks-first": AcksFirst,
        "keeps-cursor": KeepsCursor,
        "sweeps-in-steps": SweepsInSteps,
    }
    kind = next((kinds[step] for step in mutant.protocol if step in kinds), Handover)
    return kind(mutant.apply(Catalogue.load()))


class DeletesByInstant(StoreRelay):
    """Due timers are read, their events published, and what is armed for the same instant is deleted, as documented."""

    def sweep(self, now: float) -> int:
        """As the relay's, in three steps and without a commit."""
        token = self._observer.invoke("relay.timers", {})
        due = self._store.due_timers(now, self._batch)
        self._transport.publish_many(
            [
                (
                    execution_id,
                    Event(
                        id=derived_id("timer", execution_id, path, repr(fire_at)),
                        kind="timer",
                        payload={"path": path, "fire_at": fire_at},
                    ),
                )
                for execution_id, path, fire_at in due
            ]
        )
        store: Any = self._store
        for timer in due:
            store.delete_timer(*timer)
        self._observer.complete(token, "ok", {"fired": [list(timer) for timer in due]})
        return len(due)


def store_relay_of(mutant: Mutant | None, store: Any, transport: Any, observer: Observer) -> StoreRelay:
    """A relay through the contracts, as the mutant has broken it."""
    broken = mutant is not None and "deletes-by-instant" in mutant.protocol
    return (DeletesByInstant if broken else StoreRelay)(store, transport, observer=observer)


class _AcksAtReading:
    """A source whose outbox rows are gone when they have been read."""

    def __init__(self, source: Any, store: Any) -> None:
        self._source, self._store = source, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def pending_outbox(self, limit: int) -> Any:
        """As the source's, acknowledged first."""
        rows = await self._source.pending_outbox(limit=limit)
        for seq, _, _ in rows:
            await self._store.ack_outbox(seq)
        return rows


def across_of(mutant: Mutant) -> Callable[..., AsyncStoreRelay]:
    """The relay between databases that this mutant has broken."""
    if "acks-first" not in mutant.protocol:
        return AsyncStoreRelay
    return lambda store, transport, *, source, **options: AsyncStoreRelay(
        store, transport, source=_AcksAtReading(source, store), **options
    )
