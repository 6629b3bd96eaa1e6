-- Make children: element i of $2 (ids), $3 (definitions), $4 (data), $5 (parents), $6 (start events), $7 (priorities)
-- is one. Publishes the start events and removes the spawns $1. Returns the ids of those that were not there before.
-- One statement, one transaction: a child is there together with its start event, and its spawn is gone.
-- Index: the primary keys. `relay/spawns` has locked the spawns before, in this transaction.
-- Race: the child was made before, by hand or by a spawn that named it too. It stays as it is; its start event is sent
-- again, under the same id.
WITH child AS MATERIALIZED (
    SELECT c.id, c.definition, c.data, c.parent, c.event, c.priority
    FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[])
        AS c (id, definition, data, parent, event, priority)
),

made AS (
    INSERT INTO executions AS e (id, definition_id, data, version, status, parent_id)
    SELECT DISTINCT ON (c.id) c.id, c.definition, c.data, 1, 'PENDING', c.parent
    FROM child AS c
    ORDER BY c.id
    ON CONFLICT (id) DO NOTHING
    RETURNING e.id
),

acked AS (
    DELETE FROM spawns AS s WHERE s.seq = ANY ($1::bigint[]) RETURNING s.seq
),

batch AS MATERIALIZED (
    SELECT array_agg(c.id) AS ids, array_agg(c.event) AS events, array_agg(c.priority) AS priorities
    FROM child AS c
)

SELECT
    (SELECT coalesce(array_agg(m.id), '{}') FROM made AS m) AS made,
    (SELECT count(*) FROM acked) AS acked,
    (SELECT count(*) FROM transport_publish(b.ids, b.events, b.priorities, NULL)) AS published
FROM batch AS b
