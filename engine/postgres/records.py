"""Owner records of started servers, and the removal of what a dead owner left.

Theory of operation. The run folder (`folders.run_folder`) holds for each server `<id>.json`, the record, and
`<id>/`, everything else: data directory, sockets, log. The record is written before the folder is made and
removed after the folder is gone, so nothing is ever without a record. Records are made and reaped under one
lock file, so two starts never remove the same thing, and none removes what another is just making. The record
lies outside of the folder because root's servers run as another account, which owns the folder and must not
be able to forge a record.

A server is only ever signalled when it is certain that it is the postmaster of that folder's data directory:
its working directory or its command line says so. The PID in `postmaster.pid` alone proves nothing, it may be
reused.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from engine.errors import InfrastructureError
from engine.postgres import folders
from engine.postgres.accounts import Account, server_account
from engine.postgres.deadline import until
from engine.postgres.owners import Owner, current_owner, is_dead

LOCK_TIMEOUT_S = 120
STOP_TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class Lodging:
    """The place of one started server: its record, its folder and its data directory."""

    record: Path
    folder: Path

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    def remove(self) -> None:
        """End every process of the server that is still there, then remove folder and record. May be
        repeated."""
        end_processes(self.data_dir)
        _free_shared_memory(self.data_dir)
        for _ in until(STOP_TIMEOUT_S):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                break
        else:
            raise InfrastructureError(f"cannot remove {self.folder}: remove it by hand")
        self.record.unlink(missing_ok=True)


def new_lodging(account: Account) -> Lodging:
    """A fresh private folder (0700, owned by `account`) with a record that says that this process owns it."""
    root = folders.run_folder()
    with _locked(root):
        name = secrets.token_hex(4)
        while (root / f"{name}.json").exists():
            name = secrets.token_hex(4)
        lodging = Lodging(root / f"{name}.json", root / name)
        socket_path = os.fsencode(lodging.folder / ".s.PGSQL.65535.lock")
        if len(socket_path) > folders.SOCKET_PATH_LIMIT_BYTES:
            raise InfrastructureError(
                f"the path {root} is too long for a unix socket: set PGREFEREE_RUN_DIR to a shorter one"
            )
        partial = root / f".{name}.partial"
        partial.write_text(current_owner().to_json() + "\n")
        partial.chmod(0o600)
        partial.rename(lodging.record)
        lodging.folder.mkdir(mode=0o700)
        lodging.folder.chmod(0o700)
        if account.switch:
            os.chown(lodging.folder, account.uid, account.gid)
    return lodging


def reap() -> list[str]:
    """Remove every server of this user whose owner is dead; returns their names. Never touches a living
    owner's."""
    root = folders.run_folder()
    reaped = []
    with _locked(root):
        for partial in root.glob(".*.partial"):
            partial.unlink(missing_ok=True)  # written under this lock only, so its writer is dead
        for record in sorted(root.glob("*.json")):
            try:
                owner = Owner.from_object(json.loads(record.read_text()))
            except (OSError, ValueError):
                continue
            if is_dead(owner, record_is_local=True):
                Lodging(record, record.with_suffix("")).remove()
                reaped.append(record.stem)
    return reaped


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    try:
        with FileLock(root / ".lock", timeout=LOCK_TIMEOUT_S, mode=0o600):
            yield
    except Timeout:
        raise InfrastructureError(
            f"another process has held {root / '.lock'} for {LOCK_TIMEOUT_S} s"
        ) from None


def end_processes(data_dir: Path) -> None:
    """End the postmaster of `data_dir`, an unfinished `initdb` there, and their children; wait until they are
    gone."""
    found = list(_processes_of(data_dir))
    if not found:
        return
    postmaster = _postmaster_pid(data_dir)
    everybody = {*found, *(child for process in found for child in _children(process))}
    for process in found:
        # To the postmaster SIGQUIT is "immediate": it takes its children with it and frees its shared memory.
        _signal(process, signal.SIGQUIT if process.pid == postmaster else signal.SIGTERM)
    alive = _wait(everybody)
    for process in alive:
        _signal(process, signal.SIGKILL)
    alive = _wait(alive)
    if alive:
        raise InfrastructureError(f"process {alive[0].pid} of {data_dir} does not end: end it by hand")


def _wait(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait until the processes have ended; returns those that have not.

    An orphan that is a zombie has ended: the first process of a container may never collect it.
    """
    alive = list(processes)
    for _ in until(STOP_TIMEOUT_S):
        alive = [process for process in alive if _is_alive(process)]
        if not alive:
            break
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _free_shared_memory(data_dir: Path) -> None:
    """Free what a postmaster that was killed left outside of its folder, in `/dev/shm` and in System V
    memory.

    Only Postgres knows which segments those are, and frees them when it starts on that data directory again;
    so it is started once more, alone, and ends at the end of its input. When that fails, a few kilobytes stay
    until a reboot.
    """
    if not (data_dir / "postmaster.pid").is_file():
        return  # it ended in order, or it never was up
    try:
        # Its processes have ended; as a zombie it would still count as running for Postgres.
        (data_dir / "postmaster.pid").unlink()
        program = shlex.split((data_dir / "postmaster.opts").read_text())[0]
        account = server_account()
        subprocess.run(
            [program, "--single", "-D", data_dir, "template1"],
            cwd=data_dir.parent,
            env=dict(account.environment(data_dir.parent)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=STOP_TIMEOUT_S,
            **account.popen_arguments(),
        )
    except (OSError, ValueError, IndexError, subprocess.SubprocessError, InfrastructureError):
        return


def _postmaster_pid(data_dir: Path) -> int | None:
    try:
        return int((data_dir / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def _processes_of(data_dir: Path) -> Iterator[psutil.Process]:
    """The processes that work in this data directory, whatever `postmaster.pid` says."""
    name = str(data_dir)
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            command = process.cmdline()
            if not command or Path(command[0].split(":")[0]).name not in ("postgres", "initdb"):
                continue
            # Postgres moves into its data directory; initdb and a postmaster that is just starting name it.
            if name in command or process.cwd() == name:
                yield process
        except psutil.Error:
            continue


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil compares the start time first: never a reused PID
    except psutil.Error:
        pass
