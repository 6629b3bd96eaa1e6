"""Where files of started servers and of downloaded binaries lie, and with which modes.

- Run folder: `/tmp/pgreferee-<uid>` (or `$PGREFEREE_RUN_DIR`). Not under `$TMPDIR`: a unix socket's path may
  have 107 bytes only, and `$TMPDIR` is often longer. It holds `<id>.json` (the owner record, ours alone) and
  `<id>/` (the server's private 0700 folder).
- Cache: `$PGREFEREE_CACHE_DIR`, else `/var/cache/pgreferee` for root (root's home is closed to the account
  that the server runs as), else the user's cache directory.

Modes are set explicitly: neither umask 000 nor umask 077 changes them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from engine.errors import InfrastructureError

SOCKET_PATH_LIMIT_BYTES = 103  # Linux allows 107, macOS 103


def run_folder() -> Path:
    """The folder of this user's started servers, made when missing.

    Raises `InfrastructureError` when somebody else owns it: in a shared `/tmp` anybody may have made it
    first.
    """
    # Root's servers run as another account, which must be able to pass through, but not to list or write.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    parent = Path(os.environ.get("PGREFEREE_RUN_DIR") or "/tmp").absolute()
    return _own_folder(parent / f"pgreferee-{os.geteuid()}", mode, "PGREFEREE_RUN_DIR")


def cache_folder() -> Path:
    """The folder of downloaded or copied binaries, made when missing; the server's account may enter it.

    Raises `InfrastructureError` when it cannot be written.
    """
    stated = os.environ.get("PGREFEREE_CACHE_DIR")
    if stated:
        parent = Path(stated).absolute()
    elif os.geteuid() == 0:
        parent = Path("/var/cache/pgreferee")
    else:
        parent = platformdirs.user_cache_path("pgreferee")
    folder = _own_folder(parent / "postgres", 0o755, "PGREFEREE_CACHE_DIR")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InfrastructureError(
            f"the cache {folder} is not writable: set PGREFEREE_CACHE_DIR to a folder that is"
        )
    return folder


def _own_folder(path: Path, mode: int, variable: str) -> Path:
    """`path` as a folder of ours with exactly `mode`. Folders above it are made with 0755 where missing."""
    try:
        for parent in reversed(path.parents):
            _make(parent, 0o755)
        _make(path, mode)
        found = path.lstat()
    except OSError as error:
        raise InfrastructureError(
            f"cannot make the folder {path} ({error.strerror}): set {variable} to one where that works"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise InfrastructureError(f"{path} belongs to somebody else: set {variable} to a folder of your own")
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)
    return path


def _make(path: Path, mode: int) -> None:
    if path.is_dir():
        return
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return
    path.chmod(mode)  # what the umask took away
