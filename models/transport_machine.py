"""The Hypothesis machine that holds the transport on a real server against the pure model, after every step.

Claims that lapsed are kept and used again, so that stale acknowledgements are as common as good ones. Sessions differ
in what their planner may do; another one takes row locks and lets them go. After each step the answer and both tables
must be what `models.transport` predicts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.operation import Operation, T, perform
from engine.schema import migrate
from engine.statements import Catalogue
from engine.transport.queue import Message, Publication, Queue
from models import transport as model
from models.machine import OutOfTime, Tally
from models.sessions import PLANNERS
from models.strategies import crowded_groups, message_texts

START = 1_800_000_000.0
# Publishing stops at about this many messages.
MAX_MESSAGES = 15
# TRUNCATE is slow, and dead rows are stepped over by every scan.
_RESETS_PER_TRUNCATE = 50
_DELETE = "WITH gone AS (DELETE FROM transport_messages) DELETE FROM transport_groups"
_TRUNCATE = "TRUNCATE transport_messages, transport_groups"


@dataclass
class Queues:
    """Sessions by planner on one database, one more that holds row locks, and the operations."""

    by_planner: Mapping[str, psycopg.Connection[Any]]
    holder: psycopg.Connection[Any]
    queue: Queue
    resets: int = 0

    def perform(self, planner: str, operation: Operation[T]) -> T:
        """Run one operation to its end."""
        return perform(self.by_planner[planner], operation)

    def reset(self) -> None:
        """Empty tables, and no locks."""
        self.let_go()
        self.resets += 1
        self.holder.execute(_DELETE if self.resets % _RESETS_PER_TRUNCATE else _TRUNCATE)

    def hold(self, groups: Sequence[str]) -> None:
        """Lock these groups' rows until `let_go`."""
        self.holder.execute("BEGIN")
        self.holder.execute(
            "SELECT FROM transport_groups WHERE group_id = ANY (%s) ORDER BY group_id FOR NO KEY UPDATE NOWAIT",
            (list(groups),),
        )

    def let_go(self) -> None:
        """End the transaction that holds locks, if there is one."""
        if self.holder.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.holder.execute("ROLLBACK")

    def seen(self) -> model.State:
        """Both tables as they are committed."""
        connection = next(iter(self.by_planner.values()))
        groups = connection.execute("SELECT group_id, locked_by, lock_expiry, priority FROM transport_groups")
        messages = connection.execute("SELECT seq, group_id, event FROM transport_messages")
        return model.State(
            {group_id: model.Group(*row) for group_id, *row in groups},
            {seq: (group_id, event) for seq, group_id, event in messages},
        )


@contextmanager
def on_transport(
    dsn: str, catalogue: Catalogue | None, schema: Sequence[str]
) -> Iterator[Callable[[Tally], type[RuleBasedStateMachine]]]:
    """Binds machines to the transport in a database that has none yet. `schema` is run after its migrations."""
    with ExitStack() as stack:
        sessions: dict[str, psycopg.Connection[Any]] = {}
        for planner, settings in PLANNERS.items():
            sessions[planner] = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            for name, value in {**settings, "jit": "off", "statement_timeout": "20s"}.items():
                sessions[planner].execute("SELECT set_config(%s, %s, false)", (name, value))
        holder = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        migrate(holder, "transport")
        for statement in schema:
            holder.execute(statement)
        queues = Queues(sessions, holder, Queue(catalogue))
        yield lambda tally: type(
            "TransportMachine",
            (TransportMachine,),
            {"queues": queues, "tally": tally, "__doc__": TransportMachine.__doc__},
        )


