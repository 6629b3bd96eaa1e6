"""Mutants of what jobs have to do with each other and with their own next steps: signals, children, and the inline
continuation (known-bugs.md, part 1, and docs/findings.md)."""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch

COORDINATION_MUTANTS: Final = (
    Mutant(
        name="duplicate-wakes",
        summary="a delivery that its receipt calls a duplicate wakes its target all the same",
        caught_by=("no-spin",),
        statements={
            "picker/signal": (
                Patch(
                    "    FROM inbox AS i\n    WHERE g.id = i.target_id\n",
                    "    FROM target AS i\n    WHERE g.id = i.id\n",
                ),
            )
        },
    ),
    Mutant(
        name="consume-whole-inbox",
        summary="a step that goes on deletes the whole inbox, also what came after its claim",
        caught_by=("no-lost-signal",),
        statements={
            "picker/flush_consume": (
                Patch(
                    "        WHERE s.id = c.id\n",
                    "        WHERE s.target_id = c.target_id OR s.id = c.id\n",
                ),
            )
        },
    ),
    Mutant(
        name="scope-reentered-by-a-wake",
        summary="an identity given up by a park is retaken by the wake: the delivery meets a unique index",
        caught_by=("contention-quiet",),
        statements={
            "picker/flush": (Patch("WHEN o.kind IN ('await', 'childs') AND", "WHEN false AND"),),
        },
    ),
    Mutant(
        name="join-counts-a-batch-once",
        summary="children that end in one flush are counted off their parent as one",
        caught_by=("join-exact",),
        statements={
            "picker/flush_join": (Patch("count(*)::integer AS children", "1 AS children"),),
        },
    ),
    Mutant(
        name="parents-locked-late",
        summary="a flush locks the parents of what it ends in its join, as documented, after its rows have changed",
        caught_by=("no-deadlock",),
        statements={
            "picker/flush": (Patch("    UNION\n    SELECT parent_id FROM named\n", ""),),
        },
    ),
    Mutant(
        name="continue-unfenced",
        summary="a continuation is guarded by its claim alone, as documented: one sent twice may arrive after its "
        "successors",
        caught_by=("single-owner",),
        statements={"picker/flush": (Patch("\n        AND g.turn = o.turn\n", "\n"),)},
    ),
    Mutant(
        name="continue-credits-held-slot",
        summary="a continuation that keeps its key gives back the slot that it still holds",
        caught_by=("gate-cap", "slot-conservation"),
        statements={"picker/flush": (Patch("(o.kind <> 'continue' OR o.rekeyed)", "true"),)},
    ),
    Mutant(
        name="inline-unconfigured-key",
        summary="a continuation goes on in line onto a key of no gate: a sibling that executes fails its whole flush",
        caught_by=("batch-independence",),
        statements={
            "picker/flush": (
                Patch(
                    "        WHEN o.gated THEN -1\n",
                    "        WHEN o.gated AND EXISTS (\n"
                    "            SELECT FROM gen_durable_bucket_configs AS c\n"
                    "            WHERE c.kind = 'conc' AND c.name = split_part(o.concurrency_key, ':', 1)\n"
                    "        ) THEN -1\n",
                ),
            )
        },
        protocol=frozenset(("inline-onto-any-key",)),
    ),
    Mutant(
        name="admit-before-continue-commit",
        summary="a continuation draws its slot, and stamps it by the row's id, before its guarded commit: the row may "
        "be another's by then",
        caught_by=("k1-exclusion",),
        statements={
            "limiter/admit": (
                Patch(
                    "        SELECT u.id, u.claim, u.slot\n"
                    "        FROM unnest($1::bigint[], $2::text[], $3::boolean[]) AS u (id, claim, slot)\n",
                    "        SELECT u.id, u.claim, u.slot, u.key\n"
                    "        FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::text[])"
                    " AS u (id, claim, slot, key)\n",
                ),
                Patch("WHERE g.id = c.id AND g.locked_by = c.claim AND", "WHERE g.id = c.id AND"),
                Patch(
                    "CASE WHEN c.slot AND g.concurrency_shard IS NOT NULL THEN g.concurrency_key END AS gate,\n"
                    "        g.concurrency_name AS gate_name,\n",
                    "CASE WHEN c.slot THEN c.key END AS gate,\n"
                    "        split_part(c.key, ':', 1) AS gate_name,\n",
                ),
                # As documented the stamp is the slot alone.
                Patch("updated_at = now(), concurrency_key = s.gate\n", "updated_at = now()\n"),
            ),
            "picker/flush": (
                Patch("        WHEN o.gated THEN -1\n", "        WHEN o.gated THEN coalesce(o.held_shard, -1)\n"),
            ),
        },
        protocol=frozenset(("admits-before-it-continues",)),
    ),
)  # fmt: skip
