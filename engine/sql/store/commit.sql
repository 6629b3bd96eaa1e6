-- Commit a batch with its effects, one commit per execution, whatever the batch's size. Returns per commit, in order:
-- its number, whether it won, the version found (null: no row), whether its event was processed before. What lost
-- changed nothing.
-- Index: primary keys of executions, processed_events, timers and trace, one probe per row. OFFSET 0 keeps it a probe,
-- for a session keeps the plan that it made when there was next to nothing; and of a join to the steps of the batch's
-- executions it would make one of each step with each commit.
-- Race 1: another writer of the same execution. `store/lock` holds the existing rows, in this transaction, before this
-- snapshot is taken: what is read here is what is updated. The version is compared once more where it is written.
-- Race 2: two first saves of one execution. The insert waits for the other's end and then inserts nothing; inserts
-- stand in id order, after all locks, so that two batches wait in no circle. Who lost finds null here and asks again.
-- Race 3: append_trace before the first save exists has no row to lock, and may draw the same index: the primary key
-- of trace fails the transaction, which is done anew.
-- Timers, markers and steps are changed in the order of the plan: whoever else changes several of an execution's has
-- its row locked first, or, as a sweep does, waits for none. Under that lock a ctid stays what it is.
-- Effects are joined to `won`, which only what was really written can enter. Outbox and spawns draw their seq while the
-- execution's row is held, in emission order: the order of one emitter is its commit order.
WITH input AS MATERIALIZED (
    SELECT i.*
    FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::integer[], $5::text[],
        $6::text[], $7::text[], $8::text[], $9::text[], $10::text[]
    ) WITH ORDINALITY AS i (
        id, definition_id, data, expected, status,
        outcome, active_path, parent_id, event, step, n
    )
),

found AS MATERIALIZED (
    SELECT
        i.n,
        e.version,
        exists(
            SELECT FROM processed_events AS p WHERE p.execution_id = i.id AND p.event_id = i.event OFFSET 0
        ) AS processed
    FROM input AS i
    LEFT JOIN LATERAL (SELECT x.version FROM executions AS x WHERE x.id = i.id OFFSET 0) AS e ON true
),

updated AS (
    UPDATE executions AS e
    SET
        definition_id = i.definition_id,
        data = i.data,
        version = i.expected + 1,
        status = i.status,
        outcome = i.outcome,
        active_path = i.active_path,
        parent_id = i.parent_id
    FROM input AS i
    INNER JOIN found AS f ON i.n = f.n
    WHERE e.id = i.id AND e.version = i.expected AND NOT f.processed
    RETURNING i.n
),

inserted AS (
    INSERT INTO executions (id, definition_id, data, version, status, outcome, active_path, parent_id)
    SELECT i.id, i.definition_id, i.data, 1, i.status, i.outcome, i.active_path, i.parent_id
    FROM input AS i
    INNER JOIN found AS f ON i.n = f.n
    WHERE i.expected = 0 AND f.version IS NULL AND NOT f.processed
    ORDER BY i.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),

won AS MATERIALIZED (
    SELECT i.*
    FROM input AS i
    WHERE i.n IN (SELECT u.n FROM updated AS u) OR i.id IN (SELECT s.id FROM inserted AS s)
),

emitted AS (
    INSERT INTO outbox (target_id, event)
    SELECT o.target_id, o.event
    FROM unnest($11::bigint[], $12::text[], $13::text[]) WITH ORDINALITY AS o (n, target_id, event, place)
    INNER JOIN won AS w ON o.n = w.n
    ORDER BY o.place
),

marked AS (
    INSERT INTO processed_events (execution_id, event_id)
    SELECT w.id, w.event
    FROM won AS w
    WHERE w.event IS NOT NULL
),

spawned AS (
    INSERT INTO spawns (parent_id, child_id, root_path, context)
    SELECT w.id, s.child_id, s.root_path, s.context
    FROM unnest($14::bigint[], $15::text[], $16::text[], $17::text[])
    WITH ORDINALITY AS s (n, child_id, root_path, context, place)
    INNER JOIN won AS w ON s.n = w.n
    ORDER BY s.place
),

-- One operation per path, the last one: a statement cannot change a row twice. Null disarms.
timed AS MATERIALIZED (
    SELECT w.id AS execution_id, t.path, t.fire_at
    FROM unnest($18::bigint[], $19::text[], $20::double precision[]) AS t (n, path, fire_at)
    INNER JOIN won AS w ON t.n = w.n
),

armed AS (
    INSERT INTO timers (execution_id, path, fire_at)
    SELECT t.execution_id, t.path, t.fire_at
    FROM timed AS t
    WHERE t.fire_at IS NOT NULL
    ON CONFLICT (execution_id, path) DO UPDATE SET fire_at = excluded.fire_at
),

idle AS MATERIALIZED (
    SELECT o.tid
    FROM timed AS d
    CROSS JOIN LATERAL (
        SELECT t.ctid AS tid FROM timers AS t WHERE t.execution_id = d.execution_id AND t.path = d.path OFFSET 0
    ) AS o
    WHERE d.fire_at IS NULL
),

disarmed AS (
    DELETE FROM timers AS t USING idle AS i WHERE t.ctid = i.tid
),

stepped AS MATERIALIZED (
    SELECT
        w.id,
        w.step,
        coalesce((SELECT max(t.idx) FROM trace AS t WHERE t.execution_id = w.id), -1) + 1 AS idx
    FROM won AS w
    WHERE w.step IS NOT NULL
),

traced AS (
    INSERT INTO trace (execution_id, idx, entry)
    SELECT s.id, s.idx, s.step
    FROM stepped AS s
),

outworn AS MATERIALIZED (
    SELECT o.tid
    FROM stepped AS s
    CROSS JOIN LATERAL (
        SELECT t.ctid AS tid
        FROM trace AS t
        WHERE t.execution_id = s.id AND t.idx <= s.idx - $21::integer
        OFFSET 0
    ) AS o
),

trimmed AS (
    DELETE FROM trace AS t USING outworn AS o WHERE t.ctid = o.tid
)

SELECT
    f.n,
    w.n IS NOT NULL AS won,
    f.version,
    f.processed
FROM found AS f
LEFT JOIN won AS w ON f.n = w.n
ORDER BY f.n
