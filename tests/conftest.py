"""Loads the fixture plugins; the fixtures themselves live in `tests/fixtures/`, one module a subject."""

pytest_plugins = [
    "tests.fixtures.arena",
    "tests.fixtures.lab",
    "tests.fixtures.node",
    "tests.fixtures.postgres",
    "tests.fixtures.race",
]
