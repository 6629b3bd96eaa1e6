"""Environments of peers, one each in the user's cache: their dependencies are none of this project's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import platformdirs
from filelock import FileLock, Timeout

from engine.errors import InfrastructureError

INSTALL_S: Final = 300.0


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of an environment with these packages, made when it is first asked for, which needs pip's index.

    Raises InfrastructureError where it cannot be had."""
    key = hashlib.sha256(" ".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = Path(platformdirs.user_cache_dir("pgreferee")) / "peers" / f"{name}-{key}"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{folder}.lock", timeout=INSTALL_S):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                venv.create(folder, with_pip=True)
                _install(python, requirements)
                done.touch()
    except (Timeout, OSError, subprocess.SubprocessError) as error:
        raise InfrastructureError(f"no environment for {name} can be had: {error}") from error
    return python


def _install(python: Path, requirements: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, env=environment)
    if ran.returncode:
        last = next(iter(reversed(ran.stderr.strip().splitlines())), "no reason given")
        raise InfrastructureError(f"pip cannot install {' '.join(requirements)}: {last}")
