"""One real session, driven without waiting: a statement is sent, and its answer taken when the socket has it.

Not one thread a session, as the first sketch had it: libpq sends without blocking, so one thread holds all sessions,
nothing depends on which thread the scheduler woke first, and a step costs no hand-over between threads.

A session is always in one of these states:

    ready      between two statements, or before an action; `what` comes next
    gate       inside of a statement, at a gate
    running    the server works on its statement
    blocked    the server says that its statement waits for another session's lock
    finished   all of its actions are done
    dead       it was ended, and the server has cleaned up after it
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import psycopg
from psycopg import errors, pq
from psycopg.adapt import Transformer

from engine.operation import Begin, Call, Operation, Request, T
from engine.sessions import describe_error
from engine.statements import Statement
from invariants.history.operations import Operation as Recorded
from stress.schedules.actions import Action, Answer, World
from stress.schedules.gates import GATES, NOTICE, calls_function, only_reads, touched
from stress.schedules.search import Effect

SessionState = Literal["ready", "gate", "running", "blocked", "finished", "dead"]

BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
DEADLOCK: Final = "40P01"
# Statements of no table are sent with the next one that has some; a limit on waiting, or on idling, is lifted, for a
# session that the controller lets wait has not waited in the sense of that limit.
LIFTED: Final = ("picker/flush_patience", "relay/patience")

# Of `log_lock_waits`: the server's word that a statement waits, after it has looked for a deadlock.
STILL_WAITING: Final = " still waiting for "
# It says so of a gate's lock, too, perhaps when the gate is open by then.
AT_A_GATE: Final = f",{GATES},"
# What a step says of a statement that is a transaction of its own, and not committed yet.
OPEN: Final = "not committed yet"

Rows = list[tuple[Any, ...]]


class Sent(NamedTuple):
    """A request, and whether it goes out in one message with the one before it, whose answer it does not wait for."""

    request: Request
    along: bool


Program = Generator[Sent, Rows, None]


class Link:
    """A connection with what it has prepared. Lives through many runs."""

    def __init__(self, dsn: str, gate: int, settings: Iterable[str], tables: Sequence[str]) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True, application_name=f"schedule {gate}")
        self.pgconn = self.connection.pgconn
        self.pid = self.connection.info.backend_pid
        self.gate = gate
        self.tables = tables
        # The lock of its gate that it stands at.
        self.at_lock: int | None = None
        # Whether the server has said of its present statement that it waits, and has looked for a deadlock: just now,
        # and ever.
        self.waits = self.told = False
        self._prepared: dict[bytes, tuple[bytes, Effect]] = {}
        self.connection.add_notice_handler(self._notice)
        for setting in settings:
            self.connection.execute(setting.encode())
        self._rows = Transformer(self.connection)

    def _notice(self, notice: errors.Diagnostic) -> None:
        said = notice.message_primary or ""
        if said.startswith(NOTICE):
            self.at_lock = int(said.removeprefix(NOTICE))
        elif STILL_WAITING in said and AT_A_GATE not in said:
            self.waits = self.told = True

    def prepared(self, statement: Statement) -> tuple[bytes, Effect]:
        """The name under which it is prepared, and what it touches: what it sees, and what it locks or changes."""
        found = self._prepared.get(statement.query)
        if found is None:
            name = f"s{len(self._prepared)}".encode()
            result = self.pgconn.prepare(name, statement.query)
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise errors.error_from_result(result)
            tables = touched(statement, self.tables)
            used = frozenset[str]() if only_reads(statement) else tables
            found = self._prepared[statement.query] = (name, Effect(tables, used))
        return found

    def execute(self, command: bytes) -> None:
        """A command that waits for nobody. Raises psycopg.Error."""
        result = self.pgconn.exec_(command)
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            raise errors.error_from_result(result)

    def call(self, request: Call) -> Rows:
        """One statement, waited for. Raises psycopg.Error."""
        name, _ = self.prepared(request.statement)
        # A null is an argument, too, which the method's type forgets.
        result = self.pgconn.exec_prepared(name, cast("list[bytes]", encoded(request)))
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
        return self.rows(result)

    def perform(self, operation: Operation[T]) -> T:
        """Run an operation to its end, waiting for every answer. Raises what the operation does not handle."""
        program = requests(operation)
        try:
            sent = next(program)
            while True:
                try:
                    rows = self._send(sent.request)
                except psycopg.Error as error:
                    if self.in_transaction():
                        self.execute(b"ROLLBACK")
                    sent = program.throw(error)
                else:
                    sent = program.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _send(self, request: Request) -> Rows:
        if isinstance(request, Call):
            return self.call(request)
        self.execute(BEGIN if isinstance(request, Begin) else b"COMMIT")
        return []

    def rows(self, result: pq.abc.PGresult) -> Rows:
        """What a result holds, as psycopg reads it."""
        if result.status != pq.ExecStatus.TUPLES_OK:
            return []
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, tuple)

    def in_transaction(self) -> bool:
        """Whether one is open, sound or failed."""
        return self.pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    def is_open(self) -> bool:
        """Whether the server has not closed it yet; waits a moment for that."""
        select.select([self.pgconn.socket], [], [], 0.05)
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            return False
        while not self.pgconn.is_busy() and self.pgconn.get_result() is not None:
            pass
        return self.pgconn.status == pq.ConnStatus.OK

    def drained(self, deadline_s: float) -> bool:
        """Throw away what a cancelled statement still answers. False where it does not end in time."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            while not self.pgconn.is_busy():
                if self.pgconn.get_result() is None:
                    self.at_lock = None
                    return True
            select.select([self.pgconn.socket], [], [], 0.05)
            self.pgconn.consume_input()
        return False


