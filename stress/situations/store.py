"""Situations of the store's statements and function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from stress.situations.situation import MANY, Rows, Situation, free, lock, row

EXECUTIONS: Final = "executions"
VERSIONS: Final = "SELECT id, version FROM executions ORDER BY id"
NEW: Final = (
    "INSERT INTO executions (id, definition_id, data, version) VALUES ('{}', 'd', '{{}}', 1) "
    "ON CONFLICT (id) DO NOTHING RETURNING id"
)


def execution(id: str, version: int = 1, **columns: Any) -> str:  # noqa: A002  # the column's name
    return row("executions", **{"id": id, "definition_id": "d", "data": "{}", "version": version, **columns})


def processed(execution: str, event: str) -> str:
    return row("processed_events", execution_id=execution, event_id=event)


def timer(execution: str, path: str, fire_at: float) -> str:
    return row("timers", execution_id=execution, path=path, fire_at=fire_at)


def emitted(seq: int, target: str | None, event: str = "{}") -> str:
    return row("outbox", seq=seq, target_id=target, event=event)


def spawn(seq: int, parent: str, child: str) -> str:
    return row("spawns", seq=seq, parent_id=parent, child_id=child, root_path="r", context="{}")


def step(execution: str, *indices: int) -> tuple[str, ...]:
    return tuple(row("trace", execution_id=execution, idx=n, entry=f"s{n}") for n in indices)


def commit(
    *commits: tuple[str, int],
    events: Sequence[str | None] | None = None,
    steps: Sequence[str | None] | None = None,
    outbox: Sequence[tuple[int, str]] = (),
    spawns: Sequence[tuple[int, str]] = (),
    timers: Sequence[tuple[int, str, float | None]] = (),
) -> tuple[Any, ...]:
    """The arguments of `store/commit`: ids with the versions that are expected, and the effects by number; a ring of
    two."""
    none = [None] * len(commits)
    return (
        [execution for execution, _ in commits], ["d"] * len(commits), ["{}"] * len(commits),
        [version for _, version in commits],
        none, none, none, none, list(events or none), list(steps or none),
        [n for n, _ in outbox], ["t" for _ in outbox], [event for _, event in outbox],
        [n for n, _ in spawns], [child for _, child in spawns], ["r" for _ in spawns], ["{}" for _ in spawns],
        [n for n, _, _ in timers], [path for _, path, _ in timers], [at for _, _, at in timers],
        2,
    )  # fmt: skip


SCATTERED: Final = (emitted(3, "a"), emitted(1, "b"), emitted(2, None))
SPAWNED: Final = (spawn(3, "p", "x"), spawn(1, "q", "y"), spawn(2, "p", "z"))
PAGED: Final = (
    execution("e", definition_id="d", status="s", parent_id=None),
    execution("d", definition_id="other", status="s", parent_id=None),
    execution("c", definition_id="d", status="s", parent_id="p"),
    execution("b", definition_id="d", status="t", parent_id=None),
    execution("a", definition_id="d", status="s", parent_id=None),
)


def asked(
    statement: str, says: str, arguments: Sequence[Any], answer: Rows, given: Sequence[str]
) -> Situation:
    """A query whose answer's order counts."""
    return Situation(
        statement=statement,
        says=says,
        given=tuple(given),
        arguments=tuple(arguments),
        answer=answer,
        in_order=True,
    )


def cas(execution: str, version: int, event: str | None) -> str:
    return f"a commit of {execution} of version {version} with {'no event' if event is None else f'event {event}'}"


