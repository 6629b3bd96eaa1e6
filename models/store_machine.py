"""The Hypothesis machine that holds a store against the pure model, after every step.

Every step is one operation in one of several sessions. Executions in memory are kept and committed again long after
others have moved on, so that lost races are as common as won ones. After each step the answer, the object's version and
all tables must be what `models.store` predicts.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

from engine.statements import Catalogue
from engine.store import (
    Commit,
    Event,
    EventAlreadyProcessed,
    Execution,
    Store,
    StoreConflict,
    UnstorableValue,
)
from engine.store.shards import MAX_SHARDS
from models import store as model
from models.machine import OutOfTime, Tally
from models.strategies import (
    CROWDED_INSTANTS,
    crowded_events,
    crowded_ids,
    crowded_timers,
    drafts,
    emits,
    json_documents,
    refused_documents,
    spawns,
)
from models.subjects import TRACE_MAX, Subject, Tables, postgres, sharded, sqlite

# Objects in memory stop at about this many.
MAX_OBJECTS = 12

effects = st.fixed_dictionaries(
    {
        "emits": st.lists(emits, max_size=2),
        "processed_event_id": st.none() | crowded_events,
        "timers": st.lists(crowded_timers, max_size=2),
        "spawns": st.lists(spawns, max_size=1),
        "trace": st.none() | json_documents,
    }
)
# A commit of the state alone goes another way.
bare = st.fixed_dictionaries({"processed_event_id": st.none() | crowded_events})
wishes = st.one_of(bare, effects)
changes = st.none() | drafts


def store_machine(subject: Subject, tally: Tally) -> type[RuleBasedStateMachine]:
    """The machine bound to a store."""
    return type(
        "StoreMachine", (StoreMachine,), {"subject": subject, "tally": tally, "__doc__": StoreMachine.__doc__}
    )


@contextmanager
def on_postgres(
    dsn: str, catalogue: Catalogue | None, schema: Sequence[str]
) -> Iterator[Callable[[Tally], type[RuleBasedStateMachine]]]:
    """Binds machines to the store in an empty database."""
    with postgres(dsn, catalogue, schema) as subject:
        yield lambda tally: store_machine(subject, tally)


@contextmanager
def on_sqlite(
    _: str, __: Catalogue | None, ___: Sequence[str]
) -> Iterator[Callable[[Tally], type[RuleBasedStateMachine]]]:
    """Binds machines to the store in a new file."""
    with (
        tempfile.TemporaryDirectory(prefix="pgreferee-store-") as folder,
        sqlite(Path(folder)) as subject,
    ):
        yield lambda tally: store_machine(subject, tally)


@contextmanager
def on_shards(
    dsn: str, catalogue: Catalogue | None, schema: Sequence[str]
) -> Iterator[Callable[[Tally], type[RuleBasedStateMachine]]]:
    """Binds machines to the store in several shards."""
    with sharded(dsn, catalogue, schema) as subject:
        yield lambda tally: store_machine(subject, tally)


class StoreMachine(RuleBasedStateMachine):
    """Not to be run as it is: `store_machine` binds it."""

    subject: ClassVar[Subject]
    tally: ClassVar[Tally]

    # Places of executions in memory.
    objects: Bundle[int] = Bundle("objects")

    session = st.integers(min_value=0, max_value=2)
    has_objects = precondition(lambda self: self.memory)
    room = precondition(lambda self: len(self.memory) < MAX_OBJECTS)
    limits = st.sampled_from((1, 2, 3, 10_000))

    def __init__(self) -> None:
        super().__init__()
        self.state = model.State()
        self.memory: list[Execution] = []
        self.emitted = 0
        self.acked: dict[str, list[int]] = {"outbox": [], "spawns": []}
        self.cursors: list[tuple[str, str, dict[str, Any]]] = []
        self.steps: list[str] = []
        self.subject.reset()

    def teardown(self) -> None:
        # One that was cut short proves nothing.
        self.tally.examples += not self.tally.out_of_time

    @initialize(target=objects, execution_id=crowded_ids, draft=drafts)
    def begin(self, execution_id: str, draft: dict[str, Any]) -> int:
        return self._keep(Execution(id=execution_id, **draft))

    @room
    @rule(target=objects, execution_id=crowded_ids, draft=drafts)
    def draft(self, execution_id: str, draft: dict[str, Any]) -> int:
        """A new object at version 0, whether or not the execution exists."""
        with self._step(f"draft({execution_id!r}, {draft})"):
            return self._keep(Execution(id=execution_id, **draft))

    @room
    @has_objects
    @rule(target=objects, place=objects)
    def twin(self, place: int) -> int:
        """A second object of the same execution at the same version, as another worker would have it."""
        with self._step(f"twin({place})"):
            return self._keep(copy.deepcopy(self.memory[place]))

    @has_objects
    @rule(session=session, place=objects)
    def reload(self, session: int, place: int) -> None:
        """The object becomes what is stored, as after a conflict."""
        with self._step(f"reload({session}, {place})"):
            answer = self._store(session).load(self.memory[place].id)
            self._same_execution("load", self.memory[place].id, answer)
            if answer is not None:
                self.memory[place] = answer

    @rule(session=session, execution_id=crowded_ids, event_id=crowded_events)
    def load_for_event(self, session: int, execution_id: str, event_id: str) -> None:
        with self._step(f"load_for_event({session}, {execution_id!r}, {event_id!r})"):
            answer, processed = self._store(session).load_for_event(execution_id, event_id)
            self._same_execution("load_for_event", execution_id, answer)
            known = execution_id in self.state.executions
            expected = known and (execution_id, event_id) in self.state.processed
            _same("load_for_event: processed", expected, processed)

    @rule(session=session, execution_id=crowded_ids, event_id=crowded_events)
    def is_processed(self, session: int, execution_id: str, event_id: str) -> None:
        with self._step(f"is_processed({session}, {execution_id!r}, {event_id!r})"):
            expected = (execution_id, event_id) in self.state.processed
            _same("is_processed", expected, self._store(session).is_processed(execution_id, event_id))

    @has_objects
    @rule(session=session, place=objects, change=changes, wish=wishes)
    def commit(self, session: int, place: int, change: dict[str, Any] | None, wish: dict[str, Any]) -> None:
        with self._step(f"commit({session}, {place}, {change}, {wish})"):
            self._commit(session, place, change, wish)

    @has_objects
    @rule(session=session, place=objects, change=changes, wish=wishes)
    def reload_and_commit(
        self, session: int, place: int, change: dict[str, Any] | None, wish: dict[str, Any]
    ) -> None:
        """What a worker does: those that stay with an old object mostly lose."""
        with self._step(f"reload_and_commit({session}, {place}, {change}, {wish})"):
            found = self._store(session).load(self.memory[place].id)
            self._same_execution("load", self.memory[place].id, found)
            if found is not None:
                self.memory[place] = found
            self._commit(session, place, change, wish)

    @has_objects
    @rule(
        session=session,
        batch=st.lists(st.tuples(objects, changes, wishes), max_size=3),
    )
    def commit_many(
        self, session: int, batch: list[tuple[int, dict[str, Any] | None, dict[str, Any]]]
    ) -> None:
        with self._step(f"commit_many({session}, {batch})"):
            for place, change, _ in batch:
                self._change(place, change)
            commits = [self._wanted(place, wish) for place, _, wish in batch]
            versions = [each.execution.version for each in commits]
            after, expected, won = model.commit_many(self.state, commits, trace_max=TRACE_MAX)
            answers = self._store(session).commit_many(commits)
            _same("commit_many", expected, [_refused(answer) for answer in answers])
            for each, before in zip(commits, versions, strict=True):
                _same(
                    f"version in memory of {each.execution.id!r}",
                    before + won[id(each.execution)],
                    each.execution.version,
                )
            self.state = after

    @has_objects
    @rule(
        session=session,
        place=objects,
        where=st.sampled_from(("context", "payload", "spawn", "trace", "priority", "id")),
        bad=refused_documents,
    )
    def refuse(self, session: int, place: int, where: str, bad: Any) -> None:
        """What cannot be stored is refused on the caller's stack, and nothing happens."""
        with self._step(f"refuse({session}, {place}, {where}, {_shown(bad)})"):
            execution = copy.deepcopy(self.memory[place])
            wish: dict[str, Any] = {}
            if where == "context":
                execution.context = {"bad": bad}
            elif where == "id":
                execution.id = ""
            elif where == "priority":
                execution.priority = 5
            elif where == "payload":
                wish["emits"] = [(None, Event(id="e", kind="k", payload={"bad": bad}))]
            elif where == "spawn":
                wish["spawns"] = [("c", "r", {"bad": bad})]
            else:
                wish["trace"] = {"bad": bad}
            before = execution.version
            try:
                self._store(session).commit(execution, **wish)
            except UnstorableValue:
                _same("version in memory", before, execution.version)
            else:
                raise AssertionError(f"{_shown(bad)} was stored in the {where}")

    @rule(session=session, limit=limits)
    def pending_outbox(self, session: int, limit: int) -> None:
        with self._step(f"pending_outbox({session}, {limit})"):
            answer = self._store(session).pending_outbox(limit=limit)
            rows = [(seq, row.target_id, row.event) for seq, row in self.state.outbox]
            self._same_pending(
                rows, [(seq, target, model.canonical(event)) for seq, target, event in answer], limit
            )

    @rule(session=session, limit=limits)
    def pending_spawns(self, session: int, limit: int) -> None:
        with self._step(f"pending_spawns({session}, {limit})"):
            answer = self._store(session).pending_spawns(limit=limit)
            rows = [
                (seq, row.parent_id, row.child_id, row.root_path, row.context)
                for seq, row in self.state.spawns
            ]
            self._same_pending(rows, [(*row[:4], model.canonical(row[4])) for row in answer], limit)

    @precondition(lambda self: self.state.outbox or self.acked["outbox"])
    @rule(session=session, pick=st.integers(min_value=0, max_value=30), again=st.booleans())
    def ack_outbox(self, session: int, pick: int, again: bool) -> None:
        """Any row, or one that was acknowledged before."""
        with self._step(f"ack_outbox({session}, {pick}, {again})"):
            seq = self._pick("outbox", pick, again)
            self._store(session).ack_outbox(seq)
            self.state = replace(self.state, outbox=model.acknowledge(self.state.outbox, seq))

    @precondition(lambda self: self.state.spawns or self.acked["spawns"])
    @rule(session=session, pick=st.integers(min_value=0, max_value=30), again=st.booleans())
    def ack_spawn(self, session: int, pick: int, again: bool) -> None:
        with self._step(f"ack_spawn({session}, {pick}, {again})"):
            seq = self._pick("spawns", pick, again)
            self._store(session).ack_spawn(seq)
            self.state = replace(self.state, spawns=model.acknowledge(self.state.spawns, seq))

    def _pick(self, table: str, pick: int, again: bool) -> int:
        acked, rows = self.acked[table], getattr(self.state, table)
        seqs = acked if acked and (again or not rows) else [seq for seq, _ in rows]
        acked.append(seqs[pick % len(seqs)])
        return acked[-1]

    @rule(session=session, now=st.sampled_from(CROWDED_INSTANTS), limit=limits)
    def due_timers(self, session: int, now: float, limit: int) -> None:
        with self._step(f"due_timers({session}, {now}, {limit})"):
            answer = self._store(session).due_timers(now, limit=limit)
            _same("due_timers", model.due_timers(self.state, now, limit), answer)

    @precondition(lambda self: self.state.timers)
    @rule(session=session, pick=st.integers(min_value=0, max_value=30), stale=st.booleans())
    def delete_timer(self, session: int, pick: int, stale: bool) -> None:
        """A timer that is armed, at its time or at another."""
        with self._step(f"delete_timer({session}, {pick}, {stale})"):
            keys = sorted(self.state.timers)
            execution_id, path = keys[pick % len(keys)]
            fire_at = self.state.timers[execution_id, path]
            fire_at = CROWDED_INSTANTS[pick % len(CROWDED_INSTANTS)] if stale else fire_at
            self._store(session).delete_timer(execution_id, path, fire_at)
            self.state = model.delete_timer(self.state, execution_id, path, fire_at)

    @rule(session=session, execution_id=crowded_ids, entry=json_documents)
    def append_trace(self, session: int, execution_id: str, entry: dict[str, Any]) -> None:
        with self._step(f"append_trace({session}, {execution_id!r}, {entry})"):
            self._store(session).append_trace(execution_id, entry)
            self.state = model.append_trace(self.state, execution_id, entry, trace_max=TRACE_MAX)

    @rule(session=session, execution_id=crowded_ids)
    def read_trace(self, session: int, execution_id: str) -> None:
        with self._step(f"read_trace({session}, {execution_id!r})"):
            answer = self._store(session).read_trace(execution_id)
            expected = model.read_trace(self.state, execution_id)
            _same("read_trace", expected, [model.canonical(entry) for entry in answer])

    @rule(
        session=session,
        limit=limits,
        statuses=st.sampled_from((None, None, ("PENDING",), ("DONE", "FAILED", "DONE"), ())),
        definition_id=st.none() | crowded_ids,
        roots_only=st.booleans(),
    )
    def list_executions(
        self,
        session: int,
        limit: int,
        statuses: tuple[str, ...] | None,
        definition_id: str | None,
        roots_only: bool,
    ) -> None:
        """One page from the beginning; its cursor is kept."""
        with self._step(
            f"list_executions({session}, {limit}, {statuses}, {definition_id!r}, roots_only={roots_only})"
        ):
            filters = {"statuses": statuses, "definition_id": definition_id, "roots_only": roots_only}
            self._page(session, limit, None, None, filters)

    @precondition(lambda self: self.cursors)
    @rule(session=session, limit=limits, pick=st.integers(min_value=0, max_value=30))
    def next_page(self, session: int, limit: int, pick: int) -> None:
        """The page behind a cursor of an earlier step: executions have come since."""
        with self._step(f"next_page({session}, {limit}, {pick})"):
            cursor, after, filters = self.cursors[pick % len(self.cursors)]
            self._page(session, limit, cursor, after, filters)

    def _page(
        self, session: int, limit: int, cursor: str | None, after: str | None, filters: dict[str, Any]
    ) -> None:
        page = self._store(session).list_executions(
            status=filters["statuses"],
            definition_id=filters["definition_id"],
            roots_only=filters["roots_only"],
            limit=limit,
            cursor=cursor,
        )
        expected = model.listing(self.state, after=after, **filters)
        _same("list_executions", expected[:limit], list(page.items))
        _same("list_executions: there is more", len(expected) > limit, page.next_cursor is not None)
        if page.next_cursor is not None:
            self.cursors.append((page.next_cursor, page.items[-1].id, filters))

    def _commit(self, session: int, place: int, change: dict[str, Any] | None, wish: dict[str, Any]) -> None:
        self._change(place, change)
        wanted = self._wanted(place, wish)
        before = wanted.execution.version
        after, expected = model.commit(self.state, wanted, trace_max=TRACE_MAX)
        store = self._store(session)
        refused = None
        try:
            if wish:
                store.commit(
                    wanted.execution, wanted.emits, wanted.processed_event_id, wanted.timers, wanted.spawns,
                    wanted.trace,
                )  # fmt: skip
            else:
                store.save(wanted.execution)
        except StoreConflict as conflict:
            refused = _refused(conflict)
        _same("commit", expected, refused)
        _same("version in memory", before + (expected is None), wanted.execution.version)
        self.state = after

    def _wanted(self, place: int, wish: Mapping[str, Any]) -> Commit:
        """Every emit has an id of its own, so that rows can be told apart."""
        named = []
        for target_id, kind, payload in wish.get("emits", ()):
            self.emitted += 1
            named.append((target_id, Event(id=f"e{self.emitted}", kind=kind, payload=payload)))
        return Commit(execution=self.memory[place], **{**wish, "emits": named})

    def _change(self, place: int, change: dict[str, Any] | None) -> None:
        for name, value in (change or {}).items():
            setattr(self.memory[place], name, copy.deepcopy(value))

    def _keep(self, execution: Execution) -> int:
        self.memory.append(execution)
        return len(self.memory) - 1

    def _store(self, session: int) -> Store:
        stores = tuple(self.subject.sessions.values())
        return stores[session % len(stores)]

    def _same_execution(self, what: str, execution_id: str, answer: Execution | None) -> None:
        saved = self.state.executions.get(execution_id)
        expected = None if saved is None else (saved.data, saved.version)
        _same(what, expected, None if answer is None else (model.data_of(answer), answer.version))

    def _same_pending(self, rows: list[tuple[Any, ...]], answer: list[tuple[Any, ...]], limit: int) -> None:
        """As many as the limit allows, in order, of each shard its oldest."""
        _same("pending: how many", min(limit, len(rows)), len(answer))
        _same("pending: in order", sorted(row[0] for row in answer), [row[0] for row in answer])
        modulus = MAX_SHARDS if self.subject.shards > 1 else 1
        for shard in range(self.subject.shards):
            mine = [row for row in answer if row[0] % modulus == shard % modulus]
            oldest = [row for row in rows if row[0] % modulus == shard % modulus]
            _same("pending", oldest[: len(mine)], mine)

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        if time.monotonic() > self.tally.deadline:
            self.tally.out_of_time = True
            raise OutOfTime
        self.tally.steps += 1
        self.steps.append(text)
        try:
            yield
            self._same_tables(self.subject.tables())
        except Exception as error:
            self.tally.note_failure(self.steps, error)
            raise

    def _same_tables(self, tables: Tables) -> None:
        for name in ("executions", "processed", "timers", "trace"):
            _same(name, getattr(self.state, name), getattr(tables, name))
        self.state = replace(
            self.state,
            outbox=model.numbered(self.state.outbox, tables.outbox, "emitter"),
            spawns=model.numbered(self.state.spawns, tables.spawns, "parent_id"),
        )
        for name in ("outbox", "spawns"):
            _same(name, dict(getattr(self.state, name)), getattr(tables, name))


def _refused(answer: object) -> model.Refused | None:
    if answer is None:
        return None
    assert isinstance(answer, StoreConflict), f"a commit was answered with {answer!r}"
    processed = isinstance(answer, EventAlreadyProcessed)
    return model.Refused(answer.execution_id, answer.expected, answer.found, processed)


def _shown(value: Any) -> str:
    """In a few words. Python writes out no integer of more than 4,300 digits."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return f"{type(value).__name__} of a number too long to be shown"


def _same(what: str, expected: object, answer: object) -> None:
    if answer == expected:
        return
    if isinstance(expected, Mapping) and isinstance(answer, Mapping):
        keys = [key for key in {**expected, **answer} if expected.get(key) != answer.get(key)]
        shown = "; ".join(
            f"{key!r}: the model says {expected.get(key)!r}, the engine {answer.get(key)!r}" for key in keys
        )
        raise AssertionError(f"{what} differ: {shown}")
    raise AssertionError(f"{what}: the model says {expected!r}, the engine {answer!r}")
