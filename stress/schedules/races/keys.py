"""K = 1 keys: the arbiter, the claim's guard and its key lock (picker.md §7, first row)."""

from stress.schedules.actions import EXPIRED_MS, Outcome, claim, flush, heartbeat, insert, reap, release
from stress.schedules.race import Race

RACES = (
    Race(
        name="one-key-two-queues",
        summary="two claims take two rows of one key, each blind to the other's",
        setup=(
            insert("a", queue="a", concurrency_key="k"),
            insert("b", queue="b", concurrency_key="k"),
        ),
        sessions={"one": (claim("c", queue="a"),), "two": (claim("d", queue="b"),)},
        invariants=("k1-exclusion", "pick-order"),
        covers=(("claim", "claim"),),
    ),
    Race(
        name="two-keys-opposite-orders",
        summary="two claims meet two keys in opposite orders, one of them held between its two rows",
        setup=(
            insert("a1", queue="a", concurrency_key="k1"),
            insert("a2", queue="a", concurrency_key="k2", priority=1),
            insert("b1", queue="b", concurrency_key="k2"),
            insert("b2", queue="b", concurrency_key="k1", priority=1),
        ),
        sessions={"one": (claim("c", queue="a"),), "two": (claim("d", queue="b"),)},
        row_gates={"one": "a2"},
        invariants=("k1-exclusion", "no-deadlock"),
        covers=(("claim", "claim"),),
    ),
    Race(
        name="flush-meets-claim",
        summary="a claim of an old snapshot and a flush each hold what the other wants",
        # Whichever of its rows a plan changes first, the claim wants that one's key.
        setup=(
            insert("ended", queue="x", concurrency_key="A"),
            insert("first"),
            insert("ended too", queue="x", concurrency_key="B"),
            insert("wanted", concurrency_key="A", priority=1),
            insert("wanted too", concurrency_key="B", priority=2),
        ),
        sessions={
            "claimer": (claim("late"),),
            "node": (claim("n", queue="x"), claim("m", batch=1)),
            "flusher": (flush("n", Outcome("done"), Outcome("done", claim="m")),),
        },
        row_gates={"claimer": "wanted"},
        settings={"flusher": {"enable_indexscan": "off", "enable_bitmapscan": "off"}},
        stops=("claimer", "flusher"),
        invariants=("k1-exclusion", "no-deadlock"),
        covers=(("claim", "flush done"),),
    ),
    Race(
        name="key-handed-from-row-to-row",
        summary="a key's owner ends while two pickers of its queue look for the next row",
        setup=(insert("r", concurrency_key="k"), claim("c"), insert("s", concurrency_key="k"), insert("t")),
        sessions={
            "worker": (flush("c", Outcome("done")),),
            "one": (claim("d", batch=1),),
            "two": (claim("e", batch=1),),
        },
        stops=("one", "two"),
        invariants=("k1-exclusion", "pick-order"),
        covers=(("claim", "claim"), ("claim", "flush done")),
    ),
    Race(
        name="lapsed-key-comes-back",
        summary="the owner of a key renews its lapsed lease while it is reaped and a sibling is claimed",
        setup=(
            insert("r", concurrency_key="k"),
            claim("c", lease_ms=EXPIRED_MS),
            insert("s", concurrency_key="k"),
        ),
        sessions={
            "worker": (heartbeat("c"), flush("c", Outcome("next"))),
            "sweeper": (reap(), claim("d", batch=1)),
        },
        invariants=("k1-exclusion", "lease-respect", "single-owner"),
        covers=(("heartbeat", "reap"), ("flush next", "reap")),
    ),
    Race(
        name="released-while-claimed",
        summary="a graceful stop gives a row back while another node claims and a third reaps",
        setup=(
            insert("r", concurrency_key="k"),
            claim("c", lease_ms=EXPIRED_MS),
            insert("s", concurrency_key="k"),
        ),
        sessions={
            "stopping": (release("c"),),
            "sweeper": (reap(),),
            "picker": (claim("d", batch=1),),
        },
        invariants=("k1-exclusion", "single-owner"),
        covers=(("claim", "release"), ("release", "reap")),
    ),
)
