"""Executions and commits as what a database holds, and back. Pure; everything is checked before anything is sent.

Rules:

1. What was written can be read: a value that would not come back equal is refused with `UnstorableValue`, on the
   caller's stack. Any context that JSON can express is fine, NUL characters and all; NaN, half a surrogate pair, a key
   that is not text, a set, a date are not.
2. Ids and paths are indexed in pairs, and an index row has a limit: each is at most `MAX_KEY_BYTES` long.
3. The version is not in `data`: it has a column, and one truth.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

import msgspec

from engine.store.execution import (
    PRIORITIES,
    STATUSES,
    Child,
    Commit,
    Emit,
    Event,
    Execution,
    ExecutionSummary,
    Page,
    Spawn,
    TimerOp,
)
from engine.values import (
    MAX_JSON_DEPTH,
    MAX_SENT_BYTES,
    TooLarge,
    UnstorableValue,
    bytes_sent,
    check_key,
    check_text,
    to_json_text,
)

# Two of them share an index row, which holds 2,704 bytes.
MAX_KEY_BYTES = 1_000
# `executions.version` is an integer.
MAX_VERSION = 2**31 - 1
# Steps that a trace may keep, and the default.
MAX_TRACE, TRACE_MAX = 1_000_000, 200
# Commits of one batch.
MAX_BATCH = 10_000
# Rows that one reading may ask for, and how many it gets where it does not say.
MAX_ROWS, ROWS = 10_000, 1_000
# Emits, spawns and timers of one commit.
MAX_EFFECTS = 10_000

_SEQS = range(-(2**63), 2**63)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A commit, checked and written out. What it expects is the version its execution had then."""

    execution: Execution
    id: str
    definition_id: str
    data: str
    expected: int
    status: str
    outcome: str | None
    active_path: str | None
    parent_id: str | None
    event: str | None
    # Target and event.
    outbox: tuple[tuple[str | None, str], ...]
    # Child, its root path, its context.
    spawns: tuple[tuple[str, str, str], ...]
    # Path and fire_at, None to disarm; one per path.
    timers: tuple[tuple[str, float | None], ...]
    trace: str | None

    @property
    def state_only(self) -> bool:
        """Whether the fast path will do."""
        return not self.outbox and not self.spawns and not self.timers and self.trace is None

    @property
    def bytes_sent(self) -> int:
        """How many bytes its large parts are when they are sent."""
        return (
            bytes_sent(self.data)
            + sum(bytes_sent(event) for _, event in self.outbox)
            + sum(bytes_sent(context) for _, _, context in self.spawns)
            + bytes_sent(self.trace or "")
        )


def prepare(commit: Commit) -> Prepared:
    """Check a commit and write it out. Raises UnstorableValue."""
    execution = commit.execution
    if not isinstance(execution, Execution):
        raise UnstorableValue(f"an execution must be an Execution, not {type(execution).__name__}")
    for name in ("emits", "timers", "spawns"):
        if len(getattr(commit, name)) > MAX_EFFECTS:
            raise UnstorableValue(f"{name} are more than {MAX_EFFECTS}")
    version = execution.version
    if type(version) is not int or not 0 <= version < MAX_VERSION:
        raise UnstorableValue(f"version is {version!r}; it must be from 0 to {MAX_VERSION - 1}")
    prepared = Prepared(
        execution=execution,
        id=_named("id", execution.id),
        definition_id=key("definition_id", execution.definition_id),
        data=_data(execution),
        expected=version,
        status=check_text("status", execution.status),
        outcome=_optional(check_text, "outcome", execution.outcome),
        active_path=_optional(check_text, "active_path", execution.active_path),
        parent_id=_optional(key, "parent_id", execution.parent_id),
        event=_optional(key, "processed_event_id", commit.processed_event_id),
        outbox=tuple(_emit(emit) for emit in commit.emits),
        spawns=tuple(_spawn(spawn) for spawn in commit.spawns),
        timers=tuple({key("path", op.path): _fire_at(op) for op in commit.timers}.items()),
        trace=None if commit.trace is None else step(commit.trace),
    )
    if (size := prepared.bytes_sent) > MAX_SENT_BYTES:
        raise TooLarge(f"a commit is {size} bytes with its effects; the limit is {MAX_SENT_BYTES}")
    return prepared


