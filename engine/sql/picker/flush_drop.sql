-- Delete the whole inbox of the rows that ended, over the rows that committed.
-- Index: signals_target.
-- Race: a delivery that came before the outcome is seen, for this is a statement of its own, later than the locks; one
-- that comes after waits for the row, and then finds no live target.
DELETE FROM signals AS s
WHERE s.target_id = ANY ($1::bigint[])
