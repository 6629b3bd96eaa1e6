"""Mutants of the picker: its design's own history (known-bugs.md, part 1), and documented forms that the reference
engine closed (docs/findings.md)."""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch
from invariants.mutants.plans import HELD_IN_ANY_ORDER

_ONE_IDENTITY: Final = "ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING\n"

PICKER_MUTANTS: Final = (
    Mutant(
        name="outcome-unguarded",
        summary="an outcome commits by the row's id alone, whoever holds the row now",
        caught_by=("single-owner",),
        statements={
            "picker/flush": (
                Patch(
                    "INNER JOIN outcome AS o ON g.id = o.id AND g.locked_by = o.claim\n"
                    "    WHERE g.status = 'executing'\n",
                    "INNER JOIN outcome AS o ON g.id = o.id\n",
                ),
                Patch("    WHERE g.status = 'executing' AND g.locked_by = o.claim\n", ""),
                Patch(
                    "WHERE g.id = o.id AND g.locked_by = o.claim AND g.status::text = 'executing'",
                    "WHERE g.id = o.id",
                ),
            )
        },
    ),
    Mutant(
        name="guard-only-no-arbiter",
        summary="the unique index on executing keys is gone; a claim still looks for an executing sibling",
        caught_by=("k1-exclusion",),
        schema=("DROP INDEX gen_durable_concurrency_active",),
    ),
    Mutant(
        name="identity-unguarded",
        summary="the unique index on identities is gone, and no insert looks for a conflict",
        caught_by=("identity-unique",),
        statements={
            name: (Patch(_ONE_IDENTITY, ""),)
            for name in ("picker/insert", "picker/insert_many", "picker/flush_children")
        },
        schema=("DROP INDEX gen_durable_correlation",),
    ),
    Mutant(
        name="insert-many-unordered",
        summary="a batch is inserted in its caller's order, and two batches meet in opposite orders",
        caught_by=("no-deadlock",),
        statements={"picker/insert_many": (Patch("    ORDER BY i.correlation_key, i.ordinal\n", ""),)},
    ),
    Mutant(
        name="claim-without-key-lock",
        summary="claims meet at the arbiter in whatever order their plans give, as documented, and wait there",
        caught_by=("no-deadlock",),
        statements={
            "picker/claim": (
                Patch(
                    " AND pg_try_advisory_xact_lock(1735681636, hashtext(r.concurrency_key) & 4095)",
                    "",
                ),
            )
        },
    ),
    Mutant(
        name="flush-locks-late",
        summary="a flush changes its first row before it has locked its last, as documented",
        caught_by=("no-deadlock",),
        statements={
            "picker/flush": (
                Patch("    ORDER BY g.id\n    FOR NO KEY UPDATE OF g\n", "    ORDER BY g.id\n"),
            ),
            "picker/release": (Patch("    AND (SELECT count(*) FROM held) > 0\n", ""),),
        },
    ),
    Mutant(
        name="worker-not-claim",
        summary="a claim carries its worker's name, as documented: a row reaped and claimed again by the "
        "same worker has an owner that an old outcome still names",
        caught_by=("single-owner",),
        protocol=frozenset(("claims-named-by-worker",)),
    ),
    Mutant(
        name="scope-reentered",
        summary="an identity given up by a claim is retaken when the row is runnable again, as documented: "
        "the reaper and the flush meet a unique index",
        caught_by=("contention-quiet",),
        statements={
            "picker/claim": (
                Patch(
                    "    correlation_scope = CASE\n"
                    "        WHEN 'executing' = ANY (g.correlation_scope) THEN g.correlation_scope\n"
                    "        ELSE '{}'\n"
                    "    END,\n",
                    "",
                ),
            )
        },
        schema=("ALTER TABLE gen_durable DROP CONSTRAINT gen_durable_scope_from_insert",),
    ),
    Mutant(
        name="maintenance-unordered",
        summary="heartbeat and reaper lock their rows in the order of the plan, and wait for each",
        caught_by=("no-deadlock",),
        statements={
            "picker/heartbeat": (HELD_IN_ANY_ORDER,),
            "picker/reap": (
                Patch("    ORDER BY g.lease_expires_at, g.id\n", ""),
                Patch("    FOR NO KEY UPDATE OF g SKIP LOCKED\n", "    FOR NO KEY UPDATE OF g\n"),
            ),
        },
    ),
    Mutant(
        name="rider-reads-snapshot",
        summary="the riders of a flush act on what was asked, not on what its guarded update returned",
        caught_by=("single-owner",),
        protocol=frozenset(("riders-of-the-stale",)),
    ),
    Mutant(
        name="wake-filtered-in-where",
        summary="a delivery's wake tests the status in its WHERE: it passes over a row that is about to park",
        caught_by=("no-lost-wakeup",),
        statements={
            "picker/signal": (
                Patch(
                    "    WHERE g.id = i.target_id\n",
                    "    WHERE g.id = i.target_id AND g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits)\n",
                ),
            )
        },
    ),
    Mutant(
        name="park-without-recheck",
        summary="a park looks at no inbox after it has parked: a signal that came while its step ran wakes nobody",
        caught_by=("no-lost-wakeup",),
        statements={
            "picker/flush_recheck": (
                Patch(
                    "        g.status = 'awaiting_signal'\n",
                    "        false AND g.status = 'awaiting_signal'\n",
                ),
            )
        },
    ),
    Mutant(
        name="recheck-ignores-presented",
        summary="a park's recheck wakes on the signals that its step was handed, for ever",
        caught_by=("no-spin",),
        statements={
            "picker/flush_recheck": (
                Patch(
                    "NOT EXISTS (SELECT FROM unnest($2::bigint[]) AS h (id) WHERE h.id = s.id)",
                    "$2::bigint[] IS NOT NULL",
                ),
            )
        },
    ),
    Mutant(
        name="recheck-by-watermark",
        summary="a park's recheck wakes only on ids above the greatest that the batch's steps were handed",
        caught_by=("no-lost-wakeup",),
        statements={
            "picker/flush_recheck": (
                Patch(
                    "NOT EXISTS (SELECT FROM unnest($2::bigint[]) AS h (id) WHERE h.id = s.id)",
                    "s.id > coalesce((SELECT max(h.id) FROM unnest($2::bigint[]) AS h (id)), 0)",
                ),
            )
        },
    ),
    Mutant(
        name="signal-to-the-dead",
        summary="a delivery reads its target without a lock, as documented: it answers ok for one that has ended",
        caught_by=("no-lost-signal",),
        statements={
            "picker/signal": (
                Patch(
                    "'awaiting_children')\n    FOR NO KEY UPDATE OF g\n",
                    "'awaiting_children')\n",
                ),
            )
        },
    ),
    Mutant(
        name="dedup-forgets",
        summary="only the inbox knows what was delivered, as documented: a consumed signal can be delivered again",
        caught_by=("signal-dedup",),
        statements={
            "picker/signal": (
                Patch(
                    "$5::text IS NULL OR EXISTS (SELECT FROM receipt)", "true OR EXISTS (SELECT FROM receipt)"
                ),
            )
        },
    ),
    Mutant(
        name="children-without-parent-lock",
        summary="children are inserted before their parent is locked: the reaper comes between",
        caught_by=("join-exact",),
        statements={"picker/flush_lock": (Patch("    ORDER BY g.id\n    FOR NO KEY UPDATE OF g\n", ""),)},
    ),
    Mutant(
        name="children-after-update",
        summary="a flush changes its rows, which gives identities up, and inserts children then, as documented: the "
        "insert waits for another flush that has given an identity up",
        caught_by=("no-deadlock",),
        protocol=frozenset(("children-after-update",)),
    ),
    Mutant(
        name="key-collides-with-id",
        summary="rows without a key are told apart by their ids, in the same space as the keys",
        caught_by=("pick-order",),
        statements={
            "picker/claim": (
                Patch(
                    "PARTITION BY c.concurrency_key ORDER BY",
                    "PARTITION BY coalesce(c.concurrency_key, c.id::text) ORDER BY",
                ),
                Patch(
                    "        r.concurrency_key IS NULL\n",
                    "        (r.concurrency_key IS NULL AND r.place_in_key = 1)\n",
                ),
            )
        },
    ),
    Mutant(
        name="json-double-encoded",
        summary="the state, JSON text already, is encoded once more and stored as a string",
        caught_by=("lifecycle",),
        statements={"picker/insert": (Patch("$4::text::jsonb", "to_jsonb($4::text)"),)},
        schema=("ALTER TABLE gen_durable DROP CONSTRAINT gen_durable_state_object",),
    ),
    Mutant(
        name="too-many-parameters",
        summary="a batch is inserted with one parameter for each value, of which a statement may have 65,535",
        caught_by=("no-lost-job",),
        protocol=frozenset(("placeholder-per-value",)),
    ),
    Mutant(
        name="serialise-outside-guard",
        summary="an outcome that cannot be stored ends its worker instead of its job",
        caught_by=("no-lost-job",),
        protocol=frozenset(("serialise-outside-guard",)),
    ),
    Mutant(
        name="min-demand-unclamped",
        summary="a node waits for more room than it will ever have before it claims",
        caught_by=("no-lost-job",),
        protocol=frozenset(("min-demand-unclamped",)),
    ),
)
