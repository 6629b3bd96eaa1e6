"""Takes situations on a server: asks the statement, and says where it departs from what is right."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from engine.schema import migrate
from engine.statements import AREAS, Catalogue, Statement
from stress.situations.situation import GATE, GATED, Rows, Situation

# What is right does not depend on the plan. Each situation is taken under all of these: what the planner would do, what
# it may do in tables of another size, and orders that no index gives by chance.
PLANS: Final[Mapping[str, tuple[str, ...]]] = {
    "the planner's choice": (),
    "no index, no sort": ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan", "enable_sort"),
    "hash joins": ("enable_nestloop", "enable_mergejoin"),
    "merge joins, sorted groups": ("enable_nestloop", "enable_hashjoin", "enable_hashagg"),
    "nested loops, no index": (
        "enable_hashjoin", "enable_mergejoin", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan",
    ),
}  # fmt: skip
# A hash join in as little memory as a session may have. What does not fit goes to disk, and comes back after the rest:
# the order of the outer side is lost, which it keeps in memory.
SPILLING: Final = (
    "SET LOCAL enable_nestloop = off", "SET LOCAL enable_mergejoin = off", "SET LOCAL work_mem = '64kB'",
    "SET LOCAL hash_mem_multiplier = 1",
)  # fmt: skip
# Who should not wait is ended at once where he does; who should is given time.
AT_ONCE_MS: Final = 10
IN_TIME_S: Final = 20.0
_GATES: Final = f"""
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.group_id = current_setting('site.gate', true) THEN
        PERFORM pg_advisory_xact_lock_shared({GATE});
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER gate BEFORE UPDATE ON {GATED} FOR EACH ROW EXECUTE FUNCTION gate()
"""
# Only what has rows, for an empty table takes as long. Not a DELETE: what it leaves would be in the plans' way.
_EMPTY: Final = """
DO $$
DECLARE
    name regclass;
    filled boolean;
BEGIN
    FOR name IN
        SELECT oid FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'pgreferee_migrations'
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO filled;
        IF filled THEN
            EXECUTE format('TRUNCATE %s RESTART IDENTITY CASCADE', name);
        END IF;
    END LOOP;
