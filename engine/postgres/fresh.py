"""One more empty database on a provisioned server, for a test or for one controlled schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.postgres import conninfo, databases
from engine.postgres.server import Server


@contextmanager
def fresh_database(server: Server, *, template: str = "template0") -> Iterator[str]:
    """The DSN of a new marked database, dropped (sessions or not) when the block is left.

    `template` may be a database of the harness on that server without sessions, to clone a schema in tens of
    milliseconds. On a user's server the role that `server.dsn` names makes the database.
    """
    name = databases.new_name()
    params = conninfo.parse(server.admin_dsn or server.dsn)
    with conninfo.connect(params) as conn:
        databases.create(conn, name, template=template)
    try:
        yield conninfo.with_database(server.dsn, name)
    finally:
        with conninfo.connect(params) as conn:
            databases.drop(conn, name)
