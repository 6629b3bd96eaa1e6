"""The store as a pure model: what each operation must answer, and all that is stored afterwards.

Rules:

1. A commit is refused where its event was processed before, and else where its version is not the stored one; a row
   that is not there is at version 0. Refused, it changes nothing.
2. A batch is its commits one after the other. An object that is committed several times in one batch brings the version
   that the commits before have given it.
3. Rows of the outbox and of the spawns have numbers that the engine draws: the model knows their order, and takes the
   numbers over (`numbered`). Only the order of one emitter is promised, so only that is held against the engine.
4. JSON is compared as text, with the keys of objects in order: 1, 1.0 and true are three values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from engine.store.execution import Commit, Emit, Event, Execution, ExecutionSummary, Spawn

Seq = int | None


@dataclass(frozen=True, slots=True)
class Saved:
    """One row of `executions`. `data` is the execution as canonical text, without its version."""

    definition_id: str
    data: str
    version: int
    status: str
    outcome: str | None
    active_path: str | None
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class Emitted:
    """One row of the outbox. `emitter` is the execution whose commit it came with; a table does not say."""

    target_id: str | None
    event: str
    emitter: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Spawned:
    """One row of the spawns."""

    parent_id: str
    child_id: str
    root_path: str
    context: str


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a store holds. Rows whose number is not known yet have None."""

    executions: Mapping[str, Saved] = field(default_factory=dict)
    processed: frozenset[tuple[str, str]] = frozenset()
    outbox: tuple[tuple[Seq, Emitted], ...] = ()
    spawns: tuple[tuple[Seq, Spawned], ...] = ()
    timers: Mapping[tuple[str, str], float] = field(default_factory=dict)
    trace: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a commit did not happen: the version it expected, the one found, and whether its event was the reason."""

    execution_id: str
    expected: int
    found: int | None
    processed: bool


def canonical(value: object) -> str:
    """JSON text of a value, equal for equal values only."""
    return json.dumps(msgspec.to_builtins(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def data_of(execution: Execution) -> str:
    """What is stored of an execution beside its version."""
    fields = {name: getattr(execution, name) for name in Execution.__struct_fields__ if name != "version"}
    return canonical(fields)


def version_of(state: State, execution_id: str) -> int | None:
    saved = state.executions.get(execution_id)
    return None if saved is None else saved.version


def commit(
    state: State, wanted: Commit, *, trace_max: int, expected: int | None = None
) -> tuple[State, Refused | None]:
    """One commit. `expected`: the version that its object has by then; None: what it says now."""
    execution = wanted.execution
    at = execution.version if expected is None else expected
    found = version_of(state, execution.id)
    event = wanted.processed_event_id
    processed = event is not None and (execution.id, event) in state.processed
    if processed or (found or 0) != at:
        return state, Refused(execution.id, at, found, processed)
    saved = Saved(
        execution.definition_id, data_of(execution), at + 1, execution.status, execution.outcome,
        execution.active_path, execution.parent_id,
    )  # fmt: skip
    after = replace(
        state,
        executions={**state.executions, execution.id: saved},
        processed=state.processed if event is None else state.processed | {(execution.id, event)},
        outbox=(*state.outbox, *((None, _emitted(execution.id, emit)) for emit in wanted.emits)),
        spawns=(*state.spawns, *((None, _spawned(execution.id, spawn)) for spawn in wanted.spawns)),
        timers=_timed(state.timers, wanted),
    )
    if wanted.trace is not None:
        after = append_trace(after, execution.id, wanted.trace, trace_max=trace_max)
    return after, None


def commit_many(
    state: State, wanted: Sequence[Commit], *, trace_max: int
) -> tuple[State, list[Refused | None], dict[int, int]]:
    """A batch: what is stored, the answers, and how often each object (by its identity) was committed."""
    won: dict[int, int] = {}
    answers: list[Refused | None] = []
    for each in wanted:
        mine = id(each.execution)
        state, refused = commit(
            state, each, trace_max=trace_max, expected=each.execution.version + won.get(mine, 0)
        )
        won[mine] = won.get(mine, 0) + (refused is None)
        answers.append(refused)
    return state, answers, won


def append_trace(state: State, execution_id: str, entry: Mapping[str, Any], *, trace_max: int) -> State:
    steps = state.trace.get(execution_id, ())
    index = steps[-1][0] + 1 if steps else 0
    kept = (*steps, (index, canonical(entry)))[-trace_max:]
    return replace(state, trace={**state.trace, execution_id: kept})


def read_trace(state: State, execution_id: str) -> list[str]:
    """Each step as canonical text, with its index."""
    return [
        canonical({**json.loads(entry), "index": index}) for index, entry in state.trace.get(execution_id, ())
    ]


def acknowledge(rows: tuple[tuple[Seq, Any], ...], seq: int) -> tuple[tuple[Seq, Any], ...]:
    """An outbox or the spawns without that row."""
    return tuple(row for row in rows if row[0] != seq)


def delete_timer(state: State, execution_id: str, path: str, fire_at: float) -> State:
    key = (execution_id, path)
    if state.timers.get(key) != fire_at:
        return state
    return replace(state, timers={each: at for each, at in state.timers.items() if each != key})


def due_timers(state: State, now: float, limit: int) -> list[tuple[str, str, float]]:
    due = sorted((at, *key) for key, at in state.timers.items() if at <= now)
    return [(execution_id, path, at) for at, execution_id, path in due[:limit]]


def listing(
    state: State,
    *,
    after: str | None,
    statuses: Sequence[str] | None,
    definition_id: str | None,
    roots_only: bool,
) -> list[ExecutionSummary]:
    """What a listing shows behind that id, in the order of the ids' code points; None: from the beginning."""
    return [
        ExecutionSummary(
            id=execution_id, definition_id=saved.definition_id, version=saved.version, status=saved.status,
            outcome=saved.outcome, active_path=saved.active_path, parent_id=saved.parent_id,
        )
        for execution_id, saved in sorted(state.executions.items())
        if (after is None or execution_id > after)
        and (statuses is None or saved.status in statuses)
        and (definition_id is None or saved.definition_id == definition_id)
        and (not roots_only or saved.parent_id is None)
    ]  # fmt: skip


