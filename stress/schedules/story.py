"""A schedule told to a person: a table with one column per session, a drawing, and why it went as it did. Pure.

What a session sends in one message, or does in one statement, is one step where no other session came in between: a
stop at a gate, before the commit of a statement by itself, or between two statements that the engine sends together, is
a step of the story only where somebody used it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from results.report.lanes import Box, Drawn, Kind, Row, Wait
from stress.schedules.controller import STOPS, Step
from stress.schedules.session import OPEN

DEADLOCK: Final = "DeadlockDetected"


@dataclass(frozen=True, slots=True)
class Told:
    """A step of the story. `stops`: it ends at a gate, with the snapshot taken and no row touched. `open`: it ends
    with a statement that is a transaction of its own, before its commit."""

    session: str
    text: str
    others: tuple[tuple[str, str], ...]
    step: Step
    stops: bool
    began: bool
    open: bool


def told(steps: Sequence[Step]) -> list[Told]:
    """The steps of the story."""
    found: list[Told] = []
    for step in steps:
        name = step.choice.session
        stops = step.came.endswith(STOPS)
        last = found[-1] if found else None
        if (
            last is not None
            and last.open
            and last.session == name
            and step.statement == "commit"
            and not step.choice.dies
        ):
            came = f"{last.step.came.removesuffix(OPEN)}{step.came}"
            text = f"{last.text.removesuffix(OPEN)}{step.came}"
            merged = replace(
                step,
                what=last.step.what,
                statement=last.step.statement,
                began=last.began,
                came=came,
                waits=(*last.step.waits, *step.waits),
            )
            found[-1] = replace(last, text=text, open=False, others=step.others, step=merged)
            continue
        if last is not None and last.stops and last.session == name and not step.choice.dies:
            # It stopped, and nobody came in between: one step.
            text = step.what if stops else f"{last.step.what} → {step.came}"
            found[-1] = replace(
                last,
                text=text,
                stops=stops,
                open=step.came.endswith(OPEN),
                others=step.others,
                step=replace(step, what=last.step.what, waits=(*last.step.waits, *step.waits)),
            )
            continue
        if last is not None and step.along and last.session == name and not step.choice.dies:
            came = f"{last.step.came}; {step.came}"
            found[-1] = replace(
                last,
                text=f"{last.text}; {step.statement} → {step.came}",
                stops=stops,
                others=(*last.others, *step.others),
                step=replace(
                    step,
                    came=came,
                    committed=(*last.step.committed, *step.committed),
                    waits=(*last.step.waits, *step.waits),
                ),
            )
            continue
        came = "takes its snapshot" if stops else step.came
        if stops:
            text = f"{step.what}: {came}"
        elif not step.began and not step.choice.dies:
            text = f"{step.statement} goes on → {came}"
        else:
            text = step.what if not came else f"{step.what} → {came}"
        found.append(Told(name, text, step.others, step, stops, step.began, step.came.endswith(OPEN)))
    return found


def found_at(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps up to the one in which a deadlock was found: what comes after it only brings the sessions to their end.
    All of them where there was none."""
    for place, step in enumerate(steps, 1):
        if any(DEADLOCK in text for text in (step.came, *(text for _, text in step.others))):
            return steps[:place]
    return steps


def steps_of(steps: Sequence[Step]) -> int:
    """How many steps the story has."""
    return len(told(steps))


def table(steps: Sequence[Step], sessions: Sequence[str]) -> list[list[str]]:
    """The rows of the table: number, then a cell per session; what a step set going in others stands in their cells."""
    rows = []
    for number, one in enumerate(told(steps), 1):
        cells = dict.fromkeys(sessions, "")
        cells[one.session] = one.text
        for name, text in one.others:
            cells[name] = f"↳ {text}"
        rows.append([str(number), *cells.values()])
    return rows


def drawn(steps: Sequence[Step], sessions: Sequence[str]) -> Drawn:
    """The drawing: what the table has, and who waited for whom, for which lock, from which step to which."""
    story = told(steps)
    rows, waits = [], []
    under_way: dict[str, Wait] = {}
    for place, one in enumerate(story):
        boxes = [_box(one.session, one.text, "did")]
        boxes += [_box(name, text, "echo") for name, text in one.others]
        rows.append(Row(str(place + 1), tuple(boxes)))
        for wait in one.step.waits:
            if (before := under_way.pop(wait.waiter, None)) is not None:
                if before.holders == wait.holders and before.lock == wait.lock:
                    under_way[wait.waiter] = before
                    continue
                waits.append(msgspec.structs.replace(before, until=place))
            under_way[wait.waiter] = Wait(wait.waiter, wait.holders, wait.lock, place, None)
        blocked = {name for name, state, _ in one.step.states if state == "blocked"}
        over = [name for name in under_way if name not in blocked]
        waits += [msgspec.structs.replace(under_way.pop(name), until=place) for name in over]
    return Drawn(tuple(sessions), tuple(rows), (*waits, *under_way.values()))


def _box(lane: str, text: str, kind: Kind) -> Box:
    title, _, came = text.partition(" → ")
    first, *rest = (title, *came.split("; ")) if came else title.split("; ")
    return Box(
        lane, f"↳ {first}" if kind == "echo" else first, tuple(rest), "offence" if DEADLOCK in text else kind
    )


def reasons(steps: Sequence[Step]) -> list[str]:
    """Which snapshot saw what, and who waited for whom, in sentences."""
    found: list[str] = []
    story = told(steps)
    snapshots: dict[str, tuple[int, str]] = {}
    waiting: dict[str, tuple[int, tuple[str, ...], str]] = {}
    for number, one in enumerate(story, 1):
        if one.step.choice.dies:
            found.append(
                f"{one.session} dies at step {number}; the server rolls back what it had not committed."
            )
        if one.began:
            snapshots[one.session] = (number, one.step.statement)
        for name, state, blockers in one.step.states:
            if state == "blocked" and name not in waiting:
                waiting[name] = (number, blockers, snapshots.get(name, (number, ""))[1])
            elif state != "blocked" and name in waiting:
                since, whom, what = waiting.pop(name)
                taken = snapshots.get(name, (since, ""))[0]
                older = f"; its snapshot is that of step {taken}" if taken < since else ""
                found.append(
                    f"{name} waits for {' and '.join(whom)} from step {since} to step {number}, in {what}{older}."
                )
        going_on = [one.session, *(name for name, _ in one.others)]
        for name in going_on:
            taken, statement = snapshots.get(name, (number, ""))
            if taken == number or one.stops or not statement or statement == "commit":
                continue
            missed = [
                f"{other} committed at step {place + 1}"
                for place in range(taken, number)
                for other in story[place].step.committed
                if other != name
            ]
            if missed:
                found.append(
                    f"{statement} of {name} sees the state of step {taken}: not what {', nor what '.join(missed)}."
                )
            snapshots.pop(name, None)
        if any(DEADLOCK in text for text in (one.step.came, *(text for _, text in one.others))):
            found.append(f"At step {number} the server finds sessions waiting for each other in a circle.")
    return list(dict.fromkeys(found))
