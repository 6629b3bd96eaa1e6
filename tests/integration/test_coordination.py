"""Machines that wait, fan out and go on inline, run by a node on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
import pytest

from engine.machine import Await, Done, Machine, Next, Outcome, Retry, ScheduleChildren, Step, Stop
from engine.operation import Operation, perform
from engine.picker import Commit, Ended, Job, Picker
from stress.scripts.node import Notes
from tests.fixtures.node import Jobs, running_node

LIVE = "SELECT count(*) FROM gen_durable WHERE status NOT IN ('done', 'failed')"
PARKED = "SELECT count(*) FROM gen_durable WHERE status = 'awaiting_signal'"


class Pack(Machine):
    """Collects five items, one signal each, and takes them together."""

    name = "pack"
    runs: ClassVar[list[int]] = []

    async def collect(self, step: Step) -> Outcome:
        Pack.runs.append(len(step.awaited))
        if len(step.awaited) < 5:
            return Await("item")
        return Next("count", {"sum": sum(signal.payload for signal in step.awaited)})

    async def count(self, step: Step) -> Outcome:
        return Done([step.state["sum"], [signal.name for signal in step.signals]])


class Patience(Machine):
    name = "patience"

    async def wait(self, step: Step) -> Outcome:
        if step.awaits is None:
            return Await(["answer"], "wait", {"asked": True}, timeout_ms=step.state["ms"])
        return Done([signal.payload for signal in step.awaited] or "nobody answered")

    async def forever(self, step: Step) -> Outcome:
        return Await([])

    async def again(self, step: Step) -> Outcome:
        if step.awaits is None:
            return Await("answer", timeout_ms=step.state["ms"])
        if step.attempt < 2:
            return Retry()
        return Done([step.attempt, [signal.payload for signal in step.awaited]])


class Tree(Machine):
    """A tree of a given depth, in rounds; a leaf of odd number fails."""

    name = "tree"

    async def grow(self, step: Step) -> Outcome:
        depth, rounds = step.state["depth"], step.state.get("rounds", 1)
        if depth == 0:
            return Stop("odd") if step.state["n"] % 2 else Done(1)
        jobs = [Job(fsm="tree", step="grow", state={"depth": depth - 1, "n": n}) for n in range(3)]
        return ScheduleChildren(jobs, "sum", {"depth": depth, "rounds": rounds})

    async def sum(self, step: Step) -> Outcome:
        if step.state["rounds"] > 1:
            return Next("grow", {"depth": step.state["depth"], "rounds": step.state["rounds"] - 1})
        assert all(child.status in ("done", "failed") for child in step.children)
        return Done(sum(child.result for child in step.children if child.status == "done"))

    async def spawn(self, step: Step) -> Outcome:
        key = step.state["key"]
        child = Job(fsm="tree", step="grow", state={"depth": 0, "n": 0}, correlation_key=key)
        return ScheduleChildren([child], "sum", {"rounds": 1})

    async def poison(self, step: Step) -> Outcome:
        return ScheduleChildren([Job(fsm="tree", step="grow", state={}), Job(fsm="poison", step="s")], "sum")

    async def nonsense(self, step: Step) -> Outcome:
        return ScheduleChildren([Job(fsm="tree\x00", step="s")], "sum")

    async def none(self, step: Step) -> Outcome:
        return ScheduleChildren([], "sum", {"rounds": 1})


class Chain(Machine):
    """Steps that follow each other at once."""

    name = "chain"
    inline_execution = True

    async def go(self, step: Step) -> Outcome:
        left = step.state["left"]
        if left == 0:
            return Done([step.attempt, step.concurrency_key])
        return Next("go", {"left": left - 1})

    async def drop(self, step: Step) -> Outcome:
        return Next("go", {"left": 1}, concurrency_key=None)

    async def keep(self, step: Step) -> Outcome:
        return Next("go", {"left": 1}, concurrency_key=step.concurrency_key)

    async def change(self, step: Step) -> Outcome:
        return Next("go", {"left": 1}, concurrency_key="new")

    async def leave(self, step: Step) -> Outcome:
        return Next("unknown", {"left": 1})

    async def await_first(self, step: Step) -> Outcome:
        if step.awaits is None:
            return Await(["go", "on"], timeout_ms=60_000)
        return Next("see", {"seen": [signal.name for signal in step.awaited]})

    async def see(self, step: Step) -> Outcome:
        return Done([step.state["seen"], [signal.name for signal in step.signals], step.awaits])

    async def refuse(self, step: Step) -> Outcome:
        return Next("refused", {"left": 1})

    async def refused(self, step: Step) -> Outcome:
        return Done("a step ran that never committed")


MACHINES = [Pack, Patience, Tree, Chain]


def run_all(jobs: Jobs, *inserted: Job, **changes: Any) -> Notes:
    """Insert, and run a node until nothing lives."""
    notes = Notes()
    jobs.do(jobs.picker.insert_many(inserted))

    async def main() -> None:
        async with running_node(jobs.dsn, MACHINES, notes=notes, **changes):
            await jobs.until(LIVE, 0)

    asyncio.run(main())
    return notes


def ends(jobs: Jobs) -> list[tuple[str, Any]]:
    return jobs.rows(
        "SELECT status::text, coalesce(result, to_jsonb(last_error)) FROM gen_durable "
        "WHERE parent_id IS NULL ORDER BY id"
    )


def test_a_pack_is_accumulated_without_spinning_and_consumed_at_once(jobs: Jobs) -> None:
    Pack.runs.clear()
    row_id = jobs.do(jobs.picker.insert(Job(fsm="pack", step="collect", correlation_key="box")))
    assert row_id is not None

    async def main() -> None:
        async with running_node(jobs.dsn, MACHINES):
            jobs.do(jobs.picker.signal("box", "other"))
            for n in range(5):
                await jobs.until(PARKED, 1)
                assert len(Pack.runs) == n + 1
                jobs.do(jobs.picker.signal("box" if n % 2 else row_id, "item", n))
            await jobs.until(LIVE, 0)

    asyncio.run(main())
    assert Pack.runs == [0, 1, 2, 3, 4, 5]
    assert ends(jobs) == [("done", [10, ["other"]])]
    assert jobs.one("SELECT count(*) FROM signals") == 0


def test_a_wait_that_nobody_answers_ends_by_its_time_out(jobs: Jobs) -> None:
    async def main() -> None:
        async with running_node(jobs.dsn, MACHINES):
            await jobs.until(PARKED, 2)
            assert jobs.do(jobs.picker.expire_awaits(10)).ids == (1,)
            assert jobs.do(jobs.picker.signal(2, "answer", "yes")).outcome == "delivered"
            await jobs.until(LIVE, 0)

    wait = [Job(fsm="patience", step="wait", state={"ms": ms}) for ms in (0, 60_000)]
    jobs.do(jobs.picker.insert_many(wait))
    asyncio.run(main())
    assert ends(jobs) == [("done", "nobody answered"), ("done", ["yes"])]


def test_a_retry_keeps_what_the_step_was_woken_for(jobs: Jobs) -> None:
    row_id = jobs.do(jobs.picker.insert(Job(fsm="patience", step="again", state={"ms": 60_000})))
    assert row_id is not None

    async def main() -> None:
        async with running_node(jobs.dsn, MACHINES):
            await jobs.until(PARKED, 1)
            jobs.do(jobs.picker.signal(row_id, "answer", 7))
            await jobs.until(LIVE, 0)

    asyncio.run(main())
    assert ends(jobs) == [("done", [2, [7]])]


def test_an_await_that_nothing_could_wake_fails_its_step(jobs: Jobs) -> None:
    run_all(jobs, Job(fsm="patience", step="forever"))
    assert "needs a time-out" in ends(jobs)[0][1]


def test_nested_and_repeated_fan_outs_with_failing_children_come_home(jobs: Jobs) -> None:
    run_all(
        jobs,
        Job(fsm="tree", step="grow", state={"depth": 1, "n": 0}),
        Job(fsm="tree", step="grow", state={"depth": 1, "n": 0, "rounds": 3}),
        Job(fsm="tree", step="grow", state={"depth": 3, "n": 0}),
        Job(fsm="tree", step="none"),
    )
    assert ends(jobs) == [("done", 2), ("done", 6), ("done", 18), ("done", 0)]
    assert jobs.one("SELECT sum(children_pending) FROM gen_durable") == 0


def test_a_child_that_cannot_be_stored_fails_its_parent_alone(jobs: Jobs) -> None:
    jobs.connection.execute(
        "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.fsm = 'poison' THEN RAISE 'poison'; END IF; RETURN NEW; END $$"
    )
    jobs.connection.execute(
        "CREATE TRIGGER poison BEFORE INSERT ON gen_durable FOR EACH ROW EXECUTE FUNCTION poison()"
    )
    good = [Job(fsm="tree", step="grow", state={"depth": 1, "n": 0}) for _ in range(5)]
    bad = [Job(fsm="tree", step=step) for step in ("poison", "nonsense")]
    notes = run_all(jobs, *good, *bad, max_delay_ms=50.0)
    assert ends(jobs)[:5] == [("done", 2)] * 5
    assert [status for status, _ in ends(jobs)[5:]] == ["failed"] * 2
    assert ends(jobs)[5][1] == "the server refused the outcome: RaiseException"
    assert "NUL" in ends(jobs)[6][1]
    assert jobs.one("SELECT count(*) FROM gen_durable WHERE parent_id IS NOT NULL") == 15
    assert notes.counts["refused"] == 1


def test_a_child_whose_identity_stands_in_an_open_transaction_holds_up_its_parent_alone(jobs: Jobs) -> None:
    children = [Job(fsm="tree", step="spawn", state={"key": key}) for key in ("free", "taken", "free too")]
    jobs.do(jobs.picker.insert_many([*children, Job(fsm="tree", step="grow", state={"depth": 1, "n": 0})]))
    notes = Notes()

    async def main() -> None:
        with psycopg.connect(jobs.dsn, autocommit=True) as stranger:
            stranger.execute("BEGIN")
            taken = Job(fsm="tree", step="grow", state={"depth": 0, "n": 0}, correlation_key="taken")
            perform(stranger, jobs.picker.insert(taken))
            async with running_node(
                jobs.dsn, MACHINES, notes=notes, max_delay_ms=50.0, lease_ttl_ms=15_000.0
            ):
                # The parent that waits, and no other: whatever shared its flush, and whatever came later.
                await jobs.until(LIVE, 1)
                assert jobs.rows(
                    "SELECT state->>'key', status::text FROM gen_durable WHERE step = 'spawn'"
                ) == [("taken", "executing")]
                stranger.execute("ROLLBACK")
                await jobs.until(LIVE, 0)

    asyncio.run(main())
    assert ends(jobs) == [("done", 1)] * 3 + [("done", 2)]
    assert notes.counts["set_aside"] >= 1
    assert "abandoned" not in notes.counts


def test_json_that_python_cannot_hold_fails_its_instance_and_not_the_node(jobs: Jobs) -> None:
    jobs.connection.execute(
        "INSERT INTO gen_durable (fsm, step, state) VALUES ('chain', 'go', '{\"left\": 1e5000}')"
    )
    run_all(jobs, Job(fsm="chain", step="go", state={"left": 1}))
    [(status, error), good] = ends(jobs)
    assert (status, good) == ("failed", ("done", [0, None]))
    assert error.startswith("ValueError: Exceeds the limit")


# ---------------------------------------------------------------------------------------------------- inline


def kinds(notes: Notes) -> list[str]:
    return [value["kind"] for kind, name, value in notes.completions if name == "step" and kind == "ok"]


def claimed(notes: Notes) -> int:
    return sum(
        len(value["ids"]) for kind, name, value in notes.completions if name == "claim" and kind == "ok"
    )


def test_a_chain_of_inline_steps_is_one_claim(jobs: Jobs) -> None:
    notes = run_all(jobs, Job(fsm="chain", step="go", state={"left": 10}))
    assert kinds(notes) == ["continue"] * 10 + ["done"]
    assert claimed(notes) == 1
    assert ends(jobs) == [("done", [0, None])]
    assert jobs.rows("SELECT turn, locked_by, attempt FROM gen_durable") == [(0, None, 0)]


@pytest.mark.parametrize(
    ("step", "went", "key"),
    [
        ("go", ["continue", "done"], "old"),
        ("keep", ["continue", "continue", "done"], "old"),
        ("drop", ["continue", "continue", "done"], None),
        ("change", ["next", "continue", "done"], "new"),
    ],
)
def test_a_key_that_is_kept_or_dropped_goes_on_and_a_new_one_is_requeued(
    jobs: Jobs, step: str, went: list[str], key: str | None
) -> None:
    notes = run_all(jobs, Job(fsm="chain", step=step, state={"left": 1}, concurrency_key="old"))
    assert kinds(notes) == went
    assert claimed(notes) == 1 + (step == "change")
    assert ends(jobs) == [("done", [0, key])]


def test_a_step_that_this_node_does_not_have_is_left_to_another(jobs: Jobs) -> None:
    notes = run_all(jobs, Job(fsm="chain", step="leave"))
    assert kinds(notes) == ["next", "stop"]


def test_an_inline_step_is_handed_what_is_left_of_the_inbox(jobs: Jobs) -> None:
    row_id = jobs.do(jobs.picker.insert(Job(fsm="chain", step="await_first")))
    assert row_id is not None

    async def main() -> None:
        async with running_node(jobs.dsn, MACHINES):
            await jobs.until(PARKED, 1)
            jobs.do(jobs.picker.signal(row_id, "other"))
            jobs.do(jobs.picker.signal(row_id, "go"))
            await jobs.until(LIVE, 0)

    asyncio.run(main())
    assert ends(jobs) == [("done", [["go"], ["other"], None])]


def test_a_continuation_that_the_server_refuses_ends_its_instance_and_runs_nothing_more(jobs: Jobs) -> None:
    jobs.connection.execute("ALTER TABLE gen_durable ADD CHECK (step <> 'refused')")
    run_all(jobs, Job(fsm="chain", step="refuse"))
    assert ends(jobs) == [("failed", "the server refused the outcome: CheckViolation")]


class Forgetful(Picker):
    """Every third flush commits, and its answer is lost."""

    flushes = 0

    def flush(self, commits: Sequence[Commit]) -> Operation[Ended]:
        ended = yield from super().flush(commits)
        Forgetful.flushes += 1
        if Forgetful.flushes % 3 == 0:
            raise psycopg.OperationalError("the answer is lost")
        return ended


def test_a_continuation_whose_answer_was_lost_goes_on_by_another_claim_at_once(jobs: Jobs) -> None:
    # There is no reaper: a row that waited for its lease would wait for ever.
    Forgetful.flushes = 0
    job = Job(fsm="chain", step="go", state={"left": 10})
    notes = run_all(jobs, job, picker=Forgetful(), reaper=False, lease_ttl_ms=60_000.0)
    assert ends(jobs) == [("done", [0, None])]
    assert notes.counts["stale"] >= 3
    steps = [value["id"] for value in notes.sent("step")]
    assert len(steps) == 11


def test_a_chain_ends_where_a_node_stops_and_another_goes_on(jobs: Jobs) -> None:
    jobs.do(jobs.picker.insert(Job(fsm="chain", step="go", state={"left": 100_000})))

    async def main() -> None:
        async with running_node(jobs.dsn, MACHINES, max_delay_ms=0.0):
            async with asyncio.timeout(20):
                while not jobs.one("SELECT turn > 3 FROM gen_durable"):
                    await asyncio.sleep(0.001)

    asyncio.run(main())
    [(status, turn, owner)] = jobs.rows("SELECT status::text, turn, locked_by FROM gen_durable")
    assert (status, turn, owner) == ("runnable", 0, None)
