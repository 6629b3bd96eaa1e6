"""Charts: a tree of states, checked when it is made.

A state is named by its path from the root, names joined by `/`; the root's own name comes first (`order/paying/card`).

    Chart(
        "order",
        State("order", initial="paying", states=(
            State("paying", after=Go("../expired", delay_s=30.0), on={"paid": Go("../shipping")}),
            State("shipping", regions=(pick, invoice), joined=Go("../done")),
            State("expired", final=True, outcome="expired"),
            State("done", final=True),
        )),
    )

A target is relative to the state that names it (`..` is its parent), as in a file system. One that ends in `/*` enters
a composite where it was left, if it ever was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from engine.store.execution import Event
from engine.values import check_key

SEPARATOR = "/"
REMEMBERED = "/*"


class InvalidChart(ValueError):
    """The chart cannot be run; the message names the state and says why."""


@dataclass(slots=True)
class Scope:
    """What a chore may see and do: it changes `context` in place and emits events; it does no I/O.

    A step may be run again after a crash or a lost race, so a chore must come to the same end each time.
    """

    execution_id: str
    parent_id: str | None
    context: dict[str, Any]
    event: Event
    emitted: list[tuple[str | None, str, Mapping[str, Any]]] = field(default_factory=list)

    def emit(self, target_id: str | None, kind: str, payload: Mapping[str, Any] | None = None) -> None:
        """An event for another execution, or for this one, by way of the outbox."""
        self.emitted.append((target_id, kind, payload or {}))


Chore = Callable[[Scope], None]
Guard = Callable[[Scope], bool]


@dataclass(frozen=True, slots=True)
class Go:
    """A transition. `target` None stays where it is. Where `when` says no, the state does not handle the event.

    `delay_s` is for a state's `after` only.
    """

    target: str | None
    do: Chore | None = None
    when: Guard | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    initial: str | None = None
    states: tuple[State, ...] = ()
    on: Mapping[str, Go] = field(default_factory=dict)
    after: Go | None = None
    regions: tuple[State, ...] = ()
    joined: Go | None = None
    entry: Chore | None = None
    exit: Chore | None = None
    final: bool = False
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class State(_Options):
    """One state.

    `states` with `initial`: composite. `regions` with `joined`: a fork; each region runs as a child execution, and when
    all have ended `joined` is taken. `after`: taken when the state has been active for its `delay_s`. `final`: ends the
    execution (or the region) with `outcome`.
    """

    name: str = ""

    def __init__(self, name: str, **options: Any) -> None:
        _Options.__init__(self, **options)
        object.__setattr__(self, "name", name)


class Chart:
    """A checked chart. Raises InvalidChart."""

    def __init__(self, definition_id: str, root: State) -> None:
        self.definition_id = check_key("definition_id", definition_id)
        self.root_path = root.name
        self._states: dict[str, State] = {}
        self._regions: set[str] = set()
        for path, state in _walk(root.name, root):
            if path in self._states:
                raise InvalidChart(f"{path} is named twice")
            check_key("path", path)
            self._states[path] = state
            self._regions.update(f"{path}{SEPARATOR}{region.name}" for region in state.regions)
        for path, state in self._states.items():
            self._check(path, state)

    def __contains__(self, path: str) -> bool:
        return path in self._states

    def __getitem__(self, path: str) -> State:
        return self._states[path]

    def runs(self, root_path: str, active_path: str | None) -> bool:
        """Whether an execution can be where it says it is: another version of the chart may have other states."""
        if root_path not in self._regions and root_path != self.root_path:
            return False
        return active_path is None or (
            active_path in self._states and self.region_of(active_path) == root_path
        )

    def leaf(self, path: str) -> str:
        """The state that is active after `path` was entered: down the initial states."""
        while (initial := self._states[path].initial) is not None:
            path = f"{path}{SEPARATOR}{initial}"
        return path

    def lineage(self, path: str, top: str) -> list[str]:
        """The paths from `path` up to `top`, both included."""
        found = [path]
        while found[-1] != top:
            found.append(found[-1].rpartition(SEPARATOR)[0])
        return found

    def resolve(self, path: str, target: str) -> str:
        """A target as seen from a state. Raises InvalidChart where it leads nowhere."""
        parts = path.split(SEPARATOR)
        for part in target.split(SEPARATOR):
            if part == "..":
                parts = parts[:-1]
            elif part != ".":
                parts.append(part)
        found = SEPARATOR.join(parts)
        if found not in self._states:
            raise InvalidChart(f"{path} goes to {target!r}, and there is no state {found!r}")
        return found

    def region_of(self, path: str) -> str:
        """The root of the execution that a state belongs to: a region's, or the chart's."""
        while path not in self._regions and path != self.root_path:
            path = path.rpartition(SEPARATOR)[0]
        return path

    def _check(self, path: str, state: State) -> None:
        if not state.name or SEPARATOR in state.name or state.name in (".", ".."):
            raise InvalidChart(f"{path!r} has a state that is named {state.name!r}")
        if bool(state.states) != (state.initial is not None):
            raise InvalidChart(f"{path} needs states and an initial one, or neither")
        if state.initial is not None and state.initial not in {child.name for child in state.states}:
            raise InvalidChart(f"{path} begins in {state.initial!r}, which it does not have")
        if bool(state.regions) != (state.joined is not None):
            raise InvalidChart(f"{path} needs regions and a way on when they are joined, or neither")
        if sum(map(bool, (state.states, state.regions, state.final))) > 1:
            raise InvalidChart(f"{path} can be composite, a fork or final, only one of them")
        if state.final and (state.on or state.after):
            raise InvalidChart(f"{path} is final and goes on")
        if state.after is not None and not (isfinite(state.after.delay_s) and state.after.delay_s >= 0):
            raise InvalidChart(f"{path} waits for {state.after.delay_s} seconds")
        for go in (state.after, state.joined):
            if go is not None and (go.target is None or go.when is not None):
                raise InvalidChart(
                    f"{path} must go somewhere, whatever holds, when its time is up or it is joined"
                )
        for go in (*state.on.values(), state.after, state.joined):
            if go is not None and go.target is not None:
                target = self.resolve(path, go.target.removesuffix(REMEMBERED))
                if go.target.endswith(REMEMBERED) and not self._states[target].states:
                    raise InvalidChart(f"{path} goes back into {target}, which is not composite")
                if self.region_of(target) != self.region_of(path):
                    raise InvalidChart(f"{path} goes to {target}, which another execution runs")


def _walk(path: str, state: State) -> Iterator[tuple[str, State]]:
    yield path, state
    for child in (*state.states, *state.regions):
        yield from _walk(f"{path}{SEPARATOR}{child.name}", child)
