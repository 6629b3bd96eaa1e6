"""Situations of the picker's statements."""

from __future__ import annotations

from typing import Any, Final

from engine.picker import Commit, Job
from stress.situations.situation import FUTURE, MANY, PAST, Situation, free, held, job, lock, row

DURABLE: Final = "gen_durable"
STATUSES: Final = "SELECT id, status::text FROM gen_durable ORDER BY id"
KEYED: Final[dict[str, Any]] = {"correlation_scope": ["runnable", "executing"]}
LATER: Final = "2001-01-02 00:00:00+00"
# Inserts as the engine does, from a session that may not wait: nothing where a row that stands has the identity.
IDENTITY: Final = (
    "INSERT INTO gen_durable (fsm, step, correlation_key, correlation_scope) VALUES ('m', 's', '{}', '{{runnable}}') "
    "ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING RETURNING correlation_key"
)


def flush(*commits: Commit) -> tuple[Any, ...]:
    """The arguments of `picker/flush`."""
    return tuple(list(column) for column in zip(*((*one.columns(), 0) for one in commits), strict=True))


def done(id: int, claim: str = "c", **named: Any) -> Commit:  # noqa: A002
    return Commit(id=id, claim=claim, kind="done", result="1", **named)


def many(*jobs: Job) -> tuple[Any, ...]:
    """The arguments of `picker/insert_many`."""
    return tuple(list(column) for column in zip(*(one.columns() for one in jobs), strict=True))


def named(identity: str | None) -> Job:
    scope = ("runnable", "executing") if identity else ()
    return Job(fsm="m", step="s", correlation_key=identity, correlation_scope=scope)  # type: ignore[arg-type]


def in_the_inbox(id: int, target: int, name: str = "go") -> str:  # noqa: A002
    return row("signals", id=id, target_id=target, name=name)


CLAIM: Final = ("q", 10, "w", 60_000.0, ["gate"])
SHOWN: Final = (0, 1)  # the place and the id

