"""What each statement of the catalogue is asked with: a representative batch over the rows that are there.

One entry a statement, or several where its arguments make it another query (a signal by id or by identity). A statement
without an entry fails the capture: `missing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

from results.plans.sample import Sample

Make = Callable[[Sample], tuple[Any, ...]]

DAY_MS: Final = 86_400_000.0
NOW_S: Final = 2_000_000_000.0


@dataclass(frozen=True, slots=True)
class Case:
    """One way to ask a statement. `label` tells cases of one statement apart: `picker/signal@identity`."""

    statement: str
    make: Make
    case: str = ""

    @property
    def label(self) -> str:
        return f"{self.statement}@{self.case}" if self.case else self.statement


def missing(catalogue: Iterable[str]) -> list[str]:
    """Statements that nothing here asks."""
    return sorted(set(catalogue) - {case.statement for case in CASES})


def _held(s: Sample) -> list[Any]:
    return list(islice(s.held, s.batch))


def _ids(s: Sample) -> list[int]:
    return [row[0] for row in _held(s)]


def _claims(s: Sample) -> list[str]:
    return [row[1] for row in _held(s)]


def _jobs(s: Sample) -> tuple[list[Any], ...]:
    """Twelve columns, as insert_many takes them: a fifth with a key, a fifth with an identity that is new, some
    occupied."""
    taken = cycle(s.identities)
    count = s.batch
    identities = [None if n % 5 else (next(taken) if n % 20 == 0 else f"new-{n}") for n in range(count)]
    live = "{runnable,executing,awaiting_signal,awaiting_children}"
    return (
        ["order"] * count,
        [1] * count,
        ["charge"] * count,
        ['{"n": 1}'] * count,
        ["default"] * count,
        [n % 3 for n in range(count)],
        [None] * count,
        [f"new{n}" if n % 5 == 1 else None for n in range(count)],
        [None] * count,
        [1.0] * count,
        identities,
        [live if identity else "{}" for identity in identities],
    )


def _insert(identity: str | None) -> tuple[Any, ...]:
    scope = "{runnable,executing}" if identity else "{}"
    return ("order", 1, "charge", '{"n": 1}', "default", 0, None, "new", None, 1.0, identity, scope)


def _flush(s: Sample, kinds: tuple[str, ...]) -> tuple[Any, ...]:
    held = _held(s)
    kind = list(islice(cycle(kinds), len(held)))
    none: list[Any] = [None] * len(held)
    false = [False] * len(held)
    return (
        _ids(s),
        _claims(s),
        [0] * len(held),
        kind,
        ["next" if k == "next" else None for k in kind],
        ['{"n": 2}' if k in ("next", "await") else None for k in kind],
        ['{"sum": 1}' if k == "done" else None for k in kind],
        ["boom" if k in ("retry", "stop") else None for k in kind],
        [1000.0 if k == "retry" else None for k in kind],
        false,
        none,
        none,
        false,
        none,
        false,
        ["{paid}" if k == "await" else None for k in kind],
        none,
    )


def _commit(s: Sample) -> tuple[Any, ...]:
    """Every execution with an event, a step, an emit, a spawn and a timer, every other of which is disarmed; the
    versions are those of the seed."""
    ids = s.executions()
    count = len(ids)
    number = list(s.many)
    return (
        ids,
        ["order"] * count,
        ["d" * 200] * count,
        [1 + int(each[1:]) % 5 for each in ids],
        ["RUNNING"] * count,
        [None] * count,
        ["root"] * count,
        [None] * count,
        [f"new-{n}" for n in number],
        ["t" * 60] * count,
        number,
        ids,
        ["o" * 60] * count,
        number,
        [f"made{n}" for n in number],
        ["root"] * count,
        ["{}"] * count,
        number,
        ["root/wait"] * count,
        [None if n % 2 else NOW_S for n in number],
        10,
    )


def _cas(version: int, event: str | None, of: Callable[[Sample], str]) -> Make:
    return lambda s: (of(s), "order", "d" * 200, version, event, "RUNNING", None, "root", None)


def _first(s: Sample) -> str:
    return s.executions()[0]


def _version_of_first(s: Sample) -> tuple[Any, ...]:
    first = _first(s)
    return _cas(1 + int(first[1:]) % 5, "new", lambda _: first)(s)


def _page_of_shards(s: Sample) -> tuple[list[str], list[int], float]:
    keys = sorted({key for key, _ in s.shards})[: max(1, s.batch // 4)]
    chosen = [(key, shard) for key, shard in s.shards if key in set(keys)]
    return [key for key, _ in chosen], [shard for _, shard in chosen], 60_000.0


def _ack(s: Sample) -> tuple[Any, ...]:
    chosen = list(islice(s.messages, s.batch))
    return [group for group, _ in chosen], [seq for _, seq in chosen], ["holder"] * len(chosen), 1e9


CASES: Final = (
    Case("picker/insert", lambda _: _insert("new-identity")),
    Case("picker/insert", lambda s: _insert(s.identities[0]), "occupied"),
    Case("picker/insert_many", _jobs),
    Case("picker/claim", lambda s: ("default", s.batch, "seed:default@node-z.1", 30_000.0, ["gate"])),
    Case("picker/claim", lambda s: ("default", s.batch, "seed:default@node-z.1", 30_000.0, []), "no-gates"),
    Case("picker/inbox", lambda s: (_ids(s),)),
    Case("picker/children", lambda s: (s.joining[: s.batch],)),
    Case("picker/flush", lambda s: _flush(s, ("next", "done", "retry", "await", "stop"))),
    Case("picker/flush_patience", lambda _: (500,)),
    Case("picker/flush_lock", lambda s: (_ids(s), _claims(s), [0] * len(_ids(s)), ["childs"] * len(_ids(s)))),
    Case("picker/flush_children", lambda s: (*_jobs(s), list(islice(cycle(_ids(s)), s.batch)))),
    Case("picker/flush_drop", lambda s: (_ids(s),)),
    Case("picker/flush_consume", lambda s: tuple(map(list, zip(*islice(s.inbox, s.batch), strict=True)))),
    Case("picker/flush_join", lambda s: (list(islice(cycle(s.joining), s.batch)),)),
    Case(
        "picker/flush_recheck", lambda s: (s.parked[: s.batch], [signal for _, signal in s.inbox[: s.batch]])
    ),
    Case("picker/signal", lambda s: (s.parked[0], None, "paid", "{}", "fresh"), "id"),
    Case("picker/signal", lambda s: (None, s.identities[0], "paid", "{}", "fresh"), "identity"),
    Case("picker/expire_awaits", lambda s: (s.batch,)),
    Case("picker/heartbeat", lambda s: (_ids(s), _claims(s), 30_000.0)),
    Case("picker/release", lambda s: (_ids(s), _claims(s))),
    Case("picker/reap", lambda s: (s.batch,)),
    Case("pokes/notify", lambda _: ("plans", ["default", "other"])),
    Case("maintenance/gc_select", lambda s: (DAY_MS, s.batch, *s.place)),
    Case("maintenance/gc_delete", lambda s: (s.terminal[: s.batch],)),
    Case(
        "maintenance/reclaim",
        lambda s: (["seed:default@node-"], 15_000.0, s.batch, "seed@node-b-1", "seed@node-"),
    ),
    Case(
        "limiter/admit",
        lambda s: (_ids(s), _claims(s), [row[3] is not None for row in _held(s)]),
    ),
    Case(
        "limiter/credit", lambda s: (*map(list, zip(*islice(cycle(s.shards), s.batch), strict=True)), s.xid)
    ),
    Case(
        "limiter/sync_config",
        lambda _: (["conc", "rate"], ["gate", "fresh"], [None, 10.0], [500.0, 20.0], [4, 1]),
    ),
    Case("limiter/reconcile_page", lambda s: ("", max(1, s.batch // 4))),
    Case("limiter/reconcile_lock", lambda s: (_page_of_shards(s)[0][0], _page_of_shards(s)[0][-1])),
    Case("limiter/reconcile", _page_of_shards),
    Case("limiter/sweep_buckets", lambda s: (s.batch,)),
    Case("client/counts", lambda s: (s.batch * 10,)),
    Case("client/inspect", lambda s: (_ids(s),)),
    Case("client/outcome", lambda s: (s.terminal[0],)),
    Case("client/page", lambda s: (s.rows // 2, s.batch * 4, s.batch, "done", "default")),
    Case("store/load", lambda s: (_first(s),)),
    Case("store/load_for_event", lambda s: (_first(s), "v" + _first(s)[1:])),
    Case("store/is_processed", lambda s: (_first(s), "v" + _first(s)[1:])),
    Case("store/why", lambda s: (_first(s), "v" + _first(s)[1:])),
    Case("store/lock", lambda s: (s.executions(),)),
    Case("store/commit", _commit),
    Case("store/commit_cas", _version_of_first),
    Case("store/commit_cas", _cas(0, "new", lambda _: "fresh"), "first"),
    Case("store/append_trace", lambda s: (_first(s), "t" * 60, 10)),
    Case("store/trace", lambda s: (_first(s),)),
    Case("store/page", lambda s: ("e5", None, False, s.batch)),
    Case("store/page_of_status", lambda s: ("e5", None, False, s.batch, ["RUNNING", "FAILED"])),
    Case("store/outbox", lambda s: (s.batch,)),
    Case("store/spawns", lambda s: (s.batch,)),
    Case("store/ack_outbox", lambda s: (s.outbox[0],)),
    Case("store/ack_spawn", lambda s: (s.spawns[0],)),
    Case("store/due_timers", lambda s: (NOW_S, s.batch)),
    Case("store/delete_timer", lambda _: ("e20", "root/wait", 1002.0)),
    Case("relay/ack", lambda s: (s.outbox[: s.batch],)),
    Case("relay/broadcast", lambda s: (s.batch,)),
    Case("relay/move", lambda s: (2, s.batch // 2, 3)),
    Case("relay/patience", lambda _: ("1000",)),
    Case("relay/spawns", lambda s: (0, s.batch)),
    Case("relay/turn", lambda _: ()),
    Case("relay/sweep", lambda s: (NOW_S, s.batch)),
    Case(
        "relay/make",
        lambda s: (
            s.spawns[: s.batch],
            [f"made{n}" for n in s.many],
            ["order"] * s.batch,
            ["{}"] * s.batch,
            s.executions(),
            ["{}"] * s.batch,
            [0] * s.batch,
        ),
    ),
    Case(
        "transport/publish", lambda s: ([f"g{n * 3}" for n in s.many], ["m"] * s.batch, [0] * s.batch, None)
    ),
    Case("transport/claim", lambda s: (s.batch, "worker", 30.0, 0, NOW_S)),
    Case("transport/ack", _ack),
    Case("transport/nack", lambda _: ("g3", "holder", 0.0, NOW_S)),
    Case("transport/extend", lambda _: ("g3", "holder", 30.0, NOW_S)),
    Case("transport/set_priority", lambda _: ("g3", 4)),
    Case("transport/depth", lambda _: ("g6", 1000)),
    Case("transport/depth", lambda _: (None, 1000), "all"),
    Case("transport/groups", lambda s: ("g3", s.batch)),
)

BY_LABEL: Final[Mapping[str, Case]] = {case.label: case for case in CASES}
