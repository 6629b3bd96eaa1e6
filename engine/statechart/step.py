"""One step: an execution and an event in, the changed execution and its effects out. Pure.

Rules:

1. An event is offered to the active state, then to its parent, and so on up to the root of the execution; the first
   that handles it (and whose guard holds) decides. An event that none handles changes nothing, and is used up.
   The first event sets an execution off, be it START or one that has overtaken it on its way from another database.
2. A transition leaves the states up to the deepest that contains both ends, then enters down to the target and on down
   the initial states. Chores run in that order: exits, the transition's own, entries.
3. Entering a state with `after` arms its timer, leaving disarms it. A timer's event names the instant it was armed for;
   one that does not match what is armed is late, or was cancelled, and changes nothing (claims.md, `timer-rearm`).
4. Entering a fork makes a child of each region. A child's id is made of the parent's, of how often the parent has
   forked, and of the region: making it twice makes it once, and a fork entered again makes others. A child that ends
   tells its parent; the last to do so takes the fork's `joined`. Leaving a fork early cancels the children that run.
5. A chore that raises ends its execution as FAILED, and so does an event that the chart cannot make a step of; nothing
   else of that step remains.
6. Ids of emitted events are made of the execution, its version and their place, so a step that is run again emits the
   same events.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.statechart.chart import REMEMBERED, Chart, Chore, Go, Scope
from engine.store.encoding import derived_id
from engine.store.execution import TERMINAL, Child, Emit, Event, Execution, Spawn, TimerOp

# Kinds of events that the chart itself does not name.
START, TIMER, FINISHED, CANCEL = "start", "timer", "finished", "cancel"
MAX_ERROR_CHARACTERS = 2_000


@dataclass(slots=True)
class Effects:
    """What is to be committed with the execution."""

    execution: Execution
    emits: list[Emit] = field(default_factory=list)
    timers: list[TimerOp] = field(default_factory=list)
    spawns: list[Spawn] = field(default_factory=list)
    trace: dict[str, Any] | None = None


def began(chart: Chart, execution_id: str, context: dict[str, Any] | None = None) -> Execution:
    """A new execution of a chart, not yet saved; a START event sets it off."""
    return Execution(
        id=execution_id,
        definition_id=chart.definition_id,
        root_path=chart.root_path,
        context=context or {},
    )


def start_event(execution_id: str) -> Event:
    """The event that sets an execution off; there is one such event in its life."""
    return Event(id=derived_id("start", execution_id), kind=START)


def step(chart: Chart, execution: Execution, event: Event, now: float) -> Effects:
    """What comes of an event. `now` in seconds since the epoch. The execution given is left as it was."""
    try:
        return _Step(chart, _copied(execution), event, now).run()
    except Exception as error:  # noqa: BLE001  # somebody else's chores and chart, and somebody's event
        return failed(chart, execution, event, now, _told(error))


def failed(chart: Chart, execution: Execution, event: Event, now: float, error: str) -> Effects:
    """What comes of an event whose step cannot be taken: the execution ends as FAILED, if it had not ended before."""
    return _Step(chart, _copied(execution), event, now).fail(error[:MAX_ERROR_CHARACTERS])


def _copied(execution: Execution) -> Execution:
    """As far as a step changes it in place."""
    return msgspec.structs.replace(
        execution,
        history=dict(execution.history),
        context=_context_of(execution),
        children={child_id: msgspec.structs.replace(child) for child_id, child in execution.children.items()},
        armed=dict(execution.armed),
    )


def _context_of(execution: Execution) -> dict[str, Any]:
    # deepcopy needs two frames for each level: a context as deep as a store takes is too deep for it.
    copy: dict[str, Any] = json.loads(json.dumps(execution.context))
    return copy


def _told(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # it is somebody else's, too
        return type(error).__name__


class _Step:
    def __init__(self, chart: Chart, execution: Execution, event: Event, now: float) -> None:
        self.chart = chart
        self.execution = execution
        self.event = event
        self.now = now
        self.effects = Effects(execution)
        self.done: list[str] = []

    def run(self) -> Effects:
        before = self.execution.active_path
        if self.execution.status not in TERMINAL:
            self._handle()
        return self._traced(before)

    def fail(self, error: str) -> Effects:
        if self.execution.status not in TERMINAL:
            self._end("FAILED", "failed", error)
        return self._traced(self.execution.active_path)

    def _traced(self, before: str | None) -> Effects:
        self.effects.trace = {
            "event": self.event.kind,
            "event_id": self.event.id,
            "from": before,
            "to": self.execution.active_path,
            "actions": self.done,
        }
        return self.effects

    def _handle(self) -> None:
        execution = self.execution
        if execution.status == "PENDING" and self.event.kind != CANCEL:
            execution.status = "RUNNING"
            self._enter(execution.root_path, above=None)
        match self.event.kind:
            case kind if kind == START:
                return
            case kind if kind == CANCEL:
                self._end("CANCELLED", "cancelled", None)
            case _ if execution.status != "RUNNING" or execution.active_path is None:
                return
            case kind if kind == TIMER:
                path = self.event.payload.get("path")
                if path in execution.armed and execution.armed[path] == self.event.payload.get("fire_at"):
                    after = self.chart[path].after
                    assert after is not None
                    self._cancel_timer(path)
                    self._take(path, after)
            case kind if kind == FINISHED:
                self._child_finished()
            case kind:
                for path in self.chart.lineage(execution.active_path, execution.root_path):
                    go = self.chart[path].on.get(kind)
                    if go is not None and self._holds(go):
                        self._take(path, go)
                        return

    def _child_finished(self) -> None:
        execution = self.execution
        child = execution.children.get(str(self.event.payload.get("child_id")))
        if child is None or child.finished:
            return
        child.finished = True
        child.outcome = self.event.payload.get("outcome")
        child.result = self.event.payload.get("result")
        if all(each.finished for each in execution.children.values()):
            path = execution.active_path
            assert path is not None
            joined = self.chart[path].joined
            assert joined is not None
            self._take(path, joined)

    # ------------------------------------------------------------------------------------------ transitions

    def _take(self, path: str, go: Go) -> None:
        execution = self.execution
        if go.target is None:
            self._run(go.do, path)
            return
        target = self.chart.resolve(path, go.target.removesuffix(REMEMBERED))
        if go.target.endswith(REMEMBERED):
            remembered = execution.history.get(target, target)
            # It may be a state of the chart's version before.
            target = remembered if remembered in self.chart else target
        assert execution.active_path is not None
        above = self._common(path, target)
        for left in self._up(execution.active_path, above):
            self._leave(left)
        self._run(go.do, path)
        self._enter(target, above=above)

    def _common(self, source: str, target: str) -> str | None:
        """The deepest state that contains both properly; None where the root itself is left and entered again."""
        root = self.execution.root_path
        containing = set(self.chart.lineage(source, root)[1:])
        return next((path for path in self.chart.lineage(target, root)[1:] if path in containing), None)

    def _up(self, path: str, above: str | None) -> Iterator[str]:
        for each in self.chart.lineage(path, self.execution.root_path):
            if each == above:
                return
            yield each

    def _enter(self, target: str, above: str | None) -> None:
        leaf = self.chart.leaf(target)
        for path in reversed(list(self._up(leaf, above))):
            state = self.chart[path]
            self.execution.active_path = path
            self._run(state.entry, path)
            if state.after is not None:
                fire_at = self.now + state.after.delay_s
                self.execution.armed[path] = fire_at
                self.effects.timers.append(TimerOp("schedule", path, fire_at))
        state = self.chart[leaf]
        if state.regions:
            self._fork(leaf)
        if state.final:
            self._end("DONE", state.outcome or state.name, None)

    def _leave(self, path: str) -> None:
        state = self.chart[path]
        self._cancel_timer(path)
        if state.regions:
            self._drop_children()
        self._run(state.exit, path)
        parent = path.rpartition("/")[0]
        if path != self.execution.root_path:
            self.execution.history[parent] = path

    def _leave_all(self) -> None:
        """On the way to an end: timers and children go, chores do not run."""
        for path in list(self.execution.armed):
            self._cancel_timer(path)
        self._drop_children()

    def _cancel_timer(self, path: str) -> None:
        if self.execution.armed.pop(path, None) is not None:
            self.effects.timers.append(TimerOp("cancel", path))

    # ------------------------------------------------------------------------------------- forks and endings

    def _fork(self, path: str) -> None:
        execution = self.execution
        execution.invoke_seq += 1
        execution.children = {}
        for region in self.chart[path].regions:
            root_path = f"{path}/{region.name}"
            child_id = child_id_of(execution.id, execution.invoke_seq, root_path)
            execution.children[child_id] = Child(root_path=root_path)
            self.effects.spawns.append(Spawn(child_id, root_path, _context_of(execution)))

    def _drop_children(self) -> None:
        for child_id, child in self.execution.children.items():
            if not child.finished:
                self._emit(child_id, CANCEL, {})
        self.execution.children = {}

    def _end(self, status: Any, outcome: str, error: str | None) -> None:
        execution = self.execution
        self._leave_all()
        execution.status, execution.outcome, execution.error = status, outcome, error
        if execution.parent_id is not None:
            result = execution.context.get("result")
            payload = {"child_id": execution.id, "outcome": outcome, "result": result}
            self._emit(execution.parent_id, FINISHED, payload)

    # ------------------------------------------------------------------------------------------------ chores

    def _holds(self, go: Go) -> bool:
        return go.when is None or bool(go.when(self._scope()))

    def _run(self, chore: Chore | None, path: str) -> None:
        if chore is None:
            return
        scope = self._scope()
        chore(scope)
        self.done.append(f"{path}:{getattr(chore, '__name__', 'chore')}")
        for target_id, kind, payload in scope.emitted:
            self._emit(target_id, kind, payload)

    def _scope(self) -> Scope:
        return Scope(self.execution.id, self.execution.parent_id, self.execution.context, self.event)

    def _emit(self, target_id: str | None, kind: str, payload: Any) -> None:
        event_id = derived_id(self.execution.id, self.execution.version + 1, len(self.effects.emits))
        self.effects.emits.append(Emit(target_id, Event(id=event_id, kind=kind, payload=payload)))


def child_id_of(parent_id: str, round_: int, root_path: str) -> str:
    """A region's child: the same for the same fork, another for the next."""
    return hashlib.sha256(f"{parent_id}\n{round_}\n{root_path}".encode()).hexdigest()[:32]
