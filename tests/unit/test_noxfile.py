"""The nox sessions hand on exit statuses and signals as they are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A noxfile whose front door is a script instead of a module that needs a server.
NOXFILE = """
import os, sys
sys.path.insert(0, {root!r})
import nox, noxfile

def door(session):
    if status := noxfile.run(session, dict(os.environ), sys.executable, "-c", {script!r}, *session.posargs):
        noxfile.fail(session, status, f"exit status {{status}}")

nox.session(name="one", venv_backend="none")(door)
nox.session(name="two", venv_backend="none")(door)
"""

# Says that it is ready, then counts the signals that it gets until the first is `patience` old.
SLOW_TO_STOP = """
import signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: got.append(signal.Signals(number).name))
print("ready", flush=True)
deadline = time.monotonic() + 30
while not got and time.monotonic() < deadline:
    time.sleep(0.01)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    time.sleep(0.01)
print(*got)
sys.exit(4)
"""


def nox_command(folder: Path, script: str, *arguments: str) -> list[str]:
    noxfile = folder / "noxfile.py"
    noxfile.write_text(NOXFILE.format(root=str(ROOT), script=textwrap.dedent(script)), encoding="utf-8")
    return [sys.executable, "-m", "nox", "--noxfile", str(noxfile), "-s", *arguments]


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4])
def test_the_exit_status_of_a_front_door_is_the_exit_status_of_nox(tmp_path: Path, status: int) -> None:
    command = nox_command(tmp_path, "import sys; sys.exit(int(sys.argv[1]))", "one", "--", str(status))
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == status


def test_of_several_sessions_the_worst_status_counts_and_all_run(tmp_path: Path) -> None:
    script = """
        import os, sys
        marker = sys.argv[1]
        first = not os.path.exists(marker)
        open(marker, "a").write("ran ")
        sys.exit(4 if first else 1)
        """
    marker = tmp_path / "marker"
    command = nox_command(tmp_path, script, "one", "two", "--", str(marker))
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 1
    assert marker.read_text(encoding="utf-8") == "ran ran "


def test_standard_output_holds_what_the_front_door_printed_and_nothing_else(tmp_path: Path) -> None:
    command = nox_command(tmp_path, "import sys; print('{}'); sys.exit(1)", "one")
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "{}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_group", [True, False], ids=["from-the-terminal", "to-nox-alone"])
def test_a_signal_reaches_the_front_door_once_and_leaves_it_time(
    tmp_path: Path, number: signal.Signals, to_group: bool
) -> None:
    with start(nox_command(tmp_path, SLOW_TO_STOP, "one", "two", "--", "1.5")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if to_group:
            # nox stands still: a front door that the group's signal reaches directly has time to note it, and
            # then gets nox's as a second one
            os.kill(process.pid, signal.SIGSTOP)
            os.killpg(process.pid, number)
            time.sleep(0.3)
            os.kill(process.pid, signal.SIGCONT)
        else:
            os.kill(process.pid, number)
        out, _err = process.communicate(timeout=60)
    assert (out, process.returncode) == (f"{number.name}\n", 4)


def test_a_third_signal_ends_a_front_door_that_does_not_stop(tmp_path: Path) -> None:
    with start(nox_command(tmp_path, SLOW_TO_STOP, "one", "--", "45")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.3)
        process.wait(10)
    assert process.returncode == 128 + signal.SIGKILL


def test_a_module_that_is_not_mutated_is_wrong_usage() -> None:
    words = ["--noxfile", str(ROOT / "noxfile.py"), "-s", "mutate", "--", "engine/nothing.py"]
    done = subprocess.run([sys.executable, "-m", "nox", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "engine/nothing.py is not among what is mutated" in done.stderr


def test_what_is_explained_of_mutated_python_is_there() -> None:
    settings = tomllib.loads((ROOT / "tests" / "mutation.toml").read_text("utf-8"))
    paths = [
        path
        for group in ("pure", "all")
        for each in settings[group]["only_mutate"]
        for path in ROOT.glob(each)
    ]
    lines = {line.strip() for path in paths for line in path.read_text("utf-8").splitlines()}
    assert [entry["was"] for entry in settings["explained"] if entry["was"] not in lines] == []
    assert all(entry["why"] and entry["is"] != entry["was"] for entry in settings["explained"])
