"""Mutants of the sweeps: startup reclaim and garbage collection (known-bugs.md, part 1, and docs/findings.md)."""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch

MAINTENANCE_MUTANTS: Final = (
    Mutant(
        name="reclaim-without-margin",
        summary="a boot takes back whatever carries its prefix, also from a living node of the same name",
        caught_by=("lease-respect",),
        statements={
            "maintenance/reclaim": (
                Patch(
                    "g.lease_expires_at < now() + $2::double precision * interval '1 millisecond'",
                    "$2::double precision IS NOT NULL",
                ),
            )
        },
    ),
    Mutant(
        name="reclaim-beside-the-living",
        summary="a boot trusts its margin alone, as documented, while another process of its name is at work",
        caught_by=("lease-respect",),
        statements={
            "maintenance/reclaim": (
                Patch("        AND (SELECT n.sessions FROM namesake AS n) = 0\n", ""),
            )
        },
    ),
    Mutant(
        name="reclaim-by-bare-prefix",
        summary="a boot takes back what begins with its prefix, also from a node whose name merely begins alike",
        caught_by=("lease-respect",),
        statements={
            "maintenance/reclaim": (
                Patch(
                    "                AND strpos(substr(g.locked_by, length(p.prefix) + 1), '-') = 0\n",
                    "",
                ),
            )
        },
    ),
    Mutant(
        name="reclaim-uncounted",
        summary="a boot counts no attempt, as documented: a job that kills its node does so for ever",
        caught_by=("no-lost-job",),
        statements={
            "maintenance/reclaim": (Patch("attempt = least(g.attempt, 2147483646) + 1", "attempt = g.attempt"),),
        },
    ),
    Mutant(
        name="collectors-wait",
        summary="a collector deletes its page in the order of the plan, as documented, and waits for each row",
        caught_by=("no-deadlock",),
        statements={
            "maintenance/gc_delete": (
                Patch("USING doomed AS d\nWHERE g.id = d.id\n", "WHERE g.id = ANY ($1::bigint[])\n"),
            )
        },
    ),
    Mutant(
        name="collects-beside-the-parent",
        summary="a collector looks at no parent: a child is gone before its parent has read it",
        caught_by=("gc-safe",),
        statements={"maintenance/gc_select": (Patch("parent.lives IS NULL AND child.stays", "child.stays"),)},
    ),
    Mutant(
        name="retention-from-birth",
        summary="retention is counted from a row's insert: one that took long is gone as soon as it ends",
        caught_by=("gc-safe",),
        statements={
            "maintenance/gc_select": (
                Patch("AND g.updated_at < now() -", "AND g.inserted_at < now() -"),
            )
        },
    ),
)  # fmt: skip
