"""Children: what a spawn becomes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.store.encoding import derived_id, key
from engine.store.execution import Event, Execution


@dataclass(frozen=True, slots=True)
class Birth:
    """A child to be made, and the event that starts it."""

    seq: int
    child: Execution
    start: Event


def birth(seq: int, parent: Execution, child_id: str, root_path: str, context: Mapping[str, Any]) -> Birth:
    """The child of a spawn: it runs its parent's definition from `root_path`, as urgent as its parent.

    All of it follows from the spawn, the start event's id too: done again, it is the same. Raises UnstorableValue.
    """
    child = Execution(
        id=key("child_id", child_id),
        definition_id=parent.definition_id,
        definition_fqn=parent.definition_fqn,
        root_path=root_path,
        context=dict(context),
        priority=parent.priority,
        parent_id=parent.id,
        child_id=child_id,
    )
    start = Event(
        id=derived_id("start", child_id),
        kind="start",
        payload={"parent_id": parent.id, "root_path": root_path},
    )
    return Birth(seq, child, start)


def context_of(text: str) -> dict[str, Any]:
    """The context that a spawn carries. Raises ValueError."""
    context = json.loads(text)
    if not isinstance(context, dict):
        raise ValueError(f"a context is a JSON object, not {type(context).__name__}")
    return context
