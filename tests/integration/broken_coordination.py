"""Broken forms of signals, children, continuations and sweeps, each one small edit away from the sound text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.integration.broken_picker import Edit

BROKEN_COORDINATION: Mapping[str, tuple[Edit, ...]] = {
    "collects-before-its-time": (
        Edit("maintenance/gc_select", "g.updated_at < now()", "g.updated_at <= now()"),
    ),
    "collects-children-of-the-living": (
        Edit("maintenance/gc_select", "parent.lives IS NULL AND child.stays IS NULL", "child.stays IS NULL"),
    ),
    "consumes-all-of-the-target": (
        Edit(
            "picker/flush_consume", "s.id = c.id AND s.target_id = c.target_id", "s.target_id = c.target_id"
        ),
    ),
    "consumes-what-is-another's": (
        Edit("picker/flush_consume", "s.id = c.id AND s.target_id = c.target_id", "s.id = c.id"),
    ),
    "continue-unfenced": (Edit("picker/flush", "        AND g.turn = o.turn\n", ""),),
    "delivery-says-it-woke": (
        Edit("picker/signal", "CASE WHEN t.parked THEN w.queue END AS woken", "w.queue AS woken"),
    ),
    "drop-forgets-the-failed": (
        Edit(
            "picker/flush_drop",
            "WHERE s.target_id = ANY ($1::bigint[])",
            "WHERE s.target_id = ANY ($1::bigint[])"
            " AND s.target_id IN (SELECT id FROM gen_durable WHERE status = 'done')",
        ),
    ),
    "expiry-forgets-the-awaits": (
        Edit("picker/expire_awaits", "await_deadline = NULL", "await_deadline = NULL, awaits = NULL"),
    ),
    "expires-what-is-not-due": (
        Edit("picker/expire_awaits", "g.await_deadline <= now()", "g.await_deadline < now()"),
    ),
    "join-counts-a-batch-as-one": (Edit("picker/flush_join", "count(*)::integer", "1"),),
    "join-of-the-well-ended": (
        Edit(
            "picker/flush",
            "    o.held_shard,\n    CASE WHEN o.kind IN ('done', 'stop') THEN",
            "    o.held_shard,\n    CASE WHEN o.kind = 'done' THEN",
        ),
    ),
    "reclaim-beside-the-living": (
        Edit("maintenance/reclaim", "        AND (SELECT n.sessions FROM namesake AS n) = 0\n", ""),
    ),
    "reclaim-by-bare-prefix": (
        Edit(
            "maintenance/reclaim",
            "                AND strpos(substr(g.locked_by, length(p.prefix) + 1), '-') = 0\n",
            "",
        ),
    ),
    "reclaim-uncounted": (
        Edit("maintenance/reclaim", "least(g.attempt, 2147483646) + 1", "least(g.attempt, 2147483646)"),
    ),
    "retry-forgets-the-awaits": (Edit("picker/flush", "        WHEN 'retry' THEN g.awaits\n", ""),),
    "scope-reentered-by-a-wake": (
        Edit(
            "picker/flush",
            "WHEN o.kind IN ('await', 'childs') AND o.status <> ALL (g.correlation_scope) THEN '{}'",
            "WHEN false THEN '{}'",
        ),
    ),
    "slot-lost-at-a-new-key": (
        Edit("picker/flush", "(o.kind <> 'continue' OR o.rekeyed)", "o.kind <> 'continue'"),
    ),
    "wakes-by-any-name": (
        Edit(
            "picker/signal",
            "g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits) THEN 'runnable'",
            "g.status = 'awaiting_signal' THEN 'runnable'",
        ),
    ),
}
