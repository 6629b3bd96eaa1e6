"""What one process of an exploration does: runs of one task at a time, in a lab of its own.

A failing schedule is looked at on the spot: it is taken twice more, on tables as they were at first. Where the choices
or who was blocked differ, it is not under control, and the verdict is `unknown`, never `violated`. Then it is shrunk,
told and written down.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from invariants.mutants import Mutant
from results.report.lanes import Drawn
from stress.schedules import story
from stress.schedules.controller import Run, Uncontrolled
from stress.schedules.export import isolation_spec
from stress.schedules.gates import ROW_GATE
from stress.schedules.lab import Judged, Lab
from stress.schedules.pairs import PAIRS
from stress.schedules.race import Race
from stress.schedules.races import ALL
from stress.schedules.record import Schedule, reduced, written
from stress.schedules.search import Choice, Diverged, Exhaustive, Fixed, Search, interleavings
from stress.schedules.shrink import Candidate, Failing, shrink
from stress.schedules.stored_pairs import STORED_PAIRS

# Runs that are judged at once: few at first, for what fails often does so at once.
FIRST_BATCH: Final = 8
BATCH: Final = 40
# How long a task is worked at before the others get their turn, and how often in a row a path may diverge before it
# is given up.
CHUNK_S: Final = 1.0
MAX_DIVERGED: Final = 3
# How many failing schedules that could not be repeated are looked at before the race is given up as uncontrolled.
MAX_UNCONFIRMED: Final = 5
MAX_PROBES: Final = 150
MAX_SHRINK_S: Final = 6.0


@cache
def races() -> dict[str, Race]:
    """Every race, the written ones and the pairs."""
    return {**ALL, **{race.name: race for race in (*PAIRS, *STORED_PAIRS)}}


@cache
def races_of(subject: str | None) -> Mapping[str, Race]:
    """Those of a system that is not the engine; of the engine, every race."""
    if subject is None:
        return races()
    from stress.subjects.own_races import own_races, queue_of

    return own_races(queue_of(subject))


@dataclass(slots=True)
class Task:
    """Runs to be taken: `search` remembers how far it is. `limit`: complete runs at most."""

    race: str
    planner: str
    deaths: int
    search: Search
    limit: int
    runs: int = 0
    pruned: int = 0
    diverged: int = 0
    unconfirmed: int = 0
    longest: int = 0
    orders: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing is left to run."""
        return self.search.exhausted or self.runs >= self.limit


@dataclass(slots=True)
class Found:
    """What one turn at a task brought. `rows`, `drawn` and `reasons`: the story of the failing schedule; `confirmed` is
    False for one that was not under control."""

    task: Task
    runs: int = 0
    checked: Counter[str] = field(default_factory=Counter)
    blocked: int = 0
    answers: set[str] = field(default_factory=set)
    schedule: Schedule | None = None
    confirmed: bool = False
    steps: int = 0
    sessions: tuple[str, ...] = ()
    rows: list[list[str]] = field(default_factory=list)
    drawn: Drawn | None = None
    reasons: list[str] = field(default_factory=list)
    spec: str | None = None
    unknown: str | None = None

    @property
    def final(self) -> bool:
        """Whether there is nothing more to look for."""
        return self.unknown is not None or (self.schedule is not None and self.confirmed)


