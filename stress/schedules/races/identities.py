"""Business identities: taken once, given up once (picker.md §7, fourth row)."""

from stress.schedules.actions import (
    EXPIRED_MS,
    Outcome,
    claim,
    collect,
    flush,
    insert,
    insert_many,
    job,
    reap,
    signal,
)
from stress.schedules.race import Race

_WAITING = {"correlation_key": "k", "correlation_scope": ("runnable",)}


def _spawns(*keys: str) -> dict[str, object]:
    return {"children": tuple(job(correlation_key=key, queue="children") for key in keys), "step": "join"}


RACES = (
    Race(
        name="identity-twice",
        summary="one identity is inserted by three clients at once",
        sessions={
            "one": (insert("a", correlation_key="k"),),
            "two": (insert("b", correlation_key="k"),),
            "many": (insert_many(x={"correlation_key": "j"}, c={"correlation_key": "k"}),),
        },
        invariants=("identity-unique",),
        covers=(("insert many", "insert many"),),
    ),
    Race(
        name="batches-in-opposite-orders",
        summary="two batches bring the same new identities in opposite orders, one held between two rows",
        sessions={
            "one": (insert_many(a={"correlation_key": "k1"}, b={"correlation_key": "k2"}),),
            "two": (insert_many(c={"correlation_key": "k2"}, d={"correlation_key": "k1"}),),
        },
        row_gates={"one": "k2"},
        invariants=("identity-unique", "no-deadlock"),
        covers=(("insert many", "insert many"),),
    ),
    Race(
        name="identity-retaken",
        summary="a claim gives an identity up, another row takes it, and the claim is reaped",
        setup=(insert("r", **_WAITING), claim("c", lease_ms=EXPIRED_MS)),
        sessions={
            "client": (insert("s", **_WAITING),),
            "reaper": (reap(),),
            "worker": (flush("c", Outcome("retry")),),
        },
        invariants=("identity-unique", "contention-quiet"),
        covers=(("flush retry", "reap"),),
    ),
    Race(
        name="identity-given-up-by-a-park",
        summary="a park gives an identity up, another row takes it, and a signal wakes the first",
        setup=(insert("r", correlation_key="k", correlation_scope=("runnable", "executing")), claim("c")),
        sessions={
            "worker": (flush("c", Outcome("await")),),
            "client": (insert("s", correlation_key="k"),),
            "sender": (signal("r"),),
        },
        stops=("worker",),
        invariants=("identity-unique", "contention-quiet"),
        covers=(("flush await", "insert many"), ("flush await", "signal")),
    ),
    Race(
        name="identity-given-up-by-a-claim",
        summary="the holder of an identity is claimed while two clients want to take it",
        setup=(insert("r", **_WAITING),),
        sessions={
            "picker": (claim("c", batch=1),),
            "one": (insert("s", **_WAITING),),
            "two": (insert("t", **_WAITING),),
        },
        stops=("picker", "one"),
        invariants=("identity-unique",),
        covers=(("claim", "insert many"),),
    ),
    Race(
        name="identities-swapped",
        summary="each of two flushes ends the holder of an identity and spawns a child of the other's",
        setup=(
            insert("a", correlation_key="a"),
            insert("b", correlation_key="b"),
            insert("p"),
            insert("q"),
            claim("c"),
        ),
        sessions={
            "one": (flush("c", Outcome("done", "a"), Outcome("childs", "p", _spawns("b"))),),
            "two": (flush("c", Outcome("done", "b"), Outcome("childs", "q", _spawns("a"))),),
        },
        stops=(),
        invariants=("identity-unique", "no-deadlock", "join-exact"),
        covers=(("flush done", "flush childs"), ("flush childs", "flush childs")),
    ),
    Race(
        name="spawn-meets-batch",
        summary="children and a batch of jobs bring the same identities, while one of them is given up",
        setup=(insert("a", correlation_key="k1"), insert("p"), claim("c")),
        sessions={
            "spawner": (flush("c", Outcome("childs", "p", _spawns("k2", "k1"))),),
            "ender": (flush("c", Outcome("done", "a")),),
            "client": (insert_many(x={"correlation_key": "k2"}, y={"correlation_key": "k1"}),),
        },
        stops=("client",),
        invariants=("identity-unique", "no-deadlock", "join-exact"),
        covers=(
            ("flush childs", "insert many"),
            ("flush done", "insert many"),
            ("flush done", "flush childs"),
        ),
    ),
    Race(
        name="identity-given-up-by-collection",
        summary="a row that still holds its identity after its end is collected while the identity is wanted",
        setup=(
            insert("r", correlation_key="k", correlation_scope=("runnable", "executing", "done")),
            claim("c"),
            flush("c", Outcome("done")),
        ),
        sessions={"collector": (collect(),), "client": (insert("s", correlation_key="k"),)},
        invariants=("identity-unique", "gc-safe"),
        covers=(("collect", "insert many"),),
    ),
)
