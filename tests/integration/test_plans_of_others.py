"""Statements that are not the engine's: a queue as many have one is captured, its sound statements are held, and each
hazard is named where it was planted, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from engine.errors import UsageError
from engine.postgres import Server, fresh_database
from results.plans import foreign
from results.plans.comparing import compare
from results.plans.folder import Capture
from results.plans.foreign import Own
from results.plans.hazards import hazards
from results.plans.shapes import check

# A statement and its arguments, by name.
Statements = dict[str, tuple[str, list[object]]]

SCHEMA = r"""
\restrict k5o8
-- A schema of its own, an enum, a partitioned log, a function: what pg_dump makes of a small queue.
CREATE SCHEMA q;
CREATE TYPE q.state AS ENUM ('ready', 'running', 'done', 'dead');
CREATE TABLE q.tasks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue character varying(40) NOT NULL,
    state q.state DEFAULT 'ready' NOT NULL,
    run_at timestamp with time zone NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    worker text,
    beat timestamp with time zone,
    country text NOT NULL,
    city text NOT NULL,
    args jsonb DEFAULT '{}' NOT NULL
);
CREATE INDEX tasks_ready ON q.tasks (queue, run_at) WHERE state = 'ready';
CREATE INDEX tasks_running ON q.tasks (beat) WHERE state = 'running';
CREATE INDEX tasks_state ON q.tasks (state);
CREATE TABLE q.log (task bigint NOT NULL, at timestamp with time zone NOT NULL, what text) PARTITION BY RANGE (at);
CREATE TABLE q.log_january PARTITION OF q.log FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE q.log_february PARTITION OF q.log FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
CREATE INDEX ON q.log (at);
CREATE FUNCTION q.take(wanted integer) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY UPDATE q.tasks AS t SET state = 'running', beat = now()
    WHERE t.id = ANY (ARRAY(
        SELECT n.id FROM q.tasks AS n WHERE n.state = 'ready' AND n.queue = 'mail' AND n.run_at <= now()
        ORDER BY n.run_at LIMIT wanted FOR UPDATE SKIP LOCKED
    ))
    RETURNING t.id;
END $$;
\unrestrict k5o8
"""
SEED = """
INSERT INTO q.tasks (queue, state, run_at, worker, beat, country, city)
SELECT
    CASE WHEN n % 3 = 0 THEN 'mail' ELSE 'other' END,
    (CASE WHEN n % 20 = 0 THEN 'running' WHEN n % 20 < 5 THEN 'ready' ELSE 'done' END)::q.state,
    '2024-01-01'::timestamptz + n * interval '1 second',
    CASE WHEN n % 20 = 0 THEN 'w' || n % 7 END,
    CASE WHEN n % 20 = 0 THEN '2024-01-01'::timestamptz + n * interval '1 second' END,
    'country ' || n % 200,
    'city ' || n % 200
