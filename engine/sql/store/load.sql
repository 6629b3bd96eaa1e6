-- One execution: its data and version.
-- Index: primary key.
-- Race: none; the two are columns of one row. A transaction of its own: the next load sees what was committed since.
SELECT e.data, e.version FROM executions AS e WHERE e.id = $1::text