SITUATIONS: Final = (
    # ---- the fast path
    *(
        Situation(
            statement="store/commit_cas",
            says=f"{cas(name, version, event)} is {'taken' if taken else 'refused'}, and nothing else changes",
            given=(
                execution("a", 3), execution("b", 3), processed("a", "old"), processed("b", "other"),
                processed("new", "early"), processed("newer", "x"),
            ),
            arguments=(name, "d", "{}", version, event, None, None, None, None),
            answer=[(taken,)],
            after={
                VERSIONS: sorted({"a": 3, "b": 3, **({name: version + 1} if taken else {})}.items()),
                "SELECT count(*) FROM processed_events": [(4 + (taken and event is not None),)],
            },
        )
        for name, version, event, taken in (
            ("a", 3, "e", True), ("a", 3, None, True), ("a", 2, "e", False), ("a", 3, "old", False),
            ("a", 3, "other", True), ("a", 0, "e", False), ("new", 0, "e", True), ("new", 0, "x", True),
            ("new", 0, "early", False), ("new", 1, "e", False),
        )
    ),
    # ---- commit
    Situation(
        statement="store/commit",
        says="it answers for each commit in order; what is at the version and was not processed wins",
        given=(
            execution("a", 3), execution("b", 3), execution("c", 3), execution("z", 3),
            processed("b", "e2"), processed("a", "e9"), processed("n", "e5"), processed("z", "e1"),
        ),
        arguments=commit(
            ("c", 2), ("a", 3), ("b", 3), ("m", 0), ("n", 0), ("o", 4), ("z", 0),
            events=("e0", "e1", "e2", "e2", "e5", "e6", "e7"),
        ),
        answer=[
            (1, False, 3, False), (2, True, 3, False), (3, False, 3, True), (4, True, None, False),
            (5, False, None, True), (6, False, None, False), (7, False, 3, False),
        ],
        in_order=True,
        after={
            VERSIONS: [("a", 4), ("b", 3), ("c", 3), ("m", 1), ("z", 3)],
            "SELECT execution_id, event_id FROM processed_events ORDER BY 1, 2": [
                ("a", "e1"), ("a", "e9"), ("b", "e2"), ("m", "e2"), ("n", "e5"), ("z", "e1"),
            ],
        },
    ),
    Situation(
        statement="store/commit",
        says="it answers in the order of the commits, however many there are",
        arguments=commit(*((f"e{n}", 0) for n in range(MANY))),
        answer=[(n, True) for n in range(1, MANY + 1)],
        shows=(0, 1),
        in_order=True,
        spills=True,
    ),
    Situation(
        statement="store/commit",
        says="effects are written once, of what won, in the order in which they were emitted",
        given=(execution("b", 2), execution("a", 2), execution("c", 2)),
        arguments=commit(
            ("a", 2), ("b", 2), ("c", 1), ("n", 0),
            outbox=[(4, "1"), (2, "2"), (3, "lost"), (1, "3"), (2, "4")],
            spawns=[(4, "1"), (2, "2"), (3, "lost"), (1, "3"), (2, "4")],
        ),
        after={
            "SELECT event FROM outbox ORDER BY seq": [("1",), ("2",), ("3",), ("4",)],
            "SELECT parent_id, child_id FROM spawns ORDER BY seq": [("n", "1"), ("b", "2"), ("a", "3"), ("b", "4")],
        },
    ),
    Situation(
        statement="store/commit",
        says="timers are armed, armed anew and disarmed as it says, and no others",
        given=(
            execution("a", 2), execution("b", 2), execution("c", 2),
            *(timer("a", path, 1) for path in "pqr"), *(timer("b", path, 1) for path in "pqr"), timer("c", "p", 1),
        ),
        arguments=commit(
            ("a", 2), ("b", 2), ("c", 1),
            timers=[(1, "p", None), (1, "q", 5), (1, "s", 6), (2, "r", None), (3, "p", None)],
        ),
        after={
            "SELECT execution_id, path, fire_at FROM timers ORDER BY 1, 2": [
                ("a", "q", 5.0), ("a", "r", 1.0), ("a", "s", 6.0), ("b", "p", 1.0), ("b", "q", 1.0), ("c", "p", 1.0),
            ]
        },
    ),
    Situation(
        statement="store/commit",
        says="a step goes behind the last of its execution, and the ring loses the oldest",
        given=(*(execution(name, 2) for name in "abc"), *step("a", 4, 5), *step("b", 0, 1), *step("c", 7, 8, 9)),
        arguments=commit(("a", 2), ("b", 2), ("c", 2), steps=("x", "y", None)),
        after={
            "SELECT execution_id, idx, entry FROM trace ORDER BY 1, 2": [
                ("a", 5, "s5"), ("a", 6, "x"), ("b", 1, "s1"), ("b", 2, "y"), ("c", 7, "s7"), ("c", 8, "s8"),
                ("c", 9, "s9"),
            ]
        },
    ),
    Situation(
        statement="store/commit",
        says="first saves meet in the order of their ids, and who comes later is refused",
        holding=(execution("a"),),
        arguments=commit(("b", 0), ("a", 0)),
        waits=True,
        meanwhile={NEW.format("b"): [("b",)]},
        answer=[(1, True), (2, False)],
        shows=(0, 1),
    ),
    Situation(
        statement="store/lock",
        says="it locks those that it names, the lowest first, and holds no other meanwhile",
        given=(execution("c"), execution("b"), execution("a")),
        holding=(lock(EXECUTIONS, "id = 'a'", "FOR NO KEY UPDATE"),),
        arguments=(["b", "a"],),
        waits=True,
        meanwhile={free(EXECUTIONS, "id"): [("b",), ("c",)]},
        answer=[(2,)],
    ),
    Situation(
        statement="store/lock",
        says="it waits for no other",
        given=(execution("b"), execution("a")),
        holding=(lock(EXECUTIONS, "id = 'a'"),),
        arguments=(["b"],),
        answer=[(1,)],
    ),
    # ---- what is there
    asked("store/load", "the one that it names", ("a",), [("{}", 4)], (execution("a", 4), execution("b", 5))),
    *(
        Situation(
            statement=statement,
            says=f"event {event} was {'processed' if seen else 'not processed'} by its execution",
            given=(execution("a", 4), execution("b", 5), processed("a", "mine"), processed("b", "its")),
            arguments=("a", event),
            answer=[(*found, seen)],
        )
        for statement, found in (("store/load_for_event", ("{}", 4)), ("store/is_processed", ()), ("store/why", (4,)))
        for event, seen in (("mine", True), ("its", False), ("none", False))
    ),
    asked("store/outbox", "the oldest first", (2,), [(1, "b", "{}"), (2, None, "{}")], SCATTERED),
    asked("store/spawns", "the oldest first", (2,), [(1, "q", "y", "r", "{}"), (2, "p", "z", "r", "{}")], SPAWNED),
    Situation(
        statement="store/ack_outbox",
        says="exactly the one that it names goes",
        given=SCATTERED,
        arguments=(2,),
        after={"SELECT seq FROM outbox ORDER BY seq": [(1,), (3,)]},
    ),
    Situation(
        statement="store/ack_spawn",
        says="exactly the one that it names goes",
        given=SPAWNED,
        arguments=(2,),
        after={"SELECT seq FROM spawns ORDER BY seq": [(1,), (3,)]},
    ),
    asked(
        "store/due_timers", "those that are due, the oldest first", (5.0, 3),
        [("b", "p", 1.0), ("a", "p", 2.0), ("a", "q", 2.0)],
        (timer("z", "p", 5), timer("z", "q", 6), timer("a", "q", 2), timer("a", "p", 2), timer("b", "p", 1)),
    ),
    asked(
        "store/due_timers", "none that is not due", (5.0, 9), [("z", "p", 5.0)],
        (timer("z", "q", 6), timer("z", "p", 5)),
    ),
    Situation(
        statement="store/delete_timer",
        says="exactly the one that it names goes, and none that was armed anew",
        given=(timer("a", "p", 1), timer("a", "q", 1), timer("b", "p", 1)),
        arguments=("a", "p", 1.0),
        after={"SELECT execution_id, path FROM timers ORDER BY 1, 2": [("a", "q"), ("b", "p")]},
    ),
    Situation(
        statement="store/delete_timer",
        says="one that was armed anew stays",
        given=(timer("a", "p", 2),),
        arguments=("a", "p", 1.0),
        after={"SELECT fire_at FROM timers": [(2.0,)]},
    ),
    Situation(
        statement="store/append_trace",
        says="a step goes behind the last of its execution, and the ring loses the oldest",
        given=(*step("a", 4, 5), *step("b", 8, 9), *step("c", 0, 1, 2)),
        arguments=("a", "x", 2),
        answer=[(6,)],
        after={
            "SELECT execution_id, idx FROM trace ORDER BY 1, 2": [
                ("a", 5), ("a", 6), ("b", 8), ("b", 9), ("c", 0), ("c", 1), ("c", 2),
            ]
        },
    ),
    Situation(
        statement="store/append_trace",
        says="an index that another has taken while it waited is not taken again",
        holding=(*step("a", 0),),
        arguments=("a", "x", 2),
        waits=True,
        answer=[],
    ),
    asked("store/trace", "its own steps in order", ("a",), [(1, "s1"), (2, "s2")], (*step("a", 2, 1), *step("b", 3))),
    # ---- pages
    *(
        Situation(
            statement="store/page",
            says=f"behind the place, {what}, the first in order",
            given=PAGED,
            arguments=arguments,
            answer=[(name,) for name in answer],
            shows=(0,),
            in_order=True,
        )
        for what, arguments, answer in (
            ("all", ("a", None, False, 9), "bcde"),
            ("as many as are wanted", ("a", None, False, 2), "bc"),
            ("of one definition", ("", "d", False, 9), "abce"),
            ("of those without a parent", ("", None, True, 9), "abde"),
        )
    ),
    *(
        Situation(
            statement="store/page_of_status",
            says=f"of the statuses, behind the place, {what}, the first in order",
            given=(*PAGED, execution("ab", status="r"), execution("f", status="u")),
            arguments=arguments,
            answer=[(name,) for name in answer],
            shows=(0,),
            in_order=True,
        )
        for what, arguments, answer in (
            ("all", ("a", None, False, 9, ["t", "s"]), "bcde"),
            ("as many as are wanted", ("", None, False, 2, ["t", "s"]), "ab"),
            ("as many as are wanted of one", ("a", None, False, 1, ["s"]), "c"),
            ("of one definition", ("", "d", False, 9, ["s"]), "ace"),
            ("of those without a parent", ("", None, True, 9, ["s"]), "ade"),
        )
    ),
)  # fmt: skip
