"""Nothing outlives its harness, and nobody removes what another harness still uses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from engine.postgres import InfrastructureError, folders, provision, records
from engine.postgres.accounts import server_account
from engine.postgres.owners import Owner
from tests.integration.harness_process import harness, traces


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -2), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupted_harness_leaves_nothing(number: signal.Signals, status: int) -> None:
    with harness("embedded") as running:
        assert traces(running.server) != []
        assert running.end(number) == status
        assert traces(running.server) == []


def test_the_first_ctrl_c_cleans_up_even_when_a_second_one_follows_at_once() -> None:
    with harness("embedded") as running:
        for _ in range(20):
            running.process.send_signal(signal.SIGINT)
        running.process.wait(30)
        assert traces(running.server) == []


def test_an_exception_in_the_block_leaves_nothing() -> None:
    seen = {}

    def fail() -> None:
        with provision("embedded") as server:
            seen["socket_dir"] = str(server.socket_dir)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert traces(seen) == []


def test_ctrl_c_while_it_starts_leaves_nothing(own_run_folder: Path) -> None:
    """Interrupted at many points of the start, also where `initdb` or the postmaster is just coming up."""
    code = "from engine.postgres import provision\nprint('go', flush=True)\nwith provision(): pass"
    for delay_ms in (0, 60, 150, 250, 350, 450, 550):
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        process.stdout.readline()
        # Not to wait for something: the points of the start are what is swept over.
        time.sleep(delay_ms / 1000)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close()
        assert [path.name for path in own_run_folder.glob("[!.]*")] == []
        assert _servers_in(own_run_folder) == []


def _runs(process: psutil.Process) -> bool:
    """Whether it does; an orphan may stay a zombie for a while, or for ever in a container."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _servers_in(folder: Path) -> list[int]:
    """Servers whose command line names the folder. Other tests' servers may end while we look at them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.name() in ("postgres", "initdb") and str(folder) in " ".join(process.cmdline())
            if ours and _runs(process):
                found.append(process.pid)
    return found


def test_the_next_start_removes_what_a_killed_harness_left() -> None:
    with harness("embedded") as running:
        postmaster = running.postmaster()
        running.end(signal.SIGKILL)
        assert _runs(postmaster)
        assert traces(running.server) != []
        with provision("embedded"):
            assert traces(running.server) == []
            assert not _runs(postmaster)


def test_what_a_killed_postmaster_left_is_removed_as_well() -> None:
    """Its folder, and on Linux its shared memory, which lies elsewhere."""
    with harness("embedded") as running:
        postmaster = running.postmaster()
        segments = _shared_memory(postmaster)
        running.end(signal.SIGKILL)
        postmaster.kill()
        if Path("/dev/shm").is_dir():
            assert len(segments) >= 2
            assert all(_exists(segment) for segment in segments)
        records.reap()
        assert traces(running.server) == []
        assert not any(_exists(segment) for segment in segments)


def _shared_memory(postmaster: psutil.Process) -> set[str]:
    """The files in `/dev/shm` and the System V segments (as `sysv:ID`) that a postmaster uses."""
    if not Path("/dev/shm").is_dir():
        return set()
    files = {each.path for each in postmaster.memory_maps() if each.path.startswith("/dev/shm/")}
    lines = Path(postmaster.cwd(), "postmaster.pid").read_text().splitlines()
    return files | {f"sysv:{lines[6].split()[1]}"}


def _exists(segment: str) -> bool:
    if segment.startswith("sysv:"):
        rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        return segment.removeprefix("sysv:") in {row.split()[1] for row in rows}
    return Path(segment).exists()


def test_an_initdb_whose_harness_was_killed_is_ended() -> None:
    """Killed between the record and the server: only the data directory on the command line tells."""
    account = server_account()
    lodging = records.new_lodging(account)
    innocent = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)", "--pgdata", str(lodging.data_dir)],
    )
    try:
        # Another program that merely names the folder is not ours to end.
        assert list(records._processes_of(lodging.data_dir)) == []
        pretender = subprocess.Popen(
            ["initdb", "-c", "import time; time.sleep(300)", str(lodging.data_dir)], executable=sys.executable
        )
        assert [each.pid for each in records._processes_of(lodging.data_dir)] == [pretender.pid]
        _forge(lodging.record, started="1")
        assert lodging.record.stem in records.reap()
        assert pretender.poll() is not None
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait(10)
        lodging.remove()


def _forge(record: Path, **change: str) -> None:
    owner = Owner.from_object(json.loads(record.read_text()))
    record.write_text(replace(owner, **change).to_json())  # type: ignore[arg-type]


def test_two_harnesses_never_remove_each_others_server() -> None:
    with harness("embedded") as one, harness("embedded") as two:
        assert records.reap() == []
        with provision("embedded"):
            for running in (one, two):
                with psycopg.connect(running.server["dsn"]) as conn:
                    assert conn.execute("SELECT 1").fetchone() == (1,)
        one.end(signal.SIGTERM)
        assert traces(one.server) == []
        with psycopg.connect(two.server["dsn"]) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    "change", [{"host": "elsewhere", "started": "1"}, {"pid_namespace": "another container", "started": "1"}]
)
def test_what_cannot_be_judged_is_left_alone(change: dict[str, str]) -> None:
    lodging = records.new_lodging(server_account())
    try:
        _forge(lodging.record, **change)
        assert lodging.record.stem not in records.reap()
        assert lodging.folder.is_dir()
    finally:
        lodging.remove()


def test_a_reused_pid_in_postmaster_pid_is_not_signalled() -> None:
    lodging = records.new_lodging(server_account())
    innocent = subprocess.Popen(["sleep", "300"])
    try:
        lodging.data_dir.mkdir()
        (lodging.data_dir / "postmaster.pid").write_text(f"{innocent.pid}\n{lodging.data_dir}\n")
        _forge(lodging.record, started="1")
        assert lodging.record.stem in records.reap()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait(10)
        lodging.remove()


def test_a_forked_child_does_not_take_its_parents_server_away() -> None:
    code = """
import os, sys, psycopg
from engine.postgres import provision
with provision() as server:
    child = os.fork()
    if child == 0:
        sys.exit(0)  # leaves the block and runs atexit
    assert os.waitpid(child, 0)[1] == 0
    psycopg.connect(server.dsn).close()
    print("alive")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "alive\n", result.stderr


def test_a_process_that_leaves_the_block_by_os_exit_is_reaped_and_one_by_sys_exit_cleans_up() -> None:
    for leave, left in (("sys.exit(0)", False), ("os._exit(0)", True)):
        code = f"""
import json, os, sys
from engine.postgres import provision
stack = __import__("contextlib").ExitStack()  # never closed: only atexit is left
server = stack.enter_context(provision())
print(json.dumps({{"socket_dir": str(server.socket_dir)}}), flush=True)
{leave}
"""
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        server = json.loads(result.stdout)
        assert (traces(server) != []) == left
        records.reap()
        assert traces(server) == []


def test_somebody_elses_run_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGREFEREE_RUN_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"pgreferee-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match="PGREFEREE_RUN_DIR"):
        folders.run_folder()


def test_a_run_folder_too_deep_for_a_socket_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGREFEREE_RUN_DIR", str(tmp_path / ("x" * 90)))
    with pytest.raises(InfrastructureError, match="too long"), provision("embedded"):
        pass
