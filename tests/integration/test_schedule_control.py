"""Sessions stop where they are told to, wait for whom they must, and die when they are killed; and the lab sees it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from engine.postgres import Server
from engine.postgres.databases import new_name
from stress.schedules import worker
from stress.schedules.actions import (
    Action,
    Outcome,
    Prepared,
    World,
    claim,
    enrich,
    flush,
    heartbeat,
    insert,
    signal,
)
from stress.schedules.controller import STOPS, Run, Wait
from stress.schedules.lab import Judged, Lab
from stress.schedules.race import PLANNERS, Race
from stress.schedules.races import ALL
from stress.schedules.record import reduced
from stress.schedules.search import Choice, Exhaustive, Fixed
from stress.schedules.worker import Task, Worker, take

WORKER, CLIENT = Choice("worker"), Choice("client")


def states(run: Run, step: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Everybody's state after a step, counted from 1, and for whom each waits."""
    return {name: (state, waits) for name, state, waits in run.steps[step - 1].states}


def taken(lab: Lab, race: Race, *choices: Choice) -> Judged:
    judged = take(lab, race, "generic", choices)
    assert judged is not None
    return judged


def test_a_session_stops_after_its_snapshot_and_before_its_first_row(lab: Lab) -> None:
    # The park commits after the delivery's snapshot; the sound delivery locks the row's newest version all the same.
    judged = taken(lab, ALL["lost-wakeup"], CLIENT, *[WORKER] * 5, CLIENT, CLIENT)
    first = judged.run.steps[0]
    assert (first.came, first.committed) == (STOPS, ())
    assert states(judged.run, 1) == {"worker": ("ready", ()), "client": ("gate", ())}
    assert judged.violated == ()


def test_a_session_that_waits_for_a_lock_is_blocked_by_who_holds_it_until_that_commits(lab: Lab) -> None:
    judged = taken(lab, ALL["lost-wakeup"], WORKER, WORKER, CLIENT, CLIENT, WORKER, WORKER, WORKER, CLIENT)
    assert states(judged.run, 4)["client"] == ("blocked", ("worker",))
    assert states(judged.run, 7)["client"] == ("ready", ())
    assert judged.run.steps[6].committed == ("worker",)
    assert judged.run.steps[6].others[0][0] == "client"
    # `take` names the locks: it is how a failing schedule is told.
    assert judged.run.steps[3].waits == (Wait("client", ("worker",), "row 1 of gen_durable"),)


def test_a_statement_by_itself_stops_before_its_commit(lab: Lab) -> None:
    judged = taken(lab, ALL["lost-wakeup"], CLIENT, CLIENT, WORKER, WORKER, CLIENT)
    assert states(judged.run, 4)["worker"] == ("blocked", ("client",))
    assert judged.run.steps[4].committed == ("client",)


def test_a_session_stops_between_the_statements_of_a_function_where_its_race_asks_for_it(lab: Lab) -> None:
    # The claim has seen both groups; the ack of one of them commits before the claim locks it.
    old, claimer = Choice("old"), Choice("claimer")
    judged = taken(lab, ALL["head-acked-while-claimed"], old, old, claimer, old, *[claimer] * 4)
    assert [step.came for step in judged.run.steps[4:6]] == [STOPS, STOPS]
    assert judged.run.steps[3].committed == ("old",)
    assert judged.violated == ()


def test_a_refused_commit_is_told_as_the_conflict_that_it_is_and_each_of_a_batch_by_itself(lab: Lab) -> None:
    judged = taken(lab, ALL["two-writers"], *[Choice("state")] * 3, *[Choice("batch")] * 4)
    [state] = [one for one in judged.run.operations if (one.process, one.f) == ("state", "store.commit")]
    batch = [one for one in judged.run.operations if (one.process, one.f) == ("batch", "store.commit")]
    assert (state.type, state.result) == ("ok", {"version": 2})
    assert [(one.type, one.index) for one in batch] == [("fail", 0), ("ok", 1)]
    assert batch[0].result["found"] == 2


def test_a_session_that_dies_gives_its_locks_back_and_nothing_of_it_is_committed(lab: Lab) -> None:
    judged = taken(
        lab, ALL["lost-wakeup"], WORKER, WORKER, CLIENT, CLIENT, Choice("worker", dies=True), CLIENT
    )
    assert states(judged.run, 5) == {"worker": ("dead", ()), "client": ("ready", ())}
    assert all("worker" not in step.committed for step in judged.run.steps)
    assert judged.violated == ()


