"""Settings of started servers. A profile is what they are for; the caller's own settings override it.

Both profiles keep `synchronous_commit = on`. With `off` a commit is answered before its WAL is written,
logical decoding reads written WAL only, and the ledger would miss the last commits for up to three times
`wal_writer_delay`; with `fsync = off` the wait costs next to nothing anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from engine.errors import UsageError

Profile = Literal["fast", "durable"]

LOG_LINE_PREFIX: Final = "%m [%p] %e %q%u@%d %a "

_BOTH: Final = {
    "wal_level": "logical",  # the ledger
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    # The default of 1 s hides a deadlock from a short race; a finding is a finding after a quarter of it.
    "deadlock_timeout": "250ms",
    "log_lock_waits": "on",
    "log_line_prefix": LOG_LINE_PREFIX,
    "log_timezone": "UTC",
    "timezone": "UTC",
    "lc_messages": "C",
    "autovacuum": "on",
    "max_wal_size": "4GB",
    "cluster_name": "pgreferee",
}
_OF_PROFILE: Final[Mapping[Profile, Mapping[str, str]]] = {
    # For tests: nothing survives a crash of the machine, and nothing has to.
    "fast": {"fsync": "off", "full_page_writes": "off"},
    # For benchmarks and crash faults.
    "durable": {"fsync": "on", "full_page_writes": "on"},
}
# What the harness itself decides: a caller who changed these would have no server to talk to.
_FIXED: Final = frozenset(
    {"port", "listen_addresses", "unix_socket_directories", "data_directory", "hba_file", "logging_collector"}
)


def merged(profile: Profile, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a profile with the caller's on top. Raises `UsageError` for one that is not the
    caller's."""
    if profile not in _OF_PROFILE:
        raise UsageError(f"{profile!r} is no profile: use fast or durable")
    lowered = {name.lower(): str(value) for name, value in settings.items()}
    for name in lowered:
        if name in _FIXED or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"the setting {name!r} cannot be given: the harness decides it")
        if not lowered[name].isprintable():
            raise UsageError(f"the value of the setting {name} holds a line end or another control character")
    return {**_BOTH, **_OF_PROFILE[profile], **lowered}


def as_configuration(settings: Mapping[str, str]) -> str:
    """The lines of a `postgresql.conf`. Values are printable, see `merged`; quotes and backslashes are
    escaped."""
    escaped = {name: value.replace("\\", "\\\\").replace("'", "''") for name, value in settings.items()}
    return "".join(f"{name} = '{value}'\n" for name, value in escaped.items())
