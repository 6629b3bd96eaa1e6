"""Every pair of the picker's operations that touches a common table, as a race of two sessions.

The races are generated from a table of operations: what an operation does to the row `r`, and in which states of `r` it
has something to do. Two operations meet in the first state that both have, or in that of `MEET`. A pair is honest only
where the two can get into each other's way: a race of which no schedule blocks a session or changes an answer is
reported as one that decides nothing, but for those for which `quiet` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Final

from engine.limiter import Gate, RateLimit
from stress.schedules.actions import (
    EXPIRED_MS,
    Action,
    Outcome,
    admit,
    claim,
    collect,
    credit,
    expire,
    flush,
    heartbeat,
    insert,
    insert_many,
    job,
    reap,
    reclaim,
    reconcile,
    release,
    signal,
    sweep_buckets,
    sync_config,
)
from stress.schedules.race import Race

Pair = tuple[str, str]
# Actions of an operation: given a tag that tells two of a kind apart, and the state of the row.
Builder = Callable[[str, str], tuple[Action, ...]]

JOBS, INBOX, COUNTERS, CONFIGS = "gen_durable", "signals", "gen_durable_buckets", "gen_durable_bucket_configs"
# A rate that is full again at once, so that a sweep finds the key idle; a gate that lets one in.
LIMITS: Final = (Gate("g", 1), RateLimit("x", rate=1e6, burst=1.0))
TWO_SLOTS: Final = (Gate("g", 2), RateLimit("x", rate=1e6, burst=1.0))
OTHER_LIMITS: Final = (Gate("g", 2, shards=2), RateLimit("x", rate=1e6, burst=2.0, shards=2))


def _row(**fields: Any) -> tuple[Action, ...]:
    return (insert("r", **({"concurrency_key": "k", "correlation_key": "id"} | fields)),)


def _held(lease_ms: float, *, gated: bool = False) -> tuple[Action, ...]:
    key = "g:1" if gated else "k"
    rate = {"rate_limit": "x"} if gated else {}
    return (
        *((sync_config(),) if gated else ()),
        *_row(concurrency_key=key, **rate),
        claim("c", lease_ms=lease_ms),
        insert("s", concurrency_key=key, priority=1, **rate),
    )


_ASKING: Final = _held(60_000.0, gated=True)
_ENDED: Final = _row(correlation_scope=("runnable", "executing", "done"))
# States of the row `r`, under claim `c` where it has one, and what makes them. `s` is another row of its key; where
# that is a gate's, claim `d` has it.
STATES: Final[Mapping[str, tuple[Action, ...]]] = {
    "runnable": (*_row(), insert("s", concurrency_key="k", priority=1)),
    "executing": _held(60_000.0),
    "lapsed": _held(EXPIRED_MS),
    "parked": (*_row(), claim("c"), flush("c", Outcome("await"))),
    "overdue": (*_row(), claim("c"), flush("c", Outcome("await", fields={"timeout_ms": -1.0}))),
    "ended": (*_ENDED, claim("c"), flush("c", Outcome("done"))),
    "asking": (*_ASKING, claim("d")),
    "asking, lapsed": _held(EXPIRED_MS, gated=True),
    "admitted": (*_ASKING, admit("c"), claim("d")),
    "admitted, lapsed": (*_held(EXPIRED_MS, gated=True), admit("c"), claim("d")),
    "freed": (*_ASKING, admit("c"), flush("c", Outcome("done")), claim("d")),
    "both freed": (
        *_ASKING,
        claim("d"),
        admit("c"),
        admit("d"),
        flush("c", Outcome("done")),
        flush("d", Outcome("done")),
    ),
    "spent": (
        sync_config(),
        insert("r", rate_limit="x"),
        insert("s", rate_limit="x", priority=1),
        claim("c", batch=1),
        claim("d", batch=1),
        admit("c"),
        flush("c", Outcome("done")),
    ),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, the tables that it touches, and the states of `r` in which it has something to do."""

    name: str
    tables: frozenset[str]
    states: tuple[str, ...]
    build: Builder


def _flushes(kind: Any, **fields: Any) -> Builder:
    return lambda _, __: (flush("c", Outcome(kind, fields=fields)),)


def _admit(tag: str, state: str) -> tuple[Action, ...]:
    asks = ("c" if tag == "1" else "d") if state == "asking" else "c" if state == "asking, lapsed" else "d"
    return (admit(asks),)


def _batch(tag: str, _: str) -> tuple[Action, ...]:
    """Two new identities and that of `r`, in one order or the other."""
    keys = (("a", "x1"), ("b", "id"), ("c", "x2"))
    jobs = {f"{name}{tag}": {"correlation_key": key, "queue": "other"} for name, key in keys}
    return (insert_many(**dict(sorted(jobs.items(), reverse=tag == "2"))),)