class Worker:
    """A lab and what is asked of it. `shrinking_s`: how long a failing schedule is made smaller, at most. `subject`:
    the words for a system that is not the engine."""

    def __init__(
        self,
        lab: Lab,
        mutant: Mutant | None,
        postgres: str,
        *,
        shrinking_s: float = MAX_SHRINK_S,
        subject: str | None = None,
    ) -> None:
        self._subject = subject
        self._races = races_of(subject)
        self._lab = lab
        self._mutant = mutant
        self._postgres = postgres
        self._shrinking_s = shrinking_s

    def turn(self, task: Task, seconds: float = CHUNK_S) -> Found:
        """Work at a task for a while, or until it is over, or a schedule fails."""
        found = Found(task)
        race = self._races[task.race]
        until = time.monotonic() + seconds
        while (
            time.monotonic() < until and not found.final and (batch := self._batch(race, task, found, until))
        ):
            self._judge(race, task, batch, found)
        return found

    def _batch(self, race: Race, task: Task, found: Found, until: float) -> list[tuple[Race, Run]]:
        batch: list[tuple[Race, Run]] = []
        most = min(BATCH, max(FIRST_BATCH, task.runs))
        while len(batch) < most and not task.over and (not batch or time.monotonic() < until):
            batch.append((race, self._run(race, task, found)))
            if found.unknown is not None:
                break
        return batch

    def _run(self, race: Race, task: Task, found: Found) -> Run:
        run = Run()
        try:
            self._lab.run(race, task.planner, task.search, deaths=task.deaths, into=run)
        except (Uncontrolled, Diverged) as error:
            # The same path again; a search begins each run anew.
            run.complete = False
            task.diverged += 1
            if task.diverged > MAX_DIVERGED:
                if isinstance(error, Uncontrolled) or not isinstance(task.search, Exhaustive):
                    found.unknown = f"uncontrolled: {error}"
                else:
                    task.search.skip()
                    task.diverged = 0
            return run
        task.diverged = 0
        if run.complete:
            task.runs += 1
            found.runs += 1
            task.longest = max(task.longest, len(run.steps))
            if not task.deaths:
                task.orders = max(task.orders, interleavings(run.counts.values()))
        else:
            task.pruned += 1
        return run

    def _judge(self, race: Race, task: Task, batch: list[tuple[Race, Run]], found: Found) -> None:
        failing: list[Judged] = []
        for judged in self._lab.judged(batch):
            found.checked.update({j.invariant: j.checked for j in judged.report.judgements})
            found.blocked += judged.run.blocked
            found.answers.add(judged.outcome)
            if judged.undecided is not None and found.unknown is None:
                found.unknown = judged.undecided
            if judged.violated:
                failing.append(judged)
        # Of a mutant, what it is known for is shown first.
        known = set() if self._mutant is None else set(self._mutant.caught_by)
        for judged in sorted(failing, key=lambda one: not known & set(one.violated)):
            if not found.final:
                self._fail(race, task, judged, found)

    def _fail(self, race: Race, task: Task, judged: Judged, found: Found) -> None:
        everything = {name: tuple(range(len(actions))) for name, actions in race.sessions.items()}
        first = Candidate(everything, judged.run.choices)
        again = [self._take(race, task.planner, first, fresh=True) for _ in range(2)]
        same = all(one is not None and one.run.signature == judged.run.signature for one in again)
        small, last = first, judged
        if same and all(one is not None and one.violated for one in again):
            small, last = self._smallest(race, task.planner, first, judged)
            found.confirmed = True
        else:
            task.unconfirmed += 1
            found.confirmed = False
            if task.unconfirmed >= MAX_UNCONFIRMED:
                found.unknown = "uncontrolled: taken again, failing schedules went another way"
        found.schedule = Schedule(
            race=race.name,
            mutant=None if self._mutant is None else self._mutant.name,
            subject=self._subject,
            planner=task.planner,
            actions={name: kept for name, kept in small.actions.items() if kept},
            choices=written(small.choices),
            violated=list(last.violated),
            summaries=[v.summary for j in last.report.judgements for v in j.violations[:2]],
            postgres=self._postgres,
        )
        found.sessions = tuple(name for name, kept in small.actions.items() if kept)
        steps = story.found_at(last.run.steps)
        found.rows = story.table(steps, found.sessions)
        found.drawn = story.drawn(steps, found.sessions)
        found.reasons = story.reasons(steps)
        found.steps = len(found.rows)
        if found.confirmed:
            schema = (*self._lab.schema, *([f"{ROW_GATE};"] if race.row_gates else []))
            found.spec = isolation_spec(
                found.schedule,
                schema,
                last.run.setup,
                last.run.steps,
                self._lab.planners[task.planner],
                last.run.told,
            )

    def _smallest(
        self, race: Race, planner: str, first: Candidate, judged: Judged
    ) -> tuple[Candidate, Judged]:
        known = set() if self._mutant is None else set(self._mutant.caught_by)
        wanted = set(judged.violated) & known or set(judged.violated)
        until = time.monotonic() + self._shrinking_s

        def probe(candidate: Candidate) -> Failing | None:
            if time.monotonic() > until:
                return None
            taken = self._take(race, planner, candidate)
            if taken is None or not wanted & set(taken.violated):
                return None
            ran = Candidate(candidate.actions, taken.run.choices)
            return Failing(ran, story.steps_of(story.found_at(taken.run.steps)))

        start = Failing(first, story.steps_of(story.found_at(judged.run.steps)))
        small = shrink(start, probe, MAX_PROBES).candidate
        # Shrunk on tables that other runs have used; what is handed out must fail on fresh ones.
        last = self._take(race, planner, small, fresh=True)
        if last is None or not wanted & set(last.violated):
            return first, judged
        return small, last

    def _take(self, race: Race, planner: str, candidate: Candidate, *, fresh: bool = False) -> Judged | None:
        """One schedule, taken by itself; None where it is not to be had."""
        return take(
            self._lab, reduced(race, dict(candidate.actions)), planner, candidate.choices, fresh=fresh
        )


def take(
    lab: Lab, race: Race, planner: str, choices: tuple[Choice, ...], *, fresh: bool = True
) -> Judged | None:
    """Take one schedule by itself and judge it; None where it got out of control. `fresh`: on tables as at first."""
    if fresh:
        lab.refresh()
    run = Run(keeps_sql=fresh)
    deaths = sum(choice.dies for choice in choices)
    try:
        lab.run(race, planner, Fixed(choices), deaths=deaths, into=run)
    except Uncontrolled:
        run.complete = False
    judged = lab.judged([(race, run)])
    return judged[0] if judged else None
