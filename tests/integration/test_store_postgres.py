"""The store on Postgres: round trips, connections that are lost, crashes in the midst of a commit, servers that are not
there yet, and servers that are set up otherwise.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg.conninfo import make_conninfo as conninfo_with

from engine.errors import InfrastructureError, UsageError
from engine.postgres import Server, conninfo
from engine.store import (
    AsyncPostgresStore,
    Commit,
    CommitOutcomeUnknown,
    ConflictUnexplained,
    EventAlreadyProcessed,
    PostgresStore,
    SqliteStore,
    Store,
    StoreConflict,
    TimerOp,
    UnstorableValue,
)
from tests.fixtures.proxy import Proxy, await_sessions, proxied
from tests.fixtures.stores import ALL, NOTHING, Awaited, StrictConnection, do, effects, execution, full

TIMEOUT_S = 20
NAME = "the store under test"
TABLES = ("executions", "outbox", "processed_events", "spawns", "timers", "trace")
_GATES = """
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('gate.at', true) = TG_TABLE_NAME THEN
        PERFORM pg_advisory_xact_lock_shared(4711);
    END IF;
    RETURN NULL;
END $$;
"""


@pytest.fixture
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody who looks on."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    PostgresStore.from_dsn(database).close()
    with proxied(database) as proxy:
        yield proxy


def pipelined(dsn: str) -> Store:
    return PostgresStore.from_dsn(dsn, name=NAME)


def injected(dsn: str) -> Store:
    return PostgresStore(StrictConnection(psycopg.connect(dsn, application_name=NAME)))


def awaited(dsn: str) -> Store:
    return cast("Store", Awaited(lambda: AsyncPostgresStore.from_dsn(dsn, pool_size=1, name=NAME)))


Opener = Callable[[str], Store]
own_connections = pytest.mark.parametrize("opened", [pipelined, awaited], ids=["blocking", "async"])
all_drivers = pytest.mark.parametrize(
    "opened", [pipelined, awaited, injected], ids=["blocking", "async", "injected"]
)


# ---------------------------------------------------------------------------------------------------- round trips


@own_connections
def test_every_operation_is_one_round_trip(proxy: Proxy, opened: Opener) -> None:
    store = opened(proxy.dsn)
    subject, batch = execution(), [execution(f"b{n}") for n in range(500)]
    turn = iter(range(100))
    operations: dict[str, tuple[Callable[[], object], int]] = {
        "state only": (lambda: store.save(subject), 1),
        "with a marker": (lambda: store.commit(subject, processed_event_id=f"m{next(turn)}"), 1),
        "with effects": (lambda: do(store, full(subject, f"n{next(turn)}")), 4),
        "a batch of one": (lambda: store.commit_many([Commit(execution=subject)]), 4),
        "a batch": (lambda: store.commit_many([full(b, f"{b.id}.{next(turn)}") for b in batch[:10]]), 4),
        "a large batch": (lambda: store.commit_many([full(b, f"{b.id}.{b.version}") for b in batch]), 4),
        "load": (lambda: store.load("e"), 1),
        "load for an event": (lambda: store.load_for_event("e", "m0"), 1),
        "marker": (lambda: store.is_processed("e", "m0"), 1),
        "outbox": (store.pending_outbox, 1),
        "timers": (lambda: store.due_timers(1.0), 1),
        "page": (lambda: store.list_executions(status="PENDING"), 1),
        "step": (lambda: store.append_trace("e", {}), 4),
    }
    counted = {}
    for name, (act, _) in operations.items():
        act()  # the first time a statement is prepared
        proxy.reset()
        act()
        counted[name] = (proxy.round_trips, proxy.statements)
    store.close()
    assert counted == {name: (1, statements) for name, (_, statements) in operations.items()}


@own_connections
def test_nothing_is_sent_of_what_cannot_be_stored(proxy: Proxy, opened: Opener) -> None:
    store = opened(proxy.dsn)
    proxy.reset()
    for bad in (
        Commit(execution=execution(context={"n": float("nan")})),
        full(execution("x" * 2000), "m"),
        full(execution(version=2**31 - 1), "m"),
    ):
        with pytest.raises(UnstorableValue):
            do(store, bad)
        assert [type(answer) for answer in store.commit_many([bad])] == [UnstorableValue]
    assert proxy.messages == 0
    store.close()


def test_two_commits_of_one_execution_in_a_batch_cost_two_round_trips_more(proxy: Proxy) -> None:
    store, subject = pipelined(proxy.dsn), execution()
    store.commit_many([full(subject, "a"), full(subject, "b")])
    proxy.reset()
    store.commit_many([full(subject, "c"), full(subject, "d")])
    # The request before a decision inside of a transaction goes by itself (`engine.operation`).
    assert (proxy.round_trips, proxy.statements) == (3, 5)
    store.close()


# --------------------------------------------------------------------------------------------- connections lost


@all_drivers
@pytest.mark.parametrize("effects_too", [False, True], ids=["state only", "with effects"])
def test_a_connection_lost_anywhere_in_a_commit_leaves_all_or_nothing_and_the_retry_is_safe(
    proxy: Proxy, observer: psycopg.Connection[Any], opened: Opener, effects_too: bool
) -> None:
    """Every message of the commit in turn is the last that the server gets, until one commit goes through."""
    witness = pipelined_witness(proxy)
    happened, unknown, messages = [], [], 0
    for cut in range(60):
        store = opened(proxy.dsn)
        warm = execution("warm")
        for _ in range(2):
            warm = store.load("warm") or warm
            do(store, full(warm, f"w{cut}.{warm.version}"))
            store.save(warm)
        subject, mark = execution(f"e{cut}"), f"m{cut}"
        commit = full(subject, mark) if effects_too else Commit(execution=subject, processed_event_id=mark)
        proxy.cut_after = cut
        try:
            do(store, commit)
        except CommitOutcomeUnknown as error:
            unknown.append(error.execution_id)
        except psycopg.OperationalError:
            # Before COMMIT was sent there is nothing unknown; a driver may say so.
            assert opened is injected
            assert witness.load(subject.id) is None
        else:
            proxy.cut_after = None
            messages = cut
            close_quietly(store)
            break
        assert subject.version == 0
        close_quietly(store)
        await_sessions(observer, NAME, 0)

        there = witness.load(subject.id) is not None
        every = ALL if effects_too else (0, 1, 0, 0, 0)
        assert effects(witness, subject.id, mark) == (every if there else NOTHING)
        happened.append(there)
        retry = pipelined(proxy.dsn)
        if there:
            with pytest.raises(EventAlreadyProcessed):
                do(retry, commit)
        else:
            do(retry, commit)
        assert effects(retry, subject.id, mark) == every
        retry.close()
        await_sessions(observer, NAME, 0)
    assert messages > (2 if effects_too else 1)
    # A driver whose statements come before its COMMIT knows for most of them that nothing happened.
    lost = [f"e{cut}" for cut in range(messages)]
    assert unknown
    assert unknown == (lost if opened is not injected else lost[-len(unknown) :])
    # Nothing until the COMMIT, whose execution and Sync are the last two messages; or until the Sync of a statement
    # that is its own transaction.
    assert happened == sorted(happened)
    assert happened.count(True) in ((1, 2) if effects_too else (1,))
    witness.close()


def refused_at(
    proxy: Proxy, observer: psycopg.Connection[Any], opened: Opener, cut: int, *, leaves: bool, marked: bool
) -> tuple[Exception, bool]:
    """How a commit of an older version ends where the connection is lost after so many of its messages, and whether it
    was. `leaves`: nobody can connect then. `marked`: it carries an event that was processed."""
    store, subject = opened(proxy.dsn), execution(f"e{cut}")
    for _ in range(3):
        store.save(subject)
    if marked:
        store.commit(subject, processed_event_id="m")
    stale = execution(subject.id, version=1)
    with pytest.raises(StoreConflict):  # the first time its statements are prepared
        store.commit(stale, processed_event_id="m")
    if leaves:
        proxy.refuse()
    proxy.cut_after = cut
    try:
        store.commit(stale, processed_event_id="m")
    except (StoreConflict, CommitOutcomeUnknown, psycopg.OperationalError) as error:
        lost = proxy.cut_after is None
        proxy.cut_after = None
        assert stale.version == 1
        close_quietly(store)
        if leaves:
            proxy.accept()
        await_sessions(observer, NAME, 0)
        return error, lost
    raise AssertionError("it was not refused")


@all_drivers
@pytest.mark.parametrize("marked", [False, True], ids=["stale", "processed"])
def test_why_a_commit_was_refused_is_asked_again_where_the_answer_is_lost(
    proxy: Proxy, observer: psycopg.Connection[Any], opened: Opener, marked: bool
) -> None:
    kinds = []
    for cut in range(60):
        error, lost = refused_at(proxy, observer, opened, cut, leaves=False, marked=marked)
        if not lost:
            break
        kinds.append(type(error))
        if isinstance(error, StoreConflict):
            assert error.found == (None if isinstance(error, ConflictUnexplained) else 3 + marked)
    kinds = list(dict.fromkeys(kinds))
    # Before the first answer nobody knows; after it, it was refused, for good.
    assert kinds.pop(0) in (CommitOutcomeUnknown, psycopg.OperationalError)
    again = EventAlreadyProcessed if marked else StoreConflict
    # On somebody else's connection there is no asking again.
    assert kinds[-1] is (ConflictUnexplained if opened is injected else again)


def test_a_refusal_that_nobody_can_explain_is_a_conflict_and_says_so(
    proxy: Proxy, observer: psycopg.Connection[Any]
) -> None:
    cuts = (refused_at(proxy, observer, pipelined, cut, leaves=True, marked=False) for cut in range(60))
    error, lost = next(each for each in cuts if not isinstance(each[0], CommitOutcomeUnknown))
    assert lost
    assert type(error) is ConflictUnexplained
    assert (error.expected, error.found) == (1, None)


def pipelined_witness(proxy: Proxy) -> Store:
    return PostgresStore.from_dsn(conninfo.to_uri(proxy.target), name="witness")


def close_quietly(store: Store) -> None:
    try:
        store.close()
    except psycopg.Error:
        pass


@own_connections
def test_a_batch_whose_answer_is_lost_is_unknown_commit_by_commit(proxy: Proxy, opened: Opener) -> None:
    store = opened(proxy.dsn)
    subjects = [execution(f"e{n}") for n in range(3)]
    store.commit_many([full(subject, f"a{subject.id}") for subject in subjects])
    proxy.cut_after = 100
    proxy.cut_at_sync = True
    answers = store.commit_many([full(subject, f"b{subject.id}") for subject in subjects])
    assert [type(answer) for answer in answers] == [CommitOutcomeUnknown] * 3
    assert [subject.version for subject in subjects] == [1, 1, 1]

    again = store.commit_many([full(subject, f"b{subject.id}") for subject in subjects])
    assert [type(answer) for answer in again] == [EventAlreadyProcessed] * 3
    store.close()


@own_connections
def test_a_store_goes_on_after_its_server_came_back(
    database: str, observer: psycopg.Connection[Any], opened: Opener
) -> None:
    store = opened(database)
    subject = execution()
    store.save(subject)
    terminate(observer)
    with pytest.raises(CommitOutcomeUnknown):
        store.save(subject)
    assert subject.version == 1
    store.save(subject)
    assert subject.version == 2
    store.close()


def terminate(observer: psycopg.Connection[Any]) -> None:
    observer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %s",
        (NAME,),
    )
    await_sessions(observer, NAME, 0)


# ------------------------------------------------------------------------------------------ crashes and cancels


class Gate:
    """Stops every commit before it writes to one table."""

    def __init__(self, database: str, observer: psycopg.Connection[Any]) -> None:
        self._database = conninfo.parse(database)["dbname"]
        self.observer = observer

    def install(self) -> None:
        """In a database that has the store's tables."""
        self.observer.execute(_GATES)
        for table in TABLES:
            self.observer.execute(
                f"CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION gate()"
            )

    def close_at(self, table: str) -> None:
        """For sessions that begin from now on."""
        self.observer.execute("SELECT pg_advisory_lock(4711)")
        self.observer.execute(f"ALTER DATABASE \"{self._database}\" SET gate.at = '{table}'")

    def open(self) -> None:
        self.reset()
        self.observer.execute("SELECT pg_advisory_unlock(4711)")

    def reset(self) -> None:
        """No session that begins from now on stops anywhere."""
        self.observer.execute(f'ALTER DATABASE "{self._database}" RESET gate.at')

    def await_blocked(self) -> int:
        """The process id of the session that waits at the gate."""
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
            " AND cardinality(pg_blocking_pids(pid)) > 0"
        )
        deadline = time.monotonic() + TIMEOUT_S
        while not (row := self.observer.execute(query, (NAME,)).fetchone()):
            assert time.monotonic() < deadline, "nobody came to the gate"
        return int(row[0])


