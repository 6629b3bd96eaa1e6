-- Startup reclaim: give back up to $3 claims that an earlier process of this node left behind. $1 holds the node's
-- prefixes, `<instance>:<queue>@<node>-`, one a queue; $2 is the margin in ms: a lease with more than that left was
-- renewed within the last two heartbeats. $4 is this process's session name, $5 what all session names of the node
-- begin with. Returns id, the claim that lost it, and the transaction.
-- Index: gen_durable_lease, entries below the margin only: where every node is well there are none. Not EXISTS: the
-- planner takes that for one row in hundreds, would read all below the margin for a batch, and sort it.
-- Race: another process of the same name lives. The margin spares what it renewed in time by *our* intervals; its own
-- may be longer, and a tick that met a locked row renewed nothing. So while any session of another process of this
-- name is open, nothing is taken, and the reaper decides later (docs/findings.md, "Reclaimed from a living node").
-- A name is exact: node `a` does not own what `a-1` claimed, though its prefix begins that claim's name. What follows a
-- node's prefix holds no further hyphen. starts_with has no wildcards.
WITH namesake AS MATERIALIZED (
    SELECT count(*) AS sessions
    FROM pg_stat_activity AS a
    WHERE
        a.datname = current_database()
        AND starts_with(a.application_name, $5::text)
        AND strpos(substr(a.application_name, length($5::text) + 1), '-') = 0
        AND NOT starts_with(a.application_name, $4::text)
),

left_behind AS MATERIALIZED (
    SELECT
        g.ctid AS tid,
        g.locked_by AS claim
    FROM gen_durable AS g
    WHERE
        g.status = 'executing'
        AND g.lease_expires_at < now() + $2::double precision * interval '1 millisecond'
        AND coalesce((
            SELECT true
            FROM unnest($1::text[]) AS p (prefix)
            WHERE
                starts_with(g.locked_by, p.prefix)
                AND strpos(substr(g.locked_by, length(p.prefix) + 1), '-') = 0
            LIMIT 1
        ), false)
        AND (SELECT n.sessions FROM namesake AS n) = 0
    ORDER BY g.lease_expires_at
    LIMIT $3::bigint
    FOR NO KEY UPDATE OF g SKIP LOCKED
)

UPDATE gen_durable AS g
SET
    status = 'runnable',
    -- What a killed process had claimed may have run: a job that kills its node must not come back uncounted for ever.
    attempt = least(g.attempt, 2147483646) + 1,
    locked_by = NULL,
    lease_expires_at = NULL,
    concurrency_shard = NULL,
    updated_at = now()
FROM left_behind AS l
WHERE g.ctid = l.tid
RETURNING g.id, l.claim, pg_current_xact_id()::text