class TransportMachine(RuleBasedStateMachine):
    """Not to be run as it is: `on_transport` binds it."""

    queues: ClassVar[Queues]
    tally: ClassVar[Tally]

    planners = st.sampled_from(tuple(PLANNERS))
    seconds = st.sampled_from((30.0, 1.0, 0.0, 0.1, 1e-7, 3_000_000_000.0))
    priorities = st.none() | st.integers(min_value=0, max_value=4)
    picks = st.integers(min_value=0, max_value=40)
    room = precondition(lambda self: len(self.state.messages) < MAX_MESSAGES)
    has_held = precondition(lambda self: self.held)

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.state = model.State()
        # Every message ever handed out.
        self.held: list[model.Handed] = []
        self.claims = 0
        self.locked: frozenset[str] = frozenset()
        self.steps: list[str] = []
        self.queues.reset()

    def teardown(self) -> None:
        self.queues.let_go()
        # One that was cut short proves nothing.
        self.tally.examples += not self.tally.out_of_time

    @initialize(items=st.lists(st.tuples(crowded_groups, message_texts, priorities), min_size=1, max_size=4))
    def begin(self, items: list[tuple[str, str, int | None]]) -> None:
        self._publish("stock", items)

    @room
    @rule(
        planner=planners,
        items=st.lists(st.tuples(crowded_groups, message_texts, priorities), max_size=4),
    )
    def publish(self, planner: str, items: list[tuple[str, str, int | None]]) -> None:
        self._publish(planner, items)

    def _publish(self, planner: str, items: list[tuple[str, str, int | None]]) -> None:
        with self._step(f"publish({planner}, {items})"):
            operation = self.queues.queue.publish([Publication(*item) for item in items], self.now)
            seqs = self.queues.perform(planner, operation)
            self.state = model.publish(self.state, items, seqs, self.now)

    @rule(
        planner=planners,
        limit=st.sampled_from((1, 1, 2, 100, 0)),
        lease=seconds,
        min_priority=st.sampled_from((0, 0, 0, 1, 4)),
    )
    def claim(self, planner: str, limit: int, lease: float, min_priority: int) -> None:
        self.claims += 1
        token = f"claim {self.claims}"
        with self._step(f"claim({planner}, {limit}, {token!r}, {lease}, min_priority={min_priority})"):
            operation = self.queues.queue.claim(
                limit, token=token, lease=lease, min_priority=min_priority, now=self.now
            )
            answer = self.queues.perform(planner, operation)
            self.state, expected = model.claim(
                self.state,
                limit,
                token=token,
                lease=lease,
                min_priority=min_priority,
                now=self.now,
                locked=self.locked,
            )
            _same("claim", expected, [_handed(message) for message in answer])
            self.held += expected

    @has_held
    @rule(
        planner=planners,
        picks=st.lists(picks, min_size=1, max_size=4),
        shift=st.sampled_from((0, 0, 0, 1)),
        strange=st.sampled_from((False, False, False, True)),
    )
    def ack(self, planner: str, picks: list[int], shift: int, strange: bool) -> None:
        """The latest claims come first; `shift` names the next message, `strange` another claim's token."""
        items = []
        for pick in picks:
            held = self.held[-1 - pick % len(self.held)]
            token = self.held[pick % len(self.held)].token if strange else held.token
            if held.group_id not in self.locked:  # an ack waits for a lock
                items.append((held.group_id, held.seq + shift, token))
        with self._step(f"ack({planner}, {items})"):
            messages = [Message(group_id, seq, "", token) for group_id, seq, token in items]
            self.state, expected = model.ack(self.state, items, self.now)
            _same("ack", expected, self.queues.perform(planner, self.queues.queue.ack(messages, self.now)))

    @has_held
    @rule(planner=planners, pick=picks, delay=seconds, renew=st.booleans())
    def nack_or_extend(self, planner: str, pick: int, delay: float, renew: bool) -> None:
        held = self.held[-1 - pick % len(self.held)]
        if held.group_id in self.locked:  # both wait for a lock
            return
        name = "extend" if renew else "nack"
        with self._step(f"{name}({planner}, {held.group_id!r}, {held.token!r}, {delay})"):
            expect = model.extend if renew else model.nack
            act = self.queues.queue.extend if renew else self.queues.queue.nack
            self.state, expected = expect(self.state, held.group_id, held.token, delay, self.now)
            operation = act(held.group_id, held.token, delay, self.now)
            _same(name, expected, self.queues.perform(planner, operation))

    @rule(planner=planners, group_id=crowded_groups, priority=st.integers(min_value=0, max_value=4))
    def set_priority(self, planner: str, group_id: str, priority: int) -> None:
        if group_id in self.locked:
            return
        with self._step(f"set_priority({planner}, {group_id!r}, {priority})"):
            self.state, expected = model.set_priority(self.state, group_id, priority)
            operation = self.queues.queue.set_priority(group_id, priority)
            _same("set_priority", expected, self.queues.perform(planner, operation))

    @rule(planner=planners, group_id=st.none() | crowded_groups)
    def depth(self, planner: str, group_id: str | None) -> None:
        with self._step(f"depth({planner}, {group_id!r})"):
            operation = self.queues.queue.depth(group_id)
            _same("depth", model.depth(self.state, group_id), self.queues.perform(planner, operation))

    @rule(planner=planners, limit=st.sampled_from((1, 2, 100)), after=st.none() | crowded_groups)
    def groups(self, planner: str, limit: int, after: str | None) -> None:
        with self._step(f"groups({planner}, {limit}, {after!r})"):
            answer = self.queues.perform(planner, self.queues.queue.groups(limit, after))
            behind = sorted(name for name in self.state.groups if after is None or name > after)[:limit]
            expected = [(name, self.state.groups[name], model.depth(self.state, name)) for name in behind]
            _same(
                "groups",
                expected,
                [
                    (
                        each.group_id,
                        model.Group(each.locked_by, each.lock_expiry, each.priority),
                        each.messages,
                    )
                    for each in answer
                ],
            )

    @rule(passed=st.sampled_from((1e-6, 1.0, 31.0, None)))
    def pass_time(self, passed: float | None) -> None:
        """By that many seconds; None: to the next instant at which a group can be had."""
        with self._step(f"pass_time({passed})"):
            edges = [
                group.lock_expiry for group in self.state.groups.values() if group.lock_expiry > self.now
            ]
            self.now = self.now + passed if passed is not None else min(edges, default=self.now)

    @precondition(lambda self: self.state.groups and not self.locked)
    @rule(picks=st.lists(picks, min_size=1, max_size=2))
    def lock(self, picks: list[int]) -> None:
        """Somebody else is about to change these groups."""
        names = sorted(self.state.groups)
        chosen = sorted({names[pick % len(names)] for pick in picks})
        with self._step(f"lock({chosen})"):
            self.queues.hold(chosen)
            self.locked = frozenset(chosen)

    @precondition(lambda self: self.locked)
    @rule()
    def let_go(self) -> None:
        with self._step("let_go()"):
            self.queues.let_go()
            self.locked = frozenset()

    @contextmanager
    def _step(self, text: str) -> Iterator[None]:
        if time.monotonic() > self.tally.deadline:
            self.tally.out_of_time = True
            raise OutOfTime
        self.tally.steps += 1
        self.steps.append(text)
        try:
            yield
            _same("the tables", self.state, self.queues.seen())
        except Exception as error:
            self.tally.note_failure(self.steps, error)
            raise


def _handed(message: Message) -> model.Handed:
    return model.Handed(message.group_id, message.seq, message.event, message.token)


def _same(what: str, expected: object, answer: object) -> None:
    assert answer == expected, f"{what}: the model says {expected!r}, the engine {answer!r}"
