"""A harness in a process of its own, to be killed: it provisions a server, says where it is, and waits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CODE = """
import json, os, sys
from engine.postgres import provision, signals_stop
with signals_stop(), provision(sys.argv[1]) as server:
    print(json.dumps({
        "dsn": server.dsn, "database": server.database, "settings": dict(server.settings),
        "data_dir": str(server.data_dir), "socket_dir": str(server.socket_dir), "version": server.version,
        "pid": os.getpid(), "uid": os.getuid(),
    }), flush=True)
    sys.stdin.read()
"""


@dataclass
class Harness:
    """A running harness process and what it said about its server."""

    process: subprocess.Popen[str]
    server: dict[str, Any]

    def postmaster(self) -> psutil.Process:
        return psutil.Process(
            int((Path(self.server["data_dir"]) / "postmaster.pid").read_text().splitlines()[0])
        )

    def uids(self) -> set[int]:
        """The effective users of the server's processes; backends may end while we look."""
        postmaster = self.postmaster()
        found = {postmaster.uids().effective}
        for process in postmaster.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(process.uids().effective)
        return found

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the exit status."""
        self.process.send_signal(number)
        return self.process.wait(30)


@contextlib.contextmanager
def harness(
    pg: str, python: str = sys.executable, env: Mapping[str, str] | None = None, **popen: Any
) -> Iterator[Harness]:
    """Start one; at the end of the block it is told to leave in order, if it still runs."""
    process = subprocess.Popen(
        [python, "-c", CODE, pg],
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **popen,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the harness ended with {process.wait(30)}"
        yield Harness(process, json.loads(line))
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(30)
        process.stdout.close()


def traces(server: Mapping[str, Any]) -> list[str]:
    """What is left of a server: its folder, its record, and processes that work in it."""
    folder = Path(server["socket_dir"])
    left = [str(path) for path in (folder, folder.with_suffix(".json")) if path.exists()]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(folder)) or any(
                str(folder) in part for part in process.cmdline()
            ):
                left.append(f"process {process.pid}")
    return left
