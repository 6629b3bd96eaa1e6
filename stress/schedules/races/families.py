"""Parents and children: counted once, woken once, collected last (picker.md §4)."""

from stress.schedules.actions import EXPIRED_MS, Outcome, claim, collect, flush, insert, job, reap, signal
from stress.schedules.race import Race


def _children(count: int, **fields: object) -> Outcome:
    spawned = tuple(job(queue="children", **fields) for _ in range(count))
    return Outcome("childs", fields={"children": spawned, "step": "join"})


_BY_ID = {
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
_BY_TABLE = {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_seqscan": "off"}
_NAMED = {"children": (job(correlation_key="k", queue="children"),), "step": "join"}
_FAMILY = (
    insert("p"),
    claim("c"),
    flush("c", _children(2)),
    claim("x", queue="children", batch=1),
    claim("y", queue="children", batch=1),
)

RACES = (
    Race(
        name="siblings-end",
        summary="two flushes end the two children of one parent",
        setup=_FAMILY,
        sessions={
            "one": (flush("x", Outcome("done")),),
            "two": (flush("y", Outcome("stop")),),
            "picker": (claim("d", batch=1),),
        },
        stops=("one",),
        invariants=("join-exact",),
        covers=(("flush done", "flush stop"), ("claim", "flush done")),
    ),
    Race(
        name="siblings-end-together",
        summary="one flush ends both children of a parent while a delivery holds the parent",
        setup=(
            insert("p"),
            claim("c"),
            flush("c", _children(2)),
            claim("x", queue="children"),
        ),
        sessions={"worker": (flush("x", Outcome("done")),), "client": (signal("p"),)},
        invariants=("join-exact",),
        covers=(("flush done", "signal"),),
    ),
    Race(
        name="child-collected-beside-its-parent",
        summary="a child ends, and the collector comes while its parent still waits for another",
        setup=_FAMILY,
        sessions={
            "worker": (flush("x", Outcome("done")),),
            "collector": (collect(),),
            "other": (flush("y", Outcome("done")),),
        },
        finish=(collect(),),
        stops=("collector",),
        invariants=("join-exact",),
        covers=(("flush done", "collect"), ("flush done", "flush done")),
    ),
    Race(
        name="reaper-meets-birth",
        summary="a parent's lease has run out; the reaper comes while its children are born",
        setup=(insert("p"), claim("c", lease_ms=EXPIRED_MS)),
        sessions={
            "spawner": (flush("c", _children(2)),),
            "reaper": (reap(), claim("d"), flush("d", _children(1))),
        },
        stops=("spawner",),
        invariants=("join-exact", "single-owner"),
        covers=(("flush childs", "reap"), ("flush childs", "flush childs")),
    ),
    Race(
        name="spawn-meets-join",
        summary="a spawn that holds a stale outcome meets the end of a child whose identity it wants",
        setup=(
            insert("a"),
            insert("b"),
            claim("f", batch=1),
            claim("g", lease_ms=EXPIRED_MS),
        ),
        sessions={
            "spawner": (
                flush(
                    "f",
                    Outcome(
                        "childs",
                        fields={"children": (job(correlation_key="k", queue="children"),), "step": "j"},
                    ),
                    Outcome("next", claim="g"),
                ),
            ),
            "other": (
                reap(),
                claim("h"),
                flush(
                    "h",
                    Outcome(
                        "childs",
                        fields={"children": (job(correlation_key="k", queue="children"),), "step": "j"},
                    ),
                ),
                claim("x", queue="children"),
                flush("x", Outcome("done")),
            ),
            "client": (signal("a"),),
        },
        stops=("client",),
        invariants=("join-exact", "no-deadlock"),
        covers=(("flush childs", "flush done"), ("flush childs", "signal"), ("flush childs", "reap")),
    ),
    Race(
        name="late-spawn-meets-join",
        summary="a batch that spawns comes late: one of its outcomes was sent again, and the child that it made ends",
        # The child holds the identity that the late batch wants for another parent.
        setup=(insert("a"), insert("p"), claim("f")),
        sessions={
            "late": (flush("f", Outcome("childs", "a", _NAMED), Outcome("childs", "p", _NAMED)),),
            "again": (
                flush("f", Outcome("childs", "p", _NAMED)),
                claim("x", queue="children"),
                flush("x", Outcome("done")),
            ),
        },
        stops=("late",),
        invariants=("join-exact", "no-deadlock"),
        covers=(("flush childs", "flush done"), ("flush childs", "flush childs")),
    ),
    Race(
        name="family-collected",
        summary="the last child ends, its parent ends, and two collectors come",
        setup=(
            insert("p"),
            claim("c"),
            flush("c", _children(1)),
            claim("x", queue="children"),
            flush("x", Outcome("done")),
            claim("d"),
        ),
        sessions={
            "worker": (flush("d", Outcome("done")),),
            "one": (collect(), collect()),
            "two": (collect(),),
        },
        stops=("one",),
        invariants=("gc-safe", "join-exact"),
        covers=(("flush done", "collect"), ("collect", "collect")),
    ),
    Race(
        name="collectors-meet",
        summary="two collectors have one page of rows",
        # One finds the rows by their ids, the other as they lie in the table.
        setup=(
            insert("a"),
            insert("b"),
            claim("c"),
            flush("c", Outcome("done", "b")),
            flush("c", Outcome("done", "a")),
        ),
        sessions={"one": (collect(),), "two": (collect(),)},
        settings={"one": _BY_ID, "two": _BY_TABLE},
        row_gates={"one": "a"},
        invariants=("gc-safe", "no-deadlock"),
        covers=(("collect", "collect"),),
    ),
)
