"""Tests of the harness itself: `unit` (pure), `integration` (a real Postgres); shared fixtures in
`fixtures`."""