END $$
"""


class Site:
    """A database with the whole schema, and sessions: one that is asked, one in the way, one that looks on."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self._dsn, self._stack = dsn, stack
        self._asked, self._other, self._third = (self._connect(dsn) for _ in range(3))
        self._elsewhere: psycopg.Connection[Any] | None = None
        self._threads = stack.enter_context(ThreadPoolExecutor(1))
        for area in AREAS:
            migrate(self._third, area)
        self._third.execute(_GATES.encode())

    def _connect(self, dsn: str) -> psycopg.Connection[Any]:
        connection = self._stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(f"SET statement_timeout = '{IN_TIME_S:.0f}s'")
        return connection

    def departure(
        self, situation: Situation, catalogue: Catalogue, alterations: Sequence[str] = ()
    ) -> str | None:
        """What was wrong, under the first plan where something was; None where all was right. `alterations` change
        functions, for the session that is asked."""
        statement = catalogue[situation.statement]
        for plan, settings in _plans(situation):
            wrong = self._taken(situation, statement, (*alterations, *settings))
            if wrong is not None:
                return f"{situation.name}: {wrong} ({plan})"
        return None

    def _taken(self, situation: Situation, statement: Statement, before: Sequence[str]) -> str | None:
        beside = situation.holding or situation.elsewhere or situation.beside
        try:
            with self._asked.transaction(force_rollback=True):
                if not beside:
                    _run(self._asked, situation.given)
                    return self._judged(situation, statement, before)
                # The others are to see the rows, so they are committed.
                _run(self._third, situation.given)
                with self._held(situation):
                    return self._judged(situation, statement, before)
        finally:
            if beside:
                self._third.execute(_EMPTY)

    def _judged(self, situation: Situation, statement: Statement, before: Sequence[str]) -> str | None:
        _run(self._asked, (*before, "DISCARD PLANS"))
        self._asked.execute("SELECT set_config('site.gate', %s, true)", [situation.gate])
        try:
            if situation.waits:
                with self._waiting(statement, situation.arguments) as pending:
                    if pending.done() and pending.exception() is None:
                        return "it did not wait"
                    wrong = None if pending.done() else self._seen(situation.meanwhile, self._third)
                    self._other.execute("ROLLBACK" if situation.gives_up else "COMMIT")
                    answer = pending.result(IN_TIME_S)
                if wrong is not None:
                    return f"while it waits, {wrong}"
            else:
                self._asked.execute(f"SET LOCAL lock_timeout = '{AT_ONCE_MS}ms'")
                answer = _ask(self._asked, statement, situation.arguments)
            if situation.answer is not None:
                shown = [tuple(one[n] for n in situation.shows) if situation.shows else one for one in answer]
                wanted = list(situation.answer)
                if not situation.in_order:
                    shown, wanted = sorted(shown, key=repr), sorted(wanted, key=repr)
                if shown != wanted:
                    return f"it answers {shown}, not {wanted}"
            return self._seen(situation.beside, self._third) or self._seen(situation.after, self._asked)
        except psycopg.Error as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"

    @contextmanager
    def _held(self, situation: Situation) -> Iterator[None]:
        sessions = [(self._other, situation.holding)]
        if situation.elsewhere:
            if self._elsewhere is None:
                self._elsewhere = self._connect(make_conninfo(self._dsn, dbname="postgres"))
            sessions.append((self._elsewhere, situation.elsewhere))
        try:
            for connection, texts in sessions:
                connection.execute("BEGIN")
                _run(connection, texts)
            yield
        finally:
            for connection, _ in sessions:
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _waiting(self, statement: Statement, arguments: Sequence[Any]) -> Iterator[Future[Rows]]:
        """The statement under way, in a thread: it waits for a lock, or is done."""
        pending = self._threads.submit(_ask, self._asked, statement, arguments)
        pid, deadline = self._asked.info.backend_pid, time.monotonic() + IN_TIME_S
        try:
            while not pending.done():
                [(blocked,)] = self._third.execute(
                    "SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]
                ).fetchall()
                if blocked or time.monotonic() > deadline:
                    break
            yield pending
        finally:
            # Whatever went wrong, nobody is left in the other session's way.
            if self._other.info.transaction_status != TransactionStatus.IDLE:
                self._other.execute("ROLLBACK")
            pending.exception(IN_TIME_S)

    def _seen(self, queries: Mapping[str, Rows], connection: psycopg.Connection[Any]) -> str | None:
        for query, wanted in queries.items():
            with connection.transaction(force_rollback=connection is self._third):
                connection.execute(f"SET LOCAL lock_timeout = '{AT_ONCE_MS}ms'")
                try:
                    found = connection.execute(query.encode()).fetchall()
                except psycopg.errors.LockNotAvailable:
                    return f"somebody else waits: {query}"
            if found != list(wanted):
                return f"{query} shows {found}, not {list(wanted)}"
        return None


def _plans(situation: Situation) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The plans that it is taken under, each with the settings that lead to it."""
    if situation.spills:
        yield "hash joins that spill", SPILLING
        return
    for plan, without in PLANS.items():
        if not (situation.as_planned and without):
            yield plan, tuple(f"SET LOCAL {name} = off" for name in without)


def _run(connection: psycopg.Connection[Any], texts: Sequence[str]) -> None:
    for text in texts:
        connection.execute(text.encode())


def _ask(connection: psycopg.Connection[Any], statement: Statement, arguments: Sequence[Any]) -> Rows:
    cursor = psycopg.RawCursor(connection)
    cursor.execute(statement.query, statement.encode(tuple(arguments)))
    return cursor.fetchall() if cursor.description else []
