"""On a user's own server: work in one marked database, touch nothing else, leave nothing, say no secret."""

from __future__ import annotations

import json
import signal
import subprocess
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from engine.postgres import (
    InfrastructureError,
    Server,
    UsageError,
    assert_ours,
    binaries,
    conninfo,
    databases,
    fresh_database,
    inspection,
    provision,
)
from engine.postgres.accounts import server_account
from engine.postgres.owners import current_owner
from tests.integration.harness_process import harness

SECRET = 'p%w@d/§ß it\'s "odd" &?#'


@pytest.fixture(scope="module")
def theirs() -> Iterator[Server]:
    """Somebody's own server, with databases in use, two of them with names that look like ours.

    All belong to the role that the harness is given: only the harness's own care protects them.
    """
    with provision("embedded") as server:
        assert server.admin_dsn is not None
        with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE ROLE maker LOGIN CREATEDB PASSWORD {}").format(sql.Literal(SECRET)))
            conn.execute(sql.SQL("CREATE ROLE poor LOGIN PASSWORD {}").format(sql.Literal(SECRET)))
            conn.execute("CREATE DATABASE shop OWNER maker")
            conn.execute("COMMENT ON DATABASE shop IS 'orders'")
            conn.execute("CREATE DATABASE pgreferee_0123456789ab OWNER maker")
            conn.execute("CREATE DATABASE pgreferee_ba9876543210 OWNER maker")
            conn.execute("""COMMENT ON DATABASE pgreferee_ba9876543210 IS '{"pgreferee": 1, "owner":
            "me"}'""")
        for name in ("shop", "pgreferee_0123456789ab", "pgreferee_ba9876543210"):
            with psycopg.connect(conninfo.with_database(server.admin_dsn, name)) as conn:
                conn.execute("CREATE TABLE orders AS SELECT i, md5(i::text) FROM generate_series(1, 1000) i")
                conn.execute("CREATE SEQUENCE s")
        yield server


def dsn_of(server: Server, user: str, *, database: str = "postgres", password: str = SECRET) -> str:
    assert server.tcp_dsn is not None
    params = {**conninfo.parse(server.tcp_dsn), "user": user, "password": password, "dbname": database}
    return f"dsn:{conninfo.to_uri(params)}"


def names(server: Server) -> set[str]:
    assert server.admin_dsn is not None
    with psycopg.connect(server.admin_dsn) as conn:
        return {name for (name,) in conn.execute("SELECT datname FROM pg_database")}


