-- Hand over up to $2 outbox rows of each of up to $1 lanes to the transport of this database, beginning with lane $3 of
-- 16. Returns the seqs handed over, null where there were none.
-- One statement, one transaction: a row is in the outbox or in the transport, never in both or in neither, whatever
-- dies. No process holds a lane between two round trips.
-- Index: outbox_lane, to find busy lanes and for their first rows; spawns_child; the primary key of outbox. OFFSET 0
-- and ANY keep each of these a probe: as a join it may be one with all spawns and the whole lane, for the first few
-- rows.
-- seq + 0, for the index has it so. Ranges, for equality lets the primary key serve a lane, through all others, or the
-- whole table one that is empty.
-- Race 1: two relays. A lane's rows go in the order of their seqs only if one relay at a time takes from it; SKIP
-- LOCKED would give the second relay the later rows of a target first. The lane's lock is only ever tried.
-- Race 2: this snapshot is older than what the lane's former holder has committed. The rows it took are gone when they
-- are to be deleted, and only what was deleted is published.
-- Race 3: a commit that drew a lower seq is still open. It comes later; nothing remembers how far the relay has come.
-- Nobody else waits for more than one of these rows, so the order in which they go is the plan's to choose.
-- Race 4: the row's target is still to be made. Its rows wait until it is: nobody would know what to do with them.
WITH busy AS MATERIALIZED (
    SELECT n.lane
    FROM generate_series(0, 15) AS n (lane)
    WHERE coalesce((
        SELECT true
        FROM outbox AS o
        WHERE (hashtext(o.target_id) & 15, o.seq + 0) > (n.lane, 0) AND hashtext(o.target_id) & 15 <= n.lane
        ORDER BY hashtext(o.target_id) & 15, o.seq + 0
        LIMIT 1
    ), false)
    ORDER BY (n.lane - $3::integer) & 15
),

held AS MATERIALIZED (
    SELECT b.lane FROM busy AS b
    WHERE pg_try_advisory_xact_lock(1735681639, b.lane)
    LIMIT $1::bigint
),

due AS MATERIALIZED (
    SELECT p.seq
    FROM held AS h
    CROSS JOIN LATERAL (
        SELECT o.seq
        FROM outbox AS o
        WHERE
            (hashtext(o.target_id) & 15, o.seq + 0) > (h.lane, 0)
            AND hashtext(o.target_id) & 15 <= h.lane
            AND NOT EXISTS (SELECT FROM spawns AS s WHERE s.child_id = o.target_id OFFSET 0)
        ORDER BY hashtext(o.target_id) & 15, o.seq + 0
        LIMIT $2::bigint
    ) AS p
),

moved AS (
    DELETE FROM outbox AS o
    WHERE o.seq = ANY (array(SELECT d.seq FROM due AS d))
    RETURNING o.seq, o.target_id, o.event
),

batch AS MATERIALIZED (
    SELECT
        array_agg(m.seq ORDER BY m.seq) AS seqs,
        array_agg(m.target_id ORDER BY m.seq) AS targets,
        array_agg(m.event ORDER BY m.seq) AS events
    FROM moved AS m
)

SELECT
    b.seqs,
    (SELECT count(*) FROM transport_publish(b.targets, b.events, NULL, NULL)) AS published
FROM batch AS b
WHERE b.seqs IS NOT NULL
