"""What the engine, its peers and a bare table get done on one server, by turns, seen from the database."""
