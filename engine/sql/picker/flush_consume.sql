-- Delete exactly the (target, signal) pairs that progressing outcomes consumed, over the rows that committed.
-- Index: primary key of signals, by a probe of its own for each pair (OFFSET 0): of a join, a plan from an empty inbox
-- makes a scan of all inboxes. The ctid stays valid: a signal is never changed.
-- Race: none; whoever writes a target's inbox holds the target's lock, and this transaction has it.
WITH consumed AS MATERIALIZED (
    SELECT s.tid
    FROM unnest($1::bigint[], $2::bigint[]) AS c (target_id, id)
    CROSS JOIN LATERAL (
        SELECT
            s.ctid AS tid,
            s.target_id
        FROM signals AS s
        WHERE s.id = c.id
        OFFSET 0
    ) AS s
    WHERE s.target_id = c.target_id
)

DELETE FROM signals AS s
USING consumed AS c
WHERE s.ctid = c.tid
