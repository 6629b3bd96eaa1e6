"""Processor time, of workers and of the server: what a job costs, however busy the machine is otherwise."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

import psutil

from engine.postgres import Server
from stress.swarm.child import Child


class Meter:
    """Begins when it is made; `spent_s` when all workers have ended and were waited for.

    Server: its first process, with what it has waited for, and those that live. None where it is not ours to look at.
    """

    def __init__(self, server: Server, workers: Sequence[Child]) -> None:
        self._server = server
        # What the workers have spent by now counts as theirs when they are waited for.
        self._before_s = _waited_for_s() + sum(_spent_s(psutil.Process(worker.pid)) for worker in workers)
        self._server_before_s = server_s(server)

    def spent_s(self) -> float | None:
        """Seconds of processor time, all together."""
        server = server_s(self._server)
        if server is None or self._server_before_s is None:
            return None
        return _waited_for_s() - self._before_s + server - self._server_before_s


def server_s(server: Server) -> float | None:
    """What a server that the harness has started has spent so far."""
    if server.data_dir is None:
        return None
    try:
        first = psutil.Process(int((Path(server.data_dir) / "postmaster.pid").read_text("utf-8").split()[0]))
        times = first.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in first.children():
            try:
                total += _spent_s(child)
            except psutil.NoSuchProcess:
                continue
    except (OSError, psutil.Error, AttributeError):
        return None
    return float(total)


def _spent_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _waited_for_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
