"""Situations of the client's statements."""

from __future__ import annotations

from typing import Final

from stress.situations.situation import Situation, job

ROWS: Final = (
    job(1, queue="a"),
    job(5, queue="b"),
    job(4, queue="a", status="done"),
    job(3, queue="a"),
    job(2, queue="b", status="done"),
)

SITUATIONS: Final = (
    Situation(
        statement="client/counts",
        says="it counts the newest by queue and status, in order",
        given=ROWS,
        arguments=(4,),
        answer=[("a", "runnable", 1), ("a", "done", 1), ("b", "runnable", 1), ("b", "done", 1)],
        in_order=True,
    ),
    Situation(
        statement="client/inspect",
        says="it shows those that it names, in order",
        given=ROWS,
        arguments=([4, 1, 3, 9],),
        answer=[(1,), (3,), (4,)],
        shows=(0,),
        in_order=True,
    ),
    Situation(
        statement="client/outcome",
        says="it shows the one that it names",
        given=ROWS,
        arguments=(2,),
        answer=[("done", None, None)],
    ),
    *(
        Situation(
            statement="client/page",
            says=f"of those behind the place it shows {what}, the first of them in order",
            given=ROWS,
            arguments=(1, *arguments),
            answer=answer,
            in_order=True,
        )
        for what, arguments, answer in (
            ("all", (3, 10, None, None), [(3, 4, 2), (3, 4, 3), (3, 4, 4)]),
            ("as many as are wanted", (10, 2, None, None), [(4, 5, 2), (4, 5, 3)]),
            ("those of a status", (10, 10, "done", None), [(4, 5, 2), (4, 5, 4)]),
            ("those of a queue", (10, 10, None, "a"), [(4, 5, 3), (4, 5, 4)]),
        )
    ),
)
