"""What one committed transaction changed, sorted once for all rules.

Every change of `gen_durable` belongs to one group:

    born        inserted
    claimed     runnable → executing
    held        stayed executing, and only its lease changed (most changes of a busy run)
    stayed      stayed executing and changed otherwise: an inline continuation, or the stamp of an admission, which
                may write what was there before
    ended       left executing; `shape` says how
    moved       changed while nobody held it: a wake, a join, a parent that was deleted. A write that changes
                nothing is left out.
    gone        deleted

A rule names the groups that it looks at, and is not called for a transaction that has none of them. Signals,
buckets and configurations come parsed, for there are few of them and several rules read each. What a transaction
did to the tables of the store and the transport stands in `stored` (`invariants/stored.py`), one group a table.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from invariants.ledger.pgoutput import Relation, Row
from invariants.ledger.state import Key, Step
from invariants.stored import Stored

TABLE: Final = "gen_durable"
EXECUTING, RUNNABLE = b"executing", b"runnable"
PARKED, JOINING = b"awaiting_signal", b"awaiting_children"
TERMINAL: Final = frozenset((b"done", b"failed"))

BORN, CLAIMED, HELD, STAYED, ENDED, MOVED, GONE = (1 << n for n in range(7))
SIGNALS, BUCKETS, CONFIGS = (1 << n for n in range(7, 10))
JOBS: Final = BORN | CLAIMED | HELD | STAYED | ENDED | MOVED | GONE


class Columns:
    """Places of the columns of `gen_durable` in the stream's rows. Raises KeyError when one is missing."""

    def __init__(self, relation: Relation) -> None:
        places = {name: place for place, name in enumerate(relation.columns)}
        self.names = relation.columns
        self.id = places["id"]
        self.fsm = places["fsm"]
        self.state = places["state"]
        self.attempt = places["attempt"]
        self.result = places["result"]
        self.status = places["status"]
        self.queue = places["queue"]
        self.priority = places["priority"]
        self.eligible_at = places["eligible_at"]
        self.locked_by = places["locked_by"]
        self.lease_expires_at = places["lease_expires_at"]
        self.concurrency_key = places["concurrency_key"]
        self.concurrency_shard = places["concurrency_shard"]
        self.rate_limit = places["rate_limit"]
        self.weight = places["weight"]
        self.awaits = places["awaits"]
        self.await_deadline = places["await_deadline"]
        self.parent_id = places["parent_id"]
        self.children_pending = places["children_pending"]
        self.correlation_key = places["correlation_key"]
        self.correlation_scope = places["correlation_scope"]
        self.updated_at = places["updated_at"]

    def all_but(self, *names: str) -> tuple[int, ...]:
        """Places of all columns but these."""
        return tuple(place for place, name in enumerate(self.names) if name not in names)

    def only(self, *names: str) -> tuple[int, ...]:
        """Places of these columns."""
        return tuple(place for place, name in enumerate(self.names) if name in names)


class Transition(msgspec.Struct, frozen=True, gc=False):
    """One job through one change. `before` and `after` are its statuses, None where the row was or is not
    there; `shape` is that of an end (see `ending`)."""

    id: int
    old: Row | None
    new: Row | None
    before: bytes | None
    after: bytes | None
    shape: str | None = None


class Signal(msgspec.Struct, frozen=True, gc=False):
    """A row of an inbox that came (`born`) or went."""

    id: int
    target: int
    name: str
    dedup: str | None
    born: bool


class Level(msgspec.Struct, frozen=True, gc=False):
    """What a shard of a bucket holds."""

    capacity: float
    available: float


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """One shard of one counter through one change; None where it was or is not there."""

    kind: str
    key: str
    shard: int
    old: Level | None
    new: Level | None

    @property
    def name(self) -> str:
        """The configured name that the key belongs to."""
        return config_name(self.key)


class Policy(msgspec.Struct, frozen=True, gc=False):
    """A configured gate (`rate` None) or rate limit."""

    rate: float | None
    capacity: float
    shards: int


class Config(msgspec.Struct, frozen=True, gc=False):
    """A configuration that was set, or deleted (`policy` None)."""

    kind: str
    name: str
    policy: Policy | None


class Changes:
    """One transaction's changes by group, in the order in which they were made. `mask` names the groups that are
    not empty; `row` looks up a job as it is after the transaction, `find` a row of any table by name and key.
    `columns`: those of the jobs' table, once it was seen."""

    __slots__ = (
        "born", "buckets", "claimed", "columns", "configs", "ended", "find", "gone", "held", "mask", "moved", "row",
        "signals", "stayed", "stored",
    )  # fmt: skip

    def __init__(
        self, row: Callable[[int], Row | None], find: Callable[[str, Key], Row | None] = lambda _, __: None
    ) -> None:
        self.row = row
        self.find = find
        self.stored = Stored()
        self.mask = 0
        self.columns: Columns | None = None
        self.born: list[Transition] = []
        self.claimed: list[Transition] = []
        self.held: list[Transition] = []
        self.stayed: list[Transition] = []
        self.ended: list[Transition] = []
        self.moved: list[Transition] = []
        self.gone: list[Transition] = []
        self.signals: list[Signal] = []
        self.buckets: list[Bucket] = []
        self.configs: list[Config] = []


