"""Every pair of the operations of store, relay and transport that touches a common table, as a race of two sessions.

As `pairs`, from a table of operations: what an operation does to the execution `e`, or to the group `g`, and in which
states it has something to do. Where a pair makes children it is about the child `k`, execution and group, instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations_with_replacement
from typing import Final

from stress.schedules.actions import Action
from stress.schedules.executions import (
    ack_outbox,
    append_trace,
    commit,
    delete_timers,
    list_executions,
    load_for_event,
    make,
    move,
    publish_outbox,
    read_due,
    read_outbox,
    sweep,
)
from stress.schedules.groups import (
    LAPSED_S,
    LEASE_S,
    ack,
    claim,
    extend,
    nack,
    publish,
    publish_timers,
    set_priority,
)
from stress.schedules.pairs import Operation, Pair, named
from stress.schedules.race import Race

STATE, MARKS, TRACE = "executions", "processed_events", "trace"
OUTBOX, TIMERS, SPAWNS = "outbox", "timers", "spawns"
MESSAGES, GROUPS = "transport_messages", "transport_groups"
# The timer of `e` and when it is due; when a commit arms it for anew.
TIMER, DUE, LATER = "t", 10.0, 20.0

_COMMIT: Final = frozenset((STATE, MARKS))
_EFFECTS: Final = frozenset((STATE, MARKS, TRACE, OUTBOX, TIMERS, SPAWNS))
_QUEUE: Final = frozenset((MESSAGES, GROUPS))
_LEASE: Final = frozenset((GROUPS,))

# What makes a state, given the execution, or the child, that it is about. Nobody but the pair's two is at work later.
_BORN: Final = (commit("e", "f", emits=("g", "k"), spawns=("k",), arm={TIMER: DUE}, trace=True),)
_STATES: Final[Mapping[str, Callable[[str], tuple[Action, ...]]]] = {
    "absent": lambda _: (),
    "stored": lambda _: _BORN,
    "due": lambda _: (commit("e", "f", arm={TIMER: DUE}), read_due("d"), publish_timers("d")),
    "read": lambda _: (commit("e", emits=("g",), arm={TIMER: DUE}), read_outbox("o"), publish_outbox("o")),
    "forked": lambda _: (commit("e", spawns=("k",)),),
    "emitted": lambda about: (commit("e", emits=(about,)),),
    "ready": lambda about: (*_forked(about), publish(about)),
    "held": lambda about: (*_forked(about), publish(about), claim("c", lease_s=LEASE_S)),
    "lapsed": lambda about: (*_forked(about), publish(about), claim("c", lease_s=LAPSED_S)),
}


def _forked(about: str) -> tuple[Action, ...]:
    """What a relay has to do to a group that it is about."""
    return (commit("e", spawns=("k",)),) if about == "k" else (commit("e", emits=(about,)),)


def _effects(about: str, tag: str) -> Action:
    return commit(about, emits=("g",), spawns=(f"k{tag}",), arm={TIMER: LATER}, trace=True)


def _pair_of(tag: str, one: str, other: str) -> tuple[str, str]:
    return (one, other) if tag == "1" else (other, one)


_LEASED: Final = ("held", "lapsed")
# `build` is given a tag that tells two of a kind apart, and what the race is about: the execution or the group.
_OPERATIONS: Final = (
    Operation("commit state", _COMMIT, ("stored", "due"), lambda _, e: (commit(e, event="x"),)),
    Operation("commit complex", _EFFECTS, ("stored", "due", "read"), lambda tag, e: (_effects(e, tag),)),
    Operation(
        "commit many",
        _EFFECTS,
        ("stored", "due", "read"),
        lambda tag, e: (commit(*_pair_of(tag, e, "f"), many=True, emits=("g",), spawns=(f"k{tag}",),
                               arm={TIMER: LATER}, trace=True),),
    ),
    Operation("first save", _COMMIT, ("absent", "forked"), lambda _, e: (commit(e, event="x"),)),
    Operation("append trace", frozenset((STATE, TRACE)), ("stored", "absent"), lambda _, e: (append_trace(e),)),
    Operation("load for event", _COMMIT, ("stored", "absent"), lambda _, e: (load_for_event(e, "x"),)),
    Operation("delete timer", frozenset((TIMERS,)), ("due",), lambda _, __: (delete_timers("d"),)),
    Operation("sweep", frozenset((TIMERS, OUTBOX)), ("stored", "due"), lambda _, __: (sweep(),)),
    Operation(
        "move",
        frozenset((OUTBOX, SPAWNS, MESSAGES, GROUPS)),
        ("stored", "read", "emitted", "ready", "held"),
        lambda _, __: (move(),),
    ),
    Operation(
        "make",
        frozenset((STATE, SPAWNS, MESSAGES, GROUPS)),
        ("stored", "forked", "ready", "held"),
        lambda _, __: (make(),),
    ),
    Operation("ack outbox", frozenset((OUTBOX,)), ("read",), lambda _, __: (ack_outbox("o"),)),
    Operation("publish", _QUEUE, ("emitted", "forked", "ready", "held"), lambda _, g: (publish(g),)),
    Operation(
        "publish many",
        _QUEUE,
        ("emitted", "forked", "ready", "held"),
        lambda tag, g: (publish(*_pair_of(tag, g, "h")),),
    ),
    Operation("claim group", _QUEUE, ("ready", "lapsed", "emitted", "forked"), lambda tag, _: (claim(tag),)),
    Operation(
        "claim groups", _QUEUE, ("ready", "lapsed", "emitted", "forked"), lambda tag, _: (claim(tag, limit=10),)
    ),
    Operation("ack", _QUEUE, _LEASED, lambda _, __: (ack("c"),)),
    Operation("nack", _LEASE, _LEASED, lambda _, __: (nack("c"),)),
    Operation("extend", _LEASE, _LEASED, lambda _, __: (extend("c"),)),
    Operation("set priority", _LEASE, ("ready", "held", "lapsed"), lambda tag, g: (set_priority(g, int(tag)),)),
    Operation("list page", frozenset((STATE,)), ("stored", "absent"), lambda _, __: (list_executions(),)),
)  # fmt: skip
STORED_OPERATIONS: Final[Mapping[str, Operation]] = {one.name: one for one in _OPERATIONS}

_PUBLISHERS: Final = frozenset(("move", "make", "publish", "publish many"))
_CLAIMS: Final = frozenset(("claim group", "claim groups"))
_READERS: Final = frozenset(("load for event", "list page"))
_COMMITS: Final = frozenset(("commit state", "commit complex", "commit many"))
_EFFECTFUL: Final = frozenset(("commit complex", "commit many"))


def stored_pairs() -> list[Pair]:
    """Every pair, each once."""
    return list(combinations_with_replacement(STORED_OPERATIONS, 2))


def stored_apart(pair: Pair) -> str | None:
    """Why a pair has no race; None where it has one."""
    one, other = (STORED_OPERATIONS[name] for name in pair)
    return None if one.tables & other.tables else "no common table"


def stored_quiet(pair: Pair) -> str | None:
    """Why the sessions of a pair's race cannot get into each other's way; None where they do."""
    both = set(pair)
    if both <= _READERS:
        return "both only read"
    if both in ({"load for event", "append trace"}, {"append trace", "list page"}, {"append trace", "make"}):
        return "a step outside of a commit changes nothing of the execution that the other reads"
    if both == {"commit state", "make"}:
        return "a child follows from the spawn, and of its parent only what no commit of its own changes"
    if both == {"first save", "append trace"}:
        return "a step outside of a commit holds the execution's row, of which there is none yet"
    if "ack outbox" in both and both & (_EFFECTFUL | {"sweep"}):
        return "one removes rows that were read before, the other brings new ones"
    return None


def _state(one: Operation, other: Operation) -> str:
    both = {one.name, other.name}
    if both & _PUBLISHERS and both & (_CLAIMS | {"set priority"}):
        # With a message there already it would make no difference to them.
        return "forked" if "make" in both else "emitted"
    if both & _CLAIMS and both & {"ack", "nack", "extend"}:
        return "lapsed"
    if both & {"first save"}:
        return "forked" if "make" in both else "absent"
    common = [state for state in one.states if state in other.states]
    return (*common, *one.states)[0]


def _race(one: Operation, other: Operation) -> Race:
    pair = (one.name, other.name)
    name, first, second = named(pair)
    state = _state(one, other)
    makes = "make" in pair
    execution = "k" if makes and {"first save", "load for event"} & set(pair) else "e"
    group = "k" if makes else "g"

    def built(operation: Operation, tag: str) -> tuple[Action, ...]:
        return operation.build(tag, group if GROUPS in operation.tables else execution)

    return Race(
        name=name,
        summary=f"{one.name} meets {other.name}; it is {state} at first",
        setup=_STATES[state](group),
        sessions={first: built(one, "1"), second: built(other, "2")},
        contends=stored_quiet(pair) is None,
        covers=(pair,),
    )


STORED_PAIRS: Final[tuple[Race, ...]] = tuple(
    _race(STORED_OPERATIONS[one], STORED_OPERATIONS[other])
    for one, other in stored_pairs()
    if stored_apart((one, other)) is None
)