@pytest.fixture
def gate(database: str, observer: psycopg.Connection[Any]) -> Gate:
    PostgresStore.from_dsn(database).close()
    gate = Gate(database, observer)
    gate.install()
    return gate


@all_drivers
def test_a_backend_that_ends_between_two_writes_of_a_commit_leaves_nothing(
    database: str, gate: Gate, opened: Opener
) -> None:
    witness = PostgresStore.from_dsn(database, name="witness")
    for table in TABLES:
        subject = execution(table)
        gate.close_at(table)
        store = opened(database)
        with ThreadPoolExecutor(1) as threads:
            pending = threads.submit(do, store, full(subject, table))
            gate.observer.execute("SELECT pg_terminate_backend(%s)", (gate.await_blocked(),))
            with pytest.raises((CommitOutcomeUnknown, psycopg.errors.AdminShutdown)):
                pending.result(TIMEOUT_S)
        gate.open()
        close_quietly(store)
        await_sessions(gate.observer, NAME, 0)
        assert subject.version == 0
        assert witness.load(table) is None
        assert effects(witness, table, table) == NOTHING

        do(witness, full(subject, table))
        assert effects(witness, table, table) == ALL
    witness.close()


_VICTIM = """
import sys
from engine.store import PostgresStore
from tests.fixtures.stores import do, execution, full
store = PostgresStore.from_dsn(sys.argv[1], name=sys.argv[3])
do(store, full(execution(sys.argv[2]), sys.argv[2]))
"""


