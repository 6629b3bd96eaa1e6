-- The lanes, with seq as an expression: as a column it lets a plan from an empty outbox look a row up here by its seq,
-- and read all of the index for it before 18 (docs/findings.md, "The index that was made last").
DROP INDEX outbox_lane;
CREATE INDEX outbox_lane ON outbox ((hashtext(target_id) & 15), (seq + 0));
