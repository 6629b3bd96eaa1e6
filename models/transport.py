"""The transport as a pure model: what each operation must answer, and all that is stored afterwards.

Rules:

1. Time is an argument, in seconds. A group can be claimed from its `lock_expiry` on, whoever holds it.
2. Claims go by `lock_expiry`, then by the group's name, over all priorities from the floor upwards.
3. Numbers of messages are the engine's: the model takes them over, and they must grow within a group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Group:
    """One row of `transport_groups`."""

    locked_by: str | None
    lock_expiry: float
    priority: int


@dataclass(frozen=True, slots=True)
class Handed:
    """A head message as a claim answers it."""

    group_id: str
    seq: int
    event: str
    token: str


@dataclass(frozen=True, slots=True)
class State:
    """All groups, and all messages by number: group and event."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    messages: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def head(self, group_id: str) -> int | None:
        """The number of a group's oldest message."""
        return min((seq for seq, (group, _) in self.messages.items() if group == group_id), default=None)


def publish(
    state: State, items: Sequence[tuple[str, str, int | None]], seqs: Sequence[int], now: float
) -> State:
    """Append (group, event, priority) under the numbers that the engine answered. Raises AssertionError where these are
    not later than what the group holds. A priority holds for a new group."""
    assert len(seqs) == len(items), f"{len(items)} messages were published under the numbers {seqs}"
    groups, messages = dict(state.groups), dict(state.messages)
    for (group_id, event, priority), seq in zip(items, seqs, strict=True):
        groups.setdefault(group_id, Group(None, now, priority or 0))
        later = all(known < seq for known, (group, _) in messages.items() if group == group_id)
        assert later, f"message {seq} of group {group_id!r} is not its latest"
        messages[seq] = (group_id, event)
    return State(groups, messages)


def claim(
    state: State,
    limit: int,
    *,
    token: str,
    lease: float,
    min_priority: int,
    now: float,
    locked: Collection[str] = (),
) -> tuple[State, list[Handed]]:
    """`locked`: groups whose rows somebody else has locked; they are passed over."""
    ready = sorted(
        (group.lock_expiry, group_id)
        for group_id, group in state.groups.items()
        if group.lock_expiry <= now and group.priority >= min_priority and group_id not in locked
    )
    groups, handed = dict(state.groups), []
    for _, group_id in ready[: max(limit, 0)]:
        seq = state.head(group_id)
        assert seq is not None, "a group without messages has no row"
        handed.append(Handed(group_id, seq, state.messages[seq][1], token))
        groups[group_id] = replace(groups[group_id], locked_by=token, lock_expiry=now + lease)
    return replace(state, groups=groups), handed


def ack(state: State, items: Sequence[tuple[str, int, str]], now: float) -> tuple[State, list[bool]]:
    """(group, number, token) each; of one group in the order given."""
    answers = []
    for group_id, seq, token in items:
        group = state.groups.get(group_id)
        done = group is not None and group.locked_by == token and state.head(group_id) == seq
        answers.append(done)
        if not done or group is None:
            continue
        messages = {known: message for known, message in state.messages.items() if known != seq}
        groups = {name: each for name, each in state.groups.items() if name != group_id}
        state = State(groups, messages)
        if state.head(group_id) is not None:
            free = replace(group, locked_by=None, lock_expiry=now)
            state = replace(state, groups={**groups, group_id: free})
    return state, answers


def nack(state: State, group_id: str, token: str, delay: float, now: float) -> tuple[State, bool]:
    return _fenced(state, group_id, token, None, now + delay)


def extend(state: State, group_id: str, token: str, lease: float, now: float) -> tuple[State, bool]:
    return _fenced(state, group_id, token, token, now + lease)


def set_priority(state: State, group_id: str, priority: int) -> tuple[State, bool]:
    group = state.groups.get(group_id)
    if group is None:
        return state, False
    return replace(state, groups={**state.groups, group_id: replace(group, priority=priority)}), True


def depth(state: State, group_id: str | None) -> int:
    return sum(group_id is None or group == group_id for group, _ in state.messages.values())


def _fenced(state: State, group_id: str, token: str, holder: str | None, until: float) -> tuple[State, bool]:
    group = state.groups.get(group_id)
    if group is None or group.locked_by != token:
        return state, False
    after = replace(group, locked_by=holder, lock_expiry=until)
    return replace(state, groups={**state.groups, group_id: after}), True
