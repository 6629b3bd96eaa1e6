"""A Postgres that can be used now: how to reach it, what it is, and what may be done to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from engine.errors import InfrastructureError

StopMode = Literal["fast", "immediate"]


class Control(Protocol):
    """The side of a source that a `Server` acts through, for sources that the harness started."""

    def stop(self, mode: StopMode) -> None: ...
    def start(self) -> None: ...
    def log_bytes(self, since: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and the harness's own database on it. The strings that hold a password are not in the
    repr.

    - `dsn`: the harness's database, through a unix socket where there is one.
    - `tcp_dsn`: the same database over TCP, for a proxy or a driver without unix sockets; None when not
      listening.
    - `admin_dsn`: the database `postgres` as superuser, on servers that the harness started; else None.
    - `source`: `embedded`, `npm`, `system`, `container` or `dsn`: where it really came from.
    - `version`: as `server_version_num`, 180006; `version_text`: as `server_version`, "18.6".
    - `settings`: read back from the server, with units ("128MB"); see `inspection.RECORDED` for which.
    - `why_no_ledger`: None when a logical replication slot can be made in `database`, else a sentence that
      names the setting or the privilege to change.
    - `notes`: sentences about this server that a reader of results should know.
    - `log_path`: the server's log file, when it lies on this machine.
    """

    source: str
    version: int
    version_text: str
    database: str
    dsn: str = field(repr=False)
    tcp_dsn: str | None = field(repr=False)
    admin_dsn: str | None = field(repr=False)
    settings: Mapping[str, str]
    why_no_ledger: str | None
    notes: tuple[str, ...] = ()
    profile: str | None = None
    data_dir: Path | None = None
    socket_dir: Path | None = None
    log_path: Path | None = None
    control: Control | None = field(default=None, repr=False, compare=False)

    @property
    def major(self) -> int:
        return self.version // 10000

    @property
    def wal_level_logical(self) -> bool:
        return self.settings["wal_level"] == "logical"

    @property
    def can_restart(self) -> bool:
        """Whether `stop` and `start` work: only for servers that the harness started."""
        return self.control is not None

    @property
    def has_log(self) -> bool:
        """Whether `log_text` and `log_lines` can see the server's log."""
        return self.control is not None

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait until it is gone. `immediate` is a crash: no checkpoint, recovery at
        `start`."""
        self._controlled().stop(mode)

    def start(self) -> None:
        """Start a stopped server again, at the same address, and wait until it accepts connections."""
        self._controlled().start()

    def log_size(self) -> int:
        """How much log there is now, in bytes: an offset for `log_text` and `log_lines`."""
        return len(self._controlled().log_bytes(0)) if self.log_path is None else self.log_path.stat().st_size

    def log_text(self, since: int = 0) -> str:
        """The server's log from byte offset `since` on. Raises `InfrastructureError` without `has_log`."""
        return self._controlled().log_bytes(since).decode(errors="replace")

    def log_lines(self, since: int = 0) -> Iterator[str]:
        """The complete lines of `log_text`. A line starts with time, [PID], SQLSTATE, user@database,
        application."""
        text = self.log_text(since)
        yield from text[: text.rfind("\n") + 1].splitlines()

    def _controlled(self) -> Control:
        if self.control is None:
            raise InfrastructureError(
                "the harness did not start this server: it cannot stop it or read its log"
            )
        return self.control
