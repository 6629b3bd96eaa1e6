"""Mutants of the picker: its design's own history (known-bugs.md, part 1), and documented forms that the reference
engine closed (docs/findings.md)."""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch

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
                    "WHERE g.id = o.id AND g.locked_by = o.claim AND g.status = 'executing'",
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
            "picker/release": (Patch("CROSS JOIN (SELECT count(*) FROM held) AS lock_all\n", ""),),
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
            "picker/heartbeat": (
                Patch(
                    "    ORDER BY g.id\n    FOR NO KEY UPDATE OF g SKIP LOCKED\n",
                    "    FOR NO KEY UPDATE OF g\n",
                ),
            ),
            "picker/reap": (
                Patch("    ORDER BY g.lease_expires_at, g.id\n", ""),
                Patch("    FOR NO KEY UPDATE OF g SKIP LOCKED\n", "    FOR NO KEY UPDATE OF g\n"),
            ),
        },
    ),
)
