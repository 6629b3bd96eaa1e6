-- The transport's tables and functions (store.md, "Around it").
--
-- A group is an execution: at most one consumer at a time, first in first out. Its row exists while it has messages.
--
-- Rules:
--
-- 1. A message is never committed without its group's row. A publisher holds the row FOR KEY SHARE, as a foreign key
--    would, and only its removal minds that: claims and acknowledgements go on meanwhile.
-- 2. The messages of one group are committed in the order of their `seq`: publishers of one group take turns at an
--    advisory lock (one of 1024, in ascending order) before a `seq` is drawn.
-- 3. Whoever changes a group's row holds it FOR NO KEY UPDATE first, and then asks again what there is, with a new
--    snapshot: a message acknowledged in the meantime is not handed out once more. Hence functions: every statement of
--    a volatile function has a snapshot of its own.
-- 4. Groups are locked in ascending order, or not waited for. Nobody who holds a group's row waits for a publisher.
-- 5. Plans are made when the tables are small and kept while they grow: the functions switch off what would not scale,
--    and ask for a group's head in a way that the other index, by `seq` alone, cannot answer.
-- 6. `lock_expiry` alone says when a group may be claimed: since when a free one has waited, until when a parked or
--    leased one is out of reach. It never is null: new groups queue behind the older.

CREATE TABLE transport_messages (
    seq bigserial PRIMARY KEY,
    group_id text COLLATE "C" NOT NULL,
    event text NOT NULL
);
CREATE INDEX transport_messages_group ON transport_messages (group_id, seq);

CREATE TABLE transport_groups (
    group_id text COLLATE "C" PRIMARY KEY,
    locked_by text,
    -- Seconds since the epoch. NaN sorts above every number: such a group would never be claimed again.
    lock_expiry double precision NOT NULL CHECK (lock_expiry > '-infinity' AND lock_expiry < 'infinity'),
    priority integer NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 4)
);
-- The claim: one range per priority, which ends where leased and parked groups begin.
-- The id is there as an expression: as a column it would let a plan made for a small table look groups up here by their
-- ids, through all that is ready, once the table has grown.
CREATE INDEX transport_groups_ready ON transport_groups (priority, lock_expiry, (group_id || ''));

-- The server's clock in seconds since the epoch, or the time that a test brings along.
CREATE FUNCTION transport_clock(given double precision) RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(given, extract(EPOCH FROM clock_timestamp())::double precision)
$$;

-- Append events to groups; element i of each array is one message. Returns their seqs in that order.
-- `priorities` hold for groups that this creates: a publish changes neither the lease nor the priority of another.
CREATE FUNCTION transport_publish(
    names text[], events text[], priorities integer[], at double precision
) RETURNS SETOF bigint LANGUAGE plpgsql
SET enable_seqscan TO off SET enable_bitmapscan TO off AS $$
DECLARE
    wanted CONSTANT bigint := (SELECT count(DISTINCT name) FROM unnest(names) AS name);
BEGIN
    PERFORM pg_advisory_xact_lock(1735681638, turn.number)
    FROM (SELECT DISTINCT hashtext(name) & 1023 AS number FROM unnest(names) AS name ORDER BY number) AS turn;
    -- A row that was there a moment ago may be removed before it is locked: then it is made anew.
    FOR attempt IN 1..100 LOOP
        INSERT INTO transport_groups AS g (group_id, lock_expiry, priority)
        SELECT DISTINCT ON (m.name COLLATE "C") m.name, transport_clock(at), coalesce(m.priority, 0)
        FROM unnest(names, priorities) WITH ORDINALITY AS m (name, priority, place)
        ORDER BY m.name COLLATE "C", m.place
        ON CONFLICT (group_id) DO NOTHING;
        IF wanted = (
            SELECT count(*) FROM (
                SELECT 1 FROM transport_groups AS g WHERE g.group_id = ANY (names) ORDER BY g.group_id FOR KEY SHARE
            ) AS held
        ) THEN
            RETURN QUERY
                INSERT INTO transport_messages AS m (group_id, event)
                SELECT n.name, n.event FROM unnest(names, events) WITH ORDINALITY AS n (name, event, place)
                ORDER BY n.place
                RETURNING m.seq;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'the groups of a publish were removed 100 times while it looked';
END
$$;

