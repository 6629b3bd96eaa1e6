-- One step more for an execution's trace, and the oldest one out of the ring. Returns a row, or none where another
-- appender took the index first: then it is to be done again.
-- Index: primary key of trace, its last entry of the execution; and a range of one for what leaves the ring.
-- Race: a commit or another appender draws the same index. `store/lock` holds the execution's row before this snapshot
-- is taken, so that there is none. Where there is no such row yet, the primary key decides.
WITH stepped AS MATERIALIZED (
    SELECT coalesce((SELECT max(t.idx) FROM trace AS t WHERE t.execution_id = $1::text), -1) + 1 AS idx
),

trimmed AS (
    DELETE FROM trace AS t
    USING stepped AS s
    WHERE t.execution_id = $1::text AND t.idx <= s.idx - $3::integer
)

INSERT INTO trace (execution_id, idx, entry)
SELECT $1::text, s.idx, $2::text
FROM stepped AS s
ON CONFLICT (execution_id, idx) DO NOTHING
RETURNING idx
