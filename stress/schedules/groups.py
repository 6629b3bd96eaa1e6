"""What a session does with the transport, as actions of a race (see `actions`).

What a claim was handed is known by the claim's label. Its token is made of session and label: used once, like those
that the transport makes, and the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.operation import Operation
from engine.store.execution import Event
from engine.transport.queue import Message, Publication
from stress.schedules.actions import Action, Prepared, World

LEASE_S = 60.0
LAPSED_S = 0.0


def publish(*groups: str, priority: int | None = None) -> Action:
    """One message to each of the groups, in this order."""

    def prepare(world: World, process: str) -> Prepared:
        items = [
            Publication(group, f'{{"id": "{process}:{place}", "kind": "told"}}', priority)
            for place, group in enumerate(groups)
        ]
        return _prepared(world.variant.transport.publish(items, None))

    return Action(f"publish to {', '.join(groups)}", prepare)


def publish_timers(label: str) -> Action:
    """The events of the timers that were read as due, which a sweeper in steps publishes before it deletes them."""

    def prepare(world: World, process: str) -> Prepared | None:
        items = [
            Publication(
                execution,
                Event(
                    id=f"{process}:{execution}:{path}:{fire_at}",
                    kind="timer",
                    payload={"path": path, "fire_at": fire_at},
                ),
            )
            for execution, path, fire_at in world.due.get(label, ())
        ]
        return _prepared(world.variant.transport.publish(items, None)) if items else None

    return Action(f"publish due timers {label}", prepare)


def claim(label: str, *, limit: int = 1, lease_s: float = LEASE_S, min_priority: int = 0) -> Action:
    """Lease groups."""

    def prepare(world: World, process: str) -> Prepared:
        named = "worker" if "claims-named-by-worker" in world.variant.protocol else f"{process}.{label}"

        def absorb(messages: list[Message]) -> None:
            world.messages[label] = tuple(messages)

        task = world.variant.transport.claim(limit, None, lease_s, named, min_priority)
        return _prepared(task, absorb)

    return Action(f"claim {label}", prepare)


def ack(label: str) -> Action:
    """Acknowledge what a claim was handed."""

    def prepare(world: World, _: str) -> Prepared | None:
        messages = world.messages.get(label, ())
        return _prepared(world.variant.transport.ack(messages, None)) if messages else None

    return Action(f"ack {label}", prepare)


def nack(label: str) -> Action:
    """Give a claim's first group back, ready at once."""

    def prepare(world: World, _: str) -> Prepared | None:
        messages = world.messages.get(label, ())
        if not messages:
            return None
        return _prepared(world.variant.transport.nack(messages[0].group_id, messages[0].token, 0.0, None))

    return Action(f"nack {label}", prepare)


def extend(label: str) -> Action:
    """Renew the lease of a claim's first group."""

    def prepare(world: World, _: str) -> Prepared | None:
        messages = world.messages.get(label, ())
        if not messages:
            return None
        return _prepared(
            world.variant.transport.extend(messages[0].group_id, messages[0].token, LEASE_S, None)
        )

    return Action(f"extend {label}", prepare)


def set_priority(group: str, priority: int) -> Action:
    """Change a group's priority."""

    def prepare(world: World, _: str) -> Prepared:
        return _prepared(world.variant.transport.set_priority(group, priority))

    return Action(f"set the priority of {group}", prepare)


def drained(times: int) -> tuple[Action, ...]:
    """Consume so many messages of every group."""
    labels = [f"drain {number}" for number in range(times)]
    return tuple(act for label in labels for act in (claim(label, limit=10), ack(label)))


def _prepared(
    task: tuple[str, dict[str, object], Operation[Any], Callable[[Any], object]],
    absorb: Callable[[Any], object] = lambda _: None,
) -> Prepared:
    name, value, operation, report = task
    return Prepared(name, value, operation, report, absorb)