def key(field: str, value: object) -> str:
    """The same text, fit for an index. Raises UnstorableValue."""
    text = check_key(field, value)
    if (size := len(text.encode())) > MAX_KEY_BYTES:
        raise UnstorableValue(f"{field} is {size} bytes long; the limit is {MAX_KEY_BYTES}")
    return text


def derived_id(*parts: object) -> str:
    """An event's id that is made of others: they may be as long as an id can be, and so must it be."""
    text = ":".join(map(str, parts))
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= MAX_KEY_BYTES else hashlib.sha256(data).hexdigest()


def _named(field: str, value: object) -> str:
    # A listing begins behind the empty text: an execution of that name would be in none.
    if value == "":
        raise UnstorableValue(f"{field} is empty")
    return key(field, value)


def step(entry: object) -> str:
    """One step of a trace as JSON. Raises UnstorableValue."""
    return _object("trace", entry)


def execution_of(data: str, version: int) -> Execution:
    """The execution that was stored."""
    return msgspec.convert({**json.loads(data), "version": version}, Execution)


def event_of(text: str) -> Event:
    """The event that was stored."""
    return msgspec.convert(json.loads(text), Event)


def summary_of(row: Iterable[Any]) -> ExecutionSummary:
    """A row of a page."""
    names = ("id", "definition_id", "version", "status", "outcome", "active_path", "parent_id")
    return ExecutionSummary(**dict(zip(names, row, strict=True)))


def page_of_rows(rows: Sequence[Iterable[Any]], limit: int) -> Page:
    """A page out of its rows and, where there is another page, one row more."""
    items = tuple(summary_of(row) for row in rows[:limit])
    return Page(items, cursor_of(items[-1].id) if len(rows) > limit else None)


def steps_of(rows: Iterable[tuple[int, str]]) -> list[dict[str, Any]]:
    """A trace as its readers know it: each step with its index."""
    return [{**json.loads(entry), "index": index} for index, entry in rows]


def cursor_of(last_id: str) -> str:
    """The cursor of the page behind an id."""
    return base64.urlsafe_b64encode(b"1:" + last_id.encode()).decode().rstrip("=")


def place_of(cursor: str | None) -> str:
    """The id that a page starts behind; nothing sorts before ''. Raises UnstorableValue for what is no cursor."""
    if cursor is None:
        return ""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (ValueError, TypeError):
        text = ""
    if not text.startswith("1:"):
        raise UnstorableValue(f"{cursor!r:.40} is no cursor of a page")
    return key("cursor", text[2:])


def statuses_of(status: str | Iterable[str] | None) -> list[str] | None:
    """The statuses that a listing is about, each once; None for all. Raises UnstorableValue for an unknown one."""
    if status is None:
        return None
    wanted = sorted({status} if isinstance(status, str) else set(status))
    for each in wanted:
        if each not in STATUSES:
            raise UnstorableValue(f"status {each!r:.40} is none of {', '.join(STATUSES)}")
    return wanted


def seq_of(seq: object) -> int:
    """The same seq. Raises UnstorableValue for what can be none."""
    if type(seq) is not int or seq not in _SEQS:
        raise UnstorableValue(f"seq is {seq!r:.40}; it must be a whole number of at most 64 bits")
    return seq


def bounded(limit: int) -> int:
    """The same limit. Raises ValueError outside of 1 to `MAX_ROWS`."""
    if type(limit) is not int or not 1 <= limit <= MAX_ROWS:
        raise ValueError(f"limit is {limit!r}; it must be from 1 to {MAX_ROWS}")
    return limit


