"""Workers of peers, each run by the Python of an environment of its own."""