class Session:
    """A link with a program. `answers` are those of its actions so far, `step` is what the last step was."""

    def __init__(
        self,
        name: str,
        link: Link,
        actions: Sequence[Action],
        world: World,
        record: Callable[[Recorded], None],
        *,
        whole: bool = False,
    ) -> None:
        self.name = name
        self.link = link
        self.state: SessionState = "ready"
        self.blockers: tuple[int, ...] = ()
        self.error: str | None = None
        self.deadlocks = 0
        # What the server said of a circle that it has broken here: its detail, and where this session stood.
        self.circle: tuple[str, str] | None = None
        self.answers: list[str] = []
        self.lines: list[str] = []
        self.committed = False
        self.sent: list[str] | None = None
        self.effect = Effect()
        self._used: frozenset[str] = frozenset()
        self._touches = Effect()
        self._actions = list(actions)
        self._world = world
        self._record = record
        self._program: Program | None = None
        self._pending: Request | None = None
        # Whether the statement that comes next goes out with the one before it.
        self.along = False
        self._begin = False
        self._whole = whole
        self._past_gate = False
        self._calls_function = False
        self._wrapped = False
        self._kept: Rows | None = None
        self._index = -1
        self._open: Callable[[], None] = lambda: None
        self.action = ""
        if not self._actions:
            self.state = "finished"

    @property
    def statement(self) -> str:
        """The statement that comes next or is under way; empty before an action."""
        if self._program is None:
            return ""
        return (
            self._pending.statement.name
            if isinstance(self._pending, Call) and self._kept is None
            else "commit"
        )

    @property
    def what(self) -> str:
        """What comes next, for a person."""
        if self.state == "ready" and self._program is None:
            return self._actions[0].name
        return f"{self.action}: {self.statement}"

    def send(self) -> None:
        """From a point between statements: send the next one."""
        while self._program is None:
            if not self._actions:
                self.state = "finished"
                return
            self._next_action()
        pgconn = self.link.pgconn
        if isinstance(self._pending, Call) and self._kept is None:
            statement = self._pending.statement
            name, self._touches = self.link.prepared(statement)
            self._calls_function = calls_function(statement)
            # A statement of its own is a transaction, too: between its last change and its commit others may come.
            alone = not self._begin and not self.link.in_transaction()
            self._wrapped = alone and not self._whole and bool(self._touches.used)
            if self._begin or self._wrapped:
                self.link.execute(BEGIN)
                self._begin = False
                self._keep(BEGIN.decode())
            if self.sent is not None:
                self._keep(literal(statement, self._pending.arguments))
            pgconn.send_query_prepared(name, encoded(self._pending))
        else:
            self._touches = Effect()
            pgconn.send_query(b"COMMIT")
            self._keep("COMMIT")
        self.effect |= Effect(saw=self._touches.saw)
        self.link.waits = self.link.told = self._past_gate = False
        self._flushed()
        self.state = "running"

    def _keep(self, sql: str) -> None:
        if self.sent is not None:
            self.sent.append(sql)

    def _flushed(self) -> None:
        while self.link.pgconn.flush():
            pass

    def passed(self) -> None:
        """The gate was opened."""
        self.link.at_lock, self.link.waits, self.link.told = None, False, False
        self._past_gate = True
        self.state = "running"

    def read(self) -> None:
        """Take what the socket has. The state is another one afterwards where the statement has come somewhere."""
        pgconn = self.link.pgconn
        try:
            pgconn.consume_input()
            busy = pgconn.is_busy()
        except psycopg.OperationalError:
            self.died()
            return
        if busy:
            if self.link.at_lock is not None:
                self.state = "gate"
                if self._past_gate or self._calls_function:
                    # Between two of its rows, or of its statements: the first may have locked or changed something.
                    self.effect |= Effect(used=self._touches.used)
            return
        result = pgconn.get_result()
        while result is not None and pgconn.get_result() is not None:
            pass
        if result is None or pgconn.status != pq.ConnStatus.OK:
            self.died()
            return
        self._answered(result)

    def waits(self) -> None:
        """The server says that its statement waits for another session."""
        self.state = "blocked"
        self.effect |= Effect(used=self._touches.used)

    def _answered(self, result: pq.abc.PGresult) -> None:
        self.link.at_lock = None
        self.blockers = ()
        self._used |= self._touches.used
        self.effect |= Effect(used=self._touches.used)
        if result.status == pq.ExecStatus.FATAL_ERROR:
            self._failed(errors.error_from_result(result))
            return
        rows = self.link.rows(result)
        if not self.link.in_transaction():
            self.committed = bool(self._used)
            self._ended()
        if isinstance(self._pending, Call) and self._kept is None:
            self.lines.append(f"{_rows(len(rows))}" if rows else "no rows")
        else:
            self.lines.append("committed")
        if self._wrapped and self._kept is None:
            self.lines.append(OPEN)
            self._kept = rows
            self.state = "ready"
            return
        rows, self._kept, self._wrapped = (rows if self._kept is None else self._kept), None, False
        self._advance(lambda program: program.send(rows))

    def _failed(self, error: psycopg.Error) -> None:
        if error.sqlstate == DEADLOCK:
            self.deadlocks += 1
            self.circle = (error.diag.message_detail or "", error.diag.context or "")
        if self.link.in_transaction():
            self.link.execute(b"ROLLBACK")
            self._keep("ROLLBACK")
        self._ended()
        self._kept, self._wrapped = None, False
        self.lines.append(f"{type(error).__name__}")
        self._advance(lambda program: program.throw(error))

    def _ended(self) -> None:
        self.effect |= Effect(ended=self._used)
        self._used = frozenset()

    def _next_action(self) -> None:
        """Begin the next action that has something to do; its program stands at its first request then."""
        action = self._actions.pop(0)
        prepared = action.prepare(self._world, self.name)
        if prepared is None:
            self.lines.append(f"{action.name}: nothing to do")
            return
        for step in prepared.steps:
            self._index += 1
            now = time.monotonic_ns()
            self._record(Recorded(self.name, self._index, "step", "ok", step, {}, now, now))
        first, values = self._index + 1, prepared.values
        self._index += len(values)
        started, offset, f = time.monotonic_ns(), time.time_ns() - time.monotonic_ns(), prepared.f

        def told(answers: Sequence[Answer]) -> None:
            now = time.monotonic_ns()
            for place, (value, (kind, result)) in enumerate(zip(values, answers, strict=True)):
                end = None if kind == "info" else now
                self._record(Recorded(self.name, first + place, f, kind, value, result, started, end, offset))
            self._open = lambda: None

        def program() -> Program:
            try:
                result = yield from requests(prepared.operation)
            except psycopg.Error as error:
                told([Answer("fail", describe_error(error))] * len(values))
                self.error = f"{action.name}: {type(error).__name__}"
                self.answers.append(self.error)
                self.lines.append(f"the caller gets {type(error).__name__}")
                return
            prepared.absorb(result)
            answers = prepared.answers(result)
            told(answers)
            text = "; ".join(_told(answer.told) for answer in answers)
            self.answers.append(f"{action.name}: {text}")
            self.lines.append(f"answers {text}")

        self.action = action.name
        self._open = lambda: told([Answer("info", None)] * len(values))
        self._program = program()
        self._advance(next)

    def _advance(self, move: Callable[[Program], Sent]) -> None:
        """Let the program take its answer, and come to its next statement, or to the end of its action."""
        assert self._program is not None
        try:
            sent = move(self._program)
            self.along = sent.along
            while True:
                if isinstance(sent.request, Begin):
                    self._begin = True
                elif isinstance(sent.request, Call) and sent.request.statement.name in LIFTED:
                    pass
                else:
                    break
                sent = self._program.send([])
                self.along = self.along and sent.along
        except StopIteration:
            self._program, self._pending = None, None
            self.state = "ready" if self._actions else "finished"
            return
        self._pending = sent.request
        self.state = "ready"

    def died(self) -> None:
        """The server has ended the session; what it was about is unknown to it."""
        self._open()
        if self.state == "blocked":
            self._used |= self._touches.used
        self._ended()
        self.state = "dead"
        self.blockers = ()
        self.lines.append("is dead, its transaction rolled back")

    def abandon(self) -> None:
        """Drop what is left: the run is cut short."""
        self._open()
        self.state = "finished"