def test_after_a_death_the_lab_goes_on_with_a_new_session(lab: Lab) -> None:
    taken(lab, ALL["lost-wakeup"], Choice("worker", dies=True))
    judged = taken(lab, ALL["lost-wakeup"], WORKER)
    assert all(state == "finished" for _, state, _ in judged.run.steps[-1].states)


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_lost_wakeup_is_searched_through_and_never_found_in_the_sound_engine(
    lab: Lab, planner: str
) -> None:
    race, search, runs = ALL["lost-wakeup"], Exhaustive(), []
    while not search.exhausted:
        runs.append((race, lab.run(race, planner, search)))
    judged = lab.judged(runs)
    assert search.runs == 7
    assert {one.violated for one in judged if one.run.complete} == {()}
    assert any(one.run.blocked for one in judged)


def test_sessions_of_a_race_may_die_at_every_point(lab: Lab) -> None:
    race, search, runs = ALL["lost-wakeup"], Exhaustive(), []
    while not search.exhausted:
        runs.append((race, lab.run(race, "generic", search, deaths=1)))
    judged = [one for one in lab.judged(runs) if one.run.complete]
    died = [(step.choice.session, step.what) for one in judged for step in one.run.steps if step.choice.dies]
    assert {session for session, _ in died} == {"worker", "client"}
    assert {one.violated for one in judged} == {()}


def test_the_same_schedule_goes_the_same_way_every_time(lab: Lab) -> None:
    choices = (WORKER, WORKER, CLIENT, CLIENT)
    runs = [taken(lab, ALL["lost-wakeup"], *choices).run for _ in range(3)]
    assert len({run.signature for run in runs}) == 1


def test_a_deadlock_is_a_finding_and_the_last_to_wait_finds_it(open_mutant_lab: Callable[[str], Lab]) -> None:
    lab = open_mutant_lab("insert-many-unordered")
    one, two = Choice("one"), Choice("two")
    judged = taken(lab, ALL["batches-in-opposite-orders"], one, one, two, two, one)
    assert states(judged.run, 4)["two"] == ("blocked", ("one",))
    assert "DeadlockDetected" in judged.run.steps[4].came
    assert "no-deadlock" in judged.violated
    assert [(wait.waiter, wait.holders) for step in judged.run.steps for wait in step.waits] == [
        ("two", ("one",)),
        ("one", ("two",)),
    ]


def test_rows_and_ids_are_the_same_in_every_run(lab: Lab) -> None:
    race = Race(
        name="ids",
        summary="ids begin anew",
        setup=(insert("r"), claim("c"), signal("r")),
        sessions={"one": (enrich("c"), heartbeat("c"), flush("c", Outcome("await")))},
        contends=False,
    )
    runs = [(race, lab.run(race, "generic", Fixed(()))) for _ in range(3)]
    judged = lab.judged(runs)
    assert len({one.outcome for one in judged}) == 1


def test_what_is_not_part_of_a_reduced_race_is_not_run(lab: Lab) -> None:
    race = reduced(ALL["lost-wakeup"], {"worker": (), "client": (0,)})
    judged = taken(lab, race)
    assert {step.choice.session for step in judged.run.steps} == {"client"}


def test_schedules_are_controlled_by_a_role_that_is_no_superuser(server: Server) -> None:
    # Such a role may set no deadlock_timeout, and its sessions are not told that they wait: they are asked about.
    name, role = new_name(), f"plain_{secrets.token_hex(4)}"
    assert server.admin_dsn is not None
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin, ExitStack() as stack:
        admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'".encode())
        stack.callback(admin.execute, f"DROP ROLE {role}".encode())
        admin.execute(f"CREATE DATABASE {name} OWNER {role}".encode())
        stack.callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)".encode())
        lab = Lab(make_conninfo(server.dsn, dbname=name, user=role, password="x"), stack, None)
        judged = taken(
            lab, ALL["lost-wakeup"], WORKER, WORKER, CLIENT, CLIENT, WORKER, WORKER, WORKER, CLIENT
        )
    assert states(judged.run, 4)["client"] == ("blocked", ("worker",))
    assert judged.violated == ()


def unsteady(counter: Iterator[int]) -> Action:
    """Does something every other time."""

    def prepare(world: World, process: str) -> Prepared | None:
        return insert("x").prepare(world, process) if next(counter) % 2 else None

    return Action("unsteady", prepare)


def test_a_failing_schedule_that_goes_another_way_is_uncontrolled_and_not_violated(
    open_mutant_lab: Callable[[str], Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ALL["lost-wakeup"]
    race = Race(
        name="unsteady",
        summary="a lost wakeup beside somebody who is not under control",
        setup=lost.setup,
        sessions={**lost.sessions, "other": (unsteady(itertools.count()),)},
        stops=("worker", "client"),
    )
    monkeypatch.setattr(worker, "races_of", lambda _subject: {race.name: race})
    looked = Worker(open_mutant_lab("park-without-recheck"), None, "")
    choices = [CLIENT, CLIENT, CLIENT, *[WORKER] * 5, Choice("other"), Choice("other")]
    found = looked.turn(Task(race.name, "generic", 0, Fixed(choices), 1), 20.0)
    assert found.schedule is not None
    assert not found.confirmed
