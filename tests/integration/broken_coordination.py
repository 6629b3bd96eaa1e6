"""Broken forms of signals, children, continuations and sweeps that no invariant has to find: each is a wrong answer or
a wrong row, where the model says what is right."""

from __future__ import annotations

from collections.abc import Mapping

from invariants.mutants import Patch

# By name and statement.
COORDINATION_FORMS: Mapping[str, Mapping[str, tuple[Patch, ...]]] = {
    "collects-before-its-time": {
        "maintenance/gc_select": (Patch("g.updated_at < now()", "g.updated_at <= now()"),)
    },
    "consumes-what-is-another's": {
        "picker/flush_consume": (Patch("    WHERE s.target_id = c.target_id\n", ""),)
    },
    "delivery-says-it-woke": {
        "picker/signal": (Patch("CASE WHEN t.parked THEN w.queue END AS woken", "w.queue AS woken"),)
    },
    "drop-forgets-the-failed": {
        "picker/flush_drop": (
            Patch(
                "WHERE s.target_id = ANY ($1::bigint[])",
                "WHERE s.target_id = ANY ($1::bigint[])"
                " AND s.target_id IN (SELECT id FROM gen_durable WHERE status = 'done')",
            ),
        )
    },
    "expiry-forgets-the-awaits": {
        "picker/expire_awaits": (Patch("await_deadline = NULL", "await_deadline = NULL, awaits = NULL"),)
    },
    "expires-what-is-not-due": {
        "picker/expire_awaits": (Patch("g.await_deadline <= now()", "g.await_deadline < now()"),)
    },
    "join-of-the-well-ended": {
        "picker/flush": (
            Patch(
                "    o.held_shard,\n    CASE WHEN o.kind IN ('done', 'stop') THEN",
                "    o.held_shard,\n    CASE WHEN o.kind = 'done' THEN",
            ),
        )
    },
    "retry-forgets-the-awaits": {"picker/flush": (Patch("        WHEN 'retry' THEN g.awaits\n", ""),)},
    "slot-lost-at-a-new-key": {
        "picker/flush": (Patch("(o.kind <> 'continue' OR o.rekeyed)", "o.kind <> 'continue'"),)
    },
    "wakes-by-any-name": {
        "picker/signal": (
            Patch(
                "g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits) THEN 'runnable'",
                "g.status = 'awaiting_signal' THEN 'runnable'",
            ),
        )
    },
}