FROM generate_series(1, 30000) AS n;
INSERT INTO q.log
SELECT n, '2024-01-01'::timestamptz + n * interval '2 minutes', 'made' FROM generate_series(1, 40000) AS n;
"""
_NEXT = """
    SELECT n.id FROM q.tasks AS n WHERE n.state = 'ready' AND n.queue = $1 AND n.run_at <= now()
    ORDER BY n.run_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_TAKE = (
    f"WITH next AS MATERIALIZED ({_NEXT})\n"
    "UPDATE q.tasks AS t SET state = 'running', worker = $3, beat = now() FROM next WHERE t.id = next.id RETURNING t.id"
)
SOUND: Statements = {
    "take": (_TAKE.replace("$2", "50").replace("$3", "$2"), ["mail", "w1"]),
    # An array, or one row, is asked for once, whatever the plan.
    "take-array": (
        f"UPDATE q.tasks SET state = 'running' WHERE id = ANY (ARRAY({_NEXT})) RETURNING id", ["mail", 50]
    ),
    "take-one": (
        f"UPDATE q.tasks SET state = 'running' WHERE id = ({_NEXT.replace('$2', '1')}) RETURNING id", ["mail"]
    ),
    # A few of each queue, on purpose.
    "take-of-each": (
        """
        SELECT n.id FROM unnest($1::text[]) AS of (queue) CROSS JOIN LATERAL (
            SELECT t.id FROM q.tasks AS t WHERE t.state = 'ready' AND t.queue = of.queue ORDER BY t.run_at LIMIT 5
            FOR UPDATE SKIP LOCKED
        ) AS n
        """,
        [["mail", "other"]],
    ),
    "take-in-function": ("SELECT q.take($1)", [50]),
    "add": ("INSERT INTO q.tasks (queue, run_at, country, city, args) VALUES ($1, now(), 'a', 'b', $2) RETURNING id",
            ["mail", {"to": "x"}]),
    "done": ("UPDATE q.tasks SET state = 'done' WHERE id = $1 AND worker = $2", [40, "w5"]),
    "lost": ("SELECT id FROM q.tasks WHERE state = 'running' AND beat < $1 ORDER BY beat, id LIMIT 50 FOR UPDATE;",
             ["2024-01-01 00:30:00+00"]),
    "history": ("SELECT what FROM q.log WHERE at >= $1 AND at < $2 ORDER BY at -- a range of one partition\n",
                ["2024-02-03 00:00+00", "2024-02-03 03:00+00"]),
}  # fmt: skip
PLANTED: Statements = {
    "over-claim": (f"UPDATE q.tasks SET state = 'running' WHERE id IN ({_NEXT}) RETURNING id", ["mail", 50]),
    "lock-order": ("UPDATE q.tasks SET state = 'ready' WHERE state = 'running' AND beat < $1", ["2024-01-01 01:00+00"]),
    "generic-worse": ("SELECT args FROM q.tasks WHERE $1::bigint IS NULL OR id = $1", [7]),
    "partial-lost": (
        "SELECT id FROM q.tasks WHERE state = $1 AND queue = 'mail' ORDER BY run_at LIMIT 50", ["ready"]
    ),
    # Who is in a city is in its country.
    "estimate": ("SELECT id FROM q.tasks WHERE country = 'country 7' AND city = 'city 7'", []),
}  # fmt: skip
# A limit that a plan does not know is a tenth of all that is ready: for so many it reads the table.
ANY_NUMBER: Statements = {"take-any-number": (_TAKE, ["mail", 50, "w1"])}
ALL = {**SOUND, **PLANTED, **ANY_NUMBER}


def own(place: Path, statements: Statements, batch: int = 100) -> Own:
    """The queue with these statements, in files."""
    sql = place / "sql"
    sql.mkdir()
    for name, (text, arguments) in statements.items():
        (sql / f"{name}.sql").write_text(f"-- What {name} does: $1 says ORDER BY.\n{text}\n", "utf-8")
        if arguments:
            (sql / f"{name}.json").write_text(json.dumps(arguments), "utf-8")
    (place / "schema.sql").write_text(SCHEMA, "utf-8")
    (place / "seed.sql").write_text(SEED, "utf-8")
    return Own(sql, place / "schema.sql", place / "seed.sql", batch)


@pytest.fixture(scope="module")
def captured(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Capture, str]]:
    """Every statement, sound and planted, and the database."""
    place = tmp_path_factory.mktemp("others")
    with fresh_database(server) as dsn:
        yield foreign.capture(dsn, server.source, place / "out", own(place, ALL)), dsn


def test_the_sound_statements_of_a_queue_are_held(captured: tuple[Capture, str]) -> None:
    capture, _ = captured
    assert [str(each) for each in check(capture) if each.label in SOUND] == []


def test_a_take_of_any_number_reads_the_whole_table_with_its_generic_plan(
    captured: tuple[Capture, str],
) -> None:
    capture, _ = captured
    found = {(each.mode, each.rule) for each in check(capture) if each.label in ANY_NUMBER}
    assert ("generic", "seq-scan") in found
    assert {mode for mode, _ in found} == {"generic"}


def test_each_hazard_is_named_where_it_is_and_nowhere_else(captured: tuple[Capture, str]) -> None:
    capture, _ = captured
    found = {(each.label, each.kind) for each in hazards(capture)}
    assert {(kind, kind) for kind in PLANTED} <= found
    assert {label for label, _ in found} <= {*PLANTED, *ANY_NUMBER}, found


def test_tables_and_functions_of_another_schema_are_known(captured: tuple[Capture, str]) -> None:
    capture, _ = captured
    assert capture.environment.tables["tasks"].rows == 30_000
    take = capture.statements["take-in-function"]
    assert take.functions == "auto_explain" or take.functions.startswith("not captured")
    assert (take.plans["custom"].inner != ()) == (take.functions == "auto_explain")


