"""A recorded schedule, taken again: judged twice, and said to be uncontrolled where the two differ."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UsageError
from results.report.lanes import Drawn
from stress.schedules import story
from stress.schedules.controller import Step
from stress.schedules.lab import Lab
from stress.schedules.race import FOREIGN_PLANNERS, PLANNERS, Race
from stress.schedules.record import Schedule, reduced
from stress.schedules.worker import races_of, take


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it. `unknown` says why neither held nor violated can be said."""

    sessions: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    violated: tuple[str, ...] = ()
    summaries: tuple[str, ...] = ()
    unknown: str | None = None

    @property
    def rows(self) -> list[list[str]]:
        """The table of the story."""
        return story.table(story.found_at(self.steps), self.sessions)

    @property
    def drawn(self) -> Drawn:
        """The drawing of the story."""
        return story.drawn(story.found_at(self.steps), self.sessions)

    @property
    def reasons(self) -> list[str]:
        """Its sentences."""
        return story.reasons(story.found_at(self.steps))


def race_of(schedule: Schedule) -> Race:
    """The race, with the actions of the schedule only. Raises UsageError."""
    known = races_of(schedule.subject)
    if schedule.race not in known:
        raise UsageError(f"there is no race {schedule.race!r}")
    planners = PLANNERS if schedule.subject is None else FOREIGN_PLANNERS
    if schedule.planner not in planners:
        raise UsageError(f"there is no planner {schedule.planner!r}; choose from: {', '.join(planners)}")
    return reduced(known[schedule.race], schedule.actions)


def replayed(lab: Lab, schedule: Schedule) -> Replayed:
    """Take it twice. Raises UsageError where it does not fit its race."""
    race = race_of(schedule)
    sessions = tuple(race.sessions)
    taken = [take(lab, race, schedule.planner, schedule.steps()) for _ in range(2)]
    first, second = taken
    if first is None or second is None:
        return Replayed(sessions, unknown="uncontrolled: the schedule did not come to its end")
    if first.run.signature != second.run.signature:
        return Replayed(sessions, tuple(second.run.steps), unknown="uncontrolled: two replays went two ways")
    summaries = tuple(v.summary for j in second.report.judgements for v in j.violations[:3])
    return Replayed(sessions, tuple(second.run.steps), second.violated, summaries, second.undecided)
