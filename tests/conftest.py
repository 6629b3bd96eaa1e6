"""Loads the fixture plugins; the fixtures themselves live in `tests/fixtures/`, one module a subject."""

pytest_plugins = [
    "tests.fixtures.arena",
    "tests.fixtures.courier",
    "tests.fixtures.depot",
    "tests.fixtures.node",
    "tests.fixtures.postgres",
    "tests.fixtures.race",
]
