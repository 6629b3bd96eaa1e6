"""Loads the fixture plugins; the fixtures themselves live in `tests/fixtures/`, one module a subject."""

from hypothesis import settings

pytest_plugins = [
    "tests.fixtures.lab",
    "tests.fixtures.node",
    "tests.fixtures.postgres",
    "tests.fixtures.scripts",
    "tests.fixtures.stores",
]

# How long one example takes says more of what else the machine does than of the code.
settings.register_profile("pgreferee", deadline=None)
settings.load_profile("pgreferee")
