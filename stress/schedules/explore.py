"""An exploration: tasks for every race, worked at by several processes, and a verdict for each race.

Order of work: every race under the first planner, then with a session that dies, then under the other planners, all of
them exhaustively. A space that turns out to be large is walked with a bound on preemptions instead, and then sampled
(`search.Pct`), until the schedules or the seconds that were asked for are used up. A race that was never begun makes
the exploration unknown.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from engine.errors import InfrastructureError
from engine.postgres import Server, Stopped, fresh_database
from invariants.mutants import REGISTRY
from invariants.verdict import Verdict
from stress.schedules.lab import lab_of
from stress.schedules.race import PLANNERS
from stress.schedules.search import Exhaustive, Pct
from stress.schedules.worker import Found, Task, Worker, races_of

# Complete runs of one exhaustive task; beyond that a space counts as large.
EXHAUSTIVE_RUNS: Final = 4_000
# Orders of steps beyond which a space counts as large from the start, and how it is walked then: most bugs need few
# switches away from a session that could have gone on.
LARGE_ORDERS: Final = 50_000
PREEMPTIONS: Final = 2
BOUNDED_RUNS: Final = 1_500
PCT_RUNS: Final = 250
PCT_DEPTH: Final = 3
GC_THRESHOLD: Final = 10_000
WORKER_TIMEOUT_S: Final = 120.0
# A worker ends after its turn; what it would still have found nobody waits for.
STOP_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for. `schedules` and `seconds` bound it; whichever comes first. `subject`: the
    words for a system that is not the engine."""

    names: tuple[str, ...]
    mutant: str | None
    schedules: int
    seconds: float
    seed: int
    workers: int
    planners: tuple[str, ...] = tuple(PLANNERS)
    deaths: bool = True
    subject: str | None = None


@dataclass(slots=True)
class Tally:
    """What became of one race so far."""

    name: str
    subject: str | None = None
    runs: int = 0
    pruned: int = 0
    orders: int = 0
    blocked: int = 0
    tasks: int = 0
    exhausted: int = 0
    sampled: int = 0
    checked: Counter[str] = field(default_factory=Counter)
    answers: set[str] = field(default_factory=set)
    failure: Found | None = None
    unknown: str | None = None

    def add(self, found: Found) -> None:
        """Take in one turn."""
        self.runs += found.runs
        self.blocked += found.blocked
        self.checked.update(found.checked)
        if len(self.answers) < 2:
            self.answers |= set(list(found.answers)[:2])
        self.orders = max(self.orders, found.task.orders)
        self.unknown = self.unknown or found.unknown
        if found.schedule is not None and (self.failure is None or not self.failure.confirmed):
            self.failure = found

    @property
    def verdict(self) -> Verdict:
        """Violated beats unknown beats held."""
        if self.failure is not None and self.failure.confirmed:
            return "violated"
        return "held" if self.reason is None else "unknown"

    @property
    def reason(self) -> str | None:
        """Why it is neither held nor violated."""
        if self.unknown is not None:
            return self.unknown
        if self.failure is not None:
            return "uncontrolled: taken again, a failing schedule went another way"
        if not self.runs:
            return "the budget was used up before it was begun"
        race = races_of(self.subject)[self.name]
        missed = [name for name in race.invariants if not self.checked[name]]
        if missed:
            return f"nothing in it was subject to {', '.join(missed)}"
        if race.contends and not self.blocked and len(self.answers) < 2 and self.exhausted:
            return "its sessions never met: nobody waited, and no answer depended on the order"
        return None


@dataclass(slots=True)
class Exploration:
    """All tallies, and the figures of the whole."""

    request: Request
    tallies: dict[str, Tally]
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def runs(self) -> int:
        """Complete schedules, each of them judged."""
        return sum(tally.runs for tally in self.tallies.values())

    @property
    def rate(self) -> float:
        """Schedules a second."""
        return self.runs / self.seconds if self.seconds else 0.0

    @property
    def verdict(self) -> Verdict:
        """Violated beats unknown beats held."""
        found = {tally.verdict for tally in self.tallies.values()}
        if "violated" in found:
            return "violated"
        return "held" if found == {"held"} and not self.interrupted else "unknown"


def explore(server: Server, request: Request, show: Callable[[Exploration], None]) -> Exploration:
    """Run it. `show` is called after every turn. Raises InfrastructureError where a worker is lost."""
    exploration = Exploration(request, {name: Tally(name, request.subject) for name in request.names})
    started = time.monotonic()
    with ExitStack() as stack:
        pool = _Alone(server, request, stack) if request.workers == 1 else _Pool(server, request, stack)
        queue = _Queue(request)
        try:
            for found in pool.turns(queue, lambda: _over(exploration, started)):
                exploration.seconds = time.monotonic() - started
                _tally(exploration, found)
                show(exploration)
                queue.back(found, exploration.tallies[found.task.race])
        except (Stopped, KeyboardInterrupt):
            # What was found until now stands.
            exploration.interrupted = True
        exploration.seconds = time.monotonic() - started
    return exploration


def _over(exploration: Exploration, started: float) -> bool:
    request = exploration.request
    return exploration.runs >= request.schedules or time.monotonic() - started >= request.seconds


def _tally(exploration: Exploration, found: Found) -> None:
    tally = exploration.tallies[found.task.race]
    tally.add(found)
    if found.task.over:
        tally.tasks += 1
        tally.pruned += found.task.pruned
        search = found.task.search
        if isinstance(search, Exhaustive) and search.whole:
            tally.exhausted += 1
        else:
            tally.sampled += 1


