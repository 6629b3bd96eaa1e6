"""Direct writers: what a client or a node commits to an execution without a message, and how it is recorded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import psycopg

from engine.sessions import Unavailable, describe_error
from engine.statechart import Chart, began, start_event
from engine.store import (
    Commit,
    CommitOutcomeUnknown,
    Emit,
    Event,
    Execution,
    StoreConflict,
    TimerOp,
    UnstorableValue,
)
from stress.scenarios.store_scenario import Bump, Start

# How often a writer that lost a race tries again.
ATTEMPTS = 3


def bumped(act: Bump, charts: Sequence[Chart], target: str, loaded: Execution | None, now: float) -> Commit:
    """The commit of a bump of one execution; one that is not there yet is begun. Timers are armed from `now`."""
    if loaded is None:
        chart = next(chart for chart in charts if chart.definition_id == act.definition)
        execution = began(chart, target)
        return Commit(execution=execution, emits=[Emit(target, start_event(target))])
    loaded.context["bumps"] = loaded.context.get("bumps", 0) + 1
    step = f"{target}:{loaded.version + 1}"
    return Commit(
        execution=loaded,
        emits=[Emit(to, Event(id=f"{step}:{place}", kind="bump")) for place, to in enumerate(act.emits)],
        timers=[
            *(TimerOp("cancel", path) for path in act.cancel),
            *(TimerOp("schedule", path, now + delay_s) for path, delay_s in act.arm),
        ],
        trace={"bump": loaded.version + 1} if act.traced else None,
    )


def promises(act: Start) -> dict[str, dict[str, Any]]:
    """What the history says beside each commit of a start: that the execution comes to an end by itself, and which
    others it needs for that."""
    if not act.ends:
        return {}
    first, *others = [execution_id for _, execution_id, _ in act.executions]
    return {
        first: {"ends": True, **({"needs": others} if act.waits else {})},
        **{each: {"ends": True} for each in others},
    }


def refused(error: BaseException) -> tuple[Literal["fail", "info"], dict[str, Any]]:
    """How the history says that an operation failed: `fail` where nothing happened, `info` where nobody knows."""
    match error:
        case StoreConflict():
            return "fail", {"error": type(error).__name__, "found": error.found}
        case UnstorableValue() | Unavailable():
            return "fail", describe_error(error)
        case CommitOutcomeUnknown():
            return "info", describe_error(error)
        case psycopg.Error() if error.sqlstate is not None:
            return "fail", describe_error(error)
    return "info", describe_error(error)