def dump(server: Server) -> str:
    """Everything on a server, as `pg_dumpall` writes it."""
    assert server.admin_dsn is not None
    program = binaries.embedded(server_account()).program("pg_dumpall")
    result = subprocess.run(
        [program, "--dbname", conninfo.to_uri({**conninfo.parse(server.admin_dsn), "password": ""})],
        env={"PGPASSWORD": conninfo.parse(server.admin_dsn)["password"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # pg_dump 18 guards psql against hostile dumps with a word that is new each time.
    lines = [
        line for line in result.stdout.splitlines() if not line.startswith(("\\restrict ", "\\unrestrict "))
    ]
    return "\n".join(lines)


def test_everything_else_on_the_server_stays_byte_for_byte_what_it_was(theirs: Server) -> None:
    before, existing = dump(theirs), names(theirs)
    assert "CREATE TABLE public.orders" in before
    with provision(dsn_of(theirs, "maker")) as server:
        assert names(theirs) == existing | {server.database}
        with psycopg.connect(server.dsn) as conn:
            assert_ours(conn)
            conn.execute("CREATE TABLE job AS SELECT 1 AS a")
        with fresh_database(server) as dsn, psycopg.connect(dsn) as conn:
            conn.execute("CREATE TABLE job AS SELECT 1 AS a")
        assert "CREATE TABLE public.job" in dump(theirs), "the dump would show a change"
    assert dump(theirs) == before
    assert names(theirs) == existing


def test_the_server_says_who_it_is_and_that_it_is_not_ours_to_stop(theirs: Server) -> None:
    with provision(dsn_of(theirs, "maker")) as server:
        assert (server.source, server.version) == ("dsn", theirs.version)
        assert server.admin_dsn is None
        assert server.data_dir is None
        assert not server.can_restart
        assert not server.has_log
        for refused in (server.stop, server.start, server.log_text, server.log_size):
            with pytest.raises(InfrastructureError, match="did not start this server"):
                refused()
        assert server.settings["wal_level"] == "logical"


def test_a_role_without_replication_still_works_and_says_why_there_is_no_ledger(theirs: Server) -> None:
    with provision(dsn_of(theirs, "maker")) as server:
        assert server.wal_level_logical
        assert (
            server.why_no_ledger
            == 'the role "maker" may not use replication slots: ALTER ROLE ... REPLICATION'
        )
    with provision(dsn_of(theirs, "postgres", password=conninfo.parse(theirs.dsn)["password"])) as server:
        assert server.why_no_ledger is None


def test_any_text_can_be_sent_whatever_encoding_the_role_or_the_variables_ask_for(
    theirs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with provision(dsn_of(theirs, "maker")) as server, psycopg.connect(server.dsn) as conn:
        assert conn.execute("SELECT %s::text", ("日本",)).fetchone() == ("日本",)


@pytest.mark.parametrize("profile", ["URI", "keywords", "environment", "service"])
def test_a_password_with_every_odd_character_works_in_every_spelling(
    theirs: Server, profile: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert theirs.tcp_dsn is not None
    port = conninfo.parse(theirs.tcp_dsn)["port"]
    spec = {
        "URI": f"dsn:postgresql://maker:{quote(SECRET, safe='')}@127.0.0.1:{port}/postgres",
        "keywords": "dsn:"
        + psycopg.conninfo.make_conninfo(host="127.0.0.1", port=port, user="maker", password=SECRET),
        "environment": "dsn:postgresql://127.0.0.1",
        "service": "dsn:service=theirs",
    }[profile]
    if profile == "environment":
        for name, value in {"PGUSER": "maker", "PGPASSWORD": SECRET, "PGPORT": port}.items():
            monkeypatch.setenv(name, value)
    if profile == "service":
        (tmp_path / "services").write_text(
            f"[theirs]\nhost=127.0.0.1\nport={port}\nuser=maker\n", encoding="utf-8"
        )
        escaped = SECRET.replace("\\", "\\\\").replace(":", "\\:")
        (tmp_path / "passwords").write_text(f"*:*:*:maker:{escaped}\n", encoding="utf-8")
        (tmp_path / "passwords").chmod(0o600)
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "passwords"))
        monkeypatch.setenv("PGDATABASE", "postgres")
    with provision(spec) as server:
        with psycopg.connect(server.dsn) as conn:  # complete: the environment is hidden now
            assert conn.info.user == "maker"
        for text in (repr(server), str(server)):
            for spelling in (SECRET, quote(SECRET), quote(SECRET, safe="")):
                assert spelling not in text


FAILURES = {
    "nobody listens": ("dsn:postgresql://u:{}@127.0.0.1:1/d", "Connection refused"),
    "no such host": (
        "dsn:postgresql://u:{}@no-such-host.invalid/d",
        "cannot connect to u@no-such-host.invalid/d: ",
    ),
    "wrong password": (
        "dsn:postgresql://maker:{}x@127.0.0.1:PORT/postgres",
        "password authentication failed",
    ),
    "no such database": ("dsn:postgresql://maker:{}@127.0.0.1:PORT/nix", 'database "nix" does not exist'),
    "no such socket": ("dsn:postgresql://u:{}@/d?host=/no/such/folder", "No such file or directory"),
    "no privilege": ("dsn:postgresql://poor:{}@127.0.0.1:PORT/postgres", '"poor" may not create databases'),
    "a bad option": ("dsn:postgresql://maker:{}@127.0.0.1:PORT/postgres?sslmode=no", "sslmode"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_what_does_not_work_is_one_sentence_without_the_password(
    theirs: Server, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert theirs.tcp_dsn is not None
    monkeypatch.setenv("PGPASSWORD", "geheim2")
    form, expected = FAILURES[what]
    spec = form.format(quote(SECRET, safe="")).replace("PORT", conninfo.parse(theirs.tcp_dsn)["port"])
    with pytest.raises(InfrastructureError) as caught, provision(spec):
        pass
    assert caught.value.exit_code == 3
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    for secret in (SECRET, quote(SECRET, safe=""), quote(SECRET), "geheim2"):
        assert secret not in shown


def test_settings_and_keep_are_refused_where_they_mean_nothing(theirs: Server) -> None:
    with (
        pytest.raises(UsageError, match="change them there"),
        provision(dsn_of(theirs, "maker"), "fast", {"jit": "off"}),
    ):
        pass
    with pytest.raises(UsageError, match="keep"), provision("embedded", keep=True):
        pass


def test_an_old_server_is_refused_and_a_newer_one_is_noted(
    monkeypatch: pytest.MonkeyPatch, theirs: Server
) -> None:
    from engine.postgres import spec

    monkeypatch.setattr(spec, "NEWEST_MAJOR", theirs.major - 1)
    with provision(dsn_of(theirs, "maker")) as server:
        assert any("newer than the newest" in note for note in server.notes)
    monkeypatch.setattr(spec, "OLDEST_MAJOR", theirs.major + 1)
    with (
        pytest.raises(InfrastructureError, match="the server is Postgres"),
        provision(dsn_of(theirs, "maker")),
    ):
        pass


def test_a_kept_database_stays_and_is_never_reaped(theirs: Server) -> None:
    with provision(dsn_of(theirs, "maker"), keep=True) as server:
        kept = server.database
    assert kept in names(theirs)
    assert theirs.admin_dsn is not None
    with psycopg.connect(theirs.admin_dsn, autocommit=True) as conn:
        forge(conn, kept, {"started": "1"}, keep=True)
        assert databases.reap(conn) == []
        assert databases.drop(conn, kept)


def forge(conn: psycopg.Connection[Any], name: str, change: Mapping[str, str], *, keep: bool = False) -> None:
    owner = {**json.loads(current_owner().to_json()), **change}
    marker = json.dumps({"pgreferee": 1, "keep": keep, "owner": owner})
    conn.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(name), sql.Literal(marker)))


@pytest.mark.parametrize(
    ("change", "dropped"),
    [
        ({"started": "1"}, True),
        ({"started": "1", "host": "elsewhere"}, False),
        ({"boot": "earlier"}, False),
        ({"pid_namespace": "another container", "started": "1"}, False),
        ({}, False),
    ],
)
def test_only_databases_of_certainly_dead_owners_are_dropped(
    theirs: Server, change: dict[str, str], dropped: bool
) -> None:
    assert theirs.admin_dsn is not None
    name = databases.new_name()
    with psycopg.connect(theirs.admin_dsn, autocommit=True) as conn:
        databases.create(conn, name)
        forge(conn, name, change)
        assert databases.reap(conn) == ([name] if dropped else [])
        assert databases.drop(conn, name) is not dropped


def test_the_next_start_drops_what_a_killed_harness_left(theirs: Server) -> None:
    with harness(dsn_of(theirs, "maker")) as killed, harness(dsn_of(theirs, "maker")) as other:
        killed.end(signal.SIGKILL)
        assert killed.server["database"] in names(theirs)
        with provision(dsn_of(theirs, "maker")):
            assert killed.server["database"] not in names(theirs)
            assert other.server["database"] in names(theirs)
        other.end(signal.SIGINT)
        assert other.server["database"] not in names(theirs)
    assert {"shop", "pgreferee_0123456789ab", "pgreferee_ba9876543210"} <= names(theirs)


def test_sessions_slots_and_prepared_transactions_do_not_keep_a_database_alive() -> None:
    statements: list[LiteralString] = [
        "SELECT pg_create_logical_replication_slot('ours', 'pgoutput')",
        "BEGIN",
        "CREATE TABLE job (id int)",
        "PREPARE TRANSACTION 'it''s prepared'",
    ]
    with provision("embedded", "fast", {"max_prepared_transactions": "5"}) as theirs:
        assert theirs.admin_dsn is not None
        with psycopg.connect(theirs.admin_dsn, autocommit=True) as conn:
            conn.execute("SELECT pg_create_physical_replication_slot('physical')")
            conn.execute("SELECT pg_create_logical_replication_slot('foreign', 'pgoutput')")
        with provision(f"dsn:{theirs.admin_dsn}") as server:
            open_session = psycopg.connect(server.dsn, autocommit=True)
            for statement in statements:
                open_session.execute(statement)
        assert server.database not in names(theirs)
        with pytest.raises(psycopg.OperationalError):
            open_session.execute("SELECT 1")
        open_session.close()
        with psycopg.connect(theirs.admin_dsn) as conn:
            slots = conn.execute("SELECT slot_name FROM pg_replication_slots ORDER BY 1").fetchall()
        assert slots == [("foreign",), ("physical",)]


def test_why_there_is_no_ledger_names_what_to_change() -> None:
    with (
        provision("embedded", "fast", {"max_replication_slots": "1"}) as server,
        psycopg.connect(server.dsn, autocommit=True) as conn,
    ):
        conn.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
        assert "max_replication_slots" in (inspection.why_no_ledger(conn) or "")


def test_a_database_that_somebody_dropped_is_not_missed(theirs: Server) -> None:
    assert theirs.admin_dsn is not None
    with (
        provision(dsn_of(theirs, "maker")) as server,
        psycopg.connect(theirs.admin_dsn, autocommit=True) as conn,
    ):
        conn.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(server.database)))
    assert server.database not in names(theirs)