def requests(operation: Operation[Any]) -> Generator[Sent, Rows, Any]:
    """An operation's requests one by one: of those that are sent together, too, others may come in between. A server
    gets them one by one as well, and a libpq without pipelines sends them so."""
    try:
        pending = next(operation)
        while True:
            try:
                if isinstance(pending, tuple):
                    answer: Any = []
                    for place, request in enumerate(pending):
                        answer.append((yield Sent(request, place > 0)))
                else:
                    answer = yield Sent(pending, False)
            except psycopg.Error as error:
                pending = operation.throw(error)
            else:
                pending = operation.send(answer)
    except StopIteration as stop:
        return stop.value


def encoded(request: Call) -> list[bytes | None]:
    """A call's arguments as they are sent."""
    return [None if text is None else text.encode() for text in request.statement.encode(request.arguments)]


def literal(statement: Statement, arguments: tuple[Any, ...]) -> str:
    """A statement with its arguments as literals, for a tool that knows no parameters."""
    texts = statement.encode(arguments)

    def value(match: re.Match[str]) -> str:
        text = texts[int(match[1]) - 1]
        return "NULL" if text is None else "'" + text.replace("'", "''") + "'"

    return re.sub(r"\$(\d+)\b", value, statement.text)


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _told(answer: object) -> str:
    if isinstance(answer, dict):
        return ", ".join(f"{name} {value}" for name, value in answer.items() if name != "xid")
    return str(answer)
