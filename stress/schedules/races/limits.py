"""Gates and rate limits: the counters' constraints, credits, counts and sweeps (picker.md §7, rows 2 and 3)."""

from engine.limiter import Gate, RateLimit
from stress.schedules.actions import (
    EXPIRED_MS,
    Action,
    Outcome,
    admit,
    claim,
    credit,
    flush,
    go_on,
    heartbeat,
    insert,
    reap,
    reconcile,
    release,
    sweep_buckets,
    sync_config,
)
from stress.schedules.race import Race

ONE = (Gate("g", 1),)
TWO = (Gate("g", 2),)
SLOW = (RateLimit("x", rate=1e-6, burst=2.0, shards=2),)


def _gated(count: int, key: str = "g:1", first: int = 0) -> tuple[Action, ...]:
    return tuple(insert(f"r{n}", concurrency_key=key, priority=n) for n in range(first, first + count))


def _pick(label: str, **options: int) -> tuple[Action, ...]:
    """What a scheduler does: claim, ask the limiter, give back what may not start."""
    return (claim(label, **options), admit(label), release(label, denied=True))  # type: ignore[arg-type]


# Two orders of one scan: by the index of the counters, and as they lie in the table.
_BY_KEY = {
    "enable_hashagg": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}
_BY_TABLE = {
    "enable_mergejoin": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
}


def _wants(label: str, *keys: str) -> tuple[Action, ...]:
    """A claim of a row for each key, which has not asked yet."""
    return (*(insert(f"{label} {key}", concurrency_key=key) for key in keys), claim(label))


def _made(*keys: str) -> tuple[Action, ...]:
    """The counters of keys, made in this order by a row each."""
    return tuple(action for key in keys for action in (*_wants(key, key), admit(key)))


def _done(label: str) -> tuple[Action, ...]:
    return (flush(label, Outcome("done")), credit(label))


