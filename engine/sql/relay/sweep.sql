-- Fire up to $2 timers that are due at $1, null for the server's clock: each becomes an event in the outbox. Returns
-- them, oldest due first.
-- One statement, one transaction: a timer is armed, or its event is in the outbox. A sweep cannot fire what a cancel
-- has removed, nor remove what was armed anew, also to the same instant: it removes the row that it fires.
-- Index: timers_due, in its order; what is locked stays where it is, and is removed there.
-- Race 1: another sweep. SKIP LOCKED.
-- Race 2: a commit cancels or re-arms a timer that this snapshot still shows. Its row is locked, passed over, and
-- looked at by the next sweep; where it was changed just before the lock, this snapshot does not show the version that
-- is locked, and it stays.
-- The event's id ends in its outbox seq: a timer armed anew to the same instant fires anew, under another id. It is an
-- id like any other, and no longer: execution and path, which may be as long each, are hashed where they are.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::double precision, extract(EPOCH FROM clock_timestamp())::double precision) AS instant
),

due AS MATERIALIZED (
    SELECT t.ctid AS place
    FROM timers AS t
    WHERE t.fire_at <= (SELECT c.instant FROM clock AS c)
    ORDER BY t.fire_at, t.execution_id, t.path
    LIMIT $2::bigint
    FOR UPDATE OF t SKIP LOCKED
),

fired AS (
    DELETE FROM timers AS t
    WHERE t.ctid = ANY (array(SELECT d.place FROM due AS d))
    RETURNING t.execution_id, t.path, t.fire_at
),

numbered AS MATERIALIZED (
    SELECT
        f.execution_id,
        f.path,
        f.fire_at,
        CASE
            WHEN octet_length(f.execution_id) + octet_length(f.path) > 900 THEN md5(f.execution_id || ':' || f.path)
            ELSE f.execution_id || ':' || f.path
        END AS name,
        nextval('outbox_seq_seq') AS seq
    FROM (SELECT * FROM fired ORDER BY fire_at, execution_id, path) AS f
),

emitted AS (
    INSERT INTO outbox AS o (seq, target_id, event)
    SELECT
        n.seq,
        n.execution_id,
        json_build_object(
            'id', concat_ws(':', 'timer', n.name, n.fire_at, n.seq),
            'kind', 'timer',
            'payload', json_build_object('path', n.path, 'fire_at', n.fire_at)
        )::text
    FROM numbered AS n
)

SELECT n.execution_id, n.path, n.fire_at, n.seq FROM numbered AS n ORDER BY n.seq