def test_a_client_killed_between_two_writes_of_its_commit_leaves_all_or_nothing(
    database: str, gate: Gate
) -> None:
    witness = PostgresStore.from_dsn(database, name="witness")
    for table in TABLES:
        gate.close_at(table)
        client = subprocess.Popen(
            [sys.executable, "-c", _VICTIM, database, table, NAME], cwd=Path(__file__).parents[2]
        )
        gate.await_blocked()
        client.kill()
        assert client.wait(TIMEOUT_S) == -signal.SIGKILL
        gate.open()
        await_sessions(gate.observer, NAME, 0)
        found = witness.load(table)
        assert effects(witness, table, table) == (NOTHING if found is None else ALL)

        subject = found or execution(table)
        do(witness, full(subject, f"{table}-next"))
        assert effects(witness, table, f"{table}-next") == ALL
    witness.close()


_CRASHES = """
import os, signal, sys
import psycopg
from engine.store import PostgresStore, SqliteStore
from tests.fixtures.stores import StrictConnection, do, execution, full

kind, target, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
left = 0

def step(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

class Cursor:
    def __init__(self, inner): self.inner = inner
    def execute(self, *arguments): step(); self.inner.execute(*arguments)
    def fetchall(self): return self.inner.fetchall()

class Connection:
    def __init__(self, inner): self.inner = inner; self.rollback, self.close = inner.rollback, inner.close
    def cursor(self): return Cursor(self.inner.cursor())
    def commit(self): step(); self.inner.commit()

for boundary in range(limit):
    child = os.fork()
    if not child:
        left = 10_000
        if kind == "sqlite":
            store = SqliteStore(target)
            store._connection.set_trace_callback(step)
        else:
            store = PostgresStore(Connection(psycopg.connect(target, application_name=kind)))
        left = boundary
        do(store, full(execution(f"e{boundary}"), f"m{boundary}"))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(status, flush=True)
    if status == 0:
        break
"""