-- Remove a group's row, whose holder this is, if no message is left and no publisher holds it; otherwise answer false.
CREATE FUNCTION transport_remove(name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM transport_messages AS m WHERE m.group_id = name LIMIT 1;
    IF FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM transport_groups AS g WHERE g.group_id = name FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A publisher may have committed before that lock was had.
    DELETE FROM transport_groups AS g
    WHERE g.group_id = name AND NOT EXISTS (SELECT FROM transport_messages AS m WHERE m.group_id = name);
    RETURN FOUND;
END
$$;

-- Lease up to `wanted` groups, longest waiting first, and return their head messages.
-- Candidates are read without a lock, in pages, and locked one by one by the primary key: whatever the plan is, nothing
-- is locked that is not returned.
CREATE FUNCTION transport_claim(
    wanted integer, holder text, lease double precision, lowest integer, at double precision
) RETURNS TABLE (group_id text, seq bigint, event text) LANGUAGE plpgsql
SET enable_seqscan TO off SET enable_bitmapscan TO off AS $$
#variable_conflict use_column
DECLARE
    clock CONSTANT double precision := transport_clock(at);
    page_size CONSTANT integer := wanted + 8;
    candidate record;
    looked_at integer;
    taken integer := 0;
    last_expiry double precision := '-infinity';
    last_group text := '';
BEGIN
    IF wanted < 1 THEN
        RETURN;
    END IF;
    FOR page IN 1..1000 LOOP
        looked_at := 0;
        FOR candidate IN
            SELECT c.group_id, c.lock_expiry
            FROM generate_series(greatest(lowest, 0), 4) AS p (priority)
            CROSS JOIN LATERAL (
                SELECT g.group_id, g.lock_expiry
                FROM transport_groups AS g
                WHERE
                    g.priority = p.priority
                    AND g.lock_expiry <= clock
                    AND (g.lock_expiry, g.group_id || '') > (last_expiry, last_group)
                ORDER BY g.lock_expiry, g.group_id || ''
                LIMIT page_size
            ) AS c
            ORDER BY c.lock_expiry, c.group_id
            LIMIT page_size
        LOOP
            looked_at := looked_at + 1;
            last_expiry := candidate.lock_expiry;
            last_group := candidate.group_id;
            -- + 0: for the same reason.
            PERFORM FROM transport_groups AS g
            WHERE g.group_id = candidate.group_id AND g.lock_expiry + 0 <= clock AND g.priority + 0 >= lowest
            FOR NO KEY UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            SELECT m.group_id, m.seq, m.event INTO group_id, seq, event
            FROM transport_messages AS m
            WHERE (m.group_id, m.seq) > (candidate.group_id, 0)
            ORDER BY m.group_id, m.seq LIMIT 1;
            IF group_id IS DISTINCT FROM candidate.group_id THEN
                -- Left by an acknowledgement that a publisher kept from removing it, and who then rolled back.
                PERFORM transport_remove(candidate.group_id);
                CONTINUE;
            END IF;
            UPDATE transport_groups AS g SET locked_by = holder, lock_expiry = clock + lease
            WHERE g.group_id = candidate.group_id;
            RETURN NEXT;
            taken := taken + 1;
            IF taken = wanted THEN
                RETURN;
            END IF;
        END LOOP;
        EXIT WHEN looked_at < page_size;
    END LOOP;
END
$$;

-- Acknowledge the head messages of groups; element i of each array is one. True where the lease was still the caller's
-- and the message the head: it is gone, and the group waits behind all that are ready, or is removed.
CREATE FUNCTION transport_ack(
    names text[], seqs bigint[], holders text[], at double precision
) RETURNS TABLE (place bigint, done boolean) LANGUAGE plpgsql
SET enable_seqscan TO off SET enable_bitmapscan TO off AS $$
#variable_conflict use_column
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT n.name, n.seq, n.holder, n.place
        FROM unnest(names, seqs, holders) WITH ORDINALITY AS n (name, seq, holder, place)
        ORDER BY n.name COLLATE "C", n.place
    LOOP
        place := item.place;
        done := false;
        PERFORM FROM transport_groups AS g
        WHERE g.group_id = item.name AND g.locked_by = item.holder
        FOR NO KEY UPDATE;
        IF FOUND THEN
            DELETE FROM transport_messages AS m
            WHERE
                m.seq = item.seq
                AND m.group_id = item.name
                AND m.seq = (
                    SELECT h.seq FROM transport_messages AS h
                    WHERE (h.group_id, h.seq) > (item.name, 0)
                    ORDER BY h.group_id, h.seq LIMIT 1
                );
            done := FOUND;
        END IF;
        IF done AND NOT transport_remove(item.name) THEN
            UPDATE transport_groups AS g SET locked_by = NULL, lock_expiry = transport_clock(at)
            WHERE g.group_id = item.name;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
