-- Renew the lease of group $1, held as $2: it ends $3 s from now. $4 is the time, null for the server's.
-- Index: the primary key. Race: the lease lapsed and another took the group over: nothing changes.
UPDATE transport_groups AS g
SET lock_expiry = transport_clock($4::double precision) + $3::double precision
WHERE g.group_id = $1::text AND g.locked_by = $2::text
RETURNING g.group_id
