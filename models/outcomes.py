"""The pure model of what outcomes do: the flush, its riders, and inline continuation (picker.md §4).

Rules:

1. An outcome takes effect while its claim holds the row at its turn, whole, or it is stale and nothing of it does: no
   row, no inbox, no parent, no child (`single-owner`). What shares a flush is independent (`batch-independence`), but
   for one thing: children are inserted before any row changes, so an identity that the same flush gives up is still
   occupied for them.
2. A parent waits for the children that landed, not for those it asked for. It counts what of them has not ended, well
   or not, and wakes when that is zero; where none landed it goes on at once (`join-exact`).
3. A park looks at its inbox once more: a signal that it awaits and that its step was not handed wakes it
   (`no-lost-wakeup`). One that the step was handed does not: it looked at that and parked all the same (`no-spin`).
4. What goes on consumes exactly the signals that it names; what ends drops its whole inbox (`no-lost-signal`). Receipts
   stay (`signal-dedup`).
5. A continuation keeps its claim and takes the next turn; whatever comes of an earlier turn is stale. It never holds a
   K = 1 key that it did not have: its key stays, goes, or is a gate's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from engine.limits import PROVISIONAL_SHARD
from engine.picker import ENDS, Commit, Hold, Status
from models.canonical import canonical_text
from models.picker import Ended, Row, Table, by_id, by_key, insert, milliseconds, moved

_Owned = Sequence[tuple[Row, Commit]]


def flush(table: Table, now: datetime, commits: Sequence[Commit]) -> tuple[Table, Ended]:
    """Commit outcomes. The claims so ended or continued; the others were stale and changed nothing.

    No two commits may carry the same row and claim.
    """
    owned = [
        (row, commit)
        for commit in commits
        if (row := table.owned(Hold(commit.id, commit.claim))) is not None and row.turn == commit.turn
    ]
    table, landed = _spawned(table, now, owned)
    counts = Counter(child.parent_id for child in landed)
    table = table.changed(_committed(row, now, commit, counts[row.id]) for row, commit in owned)
    table = _without_what_was_read(table, owned)
    table, joined = _joined(table, now, owned)
    table, rechecked = _rechecked(table, now, owned)
    return table, Ended(
        by_id(Hold(commit.id, commit.claim) for _, commit in owned),
        by_key(row.slot for row, commit in owned if commit.kind != "continue" or _rekeyed(row, commit)),
        frozenset(row.queue for row in (*landed, *joined, *rechecked)),
    )


def flush_locks(table: Table, commits: Sequence[Commit]) -> frozenset[int]:
    """The rows whose locks a flush waits for: those that the claims still hold, and the parents of those that end.

    What is stale already waits for nobody; what is stale only by its turn does.
    """
    held = [
        (row, commit) for commit in commits if (row := table.owned(Hold(commit.id, commit.claim))) is not None
    ]
    parents = {row.parent_id for row, commit in held if commit.kind in ENDS and row.parent_id is not None}
    return frozenset({row.id for row, _ in held} | parents)


def _spawned(table: Table, now: datetime, owned: _Owned) -> tuple[Table, list[Row]]:
    """The children of all parents, in the order of their identities, those without one last; and those that landed."""
    children = [(job, row.id) for row, commit in owned for job in commit.children]
    landed = []
    for job, parent_id in sorted(
        children, key=lambda child: (child[0].correlation_key is None, child[0].correlation_key or "")
    ):
        table, child_id = insert(table, now, job, parent_id)
        if child_id is not None:
            landed.append(table.rows[child_id])
    return table, landed


def _committed(row: Row, now: datetime, commit: Commit, landed: int) -> Row:
    status: Status
    attempt, eligible_at = 0, row.eligible_at
    awaits, deadline, pending = None, None, row.children_pending
    match commit.kind:
        case "next":
            status = "runnable"
        case "retry":
            status, attempt, eligible_at = "runnable", row.attempt + 1, now + milliseconds(commit.delay_ms)
            awaits = row.awaits
        case "done":
            status, attempt = "done", row.attempt
        case "stop":
            status, attempt = "failed", row.attempt
        case "await":
            status, awaits = "awaiting_signal", commit.awaits
            deadline = None if commit.timeout_ms is None else now + milliseconds(commit.timeout_ms)
        case "childs":
            status, pending = "awaiting_children" if landed else "runnable", landed
        case "continue":
            status = "executing"
    after = replace(
        moved(row, now, status),
        turn=0,
        attempt=attempt,
        eligible_at=eligible_at,
        step=row.step if commit.step is None else commit.step,
        state=row.state if commit.state is None else canonical_text(commit.state),
        result=row.result if commit.result is None else canonical_text(commit.result),
        last_error=row.last_error if commit.error is None else commit.error,
        rate_limit=commit.rate_limit if commit.sets_rate else row.rate_limit,
        weight=commit.weight if commit.sets_rate else row.weight,
        concurrency_key=commit.concurrency_key if commit.sets_key else row.concurrency_key,
        awaits=awaits,
        await_deadline=deadline,
        children_pending=pending,
    )
    if commit.kind != "continue":
        return after
    shard = row.concurrency_shard
    if _rekeyed(row, commit):
        shard = PROVISIONAL_SHARD if commit.gated else None
    return replace(
        after,
        locked_by=row.locked_by,
        lease_expires_at=now + milliseconds(commit.lease_ms),
        turn=row.turn + 1,
        concurrency_shard=shard,
    )


def _rekeyed(row: Row, commit: Commit) -> bool:
    return commit.sets_key and (
        commit.concurrency_key is None or commit.concurrency_key != row.concurrency_key
    )


def _without_what_was_read(table: Table, owned: _Owned) -> Table:
    ended = {row.id for row, commit in owned if commit.kind in ENDS}
    consumed = {(row.id, signal_id) for row, commit in owned for signal_id in commit.consumed}
    signals = {
        signal.id: signal
        for signal in table.signals.values()
        if signal.target_id not in ended and (signal.target_id, signal.id) not in consumed
    }
    return replace(table, signals=signals)


def _joined(table: Table, now: datetime, owned: _Owned) -> tuple[Table, list[Row]]:
    """Children that ended counted off their parents, and the parents that woke."""
    ended = Counter(row.parent_id for row, commit in owned if commit.kind in ENDS)
    woken = []
    for parent_id, count in ended.items():
        if parent_id is None:
            continue
        parent = table.rows[parent_id]
        parent = replace(parent, children_pending=parent.children_pending - count, updated_at=now)
        if parent.status == "awaiting_children" and parent.children_pending == 0:
            parent = replace(parent, status="runnable")
            woken.append(parent)
        table = table.changed([parent])
    return table, woken


def _rechecked(table: Table, now: datetime, owned: _Owned) -> tuple[Table, list[Row]]:
    """Parks that did not last, for their inbox held a signal that they await and had not been handed."""
    woken = []
    for parked, commit in owned:
        unseen = {signal.name for signal in table.inbox(parked.id) if signal.id not in commit.presented}
        if commit.kind == "await" and unseen & set(commit.awaits or ()):
            row = table.rows[parked.id]
            woken.append(replace(row, status="runnable", await_deadline=None, updated_at=now))
    return table.changed(woken), woken
