"""Plan mutants: statements that answer the same and cost another order of magnitude (plans.md, "Known bad forms").

No invariant notices one, for nothing that they commit is wrong: the shapes of `results/plans/shapes.py` must, by name.
`caught_by` names the rules there of which at least one must be broken. So they are a registry of their own.
"""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch

_SIBLING: Final = (
    "    LEFT JOIN LATERAL (\n"
    "        SELECT true AS executing\n"
    "        FROM gen_durable AS s\n"
    "        WHERE\n"
    "            s.concurrency_key = g.concurrency_key\n"
    "            AND s.status = 'executing' AND s.concurrency_key IS NOT NULL AND s.concurrency_shard IS NULL\n"
    "        LIMIT 1\n"
    "    ) AS sibling ON true\n"
)
_GUARD: Final = (
    "        AND (NOT coalesce(sibling.executing, false) OR g.concurrency_name = ANY ($5::text[]))\n"
)
_UPDATE: Final = "FROM chosen AS c\nWHERE g.ctid = c.tid\n"


def _claim(name: str, summary: str, caught_by: tuple[str, ...], *patches: Patch) -> Mutant:
    return Mutant(name=name, summary=summary, caught_by=caught_by, statements={"picker/claim": patches})


PLAN_MUTANTS: Final = (
    _claim(
        "claim-queue-any",
        "the claim takes a list of queues: the index no longer gives the order, the whole backlog is read and sorted",
        ("rows", "sort", "pages"),
        Patch("AND g.queue = $1::text\n", "AND g.queue = ANY (ARRAY[$1::text, 'another'])\n"),
    ),
    _claim(
        "claim-not-exists",
        "the guard is a NOT EXISTS inside an OR: a hashed SubPlan over all that executes",
        ("hashed-subplan",),
        Patch(_SIBLING, ""),
        Patch(
            _GUARD,
            "        AND (\n"
            "            g.concurrency_name = ANY ($5::text[])\n"
            "            OR NOT EXISTS (\n"
            "                SELECT FROM gen_durable AS s\n"
            "                WHERE s.concurrency_key = g.concurrency_key AND s.status = 'executing'\n"
            "                    AND s.concurrency_key IS NOT NULL AND s.concurrency_shard IS NULL\n"
            "            )\n"
            "        )\n",
        ),
    ),
    _claim(
        "claim-guard-without-shard",
        "the guard forgets the shard, and with it the partial index",
        ("index",),
        Patch(" AND s.concurrency_shard IS NULL\n", "\n"),
    ),
    _claim(
        "claim-rejoin-by-id",
        "the update finds its rows by id again: a descent of the primary key for each",
        ("index",),
        Patch("        r.tid,\n        r.place,\n", "        r.id,\n        r.place,\n"),
        Patch(_UPDATE, "FROM chosen AS c\nWHERE g.id = c.id\n"),
    ),
    _claim(
        "claim-in-subquery",
        "the rows are locked in a subquery of the update: under another plan it runs again, and claims more",
        ("over-claim", "index"),
        Patch("WITH candidate AS MATERIALIZED (\n", "WITH unused AS MATERIALIZED (\n"),
        Patch(
            _UPDATE,
            "FROM (SELECT 1::bigint AS place, false AS gated) AS c\n"
            "WHERE g.id IN (\n"
            "    SELECT h.id\n"
            "    FROM gen_durable AS h\n"
            "    WHERE h.status = 'runnable' AND h.queue = $1::text AND h.eligible_at <= now()\n"
            "        AND h.concurrency_key IS NULL\n"
            "    ORDER BY h.priority, h.eligible_at\n"
            "    LIMIT $2::bigint\n"
            "    FOR NO KEY UPDATE OF h SKIP LOCKED\n"
            ")\n",
        ),
        Patch("    FROM candidate AS c\n", "    FROM unused AS c\n"),
    ),
    _claim(
        "claim-split-part",
        "the gate's name is cut from each row's key and joined to the configuration, on the hottest path",
        ("stranger", "condition"),
        Patch(
            "        coalesce(g.concurrency_name = ANY ($5::text[]), false) AS gated\n    FROM gen_durable AS g\n",
            "        config.name IS NOT NULL AND $5::text[] IS NOT NULL AS gated\n"
            "    FROM gen_durable AS g\n"
            "    LEFT JOIN gen_durable_bucket_configs AS config\n"
            "        ON config.kind = 'conc' AND config.name = split_part(g.concurrency_key, ':', 1)\n",
        ),
        Patch(_GUARD, "        AND (NOT coalesce(sibling.executing, false) OR config.name IS NOT NULL)\n"),
    ),
    _claim(
        "claim-guard-is-null",
        "the guard is an IS NULL, taken for one row in 200: a backlog of less than 200 batches is read and sorted",
        ("rows", "sort", "seq-scan", "index"),
        Patch("NOT coalesce(sibling.executing, false)", "sibling.executing IS NULL"),
    ),
    Mutant(
        name="gc-in-subquery",
        summary="the collector deletes what a subquery of its DELETE locks: a join that reads the table",
        caught_by=("seq-scan", "over-claim", "index"),
        statements={
            "maintenance/gc_delete": (
                Patch(
                    "DELETE FROM gen_durable AS g\nUSING doomed AS d\nWHERE g.id = d.id\n",
                    "DELETE FROM gen_durable AS g\n"
                    "WHERE g.id IN (\n"
                    "    SELECT h.id FROM gen_durable AS h\n"
                    "    WHERE h.status IN ('done', 'failed') AND h.parent_id IS NULL AND h.id = ANY ($1::bigint[])\n"
                    "    ORDER BY h.updated_at\n"
                    "    LIMIT 100000\n"
                    "    FOR UPDATE SKIP LOCKED\n"
                    ")\n",
                ),
            )
        },
    ),
    Mutant(
        name="predicate-mismatch",
        summary="the pick index is for another predicate than the claim's",
        caught_by=("index",),
        schema=(
            "DROP INDEX gen_durable_pick",
            (
                "CREATE INDEX gen_durable_pick ON gen_durable (queue, priority, eligible_at) "
                "WHERE status = 'runnable' AND rate_limit IS NULL"
            ),
        ),
    ),
    *(
        Mutant(
            name=f"index-missing-{index.replace('_', '-')}",
            summary=f"there is no index {index}",
            caught_by=("index", "seq-scan", "rows", "pages", "failed"),
            schema=(f"DROP INDEX {index}",),
        )
        for index in (
            "gen_durable_pick",
            "gen_durable_lease",
            "gen_durable_await_deadline",
            "gen_durable_concurrency_active",
            "gen_durable_correlation",
            "gen_durable_parent",
            "gen_durable_gc",
            "executions_status",
            "timers_due",
            "outbox_lane",
            "outbox_broadcast",
            "spawns_child",
            "transport_messages_group",
            "transport_groups_ready",
        )
    ),
)

PLANS: Final = {mutant.name: mutant for mutant in PLAN_MUTANTS}
