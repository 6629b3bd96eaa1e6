"""Mutants of the limiter: its design's own history (known-bugs.md, part 1), and documented forms that the reference
engine closed (docs/findings.md)."""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch

_LOCK_SHARDS: Final = "    ORDER BY b.kind, b.key, b.shard\n    FOR UPDATE OF b SKIP LOCKED\n"
_MADE: Final = "    ORDER BY d.kind, d.key, d.shard\n),\n"
_IS_COLD: Final = """\
    WHERE
        pg_try_advisory_xact_lock(
            1735681637,
            ('x' || left(encode(sha256(convert_to(m.kind || ' ' || m.key, 'UTF8')), 'hex'), 3))::bit(12)::integer
        )
"""
_MAKE_AT_INSERT: Final = (
    """
    CREATE FUNCTION make_rate_buckets() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill)
        SELECT 'rate', NEW.rate_limit, s.shard, c.capacity / c.shards, c.capacity / c.shards, now()
        FROM gen_durable_bucket_configs AS c
        CROSS JOIN LATERAL generate_series(0, c.shards - 1) AS s (shard)
        WHERE c.kind = 'rate' AND c.name = split_part(NEW.rate_limit, ':', 1)
        ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$
    """,
    "CREATE TRIGGER make_rate_buckets AFTER INSERT ON gen_durable FOR EACH ROW EXECUTE FUNCTION make_rate_buckets()",
)

