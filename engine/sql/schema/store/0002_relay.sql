-- What the relay rides.

-- The outbox in lanes: all rows of one target lie in one, and one relay at a time empties it, in the order of `seq`.
CREATE INDEX outbox_lane ON outbox ((hashtext(target_id) & 15), seq);
-- Rows for nobody in particular.
CREATE INDEX outbox_broadcast ON outbox (seq) WHERE target_id IS NULL;
-- Whether a target is still to be made.
CREATE INDEX spawns_child ON spawns (child_id);
