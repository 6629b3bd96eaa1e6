"""Situations of the relay's statements. Of the targets here `b` lies in lane 0, `a` in 1, `e` in 2, `h` in 14."""

from __future__ import annotations

from typing import Any, Final

from stress.situations.situation import Rows, Situation, free, lock
from stress.situations.store import SCATTERED, SPAWNED, emitted, execution, spawn, timer

OUTBOX: Final = "SELECT seq FROM outbox ORDER BY seq"
LANES: Final = (emitted(9, "e"), emitted(4, "e"), emitted(6, "e"), emitted(5, None))


def moved(
    says: str, arguments: tuple[int, int, int], seqs: list[int], given: tuple[str, ...], **named: Any
) -> Situation:
    answer: Rows = [(seqs, len(seqs))] if seqs else []
    return Situation(
        statement="relay/move", says=says, given=given, arguments=arguments, answer=answer, **named
    )


SITUATIONS: Final = (
    Situation(
        statement="relay/ack",
        says="those that it names go",
        given=SCATTERED,
        arguments=([1, 3, 9],),
        answer=[(1,), (3,)],
        after={OUTBOX: [(2,)]},
    ),
    Situation(
        statement="relay/ack",
        says="it waits for the lowest first, and holds no other meanwhile",
        given=SCATTERED,
        holding=(lock("outbox", "seq = 1"),),
        arguments=([3, 1],),
        waits=True,
        meanwhile={free("outbox", "seq"): [(2,), (3,)]},
        answer=[(1,), (3,)],
    ),
    Situation(
        statement="relay/broadcast",
        says="what is for nobody in particular, the oldest first",
        given=(emitted(7, None), *SCATTERED, emitted(9, None)),
        arguments=(2,),
        answer=[(2,), (7,)],
        shows=(0,),
        in_order=True,
    ),
    Situation(
        statement="relay/make",
        says="children that are not there are made once, their spawns go, no others",
        given=(execution("there", 7), *SPAWNED),
        arguments=(
            [1, 3], ["new", "there", "new"], ["d"] * 3, ["{}"] * 3, ["p"] * 3, ["1", "2", "3"], [0, 0, 0],
        ),
        answer=[(["new"], 2, 3)],
        after={
            "SELECT id, version FROM executions ORDER BY id": [("new", 1), ("there", 7)],
            "SELECT seq FROM spawns": [(2,)],
        },
    ),
    Situation(
        statement="relay/spawns",
        says="those behind the place, the oldest first, with their own parent where there is one",
        given=(execution("p", definition_id="of p"), execution("other"), *SPAWNED, spawn(4, "p", "w")),
        arguments=(1, 2),
        answer=[(2, "p", "z", "of p"), (3, "p", "x", "of p")],
        shows=(0, 1, 2, 5),
        in_order=True,
    ),
    Situation(
        statement="relay/spawns",
        says="one whose parent is gone has none",
        given=(execution("other"), spawn(1, "p", "x")),
        arguments=(0, 2),
        answer=[(1, None)],
        shows=(0, 5),
    ),
    Situation(
        statement="relay/spawns",
        says="what another relay holds is passed over",
        given=SPAWNED,
        holding=(lock("spawns", "seq = 1"),),
        arguments=(0, 9),
        answer=[(2,), (3,)],
        shows=(0,),
    ),
    # ---- sweep
    Situation(
        statement="relay/sweep",
        says="what is due becomes an event, the oldest first, and nothing else goes",
        given=(
            timer("z", "p", 5), timer("z", "q", 6), timer("a", "q", 2), timer("a", "p", 2), timer("b", "p", 1),
            timer("c", "p", 3),
        ),
        arguments=(5.0, 4),
        answer=[("b", "p", 1.0), ("a", "p", 2.0), ("a", "q", 2.0), ("c", "p", 3.0)],
        shows=(0, 1, 2),
        in_order=True,
        after={
            "SELECT target_id FROM outbox ORDER BY seq": [("b",), ("a",), ("a",), ("c",)],
            "SELECT execution_id, path FROM timers ORDER BY 1, 2": [("z", "p"), ("z", "q")],
        },
    ),
    Situation(
        statement="relay/sweep",
        says="none that is not due",
        given=(timer("z", "q", 6), timer("z", "p", 5)),
        arguments=(5.0, 9),
        answer=[("z", "p", 5.0)],
        shows=(0, 1, 2),
    ),
    Situation(
        statement="relay/sweep",
        says="a timer that another holds is passed over",
        given=(timer("a", "p", 1), timer("b", "p", 2)),
        holding=(lock("timers", "execution_id = 'a'"),),
        arguments=(5.0, 9),
        answer=[("b", "p", 2.0)],
        shows=(0, 1, 2),
    ),
    # ---- move
    moved("nothing is handed over where there is nothing", (16, 9, 0), [], (emitted(1, None),)),
    moved(
        "the first of a lane, in order, and nothing else", (1, 2, 2), [4, 6],
        (*LANES, emitted(1, "a"), emitted(2, "h"), emitted(3, "b")),
        after={OUTBOX: [(1,), (2,), (3,), (5,), (9,)], "SELECT event FROM transport_messages": [("{}",), ("{}",)]},
    ),
    moved("lanes that are empty do not count: before it", (1, 9, 1), [4, 6, 9], LANES),
    moved("lanes that are empty do not count: behind it", (1, 9, 3), [4, 6, 9], LANES),
    moved("it begins with the lane that it is told", (1, 9, 14), [2], (*LANES, emitted(2, "h"), emitted(1, "a"))),
    moved("and goes around", (1, 9, 15), [1], (*LANES, emitted(2, "h"), emitted(1, "a"))),
    moved("of each lane as many", (16, 1, 0), [1, 4], (*LANES, emitted(1, "a"))),
    moved(
        "a lane that another relay has is left to it", (16, 9, 0), [1], (*LANES, emitted(1, "a")),
        holding=("SELECT pg_advisory_xact_lock(1735681639, 2)",),
    ),
    moved(
        "who is still to be made is waited for, and nobody else", (16, 9, 0), [1, 2],
        (*LANES, emitted(1, "a"), emitted(2, "b"), spawn(1, "p", "e")),
    ),
)  # fmt: skip