LIMITER_MUTANTS: Final = (
    Mutant(
        name="no-check",
        summary="admissions read levels without a lock and lean on the CHECK to refuse a slot drawn twice; it is gone",
        caught_by=("gate-cap", "slot-conservation"),
        statements={"limiter/admit": (Patch(_LOCK_SHARDS, "    ORDER BY b.kind, b.key, b.shard\n"),)},
        schema=("ALTER TABLE gen_durable_buckets DROP CONSTRAINT gen_durable_buckets_check",),
    ),
    Mutant(
        name="credit-without-cap",
        summary="a credit adds up beyond the capacity, and its caller gets the CHECK's error",
        caught_by=("contention-quiet", "quiet-limiter"),
        statements={
            "limiter/credit": (
                Patch(
                    "least(b.capacity, b.available + greatest(0, d.slots - b.debt))",
                    "b.available + d.slots",
                ),
            )
        },
    ),
    Mutant(
        name="credit-after-count",
        summary="a late credit gives back, as documented, what a count of the gate has given back already",
        caught_by=("slot-conservation", "gate-cap"),
        statements={
            "limiter/credit": (
                Patch("NOT pg_visible_in_snapshot($3::text::xid8, b.counted)", "$3::text IS NOT NULL"),
            )
        },
    ),
    Mutant(
        name="provisional-is-a-shard",
        summary="a claim's provisional shard is shard 0, as documented: a row that only asks looks like one that has",
        caught_by=("slot-conservation", "gate-cap"),
        statements={"picker/claim": (Patch("CASE WHEN c.gated THEN -1 END", "CASE WHEN c.gated THEN 0 END"),)},
    ),
    Mutant(
        name="lowered-capacity-forgotten",
        summary="what executes above a lowered capacity is no debt: each row that ends lets another one start",
        caught_by=("gate-cap",),
        statements={
            "limiter/reconcile": (
                Patch(
                    "greatest(b.used - b.share, least(b.used, greatest(0, b.uncovered - b.free_of_key))) AS debt",
                    "0 AS debt",
                ),
            )
        },
    ),
    Mutant(
        name="surplus-credited",
        summary="what a shard has beyond its share is no debt where other shards cover for it, and is credited to it",
        caught_by=("slot-conservation",),
        statements={
            "limiter/reconcile": (
                Patch(
                    "greatest(b.used - b.share, least(b.used, greatest(0, b.uncovered - b.free_of_key))) AS debt",
                    "least(b.used, greatest(0, b.uncovered - b.free_of_key)) AS debt",
                ),
            )
        },
    ),
    Mutant(
        name="shards-grow-unhealed",
        summary="a key that is in use never gets the shards that a change of configuration added",
        caught_by=("shards-whole",),
        statements={
            "limiter/reconcile": (
                Patch("    WHERE NOT EXISTS (\n        SELECT FROM stored AS b\n",
                      "    WHERE false AND NOT EXISTS (\n        SELECT FROM stored AS b\n"),
            ),
            "limiter/sweep_buckets": (Patch("        NOT w.drop\n", "        false AND NOT w.drop\n"),),
        },
    ),
    Mutant(
        name="buckets-unordered",
        summary="counter shards are locked in the order of the plan, and waited for",
        caught_by=("no-deadlock",),
        statements={"limiter/admit": (Patch(_LOCK_SHARDS, "    FOR UPDATE OF b\n"),)},
    ),
    Mutant(
        name="config-upsert-unordered",
        summary="a boot stores its limits in the order of its configuration, and two boots meet in opposite orders",
        caught_by=("no-deadlock",),
        statements={"limiter/sync_config": (Patch("ORDER BY c.kind, c.name\n", ""),)},
    ),
    Mutant(
        name="cold-keys-wait",
        summary="admissions that make one key meet at its primary key and merge, as documented, with shards in hand",
        caught_by=("no-deadlock",),
        statements={
            "limiter/admit": (
                Patch(_IS_COLD, "    WHERE true\n"),
                Patch("INSERT INTO gen_durable_buckets (", "INSERT INTO gen_durable_buckets AS old ("),
                Patch(
                    _MADE,
                    _MADE.removesuffix("),\n")
                    + "    ON CONFLICT (kind, key, shard) DO UPDATE"
                    " SET available = old.available - (excluded.capacity - excluded.available)\n),\n",
                ),
            )
        },
    ),
    Mutant(
        name="cold-bucket-lags",
        summary="a cold key is made full by one pick and can be drawn on by the next: a lone step is denied",
        caught_by=("rate-liveness",),
        statements={
            "limiter/admit": (
                Patch("part.share, 0, part.share, false\n", "part.share, 0, 0::double precision, false\n"),
                Patch(
                    "AND EXISTS (SELECT FROM draw AS any_of"
                    " WHERE any_of.kind = d.kind AND any_of.key = d.key AND any_of.amount > 0)\n",
                    "",
                ),
            )
        },
    ),
    Mutant(
        name="bucket-swept-while-asleep",
        summary="a rate key is made where its jobs are inserted, and no more once a sweep has dropped it: who was "
        "asleep meanwhile never starts",
        caught_by=("rate-liveness",),
        statements={"limiter/admit": (Patch(_IS_COLD, _IS_COLD + "        AND m.kind = 'conc'\n"),)},
        schema=_MAKE_AT_INSERT,
    ),
    Mutant(
        name="admit-doubles-shard",
        summary="both versions of a shard that another has just changed are counted: a gate's CHECK still refuses, a "
        "rate's burst is spent twice",
        caught_by=("rate-budget",),
        statements={
            "limiter/admit": (
                Patch("    SELECT DISTINCT ON (g.kind, g.key, g.shard)\n", "    SELECT\n"),
                Patch("    FROM grabbed AS g\n", "    FROM grabbed AS g CROSS JOIN generate_series(1, 2)\n"),
            )
        },
    ),
    Mutant(
        name="admit-stamps-unguarded",
        summary="an admission stamps by the row's id, as documented, whoever holds the row by then",
        caught_by=("single-owner",),
        statements={
            "limiter/admit": (
                Patch(
                    "ON g.id = c.id AND g.locked_by = c.claim\n    WHERE g.status = 'executing'\n",
                    "ON g.id = c.id\n",
                ),
                Patch("CASE WHEN c.slot AND g.concurrency_shard IS NOT NULL THEN", "CASE WHEN c.slot THEN"),
            )
        },
    ),
    Mutant(
        name="burst-raised-wedges",
        summary="a shard keeps the capacity it was made with, as documented, and refills beyond it once the burst is "
        "raised",
        caught_by=("quiet-limiter",),
        statements={
            "limiter/admit": (
                Patch(
                    "capacity = CASE WHEN d.kind = 'conc' THEN b.capacity ELSE d.share END,",
                    "capacity = b.capacity,",
                ),
            )
        },
    ),
    Mutant(
        name="refill-counts-back",
        summary="a refill that lies in the future stays there: a clock set back by an hour stops a rate for an hour",
        caught_by=("rate-liveness",),
        statements={"limiter/admit": (Patch("g.last_refill > clock_timestamp()", "false"),)},
    ),
    Mutant(
        name="counts-back-in-races",
        summary="an admission that began first and drew last sets the refill back to its own beginning",
        caught_by=("rate-budget",),
        statements={"limiter/admit": (Patch("ELSE greatest(b.last_refill, now())", "ELSE now()"),)},
    ),
    Mutant(
        name="full-is-a-sum",
        summary="full shards are worth what their rounded parts add up to, which is less than the burst",
        caught_by=("rate-liveness",),
        statements={"limiter/admit": (Patch("bool_and(s.level >= s.share)", "false"),)},
    ),
    Mutant(
        name="admit-unclamped",
        summary="what a draw leaves is written as it was computed, and rounds to less than nothing",
        caught_by=("quiet-limiter",),
        statements={
            "limiter/admit": (
                Patch(
                    "greatest(0, least(d.share, b.available + d.gain) - coalesce(d.amount, 0))",
                    "least(d.share, b.available + d.gain) - coalesce(d.amount, 0)",
                ),
                Patch("greatest(0, d.share - coalesce(d.amount, 0))", "d.share - coalesce(d.amount, 0)"),
            )
        },
    ),
    Mutant(
        name="draws-in-order",
        summary="a draw empties one shard after the other, and the full ones refill nothing",
        caught_by=("rate-liveness",),
        statements={
            "limiter/admit": (
                Patch(
                    "ELSE paid.weight * (s.level / nullif(t.level, 0))",
                    "ELSE least(s.level, greatest(0, paid.weight - (sum(s.level)"
                    " OVER (PARTITION BY s.kind, s.key ORDER BY s.shard) - s.level)))",
                ),
            )
        },
    ),
)  # fmt: skip
