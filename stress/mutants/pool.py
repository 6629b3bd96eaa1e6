"""Processes that ask the instruments, each on a server of its own, and answer in the order in which they are done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from engine.errors import InfrastructureError

# A task that takes longer has hung; it is given up with its process.
TASK_TIMEOUT_S: Final = 900.0
STOP_TIMEOUT_S: Final = 20.0
# What a worker may do with its server: task in, answer out.
Work = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """A task that was not answered, and why."""

    why: str


@dataclass(slots=True)
class _Busy:
    task: Any
    until: float


class Pool:
    """`work(bench, task)` is called in a process that has a server `pg`; `open_bench` makes what it is called with."""

    def __init__(self, workers: int, pg: str, open_bench: Callable[..., Any], work: Work) -> None:
        self._workers, self._arguments = workers, (pg, open_bench, work)
        self._context = multiprocessing.get_context("spawn")
        self._ends: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> Pool:
        for _ in range(self._workers):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for here in self._ends:
            here.close()
        for process in self._ends.values():
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()

    def _start(self) -> Connection:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(there, *self._arguments))
        process.start()
        there.close()
        self._ends[here] = process
        return here

    def answers(self, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Task and answer, or task and Lost. Raises InfrastructureError where no worker can be had."""
        left, busy = list(reversed(tasks)), dict[Connection, _Busy]()
        idle, lost = list(self._ends), 0
        while left or busy:
            while idle and left:
                here, task = idle.pop(), left.pop()
                here.send(task)
                busy[here] = _Busy(task, time.monotonic() + TASK_TIMEOUT_S)
            ready = wait(list(busy), max(0.0, min(b.until for b in busy.values()) - time.monotonic()))
            for here in [one for one in busy if one in ready or time.monotonic() >= busy[one].until]:
                task = busy.pop(here).task
                answer: Any
                try:
                    answer = here.recv() if here.poll() else Lost(f"no answer in {TASK_TIMEOUT_S:.0f} s")
                except (EOFError, OSError):
                    answer = Lost("its process ended")
                if isinstance(answer, InfrastructureError):
                    raise answer
                if isinstance(answer, Lost):
                    lost += 1
                    if lost > self._workers:
                        raise InfrastructureError(f"workers are lost again and again: {answer.why}")
                    process = self._ends.pop(here)
                    process.kill()
                    process.join()
                    here.close()
                    here = self._start()
                idle.append(here)
                yield task, answer


def _serve(end: Connection, pg: str, open_bench: Callable[..., Any], work: Work) -> None:
    """A worker process."""
    from hypothesis.configuration import set_hypothesis_home_dir

    from engine.postgres import provision

    # Ctrl-C is for the parent to handle; when it ends, so does the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="pgreferee-hypothesis-"))
        set_hypothesis_home_dir(home)
        try:
            bench = open_bench(stack.enter_context(provision(pg)), stack)
        except InfrastructureError as error:
            end.recv()
            end.send(error)
            return
        while True:
            try:
                task = end.recv()
            except EOFError:
                return
            try:
                answer = work(bench, task)
            except Exception as error:  # noqa: BLE001  # a crash is `unknown`, never `held`
                answer = error
            try:
                end.send(answer)
            except BrokenPipeError:
                return
