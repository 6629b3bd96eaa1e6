"""Every value is either refused where the job is made, or stored and read back equal. The server refuses nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.operation import perform
from engine.picker import Job, Picker
from engine.schema import migrate
from engine.statements import Statement
from engine.values import MAX_JSON_DEPTH, MAX_NUMBER_DIGITS, UnstorableValue, to_json
from models.canonical import canonical_json, canonical_text
from models.strategies import jobs, json_values, refused_jobs, texts

several_examples = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None, print_blob=True
)
_COLUMNS = """
SELECT
    fsm, step, state::text, fsm_version, queue, priority, eligible_at, concurrency_key, correlation_key, rate_limit,
    weight, concurrency_name
FROM gen_durable WHERE id = %s
"""


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        migrate(connection)
        yield connection


def assert_stored(connection: psycopg.Connection[Any], job: Job, row_id: int) -> None:
    row = connection.execute(_COLUMNS, (row_id,), binary=True).fetchone()
    assert row is not None
    fsm, step, state, version, queue, priority, eligible_at, key, identity, rate_limit, weight, name = row
    assert (fsm, step, version, queue) == (job.fsm, job.step, job.fsm_version, job.queue)
    assert (priority, key, identity, rate_limit) == (
        job.priority,
        job.concurrency_key,
        job.correlation_key,
        job.rate_limit,
    )
    assert canonical_text(state) == canonical_json(job.state)
    assert weight == float(job.weight)
    assert job.eligible_at is None or eligible_at == job.eligible_at
    assert name == (None if key is None else key.partition(":")[0])


@several_examples
@given(job=jobs)
def test_a_legal_job_is_read_back_as_it_was_inserted(connection: psycopg.Connection[Any], job: Job) -> None:
    connection.execute("TRUNCATE gen_durable, signals, signal_receipts")

    row_id = perform(connection, Picker().insert(job))

    assert row_id is not None
    assert_stored(connection, job, row_id)


@settings(several_examples, max_examples=60)
@given(batch=st.lists(jobs, min_size=1, max_size=5))
def test_a_legal_batch_is_read_back_as_it_was_inserted(
    connection: psycopg.Connection[Any], batch: list[Job]
) -> None:
    connection.execute("TRUNCATE gen_durable, signals, signal_receipts")

    for job, row_id in zip(batch, perform(connection, Picker().insert_many(batch)), strict=True):
        if row_id is not None:
            assert_stored(connection, job, row_id)


@settings(several_examples, max_examples=60)
@given(job=jobs)
def test_a_legal_job_can_be_claimed(connection: psycopg.Connection[Any], job: Job) -> None:
    connection.execute("TRUNCATE gen_durable, signals, signal_receipts")
    row_id = perform(connection, Picker().insert(job))
    connection.execute("UPDATE gen_durable SET eligible_at = '-infinity'")

    claimed = perform(connection, Picker().claim(queue=job.queue, batch=1, claim="c", lease_ms=1)).rows

    assert [row.id for row in claimed] == [row_id]
    assert canonical_text(claimed[0].state) == canonical_json(job.state)
    assert (claimed[0].fsm, claimed[0].concurrency_key) == (job.fsm, job.concurrency_key)


@settings(several_examples, max_examples=400)
@given(arguments=refused_jobs())
def test_what_cannot_be_stored_is_refused_before_the_server_sees_it(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnstorableValue):
        Job(**arguments).columns()


@several_examples
@given(value=json_values)
def test_a_json_value_comes_back_equal(connection: psycopg.Connection[Any], value: Any) -> None:
    row = connection.execute("SELECT %s::jsonb::text", (to_json("value", value),)).fetchone()

    assert row is not None
    assert canonical_text(row[0]) == canonical_json(value)


def test_the_longest_number_is_stored_and_one_digit_more_is_refused(
    connection: psycopg.Connection[Any],
) -> None:
    # Python itself writes no integer of more than 4,300 digits, unless it is told to.
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        longest = 10**MAX_NUMBER_DIGITS - 1
        row = connection.execute("SELECT %s::jsonb::text", (to_json("value", longest),)).fetchone()
        assert row == (str(longest),)
        with pytest.raises(UnstorableValue, match="digits"):
            to_json("value", {"n": [longest + 1]})
    finally:
        sys.set_int_max_str_digits(limit)
    with pytest.raises(UnstorableValue, match="4300"):
        to_json("value", 10**4300)


def test_the_deepest_value_is_stored_and_one_level_more_is_refused(
    connection: psycopg.Connection[Any],
) -> None:
    deepest: Any = 1
    for _ in range(MAX_JSON_DEPTH):
        deepest = [deepest]
    assert connection.execute("SELECT %s::jsonb::text", (to_json("value", deepest),)).fetchone()
    with pytest.raises(UnstorableValue, match="levels deep"):
        to_json("value", [deepest])


@several_examples
@given(array=st.lists(st.none() | texts, max_size=6))
def test_an_array_of_texts_arrives_element_by_element(
    connection: psycopg.Connection[Any], array: list[str | None]
) -> None:
    statement = Statement.parse(
        "test/array", "SELECT e FROM unnest($1::text[]) WITH ORDINALITY AS a (e, n) ORDER BY n"
    )

    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(statement.query, statement.encode((array,)))
        assert [row[0] for row in cursor.fetchall()] == array


@several_examples
@given(
    instants=st.lists(st.none() | st.datetimes(timezones=st.timezones()), max_size=4),
    numbers=st.lists(st.floats()),
)
def test_arrays_of_instants_and_numbers_arrive_element_by_element(
    connection: psycopg.Connection[Any], instants: list[datetime | None], numbers: list[float]
) -> None:
    statement = Statement.parse("test/array", "SELECT $1::timestamptz[], $2::double precision[]")
    try:
        arguments = statement.encode((instants, numbers))
    except OverflowError:
        return  # the year would be 0 or 10,000 in UTC; a Job refuses it

    with psycopg.RawCursor(connection) as cursor:
        row = cursor.execute(statement.query, arguments, binary=True).fetchone()
    assert row is not None
    # Python holds no two times of different zones equal when one of them lies in the gap of a clock change.
    assert row[0] == [instant and instant.astimezone(UTC) for instant in instants]
    assert repr(row[1]) == repr(numbers)
