"""What runs: the reference store, picker, transport and node, and where a Postgres comes from."""
