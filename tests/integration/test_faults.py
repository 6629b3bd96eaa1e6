"""What each fault does, and that its heal undoes it: on real sessions, tables, nodes, real crashes and failovers."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from engine.picker import Job, Picker
from engine.postgres import Server, conninfo, fresh_database, provision
from engine.schema import migrate
from engine.sessions import OutcomeUnknown, Session, Unavailable
from invariants.forks import read_lost, survive
from invariants.history import Recorder, merge_folder
from invariants.ledger.process import RecorderProcess
from stress.config import checked
from stress.faults import PlannedFault
from stress.faults.acts import ACTS
from stress.faults.ground import Fault, Ground
from stress.faults.proxy import LOOPBACK, Proxies
from stress.scenarios import SCENARIOS
from stress.scenarios.pokes_dropped import POKES_DROPPED
from stress.scenarios.script import initial_state
from stress.swarm import swarm as swarm_module
from stress.swarm.child import ChildDied
from stress.swarm.swarm import Swarm
from tests.fixtures.node import Jobs

DEADLINE_S = 30.0
SCENARIO = POKES_DROPPED.name


@dataclass
class Arena:
    """A ground of faults, with nodes where a test starts them, and a connection that no fault touches."""

    ground: Ground
    jobs: Jobs
    folder: Path

    def begin(self, name: str, *, place: int | None = None, seed: int = 1, lasts_s: float = 1.0) -> Fault:
        return ACTS[name](self.ground, PlannedFault(0.0, name, place, lasts_s, seed))

    def session(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.ground.servers[0].dsn, autocommit=True, application_name=name)

    def until(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = until(lambda: self.jobs.rows(query, *parameters))
        return rows

    def works(self) -> None:
        """A job is done."""
        job = Job(fsm="script", step="odd", state=initial_state(("next", "done")))
        row = self.jobs.do(self.jobs.picker.insert(job))
        self.until("SELECT 1 FROM gen_durable WHERE id = %s AND status = 'done'", row)


def until(found: Callable[[], Any], fault: Fault | None = None) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < deadline
        if fault is not None:
            fault.tick()
        time.sleep(0.01)
    return value


@contextmanager
def arena_on(server: Server, folder: Path) -> Iterator[Arena]:
    config = checked(
        pg=["embedded"], seconds=5, nodes=1, seed=1, faults="none", scenario=SCENARIO, subject="reference", mutant=None
    )  # fmt: skip
    (folder / "logs").mkdir()
    scenario = SCENARIOS[SCENARIO]
    swarm = Swarm(config, (server.dsn,), folder)
    with Recorder(folder, "harness") as notes, psycopg.connect(server.dsn, autocommit=True) as connection:
        migrate(connection)
        try:
            ground = Ground(swarm, (server,), scenario.subject, scenario, notes)
            yield Arena(ground, Jobs(server.dsn, connection), folder)
        finally:
            swarm.destroy()


@pytest.fixture
def arena(server: Server, tmp_path: Path) -> Iterator[Arena]:
    with fresh_database(server) as dsn:
        database = conninfo.parse(dsn)["dbname"]
        with arena_on(replace(server, dsn=dsn, database=database), tmp_path) as opened:
            yield opened


def test_terminate_ends_sessions_of_nodes_and_clients_and_of_nobody_else(arena: Arena) -> None:
    with arena.session("pgreferee recorder") as other, arena.session("client-0") as client:
        fault = arena.begin("terminate")
        fault.heal()
        assert fault.did == {"sessions ended": 1}
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_cancel_cancels_a_statement_that_runs_and_leaves_its_session(arena: Arena) -> None:
    with arena.session("swarm@node-1.1#x") as node, ThreadPoolExecutor(1) as threads:
        pending = threads.submit(node.execute, "SELECT pg_sleep(30)")
        arena.until("SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(30)' AND state = 'active'")
        fault = arena.begin("cancel")
        until(lambda: fault.did["statements cancelled"], fault)
        fault.heal()
        with pytest.raises(psycopg.errors.QueryCanceled):
            pending.result(DEADLINE_S)
        assert node.execute("SELECT 1").fetchone() == (1,)


def test_vacuum_freezes_the_tables_over_and_over_until_it_is_healed(arena: Arena) -> None:
    fault = arena.begin("vacuum")
    until(lambda: fault.did["tables vacuumed"] > 10)
    fault.heal()
    done = fault.did["tables vacuumed"]
    counted = (
        "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'gen_durable' AND vacuum_count > 0"
    )
    assert arena.until(counted)
    assert fault.did["tables vacuumed"] == done


def test_xmin_holds_a_snapshot_that_nothing_newer_can_be_cleaned_behind_until_it_is_healed(
    arena: Arena,
) -> None:
    held = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgreferee fault' AND backend_xmin IS NOT NULL"
    fault = arena.begin("xmin")
    assert arena.jobs.rows(held)
    for _ in range(3):
        arena.jobs.do(arena.jobs.picker.insert(Job(fsm="f", step="s")))
    fault.heal()
    assert fault.did["transactions it was held for"] >= 3
    arena.until("SELECT 1 WHERE NOT EXISTS (" + held + ")")


def test_an_old_snapshot_whose_session_was_ended_is_taken_anew(arena: Arena) -> None:
    fault = arena.begin("xmin")
    arena.jobs.rows(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'pgreferee fault'"
        " AND datname = current_database()"
    )
    until(lambda: fault.did["old snapshots"] == 2, fault)
    fault.heal()


def test_stats_removes_what_the_planner_knows_and_its_heal_finds_it_out_again(arena: Arena) -> None:
    known = "SELECT count(*) FROM pg_stats WHERE tablename = 'gen_durable'"
    for _ in range(3):
        arena.jobs.do(arena.jobs.picker.insert(Job(fsm="f", step="s")))
    arena.jobs.connection.execute("ANALYZE gen_durable")
    assert arena.jobs.one(known) > 0
    fault = arena.begin("stats")
    assert arena.jobs.one(known) == 0
    fault.heal()
    assert arena.jobs.one(known) > 0
    assert arena.jobs.one("SELECT reloptions FROM pg_class WHERE relname = 'gen_durable'") is None


def test_poison_is_inserted_on_record_and_every_row_of_it_fails(arena: Arena) -> None:
    arena.ground.swarm.start_node(0)
    fault = arena.begin("poison")
    until(lambda: fault.did["bad rows inserted"] >= 8, fault)
    fault.heal()
    arena.until("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM gen_durable WHERE status <> 'failed')")
    [inserted] = {len(o.result["ids"]) for o in merge_folder(arena.folder) if o.f == "insert_many"}
    assert inserted == len(POKES_DROPPED.queues)
    arena.works()


def test_kill_ends_the_process_of_a_node_and_its_heal_starts_another(arena: Arena) -> None:
    first = arena.ground.swarm.start_node(0)
    fault = arena.begin("kill", place=0)
    assert first.status == -9
    assert arena.ground.swarm.nodes == {}
    fault.heal()
    assert arena.ground.swarm.nodes[0].name != first.name


def test_pause_freezes_the_process_of_a_node_and_its_heal_lets_it_go_on(arena: Arena) -> None:
    node = psutil.Process(arena.ground.swarm.start_node(0).pid)
    fault = arena.begin("pause", place=0)
    until(lambda: node.status() == psutil.STATUS_STOPPED)
    fault.heal()
    until(lambda: node.status() != psutil.STATUS_STOPPED)


@pytest.mark.parametrize("name", ["partition", "slow"])
def test_a_node_behind_bad_weather_is_disturbed_and_works_when_it_is_over(arena: Arena, name: str) -> None:
    ground = arena.ground
    assert ground.servers[0].tcp_dsn is not None
    params = conninfo.parse(ground.servers[0].tcp_dsn)
    with Proxies((params["host"], int(params["port"])), [0], ["client-0"]) as proxies:
        ground.proxies, ground.client_places = (proxies,), ("client-0",)
        plain = {**params, "sslmode": "disable", "gssencmode": "disable", "host": LOOPBACK}
        way = {**plain, "port": str(proxies.port(0)), "dbname": ground.servers[0].database}
        ground.swarm.ways = {0: (conninfo.to_uri(way),)}
        ground.swarm.start_node(0)
        arena.works()
        fault = arena.begin(name, place=0, lasts_s=0.2)
        until(lambda: proxies.did(0).total() > 0, fault)
        client = conninfo.to_uri({**way, "port": str(proxies.port("client-0"))})
        until(lambda: _is_disturbed(client, proxies), fault)
        fault.heal()
        arena.works()


def _is_disturbed(client: str, proxies: Proxies) -> bool:
    """A client comes and does something. Half of them meet the weather."""
    try:
        with psycopg.connect(client, autocommit=True, connect_timeout=2) as connection:
            connection.execute("SELECT %s::integer", (1,))
    except psycopg.OperationalError:
        pass
    return proxies.did("client-0").total() > 0


def test_a_node_may_be_asked_to_stop_before_it_has_come_up(arena: Arena) -> None:
    arena.ground.swarm.start_node(0)
    arena.ground.swarm.stop_nodes()
    assert arena.ground.swarm.nodes == {}


def test_a_node_that_stays_frozen_is_missed_when_it_is_asked_to_stop(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm_module, "STOP_TIMEOUT_S", 0.2)
    arena.ground.swarm.start_node(0)
    arena.begin("pause", place=0)
    with pytest.raises(ChildDied, match="did not stop when it was asked to"):
        arena.ground.swarm.stop_nodes()


def test_pool_leaves_a_node_one_session_and_it_works(arena: Arena) -> None:
    swarm = arena.ground.swarm
    swarm.start_node(0)
    fault = arena.begin("pool", place=0)
    arena.works()
    # Beside the one that listens.
    sessions = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE starts_with(application_name, %s) AND right(application_name, 6) <> '/pokes'"
    )
    assert arena.jobs.one(sessions, f"swarm@{swarm.nodes[0].name}#") == 1
    fault.heal()

    def has_left() -> bool:
        swarm.check_alive()
        return not swarm.leaving

    until(has_left)


def test_skew_sets_the_clock_of_a_node_off_and_it_works(arena: Arena) -> None:
    arena.ground.swarm.start_node(0)
    fault = arena.begin("skew", place=0)
    arena.works()
    fault.heal()
    arena.works()


def test_plan_flips_settings_for_the_database_and_others_for_a_node_and_its_heal_resets_them(
    arena: Arena,
) -> None:
    arena.ground.swarm.start_node(0)
    changed = "SELECT setconfig FROM pg_db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())"  # noqa: E501
    fault = arena.begin("plan", place=0)
    assert len(arena.jobs.one(changed)) == 2
    arena.works()
    fault.heal()
    assert arena.jobs.rows(changed) == []


@pytest.mark.slow("5 s")
def test_a_crash_loses_nothing_that_was_acknowledged_and_its_heal_starts_the_server_at_its_address(
    tmp_path: Path,
) -> None:
    with provision(profile="durable") as server, arena_on(server, tmp_path) as arena:
        arena.jobs.do(arena.jobs.picker.insert(Job(fsm="f", step="s")))
        fault = arena.begin("crash")
        assert arena.ground.down
        with pytest.raises(psycopg.OperationalError):
            arena.jobs.rows("SELECT 1")
        fault.heal()
        assert not arena.ground.down
        with arena.ground.connect(server) as again:
            assert again.execute("SELECT count(*) FROM gen_durable").fetchone() == (1,)
        assert "was interrupted" in server.log_text() or "not properly shut down" in server.log_text()


class Inserting:
    """A client that inserts without a pause to speak of, whoever answers, with a history, until it is left."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.acknowledged: list[int] = []
        self._recorder = Recorder(folder, "client-0")
        self._session = Session(server.dsn, self._recorder, name="client-0")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Inserting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._session.close()
        self._recorder.close()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        job = Job(fsm="f", step="s")
        told = {"job": {**dataclasses.asdict(job), "expect": None, "scope": []}}
        while not self._over.wait(0.005):
            try:
                row = self._session.run("insert", told, Picker().insert(job), lambda row: {"id": row})
            except (OutcomeUnknown, Unavailable):
                continue
            assert row is not None
            self.acknowledged.append(row)