SITUATIONS: Final = (
    # ---- claim
    Situation(
        statement="picker/claim",
        says="it takes what is runnable, of its queue and due, and changes nothing else",
        given=(
            job(1, queue="q"),
            job(2, queue="q", eligible_at=FUTURE),
            job(3, queue="r"),
            job(4, queue="q", status="done"),
            job(5, queue="q", status="awaiting_signal"),
            held(6, queue="q"),
        ),
        arguments=CLAIM,
        answer=[(1, 1)],
        shows=SHOWN,
        after={
            "SELECT id, status::text, locked_by FROM gen_durable ORDER BY id": [
                (1, "executing", "w"), (2, "runnable", None), (3, "runnable", None), (4, "done", None),
                (5, "awaiting_signal", None), (6, "executing", "c"),
            ]
        },
    ),
    Situation(
        statement="picker/claim",
        says="of more than it may take it takes the first in the pick order",
        given=(
            job(4, queue="q", priority=2),
            job(3, queue="q", priority=1, eligible_at=LATER),
            job(2, queue="q", priority=1),
            job(1, queue="q", priority=0, eligible_at=LATER),
        ),
        arguments=("q", 2, "w", 60_000.0, []),
        answer=[(1, 1), (2, 2)],
        shows=SHOWN,
    ),
    Situation(
        statement="picker/claim",
        says="a key of which one executes waits; another key, a row that only asks for one, and a gate's key do not",
        given=(
            held(10, queue="q", concurrency_key="k"),
            held(11, queue="q", concurrency_key="shard", concurrency_shard=0),
            held(12, queue="q", concurrency_key="gate:1", concurrency_shard=0),
            job(1, queue="q", concurrency_key="k"),
            job(2, queue="q", concurrency_key="j"),
            job(3, queue="q", concurrency_key="j"),
            job(4, queue="q"),
            job(5, queue="q", concurrency_key="shard"),
            job(6, queue="q", concurrency_key="gate:1"),
            job(7, queue="q", concurrency_key="gate:1"),
        ),
        arguments=CLAIM,
        answer=[(2,), (4,), (5,), (6,), (7,)],
        shows=(1,),
    ),
    Situation(
        statement="picker/claim",
        says="a gate's row is taken also beside one that executes without a slot",
        given=(held(10, queue="q", concurrency_key="gate:1"), job(1, queue="q", concurrency_key="gate:1")),
        arguments=CLAIM,
        answer=[(1,)],
        shows=(1,),
    ),
    Situation(
        statement="picker/claim",
        says="a row that another holds is passed over",
        given=(job(1, queue="q"), job(2, queue="q")),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=CLAIM,
        answer=[(1, 2)],
        shows=SHOWN,
    ),
    Situation(
        statement="picker/claim",
        says="a key that another claim is taking is left to the next pick",
        given=(job(1, queue="q", concurrency_key="k"), job(2, queue="q", concurrency_key="j")),
        holding=("SELECT pg_advisory_xact_lock(1735681636, hashtext('k') & 4095)",),
        arguments=CLAIM,
        answer=[(2,)],
        shows=(1,),
    ),
    # ---- expire_awaits
    Situation(
        statement="picker/expire_awaits",
        says="it wakes who is parked and late, and changes nothing else",
        given=(
            job(1, status="awaiting_signal", await_deadline=PAST),
            job(2, status="awaiting_signal", await_deadline=FUTURE),
            job(3, status="awaiting_signal"),
            job(4, status="done", await_deadline=PAST),
            job(5, status="awaiting_children", await_deadline=PAST),
        ),
        arguments=(10,),
        answer=[(1,)],
        shows=(0,),
        after={
            STATUSES: [
                (1, "runnable"), (2, "awaiting_signal"), (3, "awaiting_signal"), (4, "done"), (5, "awaiting_children"),
            ]
        },
    ),
    Situation(
        statement="picker/expire_awaits",
        says="of more than it may wake it wakes who is late the longest",
        given=(
            job(2, status="awaiting_signal", await_deadline=LATER),
            job(1, status="awaiting_signal", await_deadline=PAST),
        ),
        arguments=(1,),
        answer=[(1,)],
        shows=(0,),
    ),
    Situation(
        statement="picker/expire_awaits",
        says="a row that another holds is passed over",
        given=tuple(job(n, status="awaiting_signal", await_deadline=PAST) for n in (1, 2)),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=(10,),
        answer=[(2,)],
        shows=(0,),
    ),
    # ---- reap
    Situation(
        statement="picker/reap",
        says="it takes back what executes and is late, and changes nothing else",
        given=(held(1, lease_expires_at=PAST), held(2), job(3), job(4, status="done")),
        arguments=(10,),
        answer=[(1, "c")],
        shows=(0, 1),
        after={STATUSES: [(1, "runnable"), (2, "executing"), (3, "runnable"), (4, "done")]},
    ),
    Situation(
        statement="picker/reap",
        says="of more than it may take it takes who is late the longest, of those the lowest id",
        given=(
            held(3, lease_expires_at=LATER),
            held(2, lease_expires_at=PAST),
            held(1, lease_expires_at=PAST),
        ),
        arguments=(1,),
        answer=[(1,)],
        shows=(0,),
    ),
    Situation(
        statement="picker/reap",
        says="a row that another holds is passed over",
        given=tuple(held(n, lease_expires_at=PAST) for n in (1, 2)),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=(10,),
        answer=[(2,)],
        shows=(0,),
    ),
    # ---- heartbeat
    Situation(
        statement="picker/heartbeat",
        says="it extends what is held under the claim that it names, and nothing else",
        given=(held(1, "a"), held(2, "b"), held(3, "c"), held(4, "a")),
        arguments=([1, 2], ["a", "stale"], 1_000.0),
        answer=[(1, "a")],
        after={f"SELECT id FROM gen_durable WHERE lease_expires_at = '{FUTURE}' ORDER BY id": [(2,), (3,), (4,)]},
    ),
    Situation(
        statement="picker/heartbeat",
        says="a row that another holds is passed over",
        given=(held(1), held(2)),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=([1, 2], ["c", "c"], 1_000.0),
        answer=[(2, "c")],
    ),
    # ---- release
    Situation(
        statement="picker/release",
        says="it gives back what is held under the claim that it names, with its slot, and nothing else",
        given=(
            held(1, "a", concurrency_key="g", concurrency_shard=2),
            held(2, "b"),
            held(3, "a"),
            job(4),
        ),
        arguments=([1, 2, 4], ["a", "stale", "a"]),
        answer=[(1, "a", "g", 2)],
        shows=(0, 1, 3, 4),
        after={STATUSES: [(1, "runnable"), (2, "executing"), (3, "executing"), (4, "runnable")]},
    ),
    Situation(
        statement="picker/release",
        says="it waits for the lowest id first, and holds no other meanwhile",
        given=(held(2), held(1)),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=([2, 1], ["c", "c"]),
        waits=True,
        meanwhile={free(DURABLE, "id"): [(2,)]},
        answer=[(1,), (2,)],
        shows=(0,),
    ),
    Situation(
        statement="picker/release",
        says="a row that another has claimed while it waited stays the other's",
        given=(held(1),),
        holding=("UPDATE gen_durable SET locked_by = 'other' WHERE id = 1",),
        arguments=([1], ["c"]),
        waits=True,
        answer=[],
        after={STATUSES: [(1, "executing")]},
    ),
    Situation(
        statement="picker/release",
        says="while it waits it has changed nothing, and stands in nobody's way at the arbiter",
        given=(held(1, concurrency_key="k"), held(2)),
        holding=(lock(DURABLE, "id = 2", "FOR NO KEY UPDATE"),),
        arguments=([1, 2], ["c", "c"]),
        waits=True,
        meanwhile={
            "INSERT INTO gen_durable (fsm, step, status, locked_by, lease_expires_at, concurrency_key) "
            "VALUES ('m', 's', 'executing', 'w', now(), 'k') ON CONFLICT DO NOTHING RETURNING id": [],
        },
        answer=[(1,), (2,)],
        shows=(0,),
    ),
    # ---- flush
    Situation(
        statement="picker/flush",
        says="it commits what its claim still holds in this turn, with the slot that it frees, and nothing else",
        given=(
            held(1, concurrency_key="g:1", concurrency_shard=3, parent_id=None),
            held(2, turn=5),
            held(3, "other"),
            held(4, turn=1),
            held(5),
            job(6, status="awaiting_children", children_pending=2),
            held(7, parent_id=6),
        ),
        arguments=flush(done(1), done(2), done(3), done(4, turn=1), done(7), done(8, turn=5)),
        answer=[(1, "c", "g:1", 3, None), (4, "c", None, None, None), (7, "c", None, None, 6)],
        shows=(0, 1, 3, 4, 5),
        after={
            STATUSES: [
                (1, "done"), (2, "executing"), (3, "executing"), (4, "done"), (5, "executing"),
                (6, "awaiting_children"), (7, "done"),
            ]
        },
    ),
    Situation(
        statement="picker/flush",
        says="a row in another turn is no other row's outcome",
        given=(held(1), held(2, turn=5)),
        arguments=flush(done(1, turn=5), done(2, turn=5)),
        answer=[(2,)],
        shows=(0,),
        after={STATUSES: [(1, "executing"), (2, "done")]},
    ),
    Situation(
        statement="picker/flush",
        says="it waits for no row but its own",
        given=(held(1), held(2), held(3, "other")),
        holding=(lock(DURABLE, "id <> 1", "FOR NO KEY UPDATE"),),
        arguments=flush(done(1), done(3)),
        answer=[(1,)],
        shows=(0,),
    ),
    Situation(
        statement="picker/flush",
        says="it waits for the lowest id first, and holds no other meanwhile",
        given=(held(2), held(1)),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=flush(done(2), done(1)),
        waits=True,
        meanwhile={free(DURABLE, "id"): [(2,)]},
        answer=[(1,), (2,)],
        shows=(0,),
    ),
    Situation(
        statement="picker/flush",
        says="while it waits for a parent it has changed nothing, and an insert of an identity does not wait",
        given=(
            job(9, status="awaiting_children", children_pending=1),
            held(1, parent_id=9, correlation_key="i", **KEYED),
            held(2),
        ),
        holding=(lock(DURABLE, "id = 9", "FOR NO KEY UPDATE"),),
        arguments=flush(done(1), done(2)),
        waits=True,
        meanwhile={IDENTITY.format("i"): []},
        answer=[(1,), (2,)],
        shows=(0,),
    ),
    Situation(
        statement="picker/flush",
        says="what another has claimed, or continued, while it waited is not its to commit",
        given=(held(1), held(2), held(3)),
        holding=(
            "UPDATE gen_durable SET locked_by = 'other' WHERE id = 1",
            "UPDATE gen_durable SET turn = 1 WHERE id = 2",
        ),
        arguments=flush(done(1), done(2), done(3)),
        waits=True,
        answer=[(3,)],
        shows=(0,),
        after={STATUSES: [(1, "executing"), (2, "executing"), (3, "done")]},
    ),
    # ---- flush_lock
    Situation(
        statement="picker/flush_lock",
        says="it answers what its claim still holds in this turn",
        given=(held(1), held(2, turn=5), held(3, "other"), held(4), job(5)),
        arguments=([1, 2, 3, 5], ["c", "c", "c", "c"], [0, 0, 0, 0], ["childs"] * 4),
        answer=[(1, "c")],
    ),
    Situation(
        statement="picker/flush_lock",
        says="a row in another turn is no other row's outcome",
        given=(held(1), held(2, turn=5)),
        arguments=([1, 2], ["c", "c"], [5, 5], ["childs", "childs"]),
        answer=[(2, "c")],
    ),
    Situation(
        statement="picker/flush_lock",
        says="it waits for no row but its own",
        given=(held(1), held(2), held(3, "other")),
        holding=(lock(DURABLE, "id <> 1", "FOR NO KEY UPDATE"),),
        arguments=([1, 3], ["c", "c"], [0, 0], ["childs", "childs"]),
        answer=[(1, "c")],
    ),
    Situation(
        statement="picker/flush_lock",
        says="it waits for the lowest id first, and holds no other meanwhile",
        given=(held(2), held(1)),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=([2, 1], ["c", "c"], [0, 0], ["childs", "childs"]),
        waits=True,
        meanwhile={free(DURABLE, "id"): [(2,)]},
        answer=[(1, "c"), (2, "c")],
    ),
    Situation(
        statement="picker/flush_lock",
        says="it locks the parent of what ends, whatever the join",
        given=(job(9, status="awaiting_children", children_pending=1), held(1, parent_id=9)),
        holding=(lock(DURABLE, "id = 9", "FOR NO KEY UPDATE"),),
        arguments=([1], ["c"], [0], ["done"]),
        waits=True,
        answer=[(1, "c")],
    ),
    Situation(
        statement="picker/flush_lock",
        says="what another has claimed while it waited is not its own",
        given=(held(1), held(2)),
        holding=("UPDATE gen_durable SET locked_by = 'other' WHERE id = 1",),
        arguments=([1, 2], ["c", "c"], [0, 0], ["childs", "childs"]),
        waits=True,
        answer=[(2, "c")],
    ),
    # ---- flush_children
    Situation(
        statement="picker/flush_children",
        says="identities are met in their order, and a later one is not taken meanwhile",
        given=(held(1),),
        holding=(job(7, correlation_key="a", **KEYED),),
        arguments=(*many(named("b"), named("a")), [1, 1]),
        waits=True,
        meanwhile={IDENTITY.format("b"): [("b",)]},
        answer=[(1, "default")],
        shows=(0, 2),
    ),
    Situation(
        statement="picker/flush_children",
        says="a child whose identity is taken does not land, and the others do",
        given=(held(1), job(7, correlation_key="a", **KEYED)),
        arguments=(*many(named("b"), named("a"), named(None)), [1, 1, 1]),
        answer=[(1,), (1,)],
        shows=(0,),
        after={"SELECT correlation_key FROM gen_durable WHERE parent_id = 1 ORDER BY 1": [("b",), (None,)]},
    ),
    # ---- riders
    Situation(
        statement="picker/flush_consume",
        says="it deletes the pairs that it names",
        given=(job(1), job(2), *(in_the_inbox(n, 1) for n in (11, 12)), *(in_the_inbox(n, 2) for n in (21, 22))),
        arguments=([1, 1], [11, 21]),
        after={"SELECT id FROM signals ORDER BY id": [(12,), (21,), (22,)]},
    ),
    Situation(
        statement="picker/flush_drop",
        says="it deletes the inboxes that it names",
        given=(job(1), job(2), in_the_inbox(11, 1), in_the_inbox(21, 2)),
        arguments=([1],),
        after={"SELECT id FROM signals ORDER BY id": [(21,)]},
    ),
    Situation(
        statement="picker/flush_join",
        says="it counts each child once off its own parent, and wakes one that waits for no more",
        given=tuple(job(n, queue=f"q{n}", status="awaiting_children", children_pending=2) for n in (1, 2, 3)),
        arguments=([1, 1, 2],),
        answer=[(1, "q1"), (2, None)],
        after={
            "SELECT id, children_pending, status::text FROM gen_durable ORDER BY id": [
                (1, 0, "runnable"), (2, 1, "awaiting_children"), (3, 2, "awaiting_children"),
            ]
        },
    ),
    Situation(
        statement="picker/flush_recheck",
        says="of those that it names it wakes who is parked, and has an unseen signal of a name that it awaits",
        given=(
            *(job(n, queue=f"q{n}", status="awaiting_signal", awaits=["go"]) for n in (1, 2, 3, 4)),
            held(5, queue="q5", awaits=["go"]),
            job(6, queue="q6", status="awaiting_signal", awaits=["go"]),
            *(in_the_inbox(n, n) for n in (1, 3, 5, 6)),
            in_the_inbox(2, 2, "other"),
            in_the_inbox(61, 6),
        ),
        arguments=([1, 2, 4, 5, 6], [1, 6]),
        answer=[("q6",)],
        after={
            STATUSES: [*((n, "awaiting_signal") for n in (1, 2, 3, 4)), (5, "executing"), (6, "runnable")],
        },
    ),
    Situation(
        statement="picker/inbox",
        says="the inboxes that it names, by target and oldest first",
        given=(job(1), job(2), job(3), *(in_the_inbox(n, n // 10) for n in (22, 21, 31, 12, 11))),
        arguments=([2, 1],),
        answer=[(1, 11), (1, 12), (2, 21), (2, 22)],
        shows=(0, 1),
        in_order=True,
    ),
    Situation(
        statement="picker/children",
        says="the children of those that it names, by parent and oldest first",
        given=(job(1), job(2), job(3), *(job(n, parent_id=n // 10) for n in (22, 21, 31, 12, 11)), job(9)),
        arguments=([2, 1],),
        answer=[(1, 11), (1, 12), (2, 21), (2, 22)],
        shows=(0, 1),
        in_order=True,
    ),
    # ---- insert
    Situation(
        statement="picker/insert",
        says="an identity that is taken is taken",
        given=(job(7, correlation_key="a", **KEYED),),
        arguments=named("a").columns(),
        answer=[],
    ),
    Situation(
        statement="picker/insert_many",
        says="it answers for each job, in their order, and inserts those whose identity is free",
        given=(job(7, correlation_key="b", **KEYED),),
        arguments=many(named("c"), named("b"), named("a"), named(None)),
        answer=[(1,), (2,), (3,), (4,)],
        shows=(0,),
        in_order=True,
        after={"SELECT correlation_key FROM gen_durable ORDER BY 1": [("a",), ("b",), ("c",), (None,)]},
    ),
    Situation(
        statement="picker/insert_many",
        says="identities are met in their order, and a later one is not taken meanwhile",
        holding=(job(7, correlation_key="a", **KEYED),),
        arguments=many(named("b"), named("a")),
        waits=True,
        meanwhile={IDENTITY.format("b"): [("b",)]},
        answer=[(1,), (2,)],
        shows=(0,),
    ),
    Situation(
        statement="picker/insert_many",
        says="it answers in the order of the jobs, however many there are",
        arguments=many(*(named(None),) * MANY),
        answer=[(n,) for n in range(1, MANY + 1)],
        shows=(0,),
        in_order=True,
        spills=True,
    ),
    # ---- signal
    *(
        Situation(
            statement="picker/signal",
            says=f"it reaches the live target that it names by its {by}, wakes it, and nobody else",
            given=tuple(
                job(n, status="awaiting_signal", awaits=["go"], queue=f"q{n}", correlation_key=f"i{n}",
                    correlation_scope=["runnable", "awaiting_signal"])
                for n in (1, 2, 3)
            ),
            arguments=(*target, "go", "{}", dedup),
            answer=[(2, "q2")],
            shows=(0, 2),
            after={
                STATUSES: [(1, "awaiting_signal"), (2, "runnable"), (3, "awaiting_signal")],
                "SELECT target_id FROM signals": [(2,)],
            },
        )
        for by, target, dedup in (("id", (2, None), None), ("identity", (None, "i2"), "d"))
    ),
    Situation(
        statement="picker/signal",
        says="who has ended is no target",
        given=(job(1, status="done"),),
        arguments=(1, None, "go", "{}", None),
        answer=[],
    ),
    Situation(
        statement="picker/signal",
        says="a delivery that was made before is not made again, consumed or not",
        given=(job(1), row("signal_receipts", target_id=1, dedup_key="d")),
        arguments=(1, None, "go", "{}", "d"),
        answer=[(1, None, None)],
        after={"SELECT count(*) FROM signals": [(0,)]},
    ),
    Situation(
        statement="picker/signal",
        says="who ended while it waited is no target",
        given=(job(1),),
        holding=("UPDATE gen_durable SET status = 'done' WHERE id = 1",),
        arguments=(1, None, "go", "{}", None),
        waits=True,
        answer=[],
    ),
    Situation(
        statement="picker/signal",
        says="who gave the identity up while it waited is not who is meant",
        given=(job(1, correlation_key="i", **KEYED),),
        holding=("UPDATE gen_durable SET correlation_scope = '{}' WHERE id = 1",),
        arguments=(None, "i", "go", "{}", None),
        waits=True,
        answer=[],
    ),
)  # fmt: skip
