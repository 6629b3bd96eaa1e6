"""What a session does: operations of the engine by name, with labels in the place of what is only known when they run.

A `World` is the memory that a race's sessions share, as the parts of one system do: ids by label, what claims brought,
what steps were handed, slots to be given back. An action looks there when it begins, and notes there what it was
answered; one that has nothing to act on (its claim brought no row) is passed over.

An area adds its operations by functions like those below: an `Action` needs a name, and a `prepare` that returns the
operation with what the history is to hold of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import msgspec

from engine.limiter import Limit, PostgresLimiter
from engine.limits import Admission, Slot
from engine.maintenance import Collected, Maintenance
from engine.operation import Operation
from engine.picker import (
    Claim,
    Claimed,
    Commit,
    Delivery,
    Ended,
    Expired,
    Hold,
    Job,
    OutcomeKind,
    Picker,
    Surroundings,
)
from engine.relay.handover import Handover
from engine.statements import Catalogue
from engine.store.execution import Event, Execution
from engine.store.operations import Operations
from engine.transport.clients import Tasks
from engine.transport.queue import Message, Queue
from invariants.mutants import Mutant
from invariants.mutants.handover import handover_of
from invariants.mutants.protocol import as_continued, limiter_of, picker_of
from invariants.mutants.stores import operations_of

LEASE_MS = 60_000.0
EXPIRED_MS = -1.0
# Steps that a trace keeps: few, so that a ring is cut where two meet.
TRACE_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class Variant:
    """The engine that a lab runs: the sound one, or a mutant's, over one catalogue of statements."""

    picker: Picker
    maintenance: Maintenance
    catalogue: Catalogue
    protocol: frozenset[str]
    limiter_kind: type[PostgresLimiter]
    store: Operations
    transport: Tasks
    relay_kind: type[Handover]


def variant_of(mutant: Mutant | None, alter: Callable[[Catalogue], Catalogue]) -> Variant:
    """The parts of the engine; `alter` is applied to every statement last."""
    catalogue = alter(Catalogue.load() if mutant is None else mutant.apply(Catalogue.load()))
    return Variant(
        type(picker_of(mutant))(catalogue),
        Maintenance(catalogue),
        catalogue,
        frozenset() if mutant is None else frozenset(mutant.protocol),
        type(limiter_of(mutant, ())),
        type(operations_of(mutant, trace_max=TRACE_MAX))(catalogue, trace_max=TRACE_MAX),
        Tasks(Queue(catalogue)),
        type(handover_of(mutant)),
    )


