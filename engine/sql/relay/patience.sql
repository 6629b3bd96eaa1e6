-- Let the server end this session where it leaves the transaction alone for $1 ms: a relay that is paused between two
-- statements would keep its spawns, and all that is emitted to their children, from the others.
-- Index: none. Race: none.
SELECT set_config('idle_in_transaction_session_timeout', $1::text, true)