def numbered(
    rows: tuple[tuple[Seq, Any], ...], stored: Mapping[int, Any], emitter: str
) -> tuple[tuple[int, Any], ...]:
    """The same rows with the engine's numbers. `emitter` names the field that says whose order counts.

    Raises AssertionError where the engine has others, or an emitter's in another order. Equal rows of one emitter need
    not be told apart: they take the numbers in order.
    """
    known = {seq for seq, _ in rows if seq is not None}
    waiting: dict[Any, list[int]] = {}
    for seq in sorted(stored):
        if seq not in known:
            waiting.setdefault(stored[seq], []).append(seq)
    answer: list[tuple[int, Any]] = []
    last: dict[str, int] = {}
    for known_as, row in rows:
        if known_as is None:
            seqs = waiting.get(row)
            assert seqs, f"only the model has the row {row}"
            seq = seqs.pop(0)
        else:
            seq = known_as
        whose = getattr(row, emitter)
        assert seq > last.get(whose, 0), f"{row} has number {seq}, after {last[whose]} of the same emitter"
        last[whose] = seq
        answer.append((seq, row))
    left = [seq for seqs in waiting.values() for seq in seqs]
    assert not left, f"only the engine has the rows {[(seq, stored[seq]) for seq in sorted(left)]}"
    return tuple(sorted(answer, key=lambda each: each[0]))


def _emitted(emitter: str, emit: Emit | tuple[str | None, Event]) -> Emitted:
    target_id, event = (emit.target_id, emit.event) if isinstance(emit, Emit) else emit
    return Emitted(target_id, canonical(event), emitter)


def _spawned(parent_id: str, spawn: Spawn | tuple[str, str, Mapping[str, Any]]) -> Spawned:
    child_id, root_path, context = (
        (spawn.child_id, spawn.root_path, spawn.context) if isinstance(spawn, Spawn) else spawn
    )
    return Spawned(parent_id, child_id, root_path, canonical(context))


def _timed(timers: Mapping[tuple[str, str], float], wanted: Commit) -> Mapping[tuple[str, str], float]:
    after = dict(timers)
    for op in wanted.timers:
        if op.action == "schedule":
            after[wanted.execution.id, op.path] = float(op.fire_at)
        else:
            after.pop((wanted.execution.id, op.path), None)
    return after