@pytest.mark.parametrize("kind", ["injected", "sqlite"])
def test_a_client_killed_at_any_statement_of_a_commit_leaves_all_or_nothing(
    database: str, observer: psycopg.Connection[Any], tmp_path: Path, kind: str
) -> None:
    target = str(tmp_path / "store.db") if kind == "sqlite" else database
    ran = subprocess.run(
        [sys.executable, "-c", _CRASHES, kind, target, "60"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    statuses = [int(line) for line in ran.stdout.split()]
    assert statuses[-1:] == [0], ran.stderr
    assert set(statuses[:-1]) == {signal.SIGKILL}
    await_sessions(observer, kind, 0)

    witness: Store = SqliteStore(target) if kind == "sqlite" else PostgresStore.from_dsn(database)
    for boundary in range(len(statuses)):
        found = witness.load(f"e{boundary}")
        there = effects(witness, f"e{boundary}", f"m{boundary}")
        assert (found is not None, there) in ((False, NOTHING), (True, ALL))
        assert (found is not None) >= (boundary == len(statuses) - 1)
    subject = witness.load("e0") or execution("e0")
    do(witness, full(subject, "next"))
    assert effects(witness, "e0", "next") == ALL
    witness.close()


@pytest.mark.parametrize("effects_too", [False, True], ids=["state only", "with effects"])
def test_a_commit_cancelled_at_any_await_leaves_the_old_version_and_a_clean_pool(
    database: str, effects_too: bool
) -> None:
    async def main() -> None:
        async with await AsyncPostgresStore.from_dsn(database, pool_size=2) as store:
            finished = 0
            for steps in range(200):
                subject, mark = execution(f"e{steps}"), f"m{steps}"
                commit = (
                    full(subject, mark) if effects_too else Commit(execution=subject, processed_event_id=mark)
                )
                task = asyncio.create_task(
                    store.commit(subject, commit.emits, mark, commit.timers, commit.spawns, commit.trace)
                )
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    assert subject.version == 0
                else:
                    assert subject.version == 1
                    finished += 1
                found, processed = await store.load_for_event(subject.id, mark)
                assert (found is not None) == processed
                assert found is not None or subject.version == 0
                outbox = [e for _, _, e in await store.pending_outbox() if e.id.startswith(f"{mark}-")]
                assert len(outbox) == (2 if processed and effects_too else 0)
                if finished > 3:
                    break
            assert await store.list_executions() is not None

    asyncio.run(main())


def test_a_commit_cancelled_while_it_waits_for_a_lock_frees_its_connection(
    database: str, observer: psycopg.Connection[Any]
) -> None:
    async def main() -> None:
        async with await AsyncPostgresStore.from_dsn(database, pool_size=1) as store:
            subject = execution()
            await store.save(subject)
            with psycopg.connect(database) as holder:
                holder.execute("SELECT 1 FROM executions FOR UPDATE")
                for effects_too in (False, True):
                    commit = full(subject, "m") if effects_too else Commit(execution=subject)
                    task = asyncio.create_task(store.commit(subject, commit.emits, trace=commit.trace))
                    blocked = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
                    while observer.execute(blocked).fetchone() is None:
                        assert not task.done(), task.exception()
                        await asyncio.sleep(0.01)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert subject.version == 1
                    assert (await store.load("e")) == subject
            await store.save(subject)
            assert subject.version == 2

    asyncio.run(main())


class Interruption(BaseException):
    """An order to stop that is not Python's own, such as a killed greenlet's."""


@pytest.mark.parametrize("effects_too", [False, True])
def test_a_call_that_is_interrupted_while_it_waits_leaves_no_answer_to_the_next_question(
    database: str, observer: psycopg.Connection[Any], effects_too: bool
) -> None:
    def interrupt(*_: object) -> None:
        raise Interruption

    def interrupt_when_it_waits() -> None:
        blocked = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
        deadline = time.monotonic() + TIMEOUT_S
        while observer.execute(blocked).fetchone() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with PostgresStore.from_dsn(database, name=NAME) as store, psycopg.connect(database) as rival:
            first, second = execution("first"), execution("second")
            store.commit_many([Commit(execution=first), Commit(execution=second)])
            commit = full(first, "m") if effects_too else Commit(execution=first)
            rival.execute("SELECT FROM executions FOR UPDATE")
            with ThreadPoolExecutor(1) as pool:
                interrupting = pool.submit(interrupt_when_it_waits)
                with pytest.raises(Interruption):
                    do(store, commit)
                interrupting.result(TIMEOUT_S)
            rival.rollback()
            assert first.version == 1
            for one in (second, first):
                found = store.load(one.id)
                assert found is not None
                assert found.id == one.id
            store.save(second)
            assert second.version == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


@all_drivers
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
# ------------------------------------------------------------------------------------------- servers and settings


def test_another_default_isolation_level_leaks_no_serialisation_failure(
    database: str, observer: psycopg.Connection[Any], opened: Opener, isolation: str
) -> None:
    name = conninfo.parse(database)["dbname"]
    observer.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{isolation}'")
    store, rival = opened(database), PostgresStore.from_dsn(database, name="rival")
    subject = execution()
    store.save(subject)
    for effects_too in (False, True):
        current = rival.load("e")
        assert current is not None
        with ThreadPoolExecutor(1) as threads, psycopg.connect(database) as holder:
            holder.execute("UPDATE executions SET version = version + 1")
            commit = full(current, "m") if effects_too else Commit(execution=current)
            pending = threads.submit(do, store, commit)
            Gate.await_blocked(cast("Gate", _Watcher(observer)))
            holder.commit()
            with pytest.raises(StoreConflict) as raised:
                pending.result(TIMEOUT_S)
        assert raised.value.found == current.version + 1
        assert observer.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    store.close()
    rival.close()


@all_drivers
def test_a_timer_that_was_read_can_be_deleted_whatever_digits_the_server_shows(
    database: str, observer: psycopg.Connection[Any], opened: Opener
) -> None:
    name = conninfo.parse(database)["dbname"]
    observer.execute(f'ALTER DATABASE "{name}" SET extra_float_digits = -3')
    store = opened(database)
    instant = 1_700_000_000.123456
    store.commit(execution(), timers=[TimerOp("schedule", "p", instant)])
    [timer] = store.due_timers(2e9)
    assert timer == ("e", "p", instant)
    store.delete_timer(*timer)
    assert store.due_timers(2e9) == []
    store.close()


@own_connections
def test_text_is_text_whatever_encoding_the_client_was_to_have(database: str, opened: Opener) -> None:
    store = opened(conninfo_with(database, client_encoding="LATIN1"))
    subject = execution()
    subject.context["price"] = "5 €, 雪"
    store.save(subject)
    assert store.load("e") == subject
    store.close()


class _Watcher:
    def __init__(self, observer: psycopg.Connection[Any]) -> None:
        self.observer = observer


def test_a_connection_in_autocommit_mode_or_at_another_level_is_refused(database: str) -> None:
    with (
        psycopg.connect(database, autocommit=True) as connection,
        pytest.raises(UsageError, match="autocommit"),
    ):
        PostgresStore(connection)
    with psycopg.connect(database) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(UsageError, match="repeatable read"):
            PostgresStore(connection)


def test_no_reading_leaves_its_transaction_open(database: str, observer: psycopg.Connection[Any]) -> None:
    connection = psycopg.connect(database, application_name=NAME)
    store = PostgresStore(StrictConnection(connection))
    idle = psycopg.pq.TransactionStatus.IDLE
    readings: tuple[Callable[[], object], ...] = (
        lambda: store.load("e"), lambda: store.load_for_event("e", "m"), lambda: store.is_processed("e", "m"),
        store.pending_outbox, store.pending_spawns, lambda: store.due_timers(1.0), lambda: store.read_trace("e"),
        store.list_executions, lambda: store.save(execution()),
    )  # fmt: skip
    for read in readings:
        read()
        assert connection.info.transaction_status == idle
    with pytest.raises(StoreConflict):
        store.save(execution())
    assert connection.info.transaction_status == idle
    with pytest.raises(StoreConflict):
        do(store, full(execution(), "m"))
    assert connection.info.transaction_status == idle
    store.close()


def test_a_wrong_password_or_database_fails_at_once_with_one_sentence_and_no_secret(
    server: Server, database: str
) -> None:
    params = conninfo.parse(database)
    wrong = [
        {**params, "dbname": "no_such_database", "password": "s3cret word"},
        {**params, "user": "nobody_here", "password": "s3cret word"},
    ]
    for parts in wrong:
        for open_ in (PostgresStore.from_dsn, lambda dsn: asyncio.run(AsyncPostgresStore.from_dsn(dsn))):
            started = time.monotonic()
            with pytest.raises(InfrastructureError, match="cannot connect to") as raised:
                open_(conninfo.to_uri(parts))
            # Fifteen attempts would take fifteen seconds.
            assert time.monotonic() - started < 10
            assert "s3cret" not in str(raised.value)
            assert raised.value.__context__ is None or "s3cret" not in repr(raised.value.__context__)
            assert "\n" not in str(raised.value)


def test_a_server_that_is_not_there_yet_is_waited_for(database: str) -> None:
    with proxied(database) as late:
        late.refuse()
        threading.Timer(0.5, late.accept).start()
        store = PostgresStore.from_dsn(late.dsn, retries=200, interval_s=0.05)
        store.save(execution())
        store.close()


def test_a_server_that_never_comes_is_waited_for_a_number_of_times(database: str) -> None:
    with proxied(database) as never:
        never.refuse()
        with pytest.raises(InfrastructureError, match=r"cannot connect to .*127\.0\.0\.1.*refused"):
            PostgresStore.from_dsn(never.dsn, retries=3, interval_s=0.01)
        with pytest.raises(InfrastructureError, match=r"cannot connect to .*127\.0\.0\.1.*refused"):
            asyncio.run(AsyncPostgresStore.from_dsn(never.dsn, retries=3, interval_s=0.01))


_BOOTS = """
import asyncio, os, sys
import psycopg
from engine.store import AsyncPostgresStore, PostgresStore, SqliteStore
kind, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
async def visit():
    async with await AsyncPostgresStore.from_dsn(target, pool_size=1) as store:
        await store.load("e")
ready, go = os.pipe()
children = []
for _ in range(count):
    child = os.fork()
    if not child:
        os.close(go)
        os.read(ready, 1)
        if kind == "blocking": PostgresStore.from_dsn(target).load("e")
        elif kind == "injected": PostgresStore(psycopg.connect(target)).load("e")
        elif kind == "async": asyncio.run(visit())
        else: SqliteStore(target).load("e")
        os._exit(0)
    children.append(child)
os.close(go)
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.parametrize("kind", ["blocking", "injected", "async", "sqlite"])
def test_any_number_of_processes_may_create_the_schema_at_once(
    database: str, observer: psycopg.Connection[Any], tmp_path: Path, kind: str
) -> None:
    if kind == "blocking":
        # The worst default: a snapshot that is older than the lock.
        name = conninfo.parse(database)["dbname"]
        observer.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
    target = str(tmp_path / "store.db") if kind == "sqlite" else database
    ran = subprocess.run(
        [sys.executable, "-c", _BOOTS, kind, target, "32"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert ran.stdout == f"{[0] * 32}\n", ran.stderr[-2000:]


def test_the_answer_to_a_lost_first_save_is_asked_for_again(
    database: str, observer: psycopg.Connection[Any]
) -> None:
    """The rival's row is not in the snapshot that lost; the version found is there all the same."""
    store = PostgresStore.from_dsn(database, name=NAME)
    for path, marked in (("state", False), ("state", True), ("full", True)):
        subject_id = f"{path}{marked}"
        with ThreadPoolExecutor(1) as threads, psycopg.connect(database) as rival:
            rival.execute(
                "INSERT INTO executions (id, definition_id, data, version) VALUES (%s, 'd', '{}', 1)",
                (subject_id,),
            )
            subject = execution(subject_id)
            commit = (
                full(subject, "m") if path == "full" else Commit(execution=subject, processed_event_id="m")
            )
            pending = threads.submit(do, store, commit)
            Gate.await_blocked(cast("Gate", _Watcher(observer)))
            if marked:
                rival.execute("INSERT INTO processed_events VALUES (%s, 'm')", (subject_id,))
            rival.commit()
            with pytest.raises(StoreConflict) as raised:
                pending.result(TIMEOUT_S)
        assert raised.value.found == 1
        assert type(raised.value) is (EventAlreadyProcessed if marked else StoreConflict)
        assert subject.version == 0
    assert observer.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    store.close()


def test_a_batch_locks_its_executions_in_id_order_before_it_changes_any(
    database: str, observer: psycopg.Connection[Any]
) -> None:
    store = PostgresStore.from_dsn(database, name=NAME)
    subjects = {id_: execution(id_) for id_ in "cba"}
    assert store.commit_many([Commit(execution=subject) for subject in subjects.values()]) == [None] * 3
    with ThreadPoolExecutor(1) as threads, psycopg.connect(database) as holder:
        holder.execute("SELECT 1 FROM executions WHERE id = 'b' FOR UPDATE")
        pending = threads.submit(
            store.commit_many, [full(subject, subject.id) for subject in subjects.values()]
        )
        Gate.await_blocked(cast("Gate", _Watcher(observer)))
        free = observer.execute("SELECT id, version FROM executions FOR UPDATE SKIP LOCKED").fetchall()
        assert free == [("c", 1)]
        holder.commit()
        assert pending.result(TIMEOUT_S) == [None] * 3
    store.close()


@pytest.mark.parametrize("by", ["append", "commit"])
def test_a_step_takes_the_index_behind_one_that_it_waited_for(
    database: str, observer: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("engine.store.operations.ATTEMPTS", 1)
    store = PostgresStore.from_dsn(database, name=NAME)
    subject = execution()
    store.save(subject)
    with ThreadPoolExecutor(1) as threads, psycopg.connect(database) as rival:
        rival.execute("SELECT 1 FROM executions FOR NO KEY UPDATE")
        rival.execute("INSERT INTO trace VALUES ('e', 0, '{}')")
        append = (
            (lambda: store.append_trace("e", {}))
            if by == "append"
            else (lambda: store.commit(subject, trace={}))
        )
        pending = threads.submit(append)
        Gate.await_blocked(cast("Gate", _Watcher(observer)))
        rival.commit()
        pending.result(TIMEOUT_S)
    assert [step["index"] for step in store.read_trace("e")] == [0, 1]
    store.close()
