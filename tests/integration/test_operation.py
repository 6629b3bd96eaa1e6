"""Operations with transactions: what both drivers do with `Begin`, `Commit` and tuples, and with errors among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from engine.operation import Begin, Commit, Operation, call, perform, perform_async
from engine.sessions import Sessions
from engine.statements import Statement
from stress.scripts.node import Notes
from tests.fixtures.node import Jobs

ADD = Statement.parse("test/add", "INSERT INTO note VALUES ($1::integer) RETURNING n")
ALL = Statement.parse("test/all", "SELECT n FROM note WHERE n >= $1::integer ORDER BY n")
DIVIDE = Statement.parse("test/divide", "SELECT 1 / $1::integer")

Do = Callable[[Operation[Any]], Any]


def _sync(dsn: str, operation: Operation[Any]) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            return perform(connection, operation)
        finally:
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def _async(dsn: str, operation: Operation[Any]) -> Any:
    async def main() -> Any:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            try:
                return await perform_async(connection, operation)
            finally:
                assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    return asyncio.run(main())


@pytest.fixture(params=[_sync, _async], ids=["sync", "async"])
def do(request: pytest.FixtureRequest, jobs: Jobs) -> Do:
    jobs.connection.execute("CREATE TABLE note (n integer)")
    return lambda operation: request.param(jobs.dsn, operation)


def notes(jobs: Jobs) -> list[int]:
    return [n for (n,) in jobs.rows("SELECT n FROM note ORDER BY n")]


def test_a_tuple_is_answered_with_one_list_of_rows_per_member(do: Do, jobs: Jobs) -> None:
    def operation() -> Operation[Any]:
        first = yield (Begin(), call(ADD, 1), call(ALL, 0))
        second = yield call(ADD, 2)
        third = yield (call(ALL, 0), Commit())
        return first, second, third

    assert do(operation()) == ([[], [(1,)], [(1,)]], [(2,)], [[(1,), (2,)], []])
    assert notes(jobs) == [1, 2]


@pytest.mark.parametrize("together", [True, False], ids=["in the tuple", "in a later call"])
def test_an_error_rolls_back_before_the_operation_sees_it_and_the_operation_goes_on(
    do: Do, jobs: Jobs, together: bool
) -> None:
    def operation() -> Operation[Any]:
        for divisor in (0, 0, 1):
            try:
                if together:
                    yield (Begin(), call(ADD, 1), call(DIVIDE, divisor), call(ADD, 2), Commit())
                else:
                    yield (Begin(), call(ADD, 1))
                    yield call(DIVIDE, divisor)
                    yield (call(ADD, 2), Commit())
            except psycopg.errors.DivisionByZero:
                assert (yield call(ALL, 0)) == []
            else:
                return divisor

    assert do(operation()) == 1
    assert notes(jobs) == [1, 2]


def test_what_an_operation_raises_inside_of_a_transaction_rolls_it_back(do: Do, jobs: Jobs) -> None:
    def operation() -> Operation[Any]:
        yield (Begin(), call(ADD, 1))
        raise LookupError

    with pytest.raises(LookupError):
        do(operation())
    assert notes(jobs) == []


def test_an_operation_that_forgets_to_commit_is_a_mistake_that_shows(do: Do, jobs: Jobs) -> None:
    def operation() -> Operation[Any]:
        yield (Begin(), call(ADD, 1))

    with pytest.raises(AssertionError, match="inside of a transaction"):
        do(operation())
    assert notes(jobs) == []


def test_a_transaction_is_read_committed_whatever_the_default_is(do: Do, jobs: Jobs) -> None:
    [(name,)] = jobs.rows("SELECT current_database()")
    jobs.connection.execute(
        f"ALTER DATABASE {name} SET default_transaction_isolation TO serializable".encode()
    )
    isolation = Statement.parse("test/isolation", "SELECT current_setting('transaction_isolation')")

    def operation() -> Operation[Any]:
        _, rows, _ = yield (Begin(), call(isolation), Commit())
        return rows

    assert do(operation()) == [("read committed",)]


@pytest.mark.parametrize("together", [True, False], ids=["in a tuple", "alone"])
def test_an_operation_that_is_cancelled_while_it_waits_leaves_no_transaction_behind(
    jobs: Jobs, together: bool
) -> None:
    jobs.connection.execute("CREATE TABLE note (n integer)")
    lock = Statement.parse("test/lock", "SELECT pg_advisory_xact_lock($1::bigint)")

    def waits() -> Operation[Any]:
        if together:
            yield (Begin(), call(ADD, 1), call(lock, 7), call(ADD, 2), Commit())
        else:
            yield (Begin(), call(ADD, 1))
            yield call(lock, 7)
            yield Commit()

    def counts() -> Operation[Any]:
        return (yield (Begin(), call(ALL, 0), Commit()))[1]

    async def main() -> None:
        async with Sessions(jobs.dsn, Notes(), size=1, name="cancelled") as sessions:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await sessions.run("waits", None, waits(), repr)
                assert await sessions.run("counts", None, counts(), repr) == []

    jobs.rows("SELECT pg_advisory_lock(7)")
    asyncio.run(main())
    assert notes(jobs) == []


def test_a_cancelled_request_that_waits_leaves_no_answer_to_the_next_question(database: str) -> None:
    lock = Statement.parse("test/lock", "-- Waits.\nSELECT pg_advisory_xact_lock($1::bigint)")

    def waiting() -> Operation[None]:
        yield (Begin(), call(lock, 4711), call(DIVIDE, 1), Commit())

    async def run() -> None:
        async with (
            await psycopg.AsyncConnection.connect(database, autocommit=True) as holder,
            await psycopg.AsyncConnection.connect(database, autocommit=True) as watcher,
        ):
            await holder.execute("SELECT pg_advisory_lock(4711)")
            connection = await psycopg.AsyncConnection.connect(database, autocommit=True)
            task = asyncio.create_task(perform_async(connection, waiting()))
            blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
            async with asyncio.timeout(20):
                while await (await watcher.execute(blocked, (connection.info.backend_pid,))).fetchone() != (
                    True,
                ):
                    pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (
                connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            )
            if not connection.closed:
                assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
                await connection.close()

    asyncio.run(run())