@pytest.mark.slow("25 s")
@pytest.mark.timeout(600)
def test_a_failover_to_an_asynchronous_standby_loses_what_it_did_not_get_and_names_all_of_that(
    tmp_path: Path,
) -> None:
    with provision(profile="durable") as server, arena_on(server, tmp_path) as arena:
        with (
            RecorderProcess(server.dsn, tmp_path, server.database, failover=True) as recorder,
            Inserting(server, tmp_path) as client,
        ):
            fault = arena.begin("failover-async")
            until(lambda: fault.ready)
            fault.heal()
            there_before = len(client.acknowledged)
            until(lambda: len(client.acknowledged) > there_before)
            client.stop()
            ended = recorder.stop()
        with arena.ground.connect(server) as again:
            there = {row for (row,) in again.execute("SELECT id FROM gen_durable")}
    assert ended["complete"], ended["reason"]
    assert ended["differences"] == 0
    survived = survive(merge_folder(tmp_path), read_lost(tmp_path))
    [loss] = survived.losses
    standing = [o.result["id"] for o in survived.operations if o.f == "insert" and o.type == "ok"]
    assert loss.acknowledged["insert"] == len(client.acknowledged) - len(standing) > 0
    # Each stands for a row of its own, though ids of lost rows may have been given out again.
    assert len(set(standing)) == len(standing)
    assert set(standing) <= there
    assert survived.judgement is not None
    assert survived.judgement.verdict == "held"
    assert 0 < loss.bytes <= loss.bound_bytes
    assert loss.bound_ms is not None
