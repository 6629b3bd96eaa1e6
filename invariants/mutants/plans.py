"""Plan mutants: statements that answer the same and cost another order of magnitude (plans.md, "Known bad forms").

Nothing that they commit is wrong, so no invariant of a run notices one: those of `invariants/plans.py` must, which
`nox -s plans` judges. So they are a registry of their own.
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

# Who holds what: the probes of heartbeat, and the join that was there before.
_HELD_BY_PROBES: Final = (
    "    SELECT h.id\n"
    "    FROM (\n"
    "        SELECT u.id, u.claim\n"
    "        FROM unnest($1::bigint[], $2::text[]) AS u (id, claim)\n"
    "        ORDER BY u.id\n"
    "    ) AS c\n"
    "    CROSS JOIN LATERAL (\n"
    "        SELECT g.id\n"
    "        FROM gen_durable AS g\n"
    "        WHERE g.id = c.id AND g.locked_by = c.claim AND g.status::text = 'executing'\n"
    "        FOR NO KEY UPDATE OF g SKIP LOCKED\n"
    "    ) AS h\n"
)
_HELD_BY_JOIN: Final = (
    "    SELECT g.id\n"
    "    FROM gen_durable AS g\n"
    "    INNER JOIN unnest($1::bigint[], $2::text[]) AS c (id, claim) ON g.id = c.id AND g.locked_by = c.claim\n"
    "    WHERE g.status = 'executing'\n"
)
HELD_BY_JOIN: Final = Patch(
    _HELD_BY_PROBES, _HELD_BY_JOIN + "    ORDER BY g.id\n    FOR NO KEY UPDATE OF g SKIP LOCKED\n"
)
HELD_IN_ANY_ORDER: Final = Patch(_HELD_BY_PROBES, _HELD_BY_JOIN + "    FOR NO KEY UPDATE OF g\n")
_OUTCOMES_BY_JOIN: Final = (
    Patch(
        "    CROSS JOIN LATERAL (\n"
        "        SELECT\n"
        "            g.id,\n"
        "            g.status,\n"
        "            g.locked_by,\n"
        "            g.parent_id\n"
        "        FROM gen_durable AS g\n"
        "        WHERE g.id = o.id\n"
        "        OFFSET 0\n"
        "    ) AS g\n",
        "    INNER JOIN gen_durable AS g ON g.id = o.id\n",
    ),
    Patch(
        "    WHERE g.id = ANY (array(SELECT w.id FROM wanted AS w))\n",
        "    INNER JOIN wanted AS w ON g.id = w.id\n",
    ),
)


def _claim(name: str, summary: str, caught_by: tuple[str, ...], *patches: Patch) -> Mutant:
    return Mutant(name=name, summary=summary, caught_by=caught_by, statements={"picker/claim": patches})


PLAN_MUTANTS: Final = (
    _claim(
        "claim-queue-any",
        "the claim takes a list of queues: the index no longer gives the order, the whole backlog is read and sorted",
        ("plan-o-batch",),
        Patch("AND g.queue = $1::text\n", "AND g.queue = ANY (ARRAY[$1::text, 'another'])\n"),
    ),
    _claim(
        "claim-not-exists",
        "the guard is a NOT EXISTS inside an OR: a hashed SubPlan over all that executes",
        ("plan-o-batch",),
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
        ("plan-index",),
        Patch(" AND s.concurrency_shard IS NULL\n", "\n"),
    ),
    _claim(
        "claim-rejoin-by-id",
        "the update finds its rows by id again: a descent of the primary key for each",
        ("plan-index",),
        Patch("        r.tid,\n        r.place,\n", "        r.id,\n        r.place,\n"),
        Patch(_UPDATE, "FROM chosen AS c\nWHERE g.id = c.id\n"),
    ),
    _claim(
        "claim-in-subquery",
        "the rows are locked in a subquery of the update: under another plan it runs again, and claims more",
        ("plan-o-batch",),
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
        ("plan-index", "plan-o-batch"),
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
        ("plan-o-batch",),
        Patch("NOT coalesce(sibling.executing, false)", "sibling.executing IS NULL"),
    ),
    Mutant(
        name="gc-in-subquery",
        summary="the collector deletes what a subquery of its DELETE locks: a join that reads the table",
        caught_by=("plan-index", "plan-o-batch"),
        statements={
            "maintenance/gc_delete": (
                Patch(
                    "DELETE FROM gen_durable AS g\nUSING doomed AS d\nWHERE g.id = d.id\n",
                    "DELETE FROM gen_durable AS g\n"
                    "WHERE g.id IN (\n"
                    "    SELECT h.id FROM gen_durable AS h\n"
                    "    WHERE h.status IN ('done', 'failed') AND h.parent_id IS NULL\n"
                    "    ORDER BY h.updated_at\n"
                    "    LIMIT cardinality($1::bigint[])\n"
                    "    FOR UPDATE SKIP LOCKED\n"
                    ")\n",
                ),
            )
        },
    ),
    Mutant(
        name="predicate-mismatch",
        summary="the pick index is for another predicate than the claim's",
        caught_by=("plan-index",),
        schema=(
            "DROP INDEX gen_durable_pick",
            (
                "CREATE INDEX gen_durable_pick ON gen_durable (queue, priority, eligible_at) "
                "WHERE status = 'runnable' AND rate_limit IS NULL"
            ),
        ),
    ),
    Mutant(
        name="heartbeat-joins-claims",
        summary="a heartbeat joins its claims: a plan that is kept from an empty queue reads all that executes",
        caught_by=("plan-o-batch",),
        statements={"picker/heartbeat": (HELD_BY_JOIN,)},
    ),
    Mutant(
        name="flush-joins-outcomes",
        summary="a flush joins its outcomes: a plan that is kept from an empty queue reads all that executes",
        caught_by=("plan-o-batch",),
        statements={"picker/flush": _OUTCOMES_BY_JOIN, "picker/flush_lock": _OUTCOMES_BY_JOIN},
    ),
    Mutant(
        name="recheck-joins-inboxes",
        summary="a park's recheck joins rows and signals: a plan that is kept from empty inboxes reads all of them",
        caught_by=("plan-o-batch",),
        statements={
            "picker/flush_recheck": (
                Patch("        OFFSET 0\n    ) AS g\n", "    ) AS g\n"),
                Patch("        OFFSET 0\n    ) AS s\n", "    ) AS s\n"),
            )
        },
    ),
    Mutant(
        name="consume-joins-inboxes",
        summary="a flush joins what it consumes to the inboxes: a plan that is kept from empty ones reads all of them",
        caught_by=("plan-o-batch",),
        statements={"picker/flush_consume": (Patch("        OFFSET 0\n", ""),)},
    ),
    Mutant(
        name="lease-index-for-all-executing",
        summary="the index of leases answers whoever asks for executing rows, and was made last: a claim's plan that is"
        " kept from an empty queue looks for its keys there, and reads all that executes",
        caught_by=("plan-o-batch",),
        schema=(
            "DROP INDEX gen_durable_lease",
            "CREATE INDEX gen_durable_lease ON gen_durable (lease_expires_at, id) WHERE status = 'executing'",
        ),
    ),
    *(
        Mutant(
            name=f"index-missing-{index.replace('_', '-')}",
            summary=f"there is no index {index}",
            caught_by=("plan-index", "plan-o-batch"),
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
# Those that only a plan shows which a session has kept from when there was next to nothing.
KEPT_PLANS: Final = frozenset(
    (
        "heartbeat-joins-claims",
        "flush-joins-outcomes",
        "recheck-joins-inboxes",
        "consume-joins-inboxes",
        "lease-index-for-all-executing",
    )
)
# What only a planner shows that may read whole tables: the sessions of the engine bar it from that, and so hide it.
FREE_PLANS: Final = frozenset(("claim-guard-is-null",))
