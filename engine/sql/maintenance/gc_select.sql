-- Look at the next $2 terminal rows that ended more than $1 ms ago, oldest first, behind the place ($3, $4). Returns
-- for each its place (updated_at, id) and whether it may be deleted: not while its parent is not terminal, for the
-- parent may still read it, and not while it has children itself (docs/findings.md, "Collectors deadlock").
-- Index: gen_durable_gc from the place on, in its own order; per row one probe of the primary key and one of
-- gen_durable_parent, which LIMIT 1 keeps from becoming a join over the table.
-- Race: none is lost here: no lock is taken. A row does not leave a terminal status, a terminal parent stays
-- terminal, and it gets no more children; so what may be deleted now may be deleted later. A place in the order, not a
-- predicate on what to delete, bounds the work: however many children wait for one parent, a page costs one page.
WITH page AS MATERIALIZED (
    SELECT
        g.id,
        g.parent_id,
        g.updated_at
    FROM gen_durable AS g
    WHERE
        g.status IN ('done', 'failed')
        AND g.updated_at < now() - $1::double precision * interval '1 millisecond'
        AND (g.updated_at, g.id) > ($3::timestamptz, $4::bigint)
    ORDER BY g.updated_at, g.id
    LIMIT $2::bigint
)

SELECT
    p.id,
    p.updated_at,
    parent.lives IS NULL AND child.stays IS NULL AS may_go
FROM page AS p
LEFT JOIN LATERAL (
    SELECT true AS lives
    FROM gen_durable AS g
    WHERE g.id = p.parent_id AND g.status NOT IN ('done', 'failed')
    LIMIT 1
) AS parent ON true
LEFT JOIN LATERAL (
    SELECT true AS stays
    FROM gen_durable AS g
    WHERE g.parent_id = p.id
    LIMIT 1
) AS child ON true
ORDER BY p.updated_at, p.id