RACES = (
    Race(
        name="gate-two-picks",
        summary="two picks want the one slot of a cold gate",
        setup=(sync_config(), *_gated(2)),
        sessions={"one": _pick("a", batch=1), "two": _pick("b", batch=1)},
        limits=ONE,
        stops=("one",),
        finish=(*_done("a"), *_done("b"), *_pick("y"), *_done("y"), *_pick("z"), *_done("z"), reconcile()),
        at_rest=True,
        invariants=("gate-cap", "slot-conservation", "contention-quiet", "no-lost-job"),
        covers=(("claim", "admit"), ("admit", "admit"), ("admit", "release")),
    ),
    Race(
        name="gate-warm-shards",
        summary="two admissions and a credit meet at the shards of one gate",
        setup=(
            sync_config(),
            *_gated(3),
            claim("a", batch=1),
            admit("a"),
            claim("b", batch=1),
            claim("c", batch=1),
        ),
        sessions={"ender": _done("a"), "one": (admit("b"),), "two": (admit("c"),)},
        limits=(Gate("g", 2, shards=2),),
        stops=("one", "two"),
        invariants=("gate-cap", "slot-conservation", "shards-whole"),
        covers=(("admit", "admit"), ("admit", "credit"), ("admit", "flush done")),
    ),
    Race(
        name="credit-meets-count",
        summary="a late credit and a count of the same slot, with a pick in between",
        setup=(sync_config(), *_gated(3), claim("a", batch=1), admit("a")),
        sessions={
            "ender": _done("a"),
            "counter": (reconcile(),),
            "picker": (claim("b", batch=1), admit("b"), claim("d", batch=1), admit("d")),
        },
        limits=ONE,
        stops=(),
        invariants=("gate-cap", "slot-conservation"),
        covers=(
            ("reconcile", "credit"),
            ("flush done", "reconcile"),
            ("admit", "reconcile"),
            ("admit", "credit"),
        ),
    ),
    Race(
        name="count-meets-claim",
        summary="a count comes while rows have been claimed and not yet admitted",
        setup=(
            sync_config(),
            *_gated(2),
            claim("z", batch=1),
            admit("z"),
            flush("z", Outcome("done")),
            credit("z"),
        ),
        sessions={"picker": _pick("a"), "counter": (reconcile(),)},
        limits=ONE,
        finish=(reconcile(),),
        invariants=("slot-conservation", "contention-quiet"),
        covers=(("claim", "reconcile"), ("admit", "reconcile"), ("release", "reconcile")),
    ),
    Race(
        name="admission-comes-late",
        summary="between its claim and its admission a lease runs out, and the row has another owner",
        setup=(sync_config(), *_gated(1), claim("a", lease_ms=EXPIRED_MS)),
        sessions={
            "slow": (admit("a"),),
            "other": (reap(), claim("b"), admit("b"), flush("b", Outcome("retry")), credit("b")),
        },
        limits=ONE,
        stops=("slow",),
        finish=(reconcile(),),
        invariants=("gate-cap", "slot-conservation", "single-owner"),
        covers=(("admit", "reap"), ("admit", "claim"), ("admit", "admit")),
    ),
    Race(
        name="slot-lost-with-its-lease",
        summary="an admitted row's lease runs out; it is reaped, counted and claimed, and its owner ends it",
        setup=(sync_config(), *_gated(2), claim("a", batch=1, lease_ms=EXPIRED_MS), admit("a")),
        sessions={
            "owner": _done("a"),
            "sweeper": (reap(), reconcile()),
            "picker": (claim("b", batch=1), admit("b")),
        },
        limits=ONE,
        stops=(),
        finish=(reconcile(),),
        invariants=("gate-cap", "slot-conservation"),
        covers=(("flush done", "reap"), ("reconcile", "reap"), ("admit", "reconcile")),
    ),
    Race(
        name="cold-keys-opposite",
        summary="two admissions make the same cold keys while a third has made one of them",
        setup=(
            sync_config(),
            insert("a1", concurrency_key="g:1"),
            insert("a3", concurrency_key="g:3"),
            claim("a"),
            insert("b1", concurrency_key="g:1"),
            insert("b3", concurrency_key="g:3"),
            claim("b"),
            insert("c3", concurrency_key="g:3"),
            claim("c"),
        ),
        sessions={"one": (admit("a"),), "two": (admit("b"),), "first": (admit("c"),)},
        row_gates={"one": "g:3"},
        stops=("one", "two"),
        limits=(Gate("g", 3),),
        invariants=("gate-cap", "no-deadlock"),
        covers=(("admit", "admit"),),
    ),
    Race(
        name="cold-rate-two-picks",
        summary="two picks make one cold rate key",
        setup=(
            sync_config(),
            insert("a", rate_limit="x", weight=1.5),
            insert("b", rate_limit="x", weight=1.5),
            claim("a", batch=1),
            claim("b", batch=1),
        ),
        sessions={"one": (admit("a"),), "two": (admit("b"), release("b", denied=True))},
        limits=SLOW,
        invariants=("rate-budget", "shards-whole"),
        covers=(("admit", "admit"),),
    ),
    Race(
        name="warm-rate-two-picks",
        summary="two picks draw on one rate key whose shards are there",
        setup=(
            sync_config(),
            insert("z", rate_limit="x", weight=0.5),
            claim("z"),
            admit("z"),
            insert("a", rate_limit="x", weight=1.0),
            insert("b", rate_limit="x", weight=1.0),
            claim("a", batch=1),
            claim("b", batch=1),
        ),
        sessions={"one": (admit("a"),), "two": (admit("b"),)},
        limits=SLOW,
        invariants=("rate-budget",),
        covers=(("admit", "admit"),),
    ),
    Race(
        name="swept-while-drawn",
        summary="a rate key is swept as idle while a pick draws on it and another makes it anew",
        setup=(
            sync_config(),
            *(insert(name, rate_limit="x") for name in ("z", "a", "b")),
            *(claim(name, batch=1) for name in ("z", "a", "b")),
            admit("z"),
        ),
        sessions={"sweeper": (sweep_buckets(),), "one": (admit("a"),), "two": (admit("b"),)},
        limits=(RateLimit("x", rate=1e6, burst=1.0, shards=2),),
        invariants=("shards-whole", "contention-quiet"),
        covers=(("admit", "sweep buckets"), ("admit", "admit")),
    ),
    Race(
        name="sweepers-meet",
        summary="two sweeps mend one rate key whose number of shards was raised, while a pick draws on it",
        setup=(
            sync_config(RateLimit("x", rate=1e-6, burst=2.0)),
            *(insert(name, rate_limit="x", weight=0.5) for name in ("z", "a")),
            *(claim(name, batch=1) for name in ("z", "a")),
            admit("z"),
            sync_config(),
        ),
        sessions={"one": (sweep_buckets(),), "two": (sweep_buckets(),), "picker": (admit("a"),)},
        limits=SLOW,
        finish=(sweep_buckets(),),
        invariants=("shards-whole", "rate-budget"),
        covers=(("sweep buckets", "sweep buckets"), ("admit", "sweep buckets")),
    ),
    Race(
        name="resharded-while-used",
        summary="a gate gets more shards while its slots are drawn, credited and counted",
        setup=(sync_config(), *_gated(3), claim("a", batch=1), admit("a"), claim("b", batch=1)),
        sessions={
            "boot": (sync_config(Gate("g", 2, shards=2)), reconcile()),
            "ender": _done("a"),
            "picker": (admit("b"),),
        },
        limits=TWO,
        stops=("picker",),
        finish=(reconcile(), reconcile()),
        invariants=("gate-cap", "slot-conservation", "shards-whole"),
        covers=(
            ("config", "admit"),
            ("config", "reconcile"),
            ("reconcile", "credit"),
            ("admit", "reconcile"),
        ),
    ),
    Race(
        name="lowered-while-used",
        summary="a gate's capacity is lowered below what it has let in, while its rows end and are credited",
        setup=(sync_config(), *_gated(3), claim("a", batch=1), claim("b", batch=1), admit("a"), admit("b")),
        sessions={
            "boot": (sync_config(Gate("g", 1)), reconcile()),
            "one": _done("a"),
            "two": _done("b"),
        },
        limits=TWO,
        stops=(),
        finish=(claim("c"), admit("c"), reconcile()),
        invariants=("gate-cap", "slot-conservation", "contention-quiet"),
        covers=(("config", "reconcile"), ("reconcile", "credit"), ("credit", "credit")),
    ),
    Race(
        name="counters-meet",
        summary="two counts and a credit of one gate",
        setup=(sync_config(), *_gated(2), claim("a", batch=1), admit("a")),
        sessions={"one": (reconcile(),), "two": (reconcile(),), "ender": _done("a")},
        limits=ONE,
        stops=(),
        finish=(reconcile(),),
        invariants=("slot-conservation",),
        covers=(("reconcile", "reconcile"), ("reconcile", "credit"), ("flush done", "reconcile")),
    ),
    Race(
        name="boots-in-opposite-orders",
        summary="two nodes boot with the same limits in opposite orders",
        sessions={
            "one": (sync_config(Gate("a", 1), Gate("b", 1), RateLimit("x", 1.0, 1.0)),),
            "two": (sync_config(RateLimit("x", 2.0, 1.0), Gate("b", 2), Gate("a", 2)),),
        },
        row_gates={"one": "b"},
        invariants=("no-deadlock",),
        covers=(("config", "config"),),
    ),
    Race(
        name="slot-handed-on",
        summary="an inline step goes on to another key of its gate while others want both",
        setup=(
            sync_config(),
            insert("r", concurrency_key="g:1"),
            claim("a"),
            admit("a"),
            insert("s", concurrency_key="g:1"),
            insert("t", concurrency_key="g:2"),
        ),
        sessions={
            "inline": (
                flush(
                    "a",
                    Outcome("continue", fields={"sets_key": True, "concurrency_key": "g:2", "gated": True}),
                ),
                credit("a"),
            ),
            "picker": _pick("b"),
            "counter": (reconcile(),),
        },
        limits=ONE,
        stops=(),
        finish=(reconcile(),),
        invariants=("gate-cap", "slot-conservation", "batch-independence"),
        covers=(("flush continue", "admit"), ("flush continue", "reconcile"), ("claim", "flush continue")),
    ),
    Race(
        name="slot-kept-in-line",
        summary="an inline step keeps its key and ends, while another asks for the slot",
        setup=(sync_config(), *_gated(2), claim("a", batch=1), admit("a"), claim("b", batch=1)),
        sessions={
            "inline": (
                flush("a", Outcome("continue")),
                credit("a"),
                flush("a", Outcome("done")),
                credit("a"),
            ),
            "picker": (admit("b"),),
        },
        limits=ONE,
        finish=(reconcile(),),
        invariants=("gate-cap", "slot-conservation"),
        covers=(("flush continue", "admit"), ("flush done", "admit"), ("admit", "credit")),
    ),
    Race(
        name="admitted-row-renewed",
        summary="a heartbeat, an admission and a release meet at one claimed row",
        setup=(sync_config(), *_gated(1), claim("a")),
        sessions={
            "heart": (heartbeat("a"),),
            "picker": (admit("a"),),
            "stopping": (release("a"), credit("a")),
        },
        limits=ONE,
        stops=("picker", "stopping"),
        finish=(reconcile(),),
        invariants=("slot-conservation", "single-owner"),
        covers=(("admit", "heartbeat"), ("admit", "release"), ("release", "heartbeat")),
    ),
    Race(
        name="cold-gate-dropped-and-made",
        summary="an unused gate is dropped by a count while two admissions want it",
        setup=(
            sync_config(),
            *_gated(3),
            claim("z", batch=1),
            admit("z"),
            flush("z", Outcome("done")),
            credit("z"),
            claim("a", batch=1),
            claim("b", batch=1),
            reconcile(idle_ms=0.0),
        ),
        sessions={"counter": (reconcile(idle_ms=0.0),), "one": (admit("a"),), "two": (admit("b"),)},
        limits=ONE,
        stops=("one", "two"),
        invariants=("gate-cap",),
        covers=(("admit", "reconcile"), ("admit", "admit")),
    ),
    Race(
        name="lowered-gate-credited",
        summary="two rows of a gate whose capacity was lowered have ended, and both slots are given back at once",
        setup=(
            sync_config(),
            *_gated(3),
            claim("a", batch=1),
            claim("b", batch=1),
            admit("a"),
            admit("b"),
            sync_config(Gate("g", 1)),
            reconcile(),
            flush("a", Outcome("done")),
            flush("b", Outcome("done")),
        ),
        sessions={"one": (credit("a"),), "two": (credit("b"),)},
        limits=TWO,
        finish=(claim("c"), admit("c"), reconcile()),
        invariants=("gate-cap", "slot-conservation", "contention-quiet"),
        covers=(("credit", "credit"),),
    ),
    Race(
        name="gates-from-both-ends",
        summary="two admissions whose plans find two gates from both ends, one of them held between them by a credit",
        # By the index g:1, g:2, g:3; in the table g:3 comes first. The credit holds g:2.
        setup=(
            sync_config(),
            *_made("g:3", "g:2", "g:1"),
            flush("g:2", Outcome("done")),
            *_wants("a", "g:1", "g:2", "g:3"),
            *_wants("b", "g:1", "g:3"),
        ),
        sessions={"ender": (credit("g:2"),), "one": (admit("a"),), "two": (admit("b"),)},
        settings={"one": _BY_KEY, "two": _BY_TABLE},
        stops=("ender",),
        limits=(Gate("g", 3),),
        invariants=("gate-cap", "no-deadlock"),
        covers=(("admit", "admit"), ("admit", "credit")),
    ),
    Race(
        name="reaped-row-goes-on",
        summary="a row was reaped and claimed again; its first owner goes on in line, and a sibling of its key waits",
        setup=(
            sync_config(),
            insert("r", concurrency_key="k"),
            claim("c", lease_ms=EXPIRED_MS),
            reap(),
            claim("d"),
            insert("s", concurrency_key="k"),
        ),
        sessions={"late": go_on("c", "g:1"), "picker": (claim("e"),)},
        limits=ONE,
        invariants=("k1-exclusion", "single-owner"),
        contends=False,
        covers=(("flush continue", "claim"),),
    ),
)
