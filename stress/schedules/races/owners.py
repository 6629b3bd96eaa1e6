"""Who owns a row: leases that run out, outcomes that come too late, sweeps that meet (picker.md §4, §6)."""

from stress.schedules.actions import (
    EXPIRED_MS,
    Outcome,
    claim,
    enrich,
    flush,
    heartbeat,
    insert,
    reap,
    reclaim,
    release,
    signal,
)
from stress.schedules.race import Race

_NO_INDEX = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
}
_LEASE_INDEX = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}

RACES = (
    Race(
        name="stale-outcome",
        summary="an outcome arrives after its row was reaped and claimed again",
        setup=(insert("r"), claim("c", lease_ms=EXPIRED_MS)),
        sessions={
            "late": (flush("c", Outcome("done")),),
            "other": (reap(), claim("d"), flush("d", Outcome("next"))),
        },
        stops=("late",),
        invariants=("single-owner", "lifecycle"),
        covers=(("flush done", "reap"), ("flush done", "flush next")),
    ),
    Race(
        name="stale-outcome-with-inbox",
        summary="the same, and the row has an inbox that only its present owner may empty",
        setup=(insert("r"), claim("c", lease_ms=EXPIRED_MS), signal("r")),
        sessions={"late": (flush("c", Outcome("done")),), "other": (reap(), signal("r"))},
        invariants=("single-owner", "no-lost-signal"),
        covers=(("flush done", "reap"), ("flush done", "signal")),
    ),
    Race(
        name="one-worker-twice",
        summary="a worker loses a row, claims it again, and its first execution ends",
        setup=(insert("r"), claim("c", lease_ms=EXPIRED_MS)),
        sessions={
            "first": (flush("c", Outcome("done")),),
            "again": (reap(), claim("d")),
        },
        invariants=("single-owner",),
        covers=(("flush done", "reap"),),
    ),
    Race(
        name="continued-twice",
        summary="an inline continuation is sent again when its first sending has not arrived yet",
        setup=(insert("r"), claim("c")),
        sessions={
            "one": (flush("c", Outcome("continue", fields={"step": "two"})),),
            "two": (
                flush("c", Outcome("continue", fields={"step": "two"})),
                flush("c", Outcome("continue", fields={"step": "three"})),
            ),
        },
        invariants=("single-owner", "lifecycle"),
        covers=(("flush continue", "flush continue"),),
    ),
    Race(
        name="sweeps-from-both-ends",
        summary="a heartbeat and a reaper want two rows from both ends, and each is held up between them by an outcome",
        # The heartbeat finds a, m, b as they lie in the table; the reaper b, n, a as their leases ran out. Each waits
        # for an outcome of its own, so that no commit sets both going at once.
        setup=(
            insert("a"),
            claim("a", batch=1, lease_ms=-1_000),
            insert("m"),
            claim("m", batch=1),
            insert("n"),
            claim("n", batch=1, lease_ms=-2_000),
            insert("b"),
            claim("b", batch=1, lease_ms=-3_000),
        ),
        sessions={
            "one": (flush("m", Outcome("next")),),
            "two": (flush("n", Outcome("next")),),
            "heart": (heartbeat("a", "m", "b"),),
            "reaper": (reap(),),
        },
        settings={"heart": _NO_INDEX, "reaper": _LEASE_INDEX},
        stops=("one", "two"),
        invariants=("no-deadlock", "single-owner"),
        covers=(("heartbeat", "reap"), ("heartbeat", "flush next"), ("flush next", "reap")),
    ),
    Race(
        name="namesake-boots",
        summary="a node's claim is well within its lease when another process of its name starts",
        setup=(insert("r"), claim("c", name="i:default@n-1.1")),
        sessions={"living": (heartbeat("c"), flush("c", Outcome("next"))), "starting": (reclaim("n"),)},
        invariants=("lease-respect", "single-owner"),
        covers=(("heartbeat", "reclaim"), ("flush next", "reclaim")),
    ),
    Race(
        name="reaped-and-reclaimed",
        summary="a reaper, a starting node and the owner's last heartbeat meet at one lapsed claim",
        setup=(insert("r"), claim("c", lease_ms=EXPIRED_MS)),
        sessions={"reaper": (reap(),), "starting": (reclaim("setup"),), "owner": (heartbeat("c"),)},
        invariants=("lease-respect", "single-owner", "lifecycle"),
        covers=(("reap", "reclaim"), ("heartbeat", "reclaim"), ("heartbeat", "reap")),
    ),
    Race(
        name="enriched-then-lost",
        summary="a row is lost between its claim and its step, which then asks to go on",
        setup=(insert("r"), claim("c", lease_ms=EXPIRED_MS), signal("r")),
        sessions={
            "slow": (enrich("c"), flush("c", Outcome("await"))),
            "other": (reap(), claim("d"), enrich("d"), flush("d", Outcome("await"))),
        },
        stops=("slow",),
        invariants=("single-owner",),
        covers=(("flush await", "reap"), ("flush await", "flush await")),
    ),
    Race(
        name="drained-while-reaped",
        summary="a stopping node releases two rows of which one has lapsed and is reaped",
        setup=(insert("a"), claim("a"), insert("b"), claim("b", lease_ms=EXPIRED_MS)),
        sessions={
            "stopping": (release("a"), release("b")),
            "reaper": (reap(),),
            "worker": (flush("b", Outcome("retry")),),
        },
        stops=("stopping", "reaper"),
        invariants=("single-owner",),
        covers=(("release", "reap"), ("release", "flush retry"), ("flush retry", "reap")),
    ),
)
