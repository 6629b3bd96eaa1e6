"""A process of a foreign system: `python -m stress.subjects.process`, configured over standard input.

It runs in the system's own interpreter, so it needs nothing but Python and msgspec. Its parts:

    open      make the subject, set it up, and answer on standard output what it claims
    client    enqueue jobs at the rate that was asked for
    worker    `System.work`, or the command that stands for it, until it is told to end
    fill      enqueue so many jobs that do nothing, by the system's best way, and end
    close     tear down
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from invariants.history.events import Recorder
from stress.subjects.loading import NoSubject, load
from stress.subjects.system import Job, JobFailed, Node, System
from stress.swarm.child import receive_config

# Exit statuses of this process: no such subject; what it did raised.
NO_SUBJECT, RAISED, SET_UP_RAISED = 5, 6, 7
# A thread that wakes later than that says so: the process was frozen, or had no processor.
PULSE_S: Final = 0.1
STALLED_S: Final = 0.25
KEYS: Final = 6
# A few jobs are long: a fault meets one of them in the middle.
LONG_SHARE: Final = 0.06
LONG_MS: Final = (300.0, 900.0)
SHORT_MS: Final = (0.0, 10.0)
RAISES_SHARE: Final = 0.04
RECONNECT_PAUSE_S: Final = 0.1
COMMAND_STOP_S: Final = 20.0


class SubjectConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told. `part`: see the module; `number` tells clients apart; `jobs`: how many to fill in.
    `at_once`: in calls of how many. `bench`: nothing is recorded, and jobs do nothing."""

    part: str
    subject: str
    dsn: str
    name: str
    folder: str
    seed: int = 0
    number: int = 0
    jobs_per_s: float = 0.0
    jobs: int = 0
    at_once: int = 1_000
    bench: bool = False
    settings: dict[str, str] = {}


