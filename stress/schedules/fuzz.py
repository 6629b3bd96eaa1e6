"""Schedules chosen by Hypothesis, beside the machines of `models`: which race, which planner, who moves, who dies.

An example is a race, a planner, a list of numbers and perhaps a death. At each step a number says who moves: 0 the
session that moved last, or the first that can; greater ones the others, in the order of the race. A list that is used
up goes on with zeros. So what Hypothesis makes small, a shorter list of smaller numbers, is a schedule of fewer
switches, and the first race and planner that will do.

A failing schedule is taken twice more on tables as they were at first, as `explore` does. Where it goes another way,
nothing is claimed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from invariants.ledger.reader import LedgerUnavailable
from invariants.mutants import Mutant
from models.fuzz import Finding, Profile, Verdict
from results.runs import create_run_folder, runs_folder, write_json
from stress.schedules import story
from stress.schedules.controller import Run, Uncontrolled
from stress.schedules.lab import Judged, Lab
from stress.schedules.race import MAX_SESSIONS, PLANNERS
from stress.schedules.record import Schedule, written
from stress.schedules.search import Choice, Effect
from stress.schedules.worker import races, take

NAME: Final = "schedules"
MAX_PICKS: Final = 40


class Chosen:
    """A search that takes one run: `picks` says who moves, `death` at which step somebody dies instead."""

    def __init__(self, picks: Sequence[int], death: int | None) -> None:
        self.exhausted = False
        self._picks = picks
        self._death = death
        self._at = 0
        self._last: str | None = None

    def begin(self) -> None:
        """Start over."""
        self._at, self._last = 0, None

    def choose(self, open_choices: Sequence[Choice]) -> Choice | None:
        """Whom the list names, among those that can move."""
        living = [choice for choice in open_choices if not choice.dies]
        living.sort(key=lambda choice: choice.session != self._last)
        pick = self._picks[self._at] if self._at < len(self._picks) else 0
        choice = living[pick % len(living)]
        if self._at == self._death:
            dying = [choice for choice in open_choices if choice.dies]
            choice = dying[pick % len(dying)] if dying else choice
        self._at += 1
        self._last = choice.session
        return choice

    def took(self, effect: Effect) -> None:
        """Nothing is learnt from it."""

    def end(self) -> None:
        """One run is all."""
        self.exhausted = True


class OutOfTime(Exception):
    """The budget is used up."""


class Violated(Exception):
    """A schedule broke a rule."""


@dataclass(slots=True)
class _Tally:
    deadline: float
    examples: int = 0
    steps: int = 0
    uncontrolled: int = 0
    failing: tuple[str, str, Judged] | None = None
    found_at: float | None = None
    undecided: str | None = None
    out_of_time: bool = field(default=False)


def fuzz_schedules(
    dsn: str,
    *,
    seconds: float,
    seed_: int,
    profile: Profile,
    mutant: Mutant | None = None,
    names: Sequence[str] | None = None,
    rounds: int | None = None,
    out: Path | None = None,
) -> Finding:
    """Try schedules on an empty database for about `seconds`, or for so many `rounds` of `profile.round_examples`.

    `names`: of the races; by default all. A failing schedule is written to a folder under `out`. Where the server
    allows no ledger nothing can be judged: unknown. Raises psycopg.OperationalError where it cannot be reached.
    """
    began = time.monotonic()
    tally = _Tally(began + seconds)
    round_seed = seed_
    with ExitStack() as stack:
        try:
            lab = Lab(dsn, stack, mutant)
        except LedgerUnavailable as error:
            reason = f"schedules are judged on the ledger: {error}"
            return Finding(NAME, "unknown", reason, 0, 0, time.monotonic() - began, seed_)
        verdict: Verdict = "held"
        reason, evidence = "", ""
        while True:
            broken = _round(lab, tuple(names or races()), tally, round_seed, profile)
            if tally.failing is not None:
                verdict, reason, evidence = _told(lab, tally.failing, mutant, out)
            elif broken or tally.undecided:
                verdict, reason = "unknown", broken or tally.undecided or ""
            elif not tally.examples:
                verdict, reason = "unknown", "no example was finished in the budget"
            done = round_seed - seed_ + 1 == rounds
            if verdict != "held" or done or tally.out_of_time or time.monotonic() >= tally.deadline:
                break
            round_seed += 1
    found = None if tally.found_at is None else tally.found_at - began
    spent = time.monotonic() - began
    return Finding(NAME, verdict, reason, tally.steps, tally.examples, spent, round_seed, evidence, found)


def _round(lab: Lab, names: Sequence[str], tally: _Tally, round_seed: int, profile: Profile) -> str:
    """One round; why it could not be finished, or an empty text."""

    @seed(round_seed)
    @settings(
        max_examples=profile.round_examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.sampled_from(names),
        st.sampled_from(list(PLANNERS)),
        st.lists(st.integers(0, MAX_SESSIONS - 1), max_size=MAX_PICKS),
        st.none() | st.integers(0, MAX_PICKS),
    )
    def holds(name: str, planner: str, picks: list[int], death: int | None) -> None:
        if time.monotonic() >= tally.deadline:
            tally.out_of_time = True
            raise OutOfTime
        _example(lab, name, planner, Chosen(picks, death), tally)

    try:
        holds()
    except (OutOfTime, Violated):
        return ""
    except psycopg.OperationalError as error:
        return f"the server failed: {error}"
    except HypothesisException as error:
        # Of a schedule that failed and did so no more, the confirmation says what it is.
        return "" if tally.failing or tally.out_of_time else f"Hypothesis gave up: {error}"
    return ""


def _example(lab: Lab, name: str, planner: str, search: Chosen, tally: _Tally) -> None:
    race, run = races()[name], Run()
    try:
        lab.run(race, planner, search, deaths=0 if search._death is None else 1, into=run)
    except Uncontrolled as error:
        run.complete = False
        tally.uncontrolled += 1
        if tally.uncontrolled > 1 + tally.examples // 20:
            tally.undecided = f"uncontrolled: {name}: {error}"
    judged = lab.judged([(race, run)])
    if not judged:
        return
    tally.examples += 1
    tally.steps += len(run.steps)
    tally.undecided = tally.undecided or judged[0].undecided
    if judged[0].violated:
        if tally.failing is None:
            tally.found_at = time.monotonic()
        tally.failing = (name, planner, judged[0])
        raise Violated(", ".join(judged[0].violated))


def _told(
    lab: Lab, failing: tuple[str, str, Judged], mutant: Mutant | None, out: Path | None
) -> tuple[Verdict, str, str]:
    """The verdict on the last schedule that failed, which is the smallest, the reason, and its story."""
    name, planner, judged = failing
    race = races()[name]
    again = [take(lab, race, planner, judged.run.choices) for _ in range(2)]
    if any(one is None or one.run.signature != judged.run.signature or not one.violated for one in again):
        return "unknown", f"uncontrolled: {name}: taken again, a failing schedule went another way", ""
    summaries = [v.summary for j in judged.report.judgements for v in j.violations[:2]]
    schedule = Schedule(
        race=name,
        mutant=None if mutant is None else mutant.name,
        planner=planner,
        actions={session: tuple(range(len(actions))) for session, actions in race.sessions.items()},
        choices=written(judged.run.choices),
        violated=list(judged.violated),
        summaries=summaries,
    )
    file = create_run_folder(out or runs_folder(), "fuzz") / f"{name.replace(':', '-')}.json"
    write_json(file, schedule)
    steps = story.found_at(judged.run.steps)
    sessions = list(race.sessions)
    rows = [["", *sessions], *story.table(steps, sessions)]
    lines = [
        f"{name} ({planner} plans): {', '.join(judged.violated)}",
        *(" | ".join(row) for row in rows),
        *story.reasons(steps),
        *summaries,
        f"nox -s replay -- {file}",
    ]
    return "violated", ", ".join(judged.violated), "\n".join(lines)
