"""Situations of the sweeps' statements."""

from __future__ import annotations

from typing import Final

from stress.situations.picker import DURABLE, LATER, STATUSES
from stress.situations.situation import FUTURE, PAST, Situation, held, job, lock

NOW: Final = "2020-01-01 00:00:00+00"
# Of node `n` of instance `i`: what its claims begin with, a margin, how many, its session, its node's sessions.
RECLAIM: Final = (["i:q@n-"], 1_000.0, 10, "i@n-1", "i@n-")
ENDED: Final = {"status": "done", "updated_at": PAST}

SITUATIONS: Final = (
    Situation(
        statement="maintenance/gc_select",
        says="it looks at what ended long ago, behind the place, in order; a lone row may go",
        given=(
            job(9, **ENDED),
            job(2, **ENDED),
            job(3, **ENDED),
            job(1, status="failed", updated_at=LATER),
            job(4, status="runnable", updated_at=LATER),
            held(5, updated_at=LATER),
            job(6, status="done", updated_at=FUTURE),
            job(7, status="done", updated_at="2000-01-01 00:00:00+00"),
        ),
        arguments=(1_000.0, 10, PAST, 2),
        answer=[(3, True), (9, True), (1, True)],
        shows=(0, 2),
        in_order=True,
    ),
    Situation(
        statement="maintenance/gc_select",
        says="a page is the first of what is left",
        given=(job(1, status="done", updated_at=LATER), job(3, **ENDED), job(2, **ENDED)),
        arguments=(1_000.0, 2, "2000-01-01 00:00:00+00", 0),
        answer=[(2,), (3,)],
        shows=(0,),
        in_order=True,
    ),
    Situation(
        statement="maintenance/gc_select",
        says="a row stays while its parent lives, and while it has children; another's do not keep it",
        given=(
            job(10, status="awaiting_children", children_pending=1),
            job(11, **ENDED),
            job(1, parent_id=10, **ENDED),
            job(2, parent_id=11, **ENDED),
        ),
        arguments=(1_000.0, 10, "2000-01-01 00:00:00+00", 0),
        answer=[(1, False), (2, True), (11, False)],
        shows=(0, 2),
        in_order=True,
    ),
    Situation(
        statement="maintenance/gc_delete",
        says="of those that it names it deletes who has ended and has no children, and nobody else",
        given=(job(1, **ENDED), job(2), job(3, **ENDED), job(4, parent_id=3), job(5, **ENDED), held(6)),
        arguments=([1, 2, 3, 6],),
        answer=[(1,)],
        shows=(0,),
        after={"SELECT id FROM gen_durable ORDER BY id": [(2,), (3,), (4,), (5,), (6,)]},
    ),
    Situation(
        statement="maintenance/gc_delete",
        says="a row that another holds, be it shared, is passed over",
        given=tuple(job(n, **ENDED) for n in (1, 2, 3)),
        holding=(lock(DURABLE, "id = 1", "FOR KEY SHARE"), lock(DURABLE, "id = 2")),
        arguments=([1, 2, 3],),
        answer=[(3,)],
        shows=(0,),
    ),
    Situation(
        statement="maintenance/reclaim",
        says="it takes back what its own node left behind, and nothing else",
        given=(
            held(1, "i:q@n-0-1", lease_expires_at=PAST),
            held(2, "i:q@n-0", lease_expires_at=PAST),
            held(3, "i:q@other-0", lease_expires_at=PAST),
            held(4, "i:q@n-0"),
            held(5, "i:q@n-1-0", lease_expires_at=PAST),
            job(6),
            held(7, "i:q@m-0", lease_expires_at=PAST),
        ),
        arguments=RECLAIM,
        answer=[(2, "i:q@n-0")],
        shows=(0, 1),
        after={STATUSES: [*((1, "executing"), (2, "runnable"), (3, "executing"), (4, "executing"), (5, "executing")),
                          (6, "runnable"), (7, "executing")]},
    ),
    Situation(
        statement="maintenance/reclaim",
        says="of more than it may take it takes who is late the longest",
        given=(held(2, "i:q@n-0", lease_expires_at=LATER), held(1, "i:q@n-0", lease_expires_at=PAST)),
        arguments=(["i:q@n-"], 1_000.0, 1, "i@n-1", "i@n-"),
        answer=[(1,)],
        shows=(0,),
    ),
    Situation(
        statement="maintenance/reclaim",
        says="a row that another holds is passed over",
        given=tuple(held(n, "i:q@n-0", lease_expires_at=PAST) for n in (1, 2)),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=RECLAIM,
        answer=[(2,)],
        shows=(0,),
    ),
    *(
        Situation(
            statement="maintenance/reclaim",
            says=f"it takes {'nothing' if bars else 'what is its own'} while {whose} is open",
            given=(held(1, "i:q@n-0", lease_expires_at=PAST),),
            holding=(f"SET LOCAL application_name = '{session}'",),
            arguments=RECLAIM,
            answer=[] if bars else [(1,)],
            shows=(0,),
        )
        for session, bars, whose in (
            ("i@n-2", True, "a session of another process of this name"),
            ("i@n-1", False, "a session of its own"),
            ("i@m-2", False, "a session of another node"),
            ("i@n-2-3", False, "a session of a node whose name begins alike"),
        )
    ),
    Situation(
        statement="maintenance/reclaim",
        says="a session of its name in another database is nothing to it",
        given=(held(1, "i:q@n-0", lease_expires_at=PAST),),
        elsewhere=("SET LOCAL application_name = 'i@n-2'",),
        arguments=RECLAIM,
        answer=[(1,)],
        shows=(0,),
    ),
)  # fmt: skip