class Worker:
    """The `Node` of a worker process. Its recorder is used from any thread."""

    def __init__(self, config: SubjectConfig, recorder: Recorder) -> None:
        self.dsn, self.name, self.stopping = config.dsn, config.name, threading.Event()
        self._folder = Path(config.folder)
        self._recorder = recorder
        self._lock = threading.Lock()

    def run(self, payload: str) -> None:
        """See `Node`."""
        job = json.loads(payload)
        token = self._begin(job)
        with self._cut_off(token):
            time.sleep(job["ms"] / 1000)
        self._end(token, job)

    async def run_async(self, payload: str) -> None:
        """See `Node`."""
        job = json.loads(payload)
        token = self._begin(job)
        with self._cut_off(token):
            await asyncio.sleep(job["ms"] / 1000)
        self._end(token, job)

    def claimed(self, limit: int, jobs: Sequence[str]) -> None:
        """See `Node`."""
        with self._lock:
            token = self._recorder.invoke("took", {"limit": limit, "jobs": list(jobs)})
            self._recorder.complete(token, "ok", {})

    def stalled(self, seconds: float) -> None:
        """This process did not run for so long, up to now."""
        with self._lock:
            token = self._recorder.invoke("stalled", {"ms": seconds * 1000})
            self._recorder.complete(token, "ok", {})

    def _begin(self, job: dict[str, Any]) -> int:
        with self._lock:
            return self._recorder.invoke("run", {"job": job["job"], "key": job["key"]})

    @contextmanager
    def _cut_off(self, token: int) -> Iterator[None]:
        """A run that the system itself cancels has failed."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._recorder.complete(token, "fail", {"error": type(error).__name__})
            raise

    def _end(self, token: int, job: dict[str, Any]) -> None:
        fails = job["raises"] and self._first_time(job["job"])
        with self._lock:
            self._recorder.complete(token, "fail" if fails else "ok", {})
        if fails:
            raise JobFailed(f"{job['job']} raises the first time")

    def _first_time(self, name: str) -> bool:
        """Whether no run of that job, in any process, has come so far before."""
        try:
            (self._folder / "raised" / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Idle:
    """The `Node` of a worker that is timed: its jobs do nothing, and nothing is written down of them."""

    def __init__(self, config: SubjectConfig) -> None:
        self.dsn, self.name, self.stopping = config.dsn, config.name, threading.Event()

    def run(self, payload: str) -> None:
        """See `Node`."""

    async def run_async(self, payload: str) -> None:
        """See `Node`."""

    def claimed(self, limit: int, jobs: Sequence[str]) -> None:
        """See `Node`."""


def main() -> None:
    """Entry point."""
    config = receive_config(SubjectConfig)
    try:
        system = load(config.subject)
    except NoSubject as error:
        _last_words(str(error))
        sys.exit(NO_SUBJECT)
    if config.settings:
        # Read by libpq and by those who do as it does.
        os.environ["PGOPTIONS"] = " ".join(f"-c {name}={value}" for name, value in config.settings.items())
    system.bench = config.bench
    if config.part == "open":
        _open(system, config)
        return
    if config.part == "close":
        system.tear_down(config.dsn)
        return
    if config.part == "fill":
        _fill(system, config)
        return
    if config.bench:
        # Who times it knows its sessions by that name.
        os.environ["PGAPPNAME"] = config.name
        idle = Idle(config)
        threading.Thread(target=_lifeline, args=(idle.stopping,), daemon=True).start()
        _work(system, idle, config)
        os._exit(0)
    with Recorder(Path(config.folder), config.name) as recorder:
        stopping = threading.Event()
        if config.part == "client":
            threading.Thread(target=_lifeline, args=(stopping,), daemon=True).start()
            _client(system, config, recorder, stopping)
        else:
            worker = Worker(config, recorder)
            threading.Thread(target=_lifeline, args=(worker.stopping,), daemon=True).start()
            threading.Thread(target=_pulse, args=(worker,), daemon=True).start()
            _work(system, worker, config)
    sys.stdout.flush()
    # Threads that a library has left behind hold nobody up.
    os._exit(0)


def _lifeline(stopping: threading.Event) -> None:
    """Any byte is an order to stop; the end of the input says that the parent is gone."""
    while os.read(sys.stdin.fileno(), 1):
        stopping.set()
    os._exit(3)


def _pulse(worker: Worker) -> None:
    while not worker.stopping.is_set():
        began = time.monotonic()
        time.sleep(PULSE_S)
        late_s = time.monotonic() - began - PULSE_S
        if late_s > STALLED_S:
            worker.stalled(late_s + PULSE_S)


def _open(system: System, config: SubjectConfig) -> None:
    try:
        system.set_up(config.dsn)
    except Exception as error:  # noqa: BLE001  # somebody else's code
        _last_words(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}")
        sys.exit(SET_UP_RAISED)
    told = {
        "claims": dataclasses.asdict(system.claims),
        "rows": None if system.rows is None else dataclasses.asdict(system.rows),
        "observe": system.observe,
        "jobs_per_s": system.jobs_per_s,
        "left": system.left,
    }
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


def _client(system: System, config: SubjectConfig, recorder: Recorder, stopping: threading.Event) -> None:
    """Enqueue until told to stop. An acknowledged job is `ok`; one whose call raised is `info`: nobody knows."""
    chance = random.Random(f"client/{config.seed}/{config.number}")
    session: Any = None
    number = 0
    next_at = time.monotonic()
    while not stopping.is_set():
        if session is None:
            try:
                session = system.connect(config.dsn)
            except Exception:  # noqa: BLE001  # a server that is down comes back
                stopping.wait(RECONNECT_PAUSE_S)
                continue
        number += 1
        job = drawn(chance, f"job-{config.number}-{number}", system)
        token = recorder.invoke("enqueue", {"job": job.name, "key": job.key})
        try:
            system.enqueue(session, job)
        except Exception as error:  # noqa: BLE001  # whatever it raises: the outcome is unknown
            said = {"error": type(error).__name__, "message": str(error)[:200]}
            recorder.complete(token, "info", said)
            _closed(session)
            session = None
        else:
            recorder.complete(token, "ok", {})
        # Not in step: some come at once, some after a pause.
        next_at = max(next_at, time.monotonic() - 1.0) + chance.expovariate(config.jobs_per_s)
        stopping.wait(max(0.0, next_at - time.monotonic()))


def _fill(system: System, config: SubjectConfig) -> None:
    session = system.connect(config.dsn)
    jobs = [Nothing(name=f"job-0-{number}") for number in range(config.jobs)]
    if config.at_once == 1:
        for job in jobs:
            system.enqueue(session, job)
    else:
        for first in range(0, config.jobs, config.at_once):
            system.enqueue_many(session, jobs[first : first + config.at_once])
    _closed(session)


class Nothing(Job):
    """A job of a benchmark, which is told nothing."""

    __slots__ = ()

    @property
    def payload(self) -> str:
        return "{}"


def drawn(chance: random.Random, name: str, system: System) -> Job:
    """A job as the claims call for."""
    claims = system.claims
    long = chance.random() < LONG_SHARE
    return Job(
        name=name,
        key=None if claims.per_key is None else f"key-{chance.randrange(KEYS)}",
        ms=chance.uniform(*(LONG_MS if long else SHORT_MS)),
        raises=claims.retries and chance.random() < RAISES_SHARE,
    )


def _closed(session: Any) -> None:
    close = getattr(session, "close", None)
    if close is not None:
        try:
            close()
        except Exception:  # noqa: BLE001  # it is broken: that is why it is closed
            pass


def _work(system: System, node: Node, config: SubjectConfig) -> None:
    words = system.command(node)
    try:
        if words is None:
            system.work(node)
        else:
            _command(words, node, config)
    except Exception as error:  # noqa: BLE001  # somebody else's code
        traceback.print_exc()
        _last_words(f"{type(error).__name__}: {error}")
        os._exit(RAISED)
    if not node.stopping.is_set():
        _last_words("its work returned, though nobody had asked it to stop")
        os._exit(RAISED)


def _command(words: list[str], node: Node, config: SubjectConfig) -> None:
    env = os.environ | {
        "PGREFEREE_DSN": config.dsn,
        "PGREFEREE_EFFECTS": str(Path(config.folder) / f"effects-{config.name}.jsonl"),
    }
    process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL)
    while process.poll() is None:
        if node.stopping.wait(PULSE_S):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(COMMAND_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return
    _last_words(f"the command ended with status {process.returncode}")


def _last_words(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
