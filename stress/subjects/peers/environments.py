"""The environment of a peer: its pinned packages, in the user's cache; made once, and anew when the pins change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from engine.errors import InfrastructureError
from stress.subjects.peers import pins_of

MAKE_TIMEOUT_S: Final = 600.0
LAST_LINES: Final = 3


def python_of(name: str) -> str:
    """The interpreter of the peer of that name. Raises InfrastructureError where its packages cannot be had."""
    pins = pins_of(name)
    known = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = _cache() / "peers" / f"{name}-{known}"
    python = folder / "bin" / "python"
    if (folder / "made").exists():
        return str(python)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{folder}.lock", timeout=MAKE_TIMEOUT_S):
            if not (folder / "made").exists():
                shutil.rmtree(folder, ignore_errors=True)
                for command in _commands(folder, python, pins):
                    _run(name, command)
                (folder / "made").touch()
    except Timeout:
        raise InfrastructureError(
            f"another process has been making the environment of {name} for too long"
        ) from None
    return str(python)


def _cache() -> Path:
    stated = os.environ.get("PGREFEREE_CACHE_DIR")
    return Path(stated).absolute() if stated else user_cache_path("pgreferee")


def _commands(folder: Path, python: Path, pins: Path) -> tuple[list[str], ...]:
    uv = shutil.which(
        "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    if uv is not None:
        return (
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", str(python), "-r", str(pins)],
        )
    return (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(pins)],
    )


def _run(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise InfrastructureError(
            f"the packages of {name} were not installed within {MAKE_TIMEOUT_S:.0f} s"
        ) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
        raise InfrastructureError(f"the packages of {name} cannot be installed: {said}")
