"""Loads the fixture plugins; the fixtures themselves live in `tests/fixtures/`, one module a subject."""

from hypothesis import settings

# `race` before `arena`, which imports it: pytest rewrites the assertions of what it loads first.
pytest_plugins = [
    "tests.fixtures.race",
    "tests.fixtures.arena",
    "tests.fixtures.courier",
    "tests.fixtures.depot",
    "tests.fixtures.lab",
    "tests.fixtures.node",
    "tests.fixtures.postgres",
    "tests.fixtures.stores",
]

# How long one example takes says more of what else the machine does than of the code.
settings.register_profile("pgreferee", deadline=None)
settings.load_profile("pgreferee")
