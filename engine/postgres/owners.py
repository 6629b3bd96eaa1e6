"""Who started a server, and whether that process is certainly gone.

Everything that could outlive the harness (a data directory, a container, a database on a user's server)
carries the identity of the process that made it, written down *before* the thing itself exists. Whoever
starts next removes what belongs to a dead owner. Rules, in the order in which they decide:

1. An owner on another host, or in another PID namespace of this boot, cannot be judged: it counts as alive.
2. An owner of an earlier boot of this host is dead, when the record lies on this host's own disk. (On a
   user's server it counts as alive: host names are not unique, and a wrong guess would drop a database in
   use.)
3. An owner whose PID does not exist, is a zombie, or started at another time than recorded is dead.

Start times are kernel clock ticks since boot on Linux, so that a step of the wall clock kills nobody.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, told apart from any other process with the same PID.

    `started` is an opaque string to compare; `created` is when the record was made (ISO 8601, UTC).
    """

    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: str
    created: str

    def to_json(self) -> str:
        """One line of JSON, the same for the same owner."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_object(cls, value: Any) -> Owner:
        """The inverse of `to_json`, from parsed JSON. Raises `ValueError` for anything else."""
        if not isinstance(value, dict):
            raise ValueError("not an owner")
        try:
            texts = {key: str(value[key]) for key in ("host", "boot", "pid_namespace", "started", "created")}
            return cls(pid=int(value["pid"]), **texts)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("not an owner") from error


def current_owner() -> Owner:
    """The identity of this process."""
    started = _started(os.getpid())
    assert started is not None, "a running process has a start time"
    return Owner(
        host=socket.gethostname(),
        boot=_boot(),
        pid_namespace=_pid_namespace(),
        pid=os.getpid(),
        started=started,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def is_dead(owner: Owner, *, record_is_local: bool) -> bool:
    """Whether the owner is certainly gone; see the rules above."""
    if owner.host != socket.gethostname():
        return False
    if owner.boot != _boot():
        return record_is_local
    if owner.pid_namespace != _pid_namespace():
        return False
    return _started(owner.pid) != owner.started


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # macOS: the boot time is wall-clock and may be corrected by a second or so.
        return str(round(psutil.boot_time(), -1))


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When the process started; None when there is no live process of that PID."""
    try:
        # The command name in parentheses may hold spaces and parentheses: fields are counted from the last
        # one.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except OSError:
        pass
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return "unknown"
