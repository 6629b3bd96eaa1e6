"""How fast somebody else's system works off jobs that do nothing: filled, started, waited for, from outside.

All systems are timed alike: the clock runs from the start of the first worker process until the system has no job
left, which is asked over a session of the harness's own. What a process needs to come up is part of it, so it takes
jobs enough to make that small; `steady_per_s`, the rate between the first job gone and the last, is without.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from engine.errors import InfrastructureError
from engine.postgres import Server
from invariants.foreign import Subject
from stress.subjects.own_run import address, open_subject
from stress.subjects.own_swarm import MODULE
from stress.subjects.peers import words_of
from stress.subjects.process import SubjectConfig
from stress.swarm.child import Child

FILL_TIMEOUT_S: Final = 600.0
LOOK_S: Final = 0.02
STOP_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds, and jobs a second. `whole_s`: from the first process's start; `steady_per_s`: see the module."""

    jobs: int
    processes: int
    fill_s: float
    whole_s: float
    steady_per_s: float


def timed(
    server: Server, words: str, python: str | None, *, jobs: int, processes: int, timeout_s: float = 300.0
) -> Timed:
    """Set the system up in the server's database, which is empty, fill it, vacuum, and work it off.

    Raises UsageError where it is no subject, InfrastructureError where it does not come to an end in time.
    """
    with tempfile.TemporaryDirectory(prefix="pgreferee-timing-") as place:
        folder = Path(place)
        (folder / "logs").mkdir()
        opened = open_subject(words, python, address(server), folder, bench=True)
        began = time.monotonic()
        _filled(_start("fill", "fill", server, words, python, folder, jobs=jobs))
        fill_s = time.monotonic() - began
        with psycopg.connect(server.dsn, autocommit=True, application_name="pgreferee") as session:
            session.execute("VACUUM (ANALYZE)")
            return _drained(
                session, opened, server, words, python, folder, jobs, processes, fill_s, timeout_s
            )


def _drained(
    session: psycopg.Connection[Any], opened: Subject, server: Server, words: str, python: str | None,
    folder: Path, jobs: int, processes: int, fill_s: float, timeout_s: float,
) -> Timed:  # fmt: skip
    began = time.monotonic()
    workers = [
        _start("worker", f"worker-{number}", server, words, python, folder) for number in range(processes)
    ]
    first: tuple[float, int] | None = None
    try:
        while (left := _left(session, opened)) > 0:
            now = time.monotonic()
            if first is None and left < jobs:
                first = (now, left)
            for worker in workers:
                if worker.status is not None:
                    raise InfrastructureError(f"{worker.name} ended by itself: {worker.last_words()}")
            if now - began > timeout_s:
                raise InfrastructureError(f"{left} of {jobs} jobs were left after {timeout_s:.0f} s")
            time.sleep(LOOK_S)
        ended = time.monotonic()
        for worker in workers:
            worker.ask_to_end()
            worker.wait(STOP_TIMEOUT_S)
    finally:
        for worker in workers:
            worker.destroy()
    at, left = first or (began, jobs)
    return Timed(jobs, processes, fill_s, ended - began, left / max(ended - at, LOOK_S))


def _left(session: psycopg.Connection[Any], opened: Subject) -> int:
    query = opened.left or (
        f"SELECT count(*) FROM ({opened.observe}) AS o (t, s) WHERE s IN ('waiting', 'running')"  # noqa: S608
    )
    row = session.execute(query.encode()).fetchone()
    return 0 if row is None else int(row[0])


def _filled(child: Child) -> None:
    try:
        if child.wait(FILL_TIMEOUT_S) != 0:
            raise InfrastructureError(f"the queue could not be filled: {child.last_words()}")
    finally:
        child.destroy()


def _start(
    part: str, name: str, server: Server, words: str, python: str | None, folder: Path, *, jobs: int = 0
) -> Child:
    told = SubjectConfig(
        part=part,
        subject=words_of(words),
        dsn=address(server),
        name=name,
        folder=str(folder),
        jobs=jobs,
        bench=True,
    )
    return Child.start(name, MODULE, told, folder / "logs" / f"{name}.log", python=python)
