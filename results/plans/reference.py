"""What a person calls a capture: a folder, a major version of the committed baselines, or a revision of one.

results/runs/plans/18     a folder
18                        the baseline of that major, as it is here
HEAD~3:18, v1.2:15        the baseline of that major, as it was committed in that revision of git
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from engine.errors import UsageError
from engine.postgres import MAJORS
from results.plans import folder
from results.plans.folder import Capture

GIT_TIMEOUT_S: Final = 60


def baselines() -> Path:
    """The committed captures of this version of pgreferee."""
    return Path(__file__).resolve().parents[1] / "baselines" / "plans"


def named(name: str) -> Capture:
    """The capture of that name. Raises UsageError in one sentence."""
    place = Path(name)
    if place.is_dir():
        return folder.read(place)
    revision, colon, major = name.rpartition(":")
    if not major.isdecimal() or int(major) not in MAJORS or (colon and not revision):
        raise UsageError(
            f"{name!r} is no folder, no major version from {min(MAJORS)} to {max(MAJORS)}, and no revision of one such"
            " as HEAD~3:18"
        )
    if colon:
        return _committed(revision, major)
    if not (baselines() / major).is_dir():
        raise UsageError(f"there is no baseline of {major}: there are {', '.join(_majors())}")
    return folder.read(baselines() / major)


def nearest(major: int, profile_name: str) -> Capture | None:
    """The committed baseline of another major, the nearest, where it is of that profile."""
    others = sorted((abs(int(each) - major), each) for each in _majors() if int(each) != major)
    for _, each in others:
        capture = folder.read(baselines() / each)
        if capture.environment.profile.name == profile_name:
            return capture
    return None


def _majors() -> list[str]:
    if not baselines().is_dir():
        return []
    return sorted(path.name for path in baselines().iterdir() if path.is_dir() and path.name.isdecimal())


def _committed(revision: str, major: str) -> Capture:
    """The baseline as a revision has it, unpacked beside nothing that is there."""
    if revision.startswith("-"):
        raise UsageError(f"{revision!r} is no revision")
    _git(
        "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", told=f"{revision!r} is no revision here"
    )
    packed = _git(
        "archive", "--format=tar", f"{revision}:./{major}", told=f"{revision} has no baseline of {major}"
    )
    with tempfile.TemporaryDirectory(prefix="pgreferee-") as place:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(place, filter="data")
        try:
            return folder.read(Path(place))
        except UsageError as error:
            raise UsageError(f"{revision}:{major}: {str(error).replace(place, 'the baseline')}") from error


def _git(*arguments: str, told: str) -> bytes:
    """What git says. Raises UsageError with `told` where it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(baselines()), *arguments],
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git, which knows of revisions, cannot be asked: {error}") from error
    if done.returncode:
        raise UsageError(told)
    return done.stdout