def test_what_is_named_an_over_claim_does_claim_more_than_its_limit_under_another_plan(
    captured: tuple[Capture, str],
) -> None:
    _, dsn = captured
    text, _ = PLANTED["over-claim"]
    query = text.replace("$1", "'mail'").replace("$2", "5")
    other_plan = ("hashagg", "sort", "hashjoin", "mergejoin", "material", "indexscan", "bitmapscan")
    with psycopg.connect(dsn) as connection:
        assert len(connection.execute(query.encode()).fetchall()) == 5
        connection.rollback()
        for name in other_plan:
            connection.execute(f"SET LOCAL enable_{name} TO off".encode())
        claimed = len(connection.execute(query.encode()).fetchall())
        connection.rollback()
    assert claimed > 5


def test_the_same_queue_captured_again_is_the_same_and_without_an_index_it_has_regressed(
    captured: tuple[Capture, str], server: Server, tmp_path: Path
) -> None:
    capture, _ = captured
    again = own(tmp_path, ALL)
    with fresh_database(server) as dsn:
        assert (
            compare(capture, foreign.capture(dsn, server.source, tmp_path / "same", again)).verdict == "same"
        )
    again.schema.write_text(
        SCHEMA.replace("CREATE INDEX tasks_ready", "-- CREATE INDEX tasks_ready"), "utf-8"
    )
    with fresh_database(server) as dsn:
        comparison = compare(capture, foreign.capture(dsn, server.source, tmp_path / "other", again))
    lost = {each.label for each in comparison.differences if each.counts}
    assert {"take", "take-array", "take-one", "take-of-each", "partial-lost"} <= lost
    assert lost.isdisjoint({"add", "done", "lost", "history"})


@pytest.mark.parametrize(
    ("statement", "arguments", "told"),
    [
        ("SELECT 1; DROP TABLE q.tasks", [], "multiple commands"),
        ("VACUUM", [], "syntax error"),
        ("SELECT id FROM q.nothing", [], "does not exist"),
        ("SELECT id FROM q.tasks WHERE id = $1", [], "wrong number of parameters"),
        ("SELECT id FROM q.tasks WHERE id = $1", ["seven"], "invalid input syntax"),
        ("INSERT INTO q.tasks (queue) VALUES ('x')", [], "null value"),
    ],
)
def test_a_statement_that_cannot_be_explained_is_told_by_its_name(
    statement: str, arguments: list[object], told: str, captured: tuple[Capture, str], tmp_path: Path
) -> None:
    _, dsn = captured
    wrong = own(tmp_path, {"wrong": (statement, arguments)})
    wrong.schema.write_text("SELECT 1", "utf-8")
    with pytest.raises(UsageError, match=rf"^wrong\.sql cannot be explained: .*{told}"):
        foreign.capture(dsn, "test", tmp_path / "out", Own(wrong.sql, wrong.schema, None, 1))
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM q.tasks").fetchone() == (30_000,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("CREATE TABLE t (n int);\nCREATE TABEL u (n int);", r"^schema\.sql in line 2: syntax error"),
        ("CREATE TABLE t (n int);\nCOPY t FROM stdin;\n1\n\\.\n", r"^schema\.sql"),
        ("\\i other.sql", r"^schema\.sql in line 1: syntax error"),
    ],
)
def test_a_schema_that_does_not_run_says_where(text: str, told: str, database: str, tmp_path: Path) -> None:
    wrong = own(tmp_path, SOUND)
    wrong.schema.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=told):
        foreign.capture(database, "test", tmp_path / "out", wrong)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "holds 0 .sql files"),
        ({"a.sql": "-- nothing but this\n"}, "a.sql holds no statement"),
        ({"a.sql": "SELECT $1", "a.json": "{}"}, "a.json: a JSON array"),
        ({"a.sql": "SELECT $1", "a.json": "[1,"}, "a.json: a JSON array"),
        ({"a.sql": b"SELECT '\xff'"}, "a.sql cannot be read"),
    ],
)
def test_a_folder_that_holds_no_statements_says_so(
    files: dict[str, str | bytes], told: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=told):
        foreign.statements(tmp_path)