class _Queue:
    """The tasks that are left, in the order of work."""

    def __init__(self, request: Request) -> None:
        self._request = request
        rounds = [
            [Task(name, planner, 0, Exhaustive(), EXHAUSTIVE_RUNS) for name in request.names]
            for planner in request.planners
        ]
        if request.deaths:
            # After the first planner: deaths find more than plans do.
            dying = [
                Task(name, request.planners[0], 1, Exhaustive(), EXHAUSTIVE_RUNS) for name in request.names
            ]
            rounds.insert(1, dying)
        self._tasks = [task for tasks in rounds for task in tasks]
        self._large: list[Task] = []
        self._sampled = 0
        self._done: set[str] = set()

    def next(self) -> Task | None:
        """The next one; None where nothing is left for now."""
        while self._tasks:
            task = self._tasks.pop(0)
            if task.race not in self._done:
                return task
        while self._large:
            task = self._large.pop(0)
            if task.race in self._done:
                continue
            self._large.append(task)
            self._sampled += 1
            seed = f"{self._request.seed}/{task.race}/{self._sampled}"
            planners = self._request.planners
            planner = planners[self._sampled % len(planners)]
            search = Pct(seed, PCT_RUNS, PCT_DEPTH, task.longest, deaths=task.deaths > 0)
            return Task(task.race, planner, task.deaths, search, PCT_RUNS, longest=task.longest)
        return None

    @property
    def decided(self) -> bool:
        """Whether every race has its verdict, whatever is still under way."""
        return len(self._done) == len(self._request.names)

    def back(self, found: Found, tally: Tally) -> None:
        """A task after a turn at it."""
        task = found.task
        if (tally.failure is not None and tally.failure.confirmed) or tally.unknown is not None:
            self._done.add(task.race)
        elif (
            isinstance(task.search, Exhaustive) and task.search.bound is None and tally.orders > LARGE_ORDERS
        ):
            bounded = Exhaustive(PREEMPTIONS)
            self._tasks.append(
                Task(task.race, task.planner, task.deaths, bounded, BOUNDED_RUNS, longest=task.longest)
            )
        elif not task.over:
            self._tasks.append(task)
        elif isinstance(task.search, Exhaustive) and not task.search.whole:
            self._large.append(task)


class _Alone:
    """One worker, in this process: it begins at once."""

    def __init__(self, server: Server, request: Request, stack: ExitStack) -> None:
        mutant = None if request.mutant is None else REGISTRY[request.mutant]
        dsn = stack.enter_context(fresh_database(server))
        lab = lab_of(dsn, stack, mutant, request.subject)
        self._worker = Worker(lab, mutant, server.version_text, subject=request.subject)

    def turns(self, queue: _Queue, over: Callable[[], bool]) -> Iterator[Found]:
        """Work at one task after the other, and yield what they bring."""
        while not over() and not queue.decided and (task := queue.next()) is not None:
            yield _turn(self._worker, task)


class _Pool:
    """Worker processes, each with a database of its own."""

    def __init__(self, server: Server, request: Request, stack: ExitStack) -> None:
        # One process reads the modules, the workers are copies of it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["stress.schedules.lab", "stress.schedules.worker"])
        self._ends: dict[Connection, Any] = {}
        for _ in range(request.workers):
            dsn = stack.enter_context(fresh_database(server))
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(there, dsn, request.mutant, server.version_text, request.subject),
                daemon=True,
            )
            process.start()
            there.close()
            self._ends[here] = process
        stack.callback(self.close)

    def turns(self, queue: _Queue, over: Callable[[], bool]) -> Iterator[Found]:
        """Give every worker a task as soon as it has none, and yield what they bring."""
        idle, busy = list(self._ends), set[Connection]()
        while True:
            if queue.decided:
                return
            while idle and not over() and (task := queue.next()) is not None:
                here = idle.pop()
                here.send(task)
                busy.add(here)
            if not busy:
                return
            ready = set(wait(list(busy), WORKER_TIMEOUT_S))
            if not ready:
                raise InfrastructureError(f"no worker has answered for {WORKER_TIMEOUT_S:.0f} s")
            for here in [one for one in busy if one in ready]:
                try:
                    found = here.recv()
                except (EOFError, OSError):
                    raise InfrastructureError("a worker process has ended; its error is above") from None
                busy.discard(here)
                idle.append(here)
                yield found

    def close(self) -> None:
        """Tell the workers to end; those that do not are killed."""
        for here in self._ends:
            here.close()
        for process in self._ends.values():
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(end: Connection, dsn: str, mutant: str | None, postgres: str, subject: str | None) -> None:
    """A worker process: tasks come, what was found goes, until the other end is closed."""
    # Ctrl-C is for the parent to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Modules and rules stay; what a schedule leaves is small and comes often.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    variant = None if mutant is None else REGISTRY[mutant]
    with ExitStack() as stack:
        worker = Worker(lab_of(dsn, stack, variant, subject), variant, postgres, subject=subject)
        while True:
            try:
                task = end.recv()
            except EOFError:
                return
            try:
                end.send(_turn(worker, task))
            except BrokenPipeError:
                return


def _turn(worker: Worker, task: Task) -> Found:
    try:
        return worker.turn(task)
    except Exception as error:  # noqa: BLE001  # a crash is `unknown`, never `held`
        return Found(task, unknown=f"the exploration raised {type(error).__name__}: {error}")


def default_workers(count: int) -> int:
    """Three a core: a worker, its sessions and the server take turns, and where others use the machine, too, who is few
    is seldom served. Fewer for few races, `count`: each makes a database of its own first."""
    return min(8, 3 * (os.cpu_count() or 1), count)
