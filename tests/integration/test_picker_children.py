"""Children on a real server: spawn and park as one, the aggregated join, and the races and lock orders of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import errors

from engine.picker import Commit, Ended, Hold, Job, Picker
from invariants.mutants import REGISTRY
from invariants.mutants.protocol import picker_of
from stress.scripts.race import TIMEOUT_S, Race
from stress.scripts.steps import Pause, claim, counted, held, insert, job, outcome


def spawn(race: Race, hold: Hold, *children: Job, **fields: Any) -> Ended:
    return race.do(race.picker.flush([outcome(hold, "childs", children=children, **fields)]))


def family(race: Race, count: int, name: str = "parent", **fields: Any) -> tuple[int, list[Hold]]:
    """A parked parent and its claimed children."""
    hold = held(race, name)
    spawn(race, hold, *[job(queue=f"of {name}", **fields) for _ in range(count)])
    return hold.id, [Hold(row.id, f"child of {name}") for row in claim(
        race, f"child of {name}", batch=count, queue=f"of {name}"
    )]  # fmt: skip


def pending(race: Race, row_id: int) -> tuple[str, int]:
    status, count = race.row(row_id, "status::text, children_pending")
    return status, count


def test_spawn_and_park_are_one_and_the_parent_wakes_with_the_last_child(race: Race) -> None:
    parent, children = family(race, 3)
    assert pending(race, parent) == ("awaiting_children", 3)
    assert race.row(parent, "locked_by, attempt") == (None, 0)

    for hold, kind, left in zip(children, ("done", "stop", "done"), (2, 1, 0), strict=True):
        ended = race.do(race.picker.flush([outcome(hold, kind, result="1" if kind == "done" else None)]))
        assert pending(race, parent) == ("awaiting_children" if left else "runnable", left)
        assert ended.woken == (() if left else ("default",))

    around = race.do(race.picker.enrich([parent]))[parent]
    assert [(child.id, child.status, child.result) for child in around.children] == [
        (children[0].id, "done", "1"), (children[1].id, "failed", None), (children[2].id, "done", "1"),
    ]  # fmt: skip


def test_only_the_children_that_landed_are_counted_and_nobody_waits_for_none(race: Race) -> None:
    insert(race, queue="x", correlation_key="taken")
    some, none = held(race, "some"), held(race, "none")
    twins = [job(queue="x", correlation_key=key) for key in ("new", "taken", "new")]
    spawn(race, some, *twins, job(queue="x"))
    assert pending(race, some.id) == ("awaiting_children", 2)

    assert spawn(race, none, job(queue="x", correlation_key="taken")).woken == ()
    assert pending(race, none.id) == ("runnable", 0)


def test_a_parent_of_no_children_goes_on_at_once(race: Race) -> None:
    hold = held(race)
    assert spawn(race, hold, step="next").woken == ()
    assert pending(race, hold.id) == ("runnable", 0)


def test_parents_of_one_batch_share_the_statements_and_the_first_has_the_identity(race: Race) -> None:
    race.do(race.picker.insert_many([job()] * 20))
    holds = [Hold(row.id, "c") for row in claim(race, "c", batch=20)]
    children = (job(queue="x", correlation_key="one"), job(queue="y"))
    calls: list[str] = []
    ended = race.do(
        counted(race.picker.flush([outcome(hold, "childs", children=children) for hold in holds]), calls)
    )
    assert calls == ["picker/flush_patience", "picker/flush_lock", "picker/flush_children", "picker/flush"]
    assert sorted(ended.woken) == ["x", "y"]
    assert sorted(pending(race, hold.id)[1] for hold in holds) == [1] * 19 + [2]


def test_a_batch_of_everything_is_eight_statements(race: Race) -> None:
    _, [ending] = family(race, 1)
    going, waiting, spawning = held(race, "going"), held(race, "waiting"), held(race, "spawning")
    signal = race.do(race.picker.signal(going.id, "go")).signal or 0
    commits = [
        outcome(ending, "done"),
        outcome(going, "next", consumed=(signal,)),
        outcome(waiting, "await", awaits=("go",)),
        outcome(spawning, "childs", children=(job(queue="x"),)),
    ]
    calls: list[str] = []
    ended = race.do(counted(race.picker.flush(commits), calls))
    assert len(ended.holds) == 4
    assert [call.removeprefix("picker/") for call in calls] == [
        "flush_patience", "flush_lock", "flush_children", "flush",
        "flush_drop", "flush_consume", "flush_join", "flush_recheck",
    ]  # fmt: skip
    assert ended.woken == ("x", "default")


def test_siblings_that_end_in_one_batch_change_their_parent_once(race: Race) -> None:
    parent, children = family(race, 5)
    race.rows("CREATE TABLE changes (id bigint)")
    race.rows(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO changes VALUES (NEW.id); RETURN NEW; END $$"
    )
    race.rows("CREATE TRIGGER note BEFORE UPDATE ON gen_durable FOR EACH ROW EXECUTE FUNCTION note()")
    race.do(race.picker.flush([outcome(hold, "done") for hold in children]))
    assert race.rows("SELECT count(*) FROM changes WHERE id = %s", parent) == [(1,)]
    assert pending(race, parent) == ("runnable", 0)


def test_a_parent_may_spawn_again_and_children_may_be_parents(race: Race) -> None:
    parent, [child] = family(race, 1)
    spawn(race, child, job(queue="grandchildren"))
    assert pending(race, child.id) == ("awaiting_children", 1)
    [grandchild] = claim(race, "g", queue="grandchildren")
    race.do(race.picker.flush([Commit(id=grandchild.id, claim="g", kind="done")]))
    [row] = claim(race, "again", queue="of parent")
    assert pending(race, parent) == ("awaiting_children", 1)
    race.do(race.picker.flush([Commit(id=row.id, claim="again", kind="done")]))

    [row] = claim(race, "second round")
    assert row.id == parent
    spawn(race, Hold(parent, "second round"), job(queue="x"), job(queue="x"))
    assert pending(race, parent) == ("awaiting_children", 2)
    assert len(race.do(race.picker.enrich([parent]))[parent].children) == 3


def test_a_child_that_is_not_terminal_yet_counts(race: Race) -> None:
    parent, children = family(race, 4)
    kinds: tuple[tuple[Any, dict[str, Any]], ...] = (
        ("next", {}), ("retry", {}), ("await", {"awaits": ("a",)}), ("continue", {"lease_ms": 1.0}),
    )  # fmt: skip
    race.do(
        race.picker.flush(
            [outcome(hold, kind, **more) for hold, (kind, more) in zip(children, kinds, strict=True)]
        )
    )
    assert pending(race, parent) == ("awaiting_children", 4)


def test_a_stale_parent_spawns_nothing_and_its_companions_do(race: Race) -> None:
    stale = held(race, "old", lease_ms=-1)
    race.do(race.picker.reap(10))
    claim(race, "new")
    good = held(race, "good")
    child = job(queue="x")
    ended = race.do(race.picker.flush([outcome(hold, "childs", children=(child,)) for hold in (stale, good)]))
    assert ended.holds == (good,)
    assert race.rows("SELECT parent_id FROM gen_durable WHERE queue = 'x'") == [(good.id,)]
    assert pending(race, stale.id) == ("executing", 0)


# ---------------------------------------------------------------------------------------------------- races


@pytest.mark.parametrize("before", ["picker/flush_children", "picker/flush"])
def test_the_reaper_cannot_come_between_the_children_and_the_park(race: Race, before: str) -> None:
    hold = held(race, lease_ms=-1)
    pause = Pause(before)
    ended = race.start(
        "parent", pause.of(race.picker.flush([outcome(hold, "childs", children=(job(queue="x"),))]))
    )
    pause.reached()
    assert race.do(race.picker.reap(10)).holds == ()
    pause.end()
    assert ended.result(TIMEOUT_S).holds == (hold,)
    assert pending(race, hold.id) == ("awaiting_children", 1)


def test_without_the_parents_lock_the_reaper_slips_between_and_a_child_is_counted_by_nobody(
    race: Race,
) -> None:
    broken = picker_of(REGISTRY["children-without-parent-lock"])
    hold = held(race, lease_ms=-1)
    pause = Pause("picker/flush")
    ended = race.start(
        "parent", pause.of(broken.flush([outcome(hold, "childs", children=(job(queue="x"),))]))
    )
    pause.reached()
    assert race.do(race.picker.reap(10)).holds == (hold,)
    pause.end()
    assert ended.result(TIMEOUT_S).holds == ()
    assert race.rows("SELECT count(*) FROM gen_durable WHERE parent_id = %s", hold.id) == [(1,)]
    assert pending(race, hold.id) == ("runnable", 0)


def test_two_flushes_end_the_last_two_children_and_one_of_them_wakes_the_parent(race: Race) -> None:
    parent, [first, second] = family(race, 2)
    pause = Pause("picker/flush_join")
    one = race.start("one", pause.of(race.picker.flush([outcome(first, "done")])))
    pause.reached()
    two = race.begin("two", race.picker.flush([outcome(second, "stop")]))
    pause.end()
    assert (one.result(TIMEOUT_S).woken, two.result(TIMEOUT_S).woken) == ((), ("default",))
    assert pending(race, parent) == ("runnable", 0)


def test_two_flushes_that_end_children_of_two_parents_crosswise_wait_in_one_order(race: Race) -> None:
    parents, children = zip(*(family(race, 2, name) for name in ("a", "b")), strict=True)
    pause = Pause("picker/flush_join")
    crossed = [
        [outcome(children[parent][n], "done") for parent in order] for n, order in enumerate(((0, 1), (1, 0)))
    ]
    one = race.start("one", pause.of(race.picker.flush(crossed[0])))
    pause.reached()
    two = race.begin("two", race.picker.flush(crossed[1]))
    pause.end()
    one.result(TIMEOUT_S)
    assert two.result(TIMEOUT_S).woken == ("default",)
    assert [pending(race, parent) for parent in parents] == [("runnable", 0)] * 2


def identities_crossed(race: Race, picker: Picker, at: str) -> list[Exception | Ended]:
    """Two flushes, each ending the identity that the other spawns, meet with both having come to that statement."""
    batches = []
    for mine, other in (("a", "b"), ("b", "a")):
        ending = held(race, f"ends {mine}", correlation_key=mine)
        spawning = held(race, f"spawns {other}")
        child = job(queue="x", correlation_key=other)
        batches.append([outcome(ending, "done"), outcome(spawning, "childs", children=(child,))])
    pauses = [Pause(at) for _ in batches]
    flushes = [
        race.start(f"flush {n}", pause.of(picker.flush(batch)))
        for n, (pause, batch) in enumerate(zip(pauses, batches, strict=True))
    ]
    for pause in pauses:
        pause.reached()
    for pause in pauses:
        pause.end()
    answers: list[Exception | Ended] = []
    for flush in flushes:
        error = flush.exception(TIMEOUT_S)
        answers.append(flush.result() if error is None else error)  # type: ignore[arg-type]
    return answers


@pytest.mark.parametrize("at", ["picker/flush_children", "picker/flush"])
def test_two_flushes_that_end_and_spawn_each_others_identities_do_not_deadlock(race: Race, at: str) -> None:
    answers = identities_crossed(race, Picker(), at)
    assert all(isinstance(answer, Ended) and len(answer.holds) == 2 for answer in answers), answers
    # Let go before its insert, the second may find that the first has ended the identity: its child lands then.
    landed = 0 if at == "picker/flush" else 1
    [(joining,)] = race.rows("SELECT count(*) FROM gen_durable WHERE status = 'awaiting_children'")
    assert joining <= landed


def test_a_spawn_waits_for_the_flush_that_is_ending_its_identity_and_then_lands(race: Race) -> None:
    ending, spawning = held(race, "ends", correlation_key="k"), held(race, "spawns")
    pause = Pause("picker/flush_drop")
    ended = race.start("ender", pause.of(race.picker.flush([outcome(ending, "done")])))
    pause.reached()
    child = job(queue="x", correlation_key="k")
    spawned = race.begin("spawner", race.picker.flush([outcome(spawning, "childs", children=(child,))]))
    pause.end()
    ended.result(TIMEOUT_S)
    assert spawned.result(TIMEOUT_S).woken == ("x",)
    assert pending(race, spawning.id) == ("awaiting_children", 1)


def spawn_meets_join(race: Race, make: Callable[[], Picker]) -> list[Exception | Ended]:
    """A flush with a stale outcome of a parent waits for an identity; the flush that ends it waits for that parent.

    F's snapshot is from when the parent executed under F's node; F is then held up at an earlier row. Meanwhile the
    parent is reaped, claimed by another node, and spawns the child of identity k. F locks the parent, in vain, and
    inserts a child of its own with identity k; J ends the child.
    """
    first = held(race, "first")
    parent = held(race, "old", lease_ms=-1)
    picker = make()
    spawning = outcome(first, "childs", children=(job(queue="x", correlation_key="k"),))
    at_lock, at_children, at_join = (
        Pause("picker/flush_lock"),
        Pause("picker/flush_children"),
        Pause("picker/flush_join"),
    )
    with race.locked(first.id):
        f = race.start("f", at_children.of(at_lock.of(picker.flush([spawning, outcome(parent, "retry")]))))
        at_lock.reached()
        at_lock.end()
        race.until_blocked("f")
        race.do(race.picker.reap(10))
        claim(race, "new")
        spawn(race, Hold(parent.id, "new"), job(queue="y", correlation_key="k"))
        [child] = claim(race, "child", queue="y")
    at_children.reached()
    ending = picker.flush([Commit(id=child.id, claim="child", kind="done")])
    j = race.start("j", at_join.of(ending))
    if make is Picker:
        race.until_blocked("j")  # at its first statement: it has changed nothing
        at_join.end()
        at_children.end()
    else:
        at_join.reached()
        at_children.end()
        race.until_blocked("f")
        at_join.end()
    answers: list[Exception | Ended] = []
    for flush in (f, j):
        error = flush.exception(TIMEOUT_S)
        answers.append(flush.result() if error is None else error)  # type: ignore[arg-type]
    return answers


def test_a_spawn_and_a_join_do_not_deadlock_over_a_parent_that_a_stale_outcome_locked(race: Race) -> None:
    answers = spawn_meets_join(race, Picker)
    assert [isinstance(answer, Ended) for answer in answers] == [True, True], answers
    assert race.rows("SELECT count(*) FROM gen_durable WHERE status = 'awaiting_children'") == [(0,)]


def test_with_parents_locked_by_the_join_they_do(race: Race) -> None:
    answers = spawn_meets_join(race, lambda: picker_of(REGISTRY["parents-locked-late"]))
    assert [type(answer) for answer in answers if not isinstance(answer, Ended)] == [errors.DeadlockDetected]