_HELD: Final = ("executing", "lapsed", "asking", "asking, lapsed", "admitted", "admitted, lapsed")
_LAPSED: Final = ("lapsed", "asking, lapsed", "admitted, lapsed")
_JOBS: Final = frozenset((JOBS,))
_FLUSH: Final = frozenset((JOBS, INBOX))
_LIMITED: Final = frozenset((JOBS, COUNTERS, CONFIGS))
_CHILD: Final = job(correlation_key="x1", queue="children")
_OPERATIONS: Final = (
    Operation("claim", _JOBS, ("runnable", "executing", "lapsed"), lambda tag, _: (claim(f"n{tag}"),)),
    Operation("admit", _LIMITED, ("asking", "asking, lapsed", "freed", "spent", "admitted"), _admit),
    Operation("release", _JOBS, _HELD, lambda _, __: (release("c"),)),
    Operation("heartbeat", _JOBS, _HELD, lambda _, __: (heartbeat("c"),)),
    Operation("flush next", _FLUSH, _HELD, _flushes("next")),
    Operation("flush retry", _JOBS, _HELD, _flushes("retry")),
    Operation("flush done", _FLUSH, _HELD, _flushes("done")),
    Operation("flush stop", _FLUSH, _HELD, _flushes("stop", error="no")),
    Operation("flush await", _FLUSH, _HELD, _flushes("await", timeout_ms=-1.0)),
    Operation("flush childs", _FLUSH, _HELD, _flushes("childs", children=(_CHILD,))),
    Operation("flush continue", _FLUSH, _HELD, _flushes("continue")),
    Operation(
        "signal",
        _FLUSH,
        (*_HELD, "parked", "overdue", "runnable", "ended"),
        lambda _, __: (signal("r", dedup="d"),),
    ),
    Operation("reap", _JOBS, _LAPSED, lambda _, __: (reap(),)),
    Operation("reclaim", _JOBS, _LAPSED, lambda _, __: (reclaim("setup"),)),
    Operation("expire", _JOBS, ("overdue",), lambda _, __: (expire(),)),
    Operation("collect", _FLUSH, ("ended",), lambda _, __: (collect(),)),
    Operation("sweep buckets", frozenset((COUNTERS, CONFIGS)), ("spent",), lambda _, __: (sweep_buckets(),)),
    Operation("reconcile", _LIMITED, ("freed", "admitted", "admitted, lapsed"), lambda _, __: (reconcile(),)),
    Operation(
        "credit",
        frozenset((COUNTERS,)),
        ("freed",),
        lambda tag, state: (credit("d" if (tag, state) == ("2", "both freed") else "c"),),
    ),
    Operation("insert many", _JOBS, (), _batch),
    Operation(
        "config",
        frozenset((CONFIGS,)),
        (),
        lambda tag, _: (sync_config(*OTHER_LIMITS[:: 1 if tag == "1" else -1]),),
    ),
)
OPERATIONS: Final[Mapping[str, Operation]] = {one.name: one for one in _OPERATIONS}

# Where another state than the first common one lets them meet.
MEET: Final[Mapping[Pair, str]] = {
    ("claim", "admit"): "asking, lapsed",
    ("claim", "heartbeat"): "lapsed",
    ("claim", "flush continue"): "lapsed",
    ("claim", "expire"): "overdue",
    ("flush await", "expire"): "executing",
    ("flush done", "collect"): "executing",
    ("flush stop", "collect"): "executing",
    ("credit", "credit"): "both freed",
    ("reconcile", "reconcile"): "freed",
    ("config", "config"): "runnable",
}
# What the first session does before its operation, so that the two can meet.
BEFORE: Final[Mapping[Pair, tuple[Action, ...]]] = {
    ("claim", "admit"): (reap(),),
    ("claim", "heartbeat"): (reap(),),
    ("claim", "flush continue"): (reap(),),
}
_ONE_ROW: Final = "one acts on {} rows, the other on {} ones, and no row is both"
_OWN: Final = {
    **dict.fromkeys(
        ("release", "heartbeat", "flush next", "flush retry", "flush done", "flush stop", "flush await",
         "flush childs", "flush continue", "admit", "reap", "reclaim"),
        "executing",
    ),
    "claim": "runnable",
    "expire": "parked",
    "collect": "terminal",
}  # fmt: skip


def pairs() -> list[Pair]:
    """Every pair, each once."""
    return list(combinations_with_replacement(OPERATIONS, 2))


def apart(pair: Pair) -> str | None:
    """Why a pair has no race; None where it has one."""
    one, other = (OPERATIONS[name] for name in pair)
    return None if one.tables & other.tables else "no common table"


def quiet(pair: Pair) -> str | None:
    """Why the sessions of a pair's race cannot get into each other's way; None where they do."""
    one, other = pair
    if pair in MEET:
        return None
    if pair == ("signal", "collect"):
        return "a delivery finds no target in a row that has ended, collected or not"
    own = {_OWN.get(one), _OWN.get(other)}
    if None not in own and len(own) == 2 and own & {"parked", "terminal"}:
        return _ONE_ROW.format(*sorted((_OWN[one], _OWN[other])))
    if "reconcile" in pair:
        others = {name for name in pair if name != "reconcile"}
        if others & {"claim", "expire", "collect", "insert many", "signal", "heartbeat", "flush continue"}:
            return "the other neither takes nor frees a slot, and the count locks no instance row"
    if pair in (("sweep buckets", "reconcile"), ("sweep buckets", "credit")):
        return "one works on rate limits, the other on gates: no common row"
    return None


def named(pair: Pair) -> tuple[str, str, str]:
    """The names of a pair's race and of its two sessions."""
    first, second = pair[0].replace(" ", "-"), pair[1].replace(" ", "-")
    sessions = (f"{first}-1", f"{second}-2") if first == second else (first, second)
    return f"pair:{first}+{second}", *sessions


def _race(one: Operation, other: Operation) -> Race:
    pair = (one.name, other.name)
    state = MEET.get(pair)
    if state is None:
        common = [state for state in one.states if state in other.states]
        state = (*common, *one.states, *other.states, "runnable")[0]
    name, first, second = named(pair)
    return Race(
        name=name,
        summary=f"{one.name} meets {other.name}; the row is {state} at first",
        setup=STATES[state],
        sessions={
            first: (*BEFORE.get(pair, ()), *one.build("1", state)),
            second: other.build("2", state),
        },
        limits=TWO_SLOTS if state == "both freed" else LIMITS,
        contends=quiet(pair) is None,
        covers=(pair,),
    )


PAIRS: Final[tuple[Race, ...]] = tuple(
    _race(OPERATIONS[one], OPERATIONS[other]) for one, other in pairs() if apart((one, other)) is None
)
