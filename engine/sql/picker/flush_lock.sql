-- Lock the rows of a batch that will spawn children, and the parents of the rows that end in it: the first statement of
-- such a flush. Returns the (id, claim) pairs still owned; nothing that is owned now can be lost before the commit.
-- Index: primary key, in the form that flush has, for its reasons.
-- Race 1: the reaper comes between the children's insert and the parent's park: it would run the step again, and spawn
-- twice, beside children that no row has counted. It skips a locked row.
-- Race 2: the insert that follows may wait for a flush that is ending an identity, so it must come before this flush
-- changes a row; and that flush may want a row that is locked here, a parent, so it takes all its locks before it
-- changes one (see flush). Ids in one order, own rows and parents together.
WITH outcome AS MATERIALIZED (
    SELECT o.*
    FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::text[]) AS o (id, claim, turn, kind)
),

named AS MATERIALIZED (
    SELECT
        g.id,
        CASE WHEN o.kind IN ('done', 'stop') THEN g.parent_id END AS parent_id
    FROM outcome AS o
    CROSS JOIN LATERAL (
        SELECT
            g.id,
            g.status,
            g.locked_by,
            g.parent_id
        FROM gen_durable AS g
        WHERE g.id = o.id
        OFFSET 0
    ) AS g
    WHERE g.status = 'executing' AND g.locked_by = o.claim
),

wanted AS MATERIALIZED (
    SELECT id FROM named
    UNION
    SELECT parent_id FROM named
),

locked AS MATERIALIZED (
    SELECT
        g.id,
        g.status,
        g.locked_by,
        g.turn
    FROM gen_durable AS g
    WHERE g.id = ANY (array(SELECT w.id FROM wanted AS w))
    ORDER BY g.id
    FOR NO KEY UPDATE OF g
)

SELECT
    o.id,
    o.claim
FROM locked AS g
INNER JOIN outcome AS o ON g.id = o.id AND g.locked_by = o.claim AND g.turn = o.turn
WHERE g.status = 'executing' AND (SELECT count(*) FROM locked) > 0