class Sorter:
    """Puts the jobs' changes into groups."""

    def __init__(self, columns: Columns) -> None:
        self._id, self._status, self._lease = columns.id, columns.status, columns.lease_expires_at
        self._ending = ending(columns)

    def add(self, changes: Changes, old: Row | None, new: Row | None) -> None:
        """Sort one change in. The hot path of the judge."""
        status = self._status
        if new is None:
            assert old is not None
            changes.mask |= GONE
            changes.gone.append(Transition(int(old[self._id] or 0), old, None, old[status], None))
            return
        number, after = int(new[self._id] or 0), new[status]
        if old is None:
            changes.mask |= BORN
            changes.born.append(Transition(number, None, new, None, after))
            return
        before = old[status]
        if before == EXECUTING:
            if after == EXECUTING:
                lease = self._lease
                if (
                    old[lease] != new[lease]
                    and old[:lease] == new[:lease]
                    and old[lease + 1 :] == new[lease + 1 :]
                ):
                    changes.mask |= HELD
                    changes.held.append(Transition(number, old, new, before, after))
                else:
                    changes.mask |= STAYED
                    changes.stayed.append(Transition(number, old, new, before, after))
            else:
                changes.mask |= ENDED
                changes.ended.append(Transition(number, old, new, before, after, self._ending(old, new)))
        elif after == EXECUTING and before == RUNNABLE:
            changes.mask |= CLAIMED
            changes.claimed.append(Transition(number, old, new, before, after))
        elif old != new:
            # A delivery writes its target also where it wakes nobody.
            changes.mask |= MOVED
            changes.moved.append(Transition(number, old, new, before, after))


def ending(c: Columns) -> Callable[[Row, Row], str]:
    """In which of its shapes a claim ended: the new status, and for runnable `next` (also that of children of
    which none landed), `retry`, `reap` or `release`. `next` and `release` of a first attempt may look alike:
    `release`."""
    status, attempt, eligible_at = c.status, c.attempt, c.eligible_at
    told = itemgetter(
        *c.only("step", "state", "last_error", "rate_limit", "weight", "concurrency_key", "awaits")
    )

    def shape(old: Row, new: Row) -> str:
        after = new[status]
        if after != RUNNABLE:
            return (after or b"").decode()
        untouched = told(old) == told(new) and new[eligible_at] == old[eligible_at]
        if new[attempt] == old[attempt] and untouched:
            return "release"
        if new[attempt] == b"0":
            return "next"
        return "reap" if untouched else "retry"

    return shape


class Parser:
    """Turns changes of the other tables into signals, buckets and configurations."""

    def __init__(self) -> None:
        self._places: dict[int, Callable[[Row], Any]] = {}

    def add(self, changes: Changes, step: Step) -> None:
        """Sort one change in; a table that no rule looks at is left out."""
        name = step.relation.name
        if name == "signals":
            changes.mask |= SIGNALS
            pick = self._picker(step.relation, ("id", "target_id", "name", "dedup_key"))
            row = step.old if step.new is None else step.new
            assert row is not None
            number, target, what, dedup = pick(row)
            if step.old is None or step.new is None:
                changes.signals.append(
                    Signal(int(number), int(target), string(what) or "", string(dedup), step.old is None)
                )
        elif name == "gen_durable_buckets":
            changes.mask |= BUCKETS
            pick = self._bucket(step.relation)
            row = step.old if step.new is None else step.new
            assert row is not None
            kind, key, shard, _, _ = pick(row)
            levels = [
                None if one is None else Level(*(float(value) for value in pick(one)[3:]))
                for one in (step.old, step.new)
            ]
            changes.buckets.append(
                Bucket(string(kind) or "", string(key) or "", int(shard), levels[0], levels[1])
            )
        elif name == "gen_durable_bucket_configs":
            changes.mask |= CONFIGS
            pick = self._picker(step.relation, ("kind", "name", "rate", "capacity", "shards"))
            row = step.old if step.new is None else step.new
            assert row is not None
            kind, what, rate, capacity, shards = pick(row)
            policy = Policy(None if rate is None else float(rate), float(capacity), int(shards))
            changes.configs.append(
                Config(string(kind) or "", string(what) or "", None if step.new is None else policy)
            )

    def subject(self, step: Step) -> int | tuple[str, str]:
        """What evidence of that change belongs to: a signal's target, or a bucket's kind and key."""
        row = step.old if step.new is None else step.new
        assert row is not None
        if step.relation.name == "signals":
            return int(self._picker(step.relation, ("id", "target_id", "name", "dedup_key"))(row)[1])
        kind, key, *_ = self._bucket(step.relation)(row)
        return string(kind) or "", string(key) or ""

    def number(self, step: Step) -> int:
        """A signal's id, a bucket's shard."""
        row = step.old if step.new is None else step.new
        assert row is not None
        if step.relation.name == "signals":
            return int(self._picker(step.relation, ("id", "target_id", "name", "dedup_key"))(row)[0])
        return int(self._bucket(step.relation)(row)[2])

    def _bucket(self, relation: Relation) -> Callable[[Row], Any]:
        return self._picker(relation, ("kind", "key", "shard", "capacity", "available"))

    def _picker(self, relation: Relation, names: tuple[str, ...]) -> Callable[[Row], Any]:
        found = self._places.get(relation.id)
        if found is None:
            found = itemgetter(*(relation.columns.index(name) for name in names))
            self._places[relation.id] = found
        return found


def string(value: bytes | None) -> str | None:
    """A text value."""
    return None if value is None else value.decode(errors="replace")


def config_name(key: str) -> str:
    """The configured name that a concurrency key or a rate limit refers to: the part before the first colon."""
    return key.split(":", 1)[0]


def text_array(value: bytes | None) -> tuple[str, ...]:
    """The elements of a one-dimensional `text[]` in text form."""
    body = (value or b"{}").decode(errors="replace")[1:-1]
    if '"' not in body:
        return tuple(body.split(",")) if body else ()
    found: list[str] = []
    current: list[str] = []
    quoted = escaped = False
    for character in body:
        if escaped:
            current.append(character)
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            found.append("".join(current))
            current = []
        else:
            current.append(character)
    return (*found, "".join(current))
