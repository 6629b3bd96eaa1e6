"""Where a Postgres comes from: five sources behind one `with provision(...)`; see docs/postgres.md.

Whatever is started is stopped and removed, also after a crash of the harness; on a user's own server the
harness works in a database of its own and touches nothing else.
"""

from engine.errors import HarnessError, InfrastructureError, UsageError
from engine.postgres.cleanup import Stopped, signals_stop
from engine.postgres.databases import assert_ours
from engine.postgres.fresh import fresh_database
from engine.postgres.profiles import Profile
from engine.postgres.provision import provision
from engine.postgres.server import Server, StopMode
from engine.postgres.spec import MAJORS, Source, parse_pg

__all__ = [
    "MAJORS",
    "HarnessError",
    "InfrastructureError",
    "Profile",
    "Server",
    "Source",
    "StopMode",
    "Stopped",
    "UsageError",
    "assert_ours",
    "fresh_database",
    "parse_pg",
    "provision",
    "signals_stop",
]
