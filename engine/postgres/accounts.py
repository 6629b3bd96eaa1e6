"""Which user a started server runs as.

Postgres refuses to run as root, and `initdb` too. An ordinary user's servers run as that user. Root's run as
an unprivileged account that exists already (nothing is added to the system): `postgres`, else `nobody`.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import InfrastructureError

_CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """The user and group a server's files belong to. `switch` says whether that is another user than ours."""

    name: str
    uid: int
    gid: int
    switch: bool

    def popen_arguments(self) -> dict[str, Any]:
        """What `subprocess` needs to run a program as this account, with private files whatever our umask
        is."""
        arguments: dict[str, Any] = {"umask": 0o077}
        if self.switch:
            arguments |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return arguments

    def environment(self, home: Path) -> Mapping[str, str]:
        """An environment that owes nothing to ours: no `PG*`, no locale that this machine lacks, no
        `LD_*`."""
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C", "TZ": "UTC"}

    def can_run(self, program: Path) -> bool:
        """Whether this account may enter the folders above `program` and start it (`program --version`)."""
        try:
            result = subprocess.run(
                [program, "--version"],
                cwd="/",
                env=dict(self.environment(Path("/"))),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
                **self.popen_arguments(),
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return result.returncode == 0


def server_account() -> Account:
    """The account for servers that this process starts. Raises `InfrastructureError` where root has none to
    use."""
    if os.geteuid() != 0:
        return Account(str(os.geteuid()), os.geteuid(), os.getegid(), switch=False)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid, switch=True)
    raise InfrastructureError(
        "Postgres does not run as root, and this machine has no account `postgres` or `nobody` to run it as: "
        "run as an ordinary user, or use --pg dsn:postgresql://..."
    )