def ring(trace_max: int) -> int:
    """The same size of a trace. Raises ValueError: 0 is refused, for some take it for none and some for no limit."""
    if type(trace_max) is not int or not 1 <= trace_max <= MAX_TRACE:
        raise ValueError(f"trace_max is {trace_max!r}; it must be from 1 to {MAX_TRACE}")
    return trace_max


def instant(field: str, value: object) -> float:
    """Seconds since the epoch. Raises UnstorableValue for what is not finite, and for an integer that no float is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnstorableValue(f"{field} must be a number, not {type(value).__name__}")
    try:
        # 0.0, for a zero's sign is lost in SQLite.
        seconds = float(value) + 0.0
    except OverflowError:
        seconds = float("inf")
    if not isfinite(seconds):
        raise UnstorableValue(f"{field} is {value!r:.40}, which no clock will show")
    if isinstance(value, int) and int(seconds) != value:
        raise UnstorableValue(f"{field} is {value!r:.40}, which a float of 64 bits does not hold exactly")
    return seconds


def _data(execution: Execution) -> str:
    names = [name for name in Execution.__struct_fields__ if name not in ("version", "children")]
    fields: dict[str, Any] = {name: getattr(execution, name) for name in names}
    if type(execution.priority) is not int or execution.priority not in PRIORITIES:
        raise UnstorableValue(f"priority is {execution.priority!r:.40}; it must be one of 0 to 4")
    if not isinstance(execution.children, dict):
        raise UnstorableValue(f"children must be a dict, not {type(execution.children).__name__}")
    fields["children"] = {
        child_id: {name: getattr(child, name, None) for name in Child.__struct_fields__}
        for child_id, child in execution.children.items()
    }
    text = to_json_text("execution", fields)
    try:
        # What does not fit its own type would be written well and then never be read again.
        msgspec.convert(fields, Execution)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnstorableValue(f"execution: {error}") from None
    return text


def _emit(emit: Emit | tuple[str | None, Event]) -> tuple[str | None, str]:
    target_id, event = (emit.target_id, emit.event) if isinstance(emit, Emit) else emit
    if not isinstance(event, Event):
        raise UnstorableValue(f"an emit must carry an Event, not {type(event).__name__}")
    key("event.id", event.id)
    check_text("event.kind", event.kind)
    if not isinstance(event.payload, Mapping):
        raise UnstorableValue(f"event.payload must be a dict, not {type(event.payload).__name__}")
    fields = {"id": event.id, "kind": event.kind, "payload": dict(event.payload)}
    return _optional(key, "target_id", target_id), to_json_text("event", fields)


def _spawn(spawn: Spawn | tuple[str, str, Mapping[str, Any]]) -> tuple[str, str, str]:
    child_id, root_path, context = (
        (spawn.child_id, spawn.root_path, spawn.context) if isinstance(spawn, Spawn) else spawn
    )
    # A level less than there may be: the child's own JSON is around it.
    text = _object("context", context, MAX_JSON_DEPTH - 1)
    return _named("child_id", child_id), check_text("root_path", root_path), text


def _fire_at(op: TimerOp) -> float | None:
    if op.action == "cancel":
        return None
    if op.action != "schedule":
        raise UnstorableValue(f"a timer's action is {op.action!r:.40}; it must be schedule or cancel")
    return instant("fire_at", op.fire_at)


def _object(field: str, value: object, levels: int = MAX_JSON_DEPTH) -> str:
    if not isinstance(value, Mapping):
        raise UnstorableValue(f"{field} must be a dict, not {type(value).__name__}")
    return to_json_text(field, value if isinstance(value, dict) else dict(value), levels)


def _optional(check: Callable[[str, object], T], field: str, value: object) -> T | None:
    return None if value is None else check(field, value)
