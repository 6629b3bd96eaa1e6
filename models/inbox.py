"""The pure model of signals: deliveries, what a step is handed, and waits that time ends (picker.md §3).

Rules:

1. A delivery goes to a row that has not ended, named by its id or by the identity that it occupies; else there is
   no target, and nothing was delivered (`no-lost-signal`).
2. A dedup key is used once per target, for ever: the receipt outlives the signal (`signal-dedup`). A duplicate changes
   nothing and wakes nobody.
3. A row that is parked on the signal's name is runnable from the delivery on (`no-lost-wakeup`). It keeps what it
   awaited, for its step is told.
4. The end of a wait by time is a wake, not a failure: no attempt is counted, nothing is handed over that was not there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from engine.picker import Child, Delivery, Signal, Surroundings
from models.canonical import canonical_json
from models.picker import PendingSignal, Row, Table


def deliver(
    table: Table, now: datetime, target: int | str, name: str, payload: object, dedup_key: str | None
) -> tuple[Table, Delivery]:
    """One signal. `payload` None stands for an empty object."""
    row = _target(table, target)
    if row is None:
        return table, Delivery("no_target")
    if dedup_key is not None and (row.id, dedup_key) in table.receipts:
        return table, Delivery("duplicate", row.id)
    text = canonical_json({} if payload is None else payload)
    signal = PendingSignal(table.next_signal_id, row.id, name, text, dedup_key, now)
    table = replace(
        table,
        signals={**table.signals, signal.id: signal},
        next_signal_id=signal.id + 1,
        receipts=table.receipts if dedup_key is None else table.receipts | {(row.id, dedup_key)},
    )
    if row.status != "awaiting_signal" or name not in (row.awaits or ()):
        return table, Delivery("delivered", row.id, signal.id)
    return table.changed([_woken(row, now)]), Delivery("delivered", row.id, signal.id, row.queue)


def delivery_locks(table: Table, target: int | str) -> frozenset[int]:
    """The row whose lock a delivery waits for."""
    row = _target(table, target)
    return frozenset() if row is None else frozenset({row.id})


def surroundings(table: Table, row_id: int) -> Surroundings:
    """What a step of this row is handed, its JSON canonical."""
    return Surroundings(
        tuple(Signal(signal.id, signal.name, signal.payload) for signal in table.inbox(row_id)),
        tuple(
            Child(row.id, row.fsm, row.status, row.state, row.result, row.last_error)
            for row in table.children(row_id)
        ),
    )


def expire_awaits(
    table: Table, now: datetime, limit: int, locked: Collection[int] = ()
) -> tuple[Table, tuple[Row, ...]]:
    """Wake up to `limit` rows whose wait has ended, longest ended first; those woken, by id."""
    expired = [
        (row.await_deadline, row.id)
        for row in table.rows.values()
        if row.status == "awaiting_signal"
        and row.await_deadline is not None
        and row.await_deadline <= now
        and row.id not in locked
    ]
    woken = [_woken(table.rows[row_id], now) for _, row_id in sorted(expired)[:limit]]
    return table.changed(woken), tuple(sorted(woken, key=lambda row: row.id))


def _target(table: Table, target: int | str) -> Row | None:
    if isinstance(target, int):
        found = table.rows.get(target)
    else:
        found = next((row for row in table.rows.values() if row.correlation_guard == target), None)
    return found if found is not None and found.live else None


def _woken(row: Row, now: datetime) -> Row:
    return replace(row, status="runnable", await_deadline=None, updated_at=now)