@dataclass(slots=True)
class World:
    """One run's memory. Rows, claims, what steps were handed, and freed slots by label; executions as each session
    has loaded them; messages, due timers and rows of the outbox as they were read, by label; relays by name."""

    variant: Variant
    limits: tuple[Limit, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    claims: dict[str, dict[int, Claimed]] = field(default_factory=dict)
    denied: dict[str, tuple[Claimed, ...]] = field(default_factory=dict)
    around: dict[tuple[int, str], Surroundings] = field(default_factory=dict)
    freed: dict[str, tuple[tuple[Slot, ...], int]] = field(default_factory=dict)
    executions: dict[tuple[str, str], Execution] = field(default_factory=dict)
    processed: set[tuple[str, str, str]] = field(default_factory=set)
    messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    due: dict[str, tuple[tuple[str, str, float], ...]] = field(default_factory=dict)
    pending: dict[str, tuple[tuple[int, str | None, Event], ...]] = field(default_factory=dict)
    relays: dict[str, Handover] = field(default_factory=dict)

    def copy(self) -> World:
        """The same memory, to go on with by itself. Only where no relay remembers anything yet."""
        assert not self.relays
        return World(
            self.variant,
            self.limits,
            dict(self.rows),
            {label: dict(rows) for label, rows in self.claims.items()},
            dict(self.denied),
            dict(self.around),
            dict(self.freed),
            {name: deepcopy(one) for name, one in self.executions.items()},
            set(self.processed),
            dict(self.messages),
            dict(self.due),
            dict(self.pending),
        )

    @property
    def picker(self) -> Picker:
        """The variant's picker."""
        return self.variant.picker

    @property
    def maintenance(self) -> Maintenance:
        """The variant's sweeps."""
        return self.variant.maintenance

    def limiter(self, limits: Sequence[Limit] | None = None) -> PostgresLimiter:
        """The race's limiter, or one of another configuration."""
        return self.variant.limiter_kind(self.limits if limits is None else limits, self.variant.catalogue)

    def relay(self, name: str) -> Handover:
        """The relay of that name, with what it remembers."""
        return self.relays.setdefault(name, self.variant.relay_kind(self.variant.catalogue))


class Answer(NamedTuple):
    """How an operation of the history ended."""

    kind: Literal["ok", "fail", "info"]
    told: object


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation about to be run: what the history says of it, and who is told its result. `steps`: what the history
    says before it of steps that ran, whose outcomes it carries. `batch`: where it is several operations to the history,
    what is said of each instead of `value`; `report` then gives an `Answer` for each."""

    f: str
    value: object
    operation: Operation[Any]
    report: Callable[[Any], object]
    absorb: Callable[[Any], object] = lambda _: None
    steps: tuple[dict[str, Any], ...] = ()
    batch: tuple[object, ...] = ()

    @property
    def values(self) -> tuple[object, ...]:
        """What the history says of each of its operations before they ran."""
        return self.batch or (self.value,)

    def answers(self, result: Any) -> list[Answer]:
        """What it says of each afterwards."""
        told: Any = self.report(result)
        return list(told) if self.batch else [Answer("ok", told)]


@dataclass(frozen=True, slots=True)
class Action:
    """A named piece of a session's program. `prepare` is given the world and the session's name."""

    name: str
    prepare: Callable[[World, str], Prepared | None]

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step: of the row of that label, or of every row that the claim brought."""

    kind: OutcomeKind
    row: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    claim: str | None = None


def job(**fields: Any) -> Job:
    """A job of no particular machine."""
    return Job(**({"fsm": "order", "step": "charge"} | fields))


def described(one: Job) -> dict[str, Any]:
    """A job as the history records it."""
    return {
        "fsm": one.fsm,
        "queue": one.queue,
        "priority": one.priority,
        "concurrency_key": one.concurrency_key,
        "correlation_key": one.correlation_key,
        "scope": list(one.correlation_scope),
        "expect": None,
    }


def insert(label: str, **fields: Any) -> Action:
    """One job."""

    def prepare(world: World, _: str) -> Prepared:
        one = job(**fields)

        def absorb(row: int | None) -> None:
            if row is not None:
                world.rows[label] = row

        return Prepared(
            "insert", {"job": described(one)}, world.picker.insert(one), lambda row: {"id": row}, absorb
        )

    return Action(f"insert {label}", prepare)


def insert_many(**labelled: Mapping[str, Any]) -> Action:
    """A batch, in the order given."""

    def prepare(world: World, _: str) -> Prepared:
        jobs = [job(**fields) for fields in labelled.values()]

        def absorb(ids: list[int | None]) -> None:
            world.rows |= {label: row for label, row in zip(labelled, ids, strict=True) if row is not None}

        return Prepared(
            "insert_many",
            {"jobs": [described(one) for one in jobs]},
            world.picker.insert_many(jobs),
            lambda ids: {"ids": ids},
            absorb,
        )

    return Action(f"insert many {', '.join(labelled)}", prepare)


def claim(
    label: str,
    *,
    queue: str = "default",
    batch: int = 10,
    lease_ms: float = LEASE_MS,
    name: str | None = None,
) -> Action:
    """A pick of one queue. `name`: what the claim is called in its rows; by default after session and label."""

    def prepare(world: World, process: str) -> Prepared:
        named = f"i:{queue}@{process}-0.{label}" if name is None else name
        if "claims-named-by-worker" in world.variant.protocol:
            named = f"i:{queue}@worker-0"
        gates = world.limiter().gates

        def absorb(found: Claim) -> None:
            world.claims[label] = {row.id: row for row in found.rows}

        return Prepared(
            "claim",
            {"queue": queue, "batch": batch, "claim": named},
            world.picker.claim(queue=queue, batch=batch, claim=named, lease_ms=lease_ms, gates=gates),
            lambda found: {"ids": [row.id for row in found.rows], "contended": found.contended},
            absorb,
        )

    return Action(f"claim {label}", prepare)


def enrich(label: str) -> Action:
    """What the steps of a claim are handed."""

    def prepare(world: World, _: str) -> Prepared | None:
        ids = list(world.claims.get(label, ()))
        if not ids:
            return None

        def absorb(found: dict[int, Surroundings]) -> None:
            world.around |= {(row, label): around for row, around in found.items()}

        return Prepared(
            "enrich",
            {"ids": ids},
            world.picker.enrich(ids),
            lambda found: {"signals": sum(len(around.signals) for around in found.values())},
            absorb,
        )

    return Action(f"enrich {label}", prepare)


def admit(label: str) -> Action:
    """Ask the limiter which rows of a claim may start."""

    def prepare(world: World, _: str) -> Prepared | None:
        rows = list(world.claims.get(label, {}).values())
        return _asked(world, label, rows) if rows else None

    return Action(f"admit {label}", prepare)


def _asked(world: World, label: str, rows: Sequence[Claimed]) -> Prepared:
    def absorb(answer: Admission) -> None:
        world.claims[label] = {row.id: row for row in answer.admitted}
        world.denied[label] = answer.denied

    return Prepared(
        "admit",
        {"claim": rows[0].claim, "ids": [row.id for row in rows]},
        world.limiter().admit(rows),
        lambda answer: {
            "admitted": [[row.id, row.concurrency_shard] for row in answer.admitted],
            "denied": [row.id for row in answer.denied],
            "contended": answer.contended,
        },
        absorb,
    )


def release(label: str, *rows: str, denied: bool = False) -> Action:
    """Give rows of a claim back: all, those of the labels, or those that the limiter denied."""

    def prepare(world: World, _: str) -> Prepared | None:
        held = list(world.denied.get(label, ()) if denied else world.claims.get(label, {}).values())
        wanted = {world.rows.get(row) for row in rows}
        holds = [Hold(row.id, row.claim) for row in held if not rows or row.id in wanted]
        if not holds:
            return None
        return Prepared(
            "release",
            {"holds": [[hold.id, hold.claim] for hold in holds]},
            world.picker.release(holds),
            lambda ended: {"xid": ended.xid, "released": [[hold.id, hold.claim] for hold in ended.holds]},
            _frees(world, label),
        )

    return Action(f"release {'what was denied of ' if denied else ''}{label}", prepare)


def heartbeat(*labels: str, lease_ms: float = LEASE_MS) -> Action:
    """Extend the leases of claims."""

    def prepare(world: World, _: str) -> Prepared | None:
        holds = [Hold(row.id, row.claim) for label in labels for row in world.claims.get(label, {}).values()]
        if not holds:
            return None
        return Prepared(
            "heartbeat",
            {"holds": [[hold.id, hold.claim] for hold in holds]},
            world.picker.heartbeat(holds, lease_ms),
            lambda extended: {"ids": [hold.id for hold in extended]},
        )

    return Action(f"heartbeat {', '.join(labels)}", prepare)


def flush(label: str, *outcomes: Outcome) -> Action:
    """Commit outcomes of a claim's rows in one transaction. Slots that it frees are credited by `credit(label)`.

    An outcome may name another claim than `label`: that is where its row is looked up.
    """

    def prepare(world: World, _: str) -> Prepared | None:
        commits: list[Commit] = []
        steps: list[dict[str, Any]] = []
        for outcome in outcomes:
            under = outcome.claim or label
            for row in world.claims.get(under, {}).values():
                if outcome.row is None or row.id == world.rows.get(outcome.row):
                    commits.append(_commit(world, under, row, outcome))
                    steps.append(_step(world, under, row))
        if not commits:
            return None

        def absorb(ended: Ended) -> None:
            _frees(world, label)(ended)
            for hold in ended.holds:
                row = world.claims.get(label, {}).get(hold.id)
                if row is not None and any(c.id == hold.id and c.kind == "continue" for c in commits):
                    world.claims[label][hold.id] = msgspec.structs.replace(row, turn=row.turn + 1)

        return Prepared(
            "flush",
            {
                "outcomes": [[c.id, c.claim, c.kind] for c in commits],
                "turns": [c.turn for c in commits],
            },
            world.picker.flush(commits),
            lambda ended: {"xid": ended.xid, "committed": [[hold.id, hold.claim] for hold in ended.holds]},
            absorb,
            tuple(steps),
        )

    return Action(f"flush {label}: {', '.join(outcome.kind for outcome in outcomes)}", prepare)


def go_on(label: str, key: str) -> tuple[Action, Action]:
    """A step of an inline machine goes on to one with the key of a gate: the commit, then the slot if it committed."""
    outcome = Outcome("continue", fields={"sets_key": True, "concurrency_key": key, "gated": True})
    committing = flush(label, outcome)

    def ask(world: World) -> Prepared | None:
        rows = [
            as_continued(row, _commit(world, label, row, outcome))
            for row in world.claims.get(label, {}).values()
        ]
        return _asked(world, label, rows) if rows else None

    def first(world: World, process: str) -> Prepared | None:
        if "admits-before-it-continues" in world.variant.protocol:
            return ask(world)
        return committing.prepare(world, process)

    def second(world: World, process: str) -> Prepared | None:
        if "admits-before-it-continues" in world.variant.protocol:
            return committing.prepare(world, process)
        # The commit counts the turns of what it brought on.
        return ask(world) if any(row.turn for row in world.claims.get(label, {}).values()) else None

    return Action(f"{label} goes on to {key}", first), Action(f"{label} at {key}", second)


def _commit(world: World, label: str, row: Claimed, outcome: Outcome) -> Commit:
    fields: dict[str, Any] = dict(outcome.fields)
    seen = world.around.get((row.id, label), Surroundings()).signals
    if outcome.kind == "done":
        fields.setdefault("result", "1")
    elif outcome.kind == "await":
        fields.setdefault("awaits", ("go",))
        fields.setdefault("presented", tuple(signal.id for signal in seen))
    elif outcome.kind in ("next", "childs", "continue"):
        consumed = tuple(signal.id for signal in seen if signal.name in (row.awaits or ()))
        fields.setdefault("consumed", consumed)
        fields.setdefault("step", "ship")
    if outcome.kind == "continue":
        fields.setdefault("lease_ms", LEASE_MS)
    return Commit(id=row.id, claim=row.claim, turn=row.turn, kind=outcome.kind, **fields)


def _step(world: World, label: str, row: Claimed) -> dict[str, Any]:
    seen = world.around.get((row.id, label), Surroundings()).signals
    return {
        "id": row.id,
        "claim": row.claim,
        "step": row.step,
        "attempt": row.attempt,
        "signals": [signal.id for signal in seen],
        "awaits": None if row.awaits is None else list(row.awaits),
    }


def _frees(world: World, label: str) -> Callable[[Ended], None]:
    def absorb(ended: Ended) -> None:
        if ended.xid is not None:
            world.freed[label] = (ended.freed, ended.xid)

    return absorb


def credit(label: str) -> Action:
    """Give back the slots that the last end of a claim freed."""

    def prepare(world: World, _: str) -> Prepared | None:
        slots, xid = world.freed.pop(label, ((), 0))
        if not slots:
            return None
        return Prepared(
            "credit",
            {"slots": [[slot.key, slot.shard] for slot in slots], "freed_by": xid},
            world.limiter().credit(slots, xid),
            lambda changed: {"changed": len(changed)},
        )

    return Action(f"credit {label}", prepare)


def signal(row: str, name: str = "go", *, dedup: str | None = None, key: str | None = None) -> Action:
    """Deliver a signal to a row, or to the identity `key`."""

    def prepare(world: World, _: str) -> Prepared | None:
        target = world.rows.get(row) if key is None else key
        if target is None:
            return None

        def report(told: Delivery) -> object:
            return {"outcome": told.outcome, "target": told.target, "signal": told.signal}

        return Prepared(
            "signal",
            {"target": target if key is None else None, "key": key, "name": name, "dedup": dedup},
            world.picker.signal(target, name, {}, dedup),
            report,
        )

    return Action(f"signal {name} to {row if key is None else key}", prepare)


def reap(limit: int = 100) -> Action:
    """Take back what has run out."""

    def prepare(world: World, _: str) -> Prepared:
        return Prepared("reap", {"limit": limit}, world.picker.reap(limit), _holds)

    return Action("reap", prepare)


def reclaim(node: str, margin_ms: float = 1_000.0, queue: str = "default") -> Action:
    """A process of that node starts, and takes back what an earlier one left."""

    def prepare(world: World, _: str) -> Prepared:
        prefixes = [f"i:{queue}@{node}-"]
        return Prepared(
            "reclaim",
            {"prefix": prefixes, "margin_ms": margin_ms},
            world.maintenance.reclaim(
                prefixes=prefixes,
                session=f"pgreferee {node}-1",
                sessions=f"pgreferee {node}-",
                margin_ms=margin_ms,
                limit=100,
            ),
            _holds,
        )

    return Action(f"reclaim {node}", prepare)


def _holds(ended: Ended) -> object:
    return {"xid": ended.xid, "holds": [[hold.id, hold.claim] for hold in ended.holds]}


def expire(limit: int = 100) -> Action:
    """Wake who has waited too long."""

    def prepare(world: World, _: str) -> Prepared:
        def report(expired: Expired) -> object:
            return {"ids": list(expired.ids), "xid": expired.xid}

        return Prepared("expire", {"limit": limit}, world.picker.expire_awaits(limit), report)

    return Action("expire", prepare)


def collect(retention_ms: float = 0.0, limit: int = 100) -> Action:
    """Delete one page of what has ended."""

    def prepare(world: World, _: str) -> Prepared:
        def report(page: Collected) -> object:
            return {"ids": list(page.ids), "xid": page.xid}

        return Prepared(
            "gc",
            {"limit": limit, "retention_ms": retention_ms},
            world.maintenance.collect(retention_ms=retention_ms, limit=limit),
            report,
        )

    return Action("collect", prepare)


def sync_config(*limits: Limit) -> Action:
    """A node boots with these limits; without any, with the race's."""

    def prepare(world: World, _: str) -> Prepared:
        return Prepared(
            "sync_config",
            {},
            world.limiter(limits or None).sync_config(),
            lambda changed: {"changed": [list(one) for one in changed]},
        )

    return Action("sync config", prepare)


def reconcile(idle_ms: float = 60_000.0, limit: int = 100) -> Action:
    """Count the gates anew."""

    def prepare(world: World, _: str) -> Prepared:
        return Prepared("reconcile", {"limit": limit}, world.limiter().reconcile(limit, idle_ms), _figures)

    return Action("reconcile", prepare)


def sweep_buckets(limit: int = 100) -> Action:
    """Put the rate buckets in order."""

    def prepare(world: World, _: str) -> Prepared:
        return Prepared("sweep_buckets", {"limit": limit}, world.limiter().sweep_buckets(limit), _figures)

    return Action("sweep buckets", prepare)


def _figures(answer: Any) -> object:
    return {name: getattr(answer, name) for name in answer.__slots__}
