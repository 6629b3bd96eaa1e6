"""Situations of the limiter's statements.

What stands by and must be left alone differs from what is asked about in one thing each: the kind, the key, the shard.
"""

from __future__ import annotations

from typing import Any, Final

from stress.situations.picker import DURABLE
from stress.situations.situation import (
    FUTURE,
    MANY,
    NOTED_IN_ORDER,
    PAST,
    Situation,
    Sql,
    few_were_looked_at,
    free,
    held,
    job,
    lock,
    looked_at,
    noted,
    row,
)

BUCKETS: Final = "gen_durable_buckets"
NOW: Final = Sql("now()")
# A count that has seen every transaction up to 100, and none from there on.
COUNTED: Final = "100:100:"
LEVELS: Final = "SELECT kind, key, shard, available FROM gen_durable_buckets ORDER BY 1, 2, 3"
SHARDS: Final = "SELECT kind, key, shard FROM gen_durable_buckets ORDER BY 1, 2, 3"
STAMPS: Final = "SELECT id, concurrency_shard FROM gen_durable ORDER BY id"
AHEAD: Final = (
    f"SELECT kind, key, shard FROM gen_durable_buckets WHERE last_refill = '{FUTURE}' ORDER BY 1, 2, 3"
)
# What `engine.limiter.cold_lock` has for the gate `g:1`.
COLD: Final = (
    "SELECT pg_advisory_xact_lock(1735681637, "
    "('x' || left(encode(sha256(convert_to('conc g:1', 'UTF8')), 'hex'), 3))::bit(12)::integer)"
)
# Makes a shard from a session that may not wait.
MAKE: Final = (
    "INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available) VALUES ('{}', '{}', {}, 1, 1) "
    "ON CONFLICT (kind, key, shard) DO NOTHING RETURNING key, shard"
)


def limit(kind: str, name: str, capacity: float, shards: int = 1, rate: float | None = None) -> str:
    return row(
        "gen_durable_bucket_configs", kind=kind, name=name, capacity=capacity, shards=shards, rate=rate
    )


def gate(key: str, shard: int, available: float, capacity: float = 9, **columns: Any) -> str:
    return row(
        BUCKETS,
        **{
            "kind": "conc",
            "key": key,
            "shard": shard,
            "capacity": capacity,
            "available": available,
            **columns,
        },
    )


def rate(key: str, shard: int, available: float, capacity: float = 9, **columns: Any) -> str:
    return row(
        BUCKETS,
        **{"kind": "rate", "key": key, "shard": shard, "capacity": capacity, "available": available,
           "last_refill": NOW, **columns},
    )  # fmt: skip


def every_other(kind: str, key: str) -> str:
    """Half of `MANY` shards of a key, the even ones."""
    return (
        f"INSERT INTO {BUCKETS} (kind, key, shard, capacity, available, last_refill) "
        f"SELECT '{kind}', '{key}', n, 1, 1, CASE WHEN '{kind}' = 'rate' THEN now() END "
        f"FROM generate_series(0, {MANY - 1}, 2) AS n"
    )


def gated(id: int, key: str, **columns: Any) -> str:  # noqa: A002  # the column's name
    """A claimed row that wants a slot."""
    return held(id, **{"concurrency_key": key, "concurrency_shard": -1, **columns})


def rated(id: int, key: str, weight: float = 1, **columns: Any) -> str:  # noqa: A002
    return held(id, rate_limit=key, weight=weight, **columns)


def asked(*ids: int, slots: bool = True) -> tuple[Any, ...]:
    """The arguments of `limiter/admit`."""
    return list(ids), ["c"] * len(ids), [slots] * len(ids)


# `x` is both a gate's name and a rate's; `g` and `r` are names of the other kind too, with other limits.
LIMITS: Final = (
    limit("conc", "g", 3, 2), limit("rate", "g", 100, 1, 1.0),
    limit("rate", "r", 10, 2, 1.0), limit("conc", "r", 100, 1),
    limit("conc", "x", 2, 1), limit("rate", "x", 2, 1, 1.0), limit("conc", "full", 1, 1),
)  # fmt: skip
ADMIT: Final = (
    Situation(
        statement="limiter/admit",
        says="a gate admits in pick order what its slots fit, stamps their shards, and touches nothing else",
        given=(
            *LIMITS,
            gate("g:1", 0, 1), gate("g:1", 1, 1), gate("g:2", 0, 1), gate("g:2", 1, 0), gate("g:3", 0, 2),
            rate("g:1", 0, 5, last_refill=FUTURE), rate("g:3", 0, 5, last_refill=FUTURE),
            *(gated(n, "g:1", priority=9 - n) for n in (1, 2, 3)), gated(4, "g:2"), gated(5, "g:2", priority=1),
            gated(6, "g:1", locked_by="other"), gated(7, "g:1"), job(8, concurrency_key="g:1"),
        ),
        arguments=asked(1, 2, 3, 4, 5, 6, 8),
        answer=[
            (1, False, None, None), (2, True, 1, None), (3, True, 0, None), (4, True, 0, None), (5, False, None, None),
        ],
        after={
            LEVELS: [
                ("conc", "g:1", 0, 0.0), ("conc", "g:1", 1, 0.0), ("conc", "g:2", 0, 0.0), ("conc", "g:2", 1, 0.0),
                ("conc", "g:3", 0, 2.0), ("rate", "g:1", 0, 5.0), ("rate", "g:3", 0, 5.0),
            ],
            STAMPS: [(1, -1), (2, 1), (3, 0), (4, 0), (5, -1), (6, -1), (7, -1), (8, None)],
            AHEAD: [("rate", "g:1", 0), ("rate", "g:3", 0)],
        },
    ),
    Situation(
        statement="limiter/admit",
        says="a rate admits in pick order what its tokens pay for, spread over its shards, and touches nothing else",
        given=(
            *LIMITS,
            rate("r:1", 0, 3, 5), rate("r:1", 1, 1, 5), rate("r:1", 2, 5, 5), rate("r:2", 0, 1, 5),
            rate("r:2", 1, 0, 5), rate("r:3", 0, 5, last_refill=FUTURE), gate("r:1", 0, 5),
            *(rated(n, "r:1", 2, priority=9 - n) for n in (1, 2, 3)), rated(4, "r:2"), rated(5, "r:2", priority=1),
        ),
        arguments=asked(1, 2, 3, 4, 5),
        answer=[(1, False, None, None), (2, True, None, None), (3, True, None, None), (4, True, None, None),
                (5, False, None, None)],
        after={
            LEVELS: [
                ("conc", "r:1", 0, 5.0), ("rate", "r:1", 0, 0.0), ("rate", "r:1", 1, 0.0), ("rate", "r:1", 2, 5.0),
                ("rate", "r:2", 0, 0.0), ("rate", "r:2", 1, 0.0), ("rate", "r:3", 0, 5.0),
            ],
            AHEAD: [("rate", "r:3", 0)],
        },
    ),
    Situation(
        statement="limiter/admit",
        says="a key of both kinds is two buckets",
        given=(
            *LIMITS, gate("x:1", 0, 2), rate("x:1", 0, 1, 2),
            gated(1, "x:1", rate_limit="x:1", weight=1), gated(2, "x:1", rate_limit="x:1", weight=1),
            gated(3, "x:1", priority=1),
        ),
        arguments=asked(1, 2, 3),
        answer=[(1, True, 0, None), (2, False, None, None), (3, False, None, None)],
        after={LEVELS: [("conc", "x:1", 0, 1.0), ("rate", "x:1", 0, 0.0)]},
    ),
    Situation(
        statement="limiter/admit",
        says="a row that wants no slot keeps the shard that it has",
        given=(
            *LIMITS, *(rate("r:1", n, 5, 5) for n in (0, 1)),
            rated(1, "r:1", concurrency_key="g:1", concurrency_shard=2),
        ),
        arguments=asked(1, slots=False),
        answer=[(1, True, None, None)],
        after={STAMPS: [(1, 2)]},
    ),
    Situation(
        statement="limiter/admit",
        says="a cold key is full, and made debited, all its shards; one that nothing is drawn from is not made",
        given=(
            *LIMITS, gate("full:1", 0, 0, 1), rate("g:1", 0, 5), gate("r:1", 0, 5),
            gated(1, "g:1"), gated(2, "g:1", priority=1), rated(3, "r:1", 2), rated(4, "r:1", 2),
            gated(5, "full:1", rate_limit="r:2"), gated(6, "x:1"), gated(7, "full:1", rate_limit="x:1"),
        ),
        arguments=asked(1, 2, 3, 4, 5, 6, 7),
        answer=[(1, True, 0, None), (2, True, 0, None), (3, True, None, None), (4, True, None, None),
                (5, False, None, None), (6, True, 0, None), (7, False, None, None)],
        after={
            LEVELS: [
                ("conc", "full:1", 0, 0.0), ("conc", "g:1", 0, 0.0), ("conc", "g:1", 1, 1.0), ("conc", "r:1", 0, 5.0),
                ("conc", "x:1", 0, 1.0), ("rate", "g:1", 0, 5.0), ("rate", "r:1", 0, 3.0), ("rate", "r:1", 1, 3.0),
            ]
        },
    ),
    Situation(
        statement="limiter/admit",
        says="what no wait will help is refused, with its reason, and changes nothing",
        given=(
            *LIMITS, rate("r:1", 0, 5, last_refill=FUTURE), rate("r:1", 1, 5, last_refill=FUTURE), gate("g:1", 0, 1),
            rated(1, "r:1", 99), rated(2, "unknown:1"), gated(3, "unknown:1"),
            gated(4, "g:1", rate_limit="r:1", weight=99),
        ),
        arguments=asked(1, 2, 3, 4),
        answer=[(1, False, None, "weight above burst"), (2, False, None, "unknown rate limit"),
                (3, False, None, "unknown gate"), (4, False, None, "weight above burst")],
        after={AHEAD: [("rate", "r:1", 0), ("rate", "r:1", 1)]},
        beside={free(BUCKETS, "kind, key, shard"): [("conc", "g:1", 0), ("rate", "r:1", 0), ("rate", "r:1", 1)]},
    ),
    Situation(
        statement="limiter/admit",
        says="who is refused is not admitted beside another of its keys, which is",
        given=(
            *LIMITS, gate("g:1", 0, 3), *(rate("r:1", n, 5, 5) for n in (0, 1)),
            gated(1, "g:1", rate_limit="r:1", weight=99), gated(2, "g:1", rate_limit="r:1", weight=1),
        ),
        arguments=asked(1, 2),
        answer=[(1, False, None, "weight above burst"), (2, True, 0, None)],
    ),
    Situation(
        statement="limiter/admit",
        says="a row that another holds is passed over",
        given=(*LIMITS, gate("g:1", 0, 3), gated(1, "g:1"), gated(2, "g:1")),
        holding=(lock(DURABLE, "id = 1", "FOR NO KEY UPDATE"),),
        arguments=asked(1, 2),
        answer=[(2, True, 0, None)],
    ),
    Situation(
        statement="limiter/admit",
        says="a shard that another holds is passed over, and only shards that are asked about are held",
        given=(
            *LIMITS, gate("g:1", 0, 1), gate("g:1", 1, 1), gate("g:2", 0, 1), rate("g:1", 0, 1),
            gated(1, "g:1"), gated(2, "g:1"),
        ),
        holding=(lock(BUCKETS, "key = 'g:1' AND shard = 0 AND kind = 'conc'"),),
        arguments=asked(1, 2),
        answer=[(1, True, 1, None), (2, False, None, None)],
        beside={free(BUCKETS, "kind, key, shard"): [("conc", "g:2", 0), ("rate", "g:1", 0)]},
    ),
    Situation(
        statement="limiter/admit",
        says="a shard that another has changed is passed over too",
        given=(*LIMITS, gate("g:1", 0, 1), gate("g:1", 1, 1), gated(1, "g:1"), gated(2, "g:1")),
        holding=(f"UPDATE {BUCKETS} SET available = 2 WHERE key = 'g:1' AND shard = 0",),
        arguments=asked(1, 2),
        answer=[(1, True, 1, None), (2, False, None, None)],
    ),
    Situation(
        statement="limiter/admit",
        says="a cold key that another is making is denied, another cold key is not",
        given=(*LIMITS, gated(1, "g:1"), gated(2, "g:2")),
        holding=(COLD,),
        arguments=asked(1, 2),
        answer=[(1, False, None, None), (2, True, 0, None)],
    ),
    Situation(
        statement="limiter/admit",
        says="cold keys are made in their order, the later not before the earlier",
        given=(*LIMITS, *(gated(n, f"g:{10 - n}") for n in range(1, 10)), rated(10, "r:1")),
        holding=(MAKE.format("conc", "g:1", 0),),
        gives_up=True,
        arguments=asked(*range(1, 11)),
        waits=True,
        meanwhile={
            MAKE.format("conc", "g:1", 1): [("g:1", 1)],
            **{MAKE.format("conc", f"g:{n}", 0): [(f"g:{n}", 0)] for n in range(2, 10)},
            MAKE.format("rate", "r:1", 0): [("r:1", 0)],
        },
        answer=[(n, True) for n in range(1, 11)],
        shows=(0, 1),
    ),
)  # fmt: skip

CREDIT: Final = (
    Situation(
        statement="limiter/credit",
        says="a slot goes to its shard's debt, then to its level, never above; what a count has seen is not given",
        given=(
            gate("g:1", 0, 1, counted=COUNTED), gate("g:1", 1, 0, debt=1, counted=COUNTED),
            gate("g:1", 2, 9, counted=COUNTED), gate("g:1", 3, 1, counted="900:900:"),
            gate("g:1", 4, 1, counted=COUNTED), gate("g:2", 0, 1, counted=COUNTED), rate("g:1", 0, 1, counted=COUNTED),
        ),
        arguments=(["g:1"] * 6, [0, 0, 1, 1, 2, 3], "500"),
        answer=[("g:1", 0), ("g:1", 1), ("g:1", 2)],
        after={
            "SELECT kind, key, shard, available, debt FROM gen_durable_buckets ORDER BY 1, 2, 3": [
                ("conc", "g:1", 0, 3.0, 0.0), ("conc", "g:1", 1, 1.0, 0.0), ("conc", "g:1", 2, 9.0, 0.0),
                ("conc", "g:1", 3, 1.0, 0.0), ("conc", "g:1", 4, 1.0, 0.0), ("conc", "g:2", 0, 1.0, 0.0),
                ("rate", "g:1", 0, 1.0, 0.0),
            ]
        },
    ),
    Situation(
        statement="limiter/credit",
        says="it waits for no shard of another kind, key or number",
        given=tuple(
            make(key, shard, 1, counted=COUNTED)
            for make, key, shard in ((gate, "g:1", 0), (gate, "g:1", 1), (gate, "g:2", 0), (rate, "g:1", 0))
        ),
        holding=(lock(BUCKETS, "(kind, key, shard) <> ('conc', 'g:1', 0)"),),
        arguments=(["g:1"], [0], "500"),
        answer=[("g:1", 0)],
    ),
    Situation(
        statement="limiter/credit",
        says="it waits for the first shard first, and holds no other meanwhile",
        given=tuple(gate(key, shard, 1, counted=COUNTED) for key, shard in (("g:2", 0), ("g:1", 1), ("g:1", 0))),
        holding=(lock(BUCKETS, "key = 'g:1' AND shard = 0"),),
        arguments=(["g:2", "g:1", "g:1"], [0, 1, 0], "500"),
        waits=True,
        meanwhile={free(BUCKETS, "key, shard"): [("g:1", 1), ("g:2", 0)]},
        answer=[("g:1", 0), ("g:1", 1), ("g:2", 0)],
    ),
    Situation(
        statement="limiter/credit",
        says="what was counted while it waited is not given",
        given=(gate("g:1", 0, 1, counted=COUNTED),),
        holding=(f"UPDATE {BUCKETS} SET counted = '900:900:'",),
        arguments=(["g:1"], [0], "500"),
        waits=True,
        answer=[],
        after={LEVELS: [("conc", "g:1", 0, 1.0)]},
    ),
)  # fmt: skip

# Twelve slots in as many shards, and two shards that the configuration no longer has.
WIDE: Final = 12
UNUSED: Final = {"idle_since": PAST, "counted": COUNTED}
RECONCILE: Final = (
    Situation(
        statement="limiter/reconcile",
        says="levels are what executes leaves; shards too many go, missing ones are made; nothing else changes",
        given=(
            limit("conc", "g", 5, 2), limit("rate", "g", 50, 7, 1.0), limit("conc", "other", 50, 7),
            gate("g:3", 0, 0, 9), gate("g:3", 1, 0, 9), gate("g:3", 2, 0, 9), gate("g:5", 0, 1, 9),
            gate("g:1", 0, 4, 9), gate("g:9", 0, 4, 9), gate("g:4", 0, 4, 9), gate("g:4", 1, 4, 9), rate("g:3", 0, 4),
            gate("g:6", 0, 3, 3), gate("g:6", 1, 2, 2),
            *(gated(n, "g:3", concurrency_shard=0) for n in (1, 2, 3)), gated(4, "g:3", concurrency_shard=1),
            gated(5, "g:3"), gated(6, "g:5", concurrency_shard=1), gated(7, "g:1", concurrency_shard=0),
            gated(8, "g:9", concurrency_shard=0), gated(9, "g:45", concurrency_shard=0),
            job(10, concurrency_key="g:3", concurrency_shard=1), gated(11, "g:4", concurrency_shard=0),
        ),
        arguments=(["g:3", "g:3", "g:3", "g:4", "g:5", "g:6", "g:6"], [0, 1, 2, 0, 0, 0, 1], 1_000.0),
        answer=[(3, 3, 1, 1)],
        after={
            "SELECT kind, key, shard, capacity, available, debt FROM gen_durable_buckets ORDER BY 1, 2, 3": [
                ("conc", "g:1", 0, 9.0, 4.0, 0.0), ("conc", "g:3", 0, 3.0, 0.0, 0.0), ("conc", "g:3", 1, 2.0, 1.0, 0.0),
                ("conc", "g:4", 0, 9.0, 4.0, 0.0), ("conc", "g:4", 1, 9.0, 4.0, 0.0), ("conc", "g:5", 0, 3.0, 3.0, 0.0),
                ("conc", "g:5", 1, 2.0, 1.0, 0.0), ("conc", "g:6", 0, 3.0, 3.0, 0.0), ("conc", "g:6", 1, 2.0, 2.0, 0.0),
                ("conc", "g:9", 0, 9.0, 4.0, 0.0), ("rate", "g:3", 0, 9.0, 4.0, 0.0),
            ],
            "SELECT kind, key, shard FROM gen_durable_buckets WHERE counted IS NOT NULL ORDER BY 1, 2, 3": [
                ("conc", "g:3", 0), ("conc", "g:3", 1), ("conc", "g:5", 0), ("conc", "g:5", 1), ("conc", "g:6", 0),
                ("conc", "g:6", 1),
            ],
        },
    ),
    Situation(
        statement="limiter/reconcile",
        says="missing shards are made in their order, however many there are",
        given=(limit("conc", "g", MANY, MANY), every_other("conc", "g:1"), *noted(BUCKETS, "shard")),
        arguments=(["g:1"] * (MANY // 2), list(range(0, MANY, 2)), 1_000.0),
        shows=(0, 2),
        answer=[(1, MANY // 2)],
        after={NOTED_IN_ORDER: [(MANY // 2, True)]},
        spills=True,
    ),
    Situation(
        statement="limiter/reconcile",
        says="a key goes that nobody has used for long, or whose configuration is gone and nobody holds; no other",
        given=(
            limit("conc", "g", 5, 1),
            gate("g:1", 0, 4, 5, **UNUSED), gate("g:2", 0, 4, 5, **UNUSED), gate("g:3", 0, 5, 5, idle_since=FUTURE),
            gate("gone:1", 0, 5, 5), gate("gone:2", 0, 5, 5, **UNUSED),
            gated(2, "g:2", concurrency_shard=0), gated(3, "gone:2", concurrency_shard=0),
        ),
        arguments=(["g:1", "g:2", "g:3", "gone:1", "gone:2"], [0] * 5, 1_000.0),
        answer=[(5, 0, 0, 2)],
        after={
            SHARDS: [("conc", "g:2", 0), ("conc", "g:3", 0), ("conc", "gone:2", 0)],
            "SELECT key, idle_since IS NULL, counted::text = '100:100:' FROM gen_durable_buckets ORDER BY 1": [
                ("g:2", True, False), ("g:3", False, False), ("gone:2", False, True),
            ],
        },
    ),
    Situation(
        statement="limiter/reconcile",
        says="of many shards those go that are too many",
        given=(
            limit("conc", "g", WIDE, WIDE),
            *(
                gate(key, n, 1, 1)
                for n in (WIDE + 1, 3, 0, 7, WIDE, 1, 2, 4, 5, 6, 8, 9, 10, 11)
                for key in ("g:2", "g:1")
            ),
            *(gated(n, "g:1", concurrency_shard=n) for n in (1, 5, 9)),
        ),
        arguments=(["g:2", "g:1"] * (WIDE + 2), [n // 2 for n in range(2 * WIDE + 4)], 1_000.0),
        answer=[(2, 3, 0, 4)],
        after={SHARDS: [("conc", key, n) for key in ("g:1", "g:2") for n in range(WIDE)]},
    ),
    Situation(
        statement="limiter/reconcile",
        says="missing shards are made in their order, the later not before the earlier",
        given=(limit("conc", "g", 4, 3), *(gate(f"g:{n}", 0, 1) for n in range(9, 0, -1))),
        holding=(MAKE.format("conc", "g:1", 1),),
        gives_up=True,
        arguments=([f"g:{n}" for n in range(9, 0, -1)], [0] * 9, 1_000.0),
        waits=True,
        meanwhile={
            MAKE.format("conc", "g:1", 2): [("g:1", 2)],
            **{MAKE.format("conc", f"g:{n}", 1): [(f"g:{n}", 1)] for n in range(2, 10)},
        },
        answer=[(9, 9, 18, 0)],
    ),
    *(
        Situation(
            statement="limiter/reconcile",
            says=f"it looks at no key {where} the page",
            given=(
                limit("conc", "g", 5, 1), gate("g:1", 0, 5, 5),
                (f"INSERT INTO {BUCKETS} (kind, key, shard, capacity, available) "
                f"SELECT 'conc', '{key}' || n, 0, 5, 5 FROM generate_series(1, 2000) AS n"),
                f"ANALYZE {BUCKETS}",
                looked_at(BUCKETS),
            ),
            arguments=(["g:1"], [0], 1_000.0),
            answer=[(1, 0, 0, 0)],
            after={few_were_looked_at(BUCKETS, 100): [(True,)]},
            as_planned=True,
        )
        for where, key in (("before", "a:"), ("behind", "z:"))
    ),
    Situation(
        statement="limiter/reconcile_lock",
        says="it locks what nobody holds, from the first key to the last, both included",
        given=(
            gate("g:5", 0, 1), gate("g:2", 1, 1), gate("g:2", 0, 1), gate("g:1", 0, 1), gate("g:3", 0, 1),
            rate("g:2", 7, 1),
        ),
        holding=(lock(BUCKETS, "key = 'g:3'"),),
        arguments=("g:2", "g:4"),
        answer=[("g:2", 0), ("g:2", 1)],
        beside={free(BUCKETS, "kind, key, shard"): [("conc", "g:1", 0), ("conc", "g:5", 0), ("rate", "g:2", 7)]},
    ),
    Situation(
        statement="limiter/reconcile_page",
        says="the next keys of gates, each once, in order",
        given=(*(gate(f"g:{n}", 0, 1) for n in range(9, 1, -1)), gate("g:3", 1, 1), rate("g:25", 0, 1)),
        arguments=("g:2", 4),
        answer=[("g:3",), ("g:4",), ("g:5",), ("g:6",)],
        in_order=True,
    ),
)  # fmt: skip

SWEEP: Final = (
    Situation(
        statement="limiter/sweep_buckets",
        says="keys that are full or gone are dropped, changed numbers of shards mended, and nothing else changes",
        given=(
            limit("rate", "r", 10, 2, 1.0), limit("conc", "r", 10, 5), limit("rate", "other", 99, 7, 0.001),
            limit("rate", "never", 10, 1, 0.0),
            *(rate("r:full", n, 1, last_refill=PAST) for n in (0, 1)), *(rate("r:new", n, 1) for n in (0, 1)),
            rate("r:less", 1, 1), *(rate("r:more", n, 1) for n in (0, 1, 2)), rate("never:1", 0, 1, last_refill=PAST),
            *(rate("gone:1", n, 1) for n in (0, 1)),
            gate("r:full", 0, 1), gate("r:full", 7, 1), gate("r:more", 5, 1), gate("gone:1", 5, 1),
            gate("gone:9", 0, 1),
        ),
        arguments=(10,),
        answer=[(2, 1, 1)],
        after={
            SHARDS: [
                ("conc", "gone:1", 5), ("conc", "gone:9", 0), ("conc", "r:full", 0), ("conc", "r:full", 7),
                ("conc", "r:more", 5), ("rate", "never:1", 0), ("rate", "r:less", 0), ("rate", "r:less", 1),
                ("rate", "r:more", 0), ("rate", "r:more", 1), ("rate", "r:new", 0), ("rate", "r:new", 1),
            ]
        },
    ),
    Situation(
        statement="limiter/sweep_buckets",
        says="it counts only what has to be put in order, the first keys first",
        given=(
            limit("rate", "r", 10, 1, 1.0), gate("a:1", 0, 1), rate("r:0", 0, 1),
            *(rate(f"r:{n}", 0, 1, last_refill=PAST) for n in range(9, 0, -1)),
        ),
        arguments=(3,),
        answer=[(3, 0, 0)],
        after={SHARDS: [("conc", "a:1", 0), ("rate", "r:0", 0), *(("rate", f"r:{n}", 0) for n in range(4, 10))]},
    ),
    Situation(
        statement="limiter/sweep_buckets",
        says="a key of which another holds a shard waits for the next sweep, whatever is wrong with it",
        given=(
            limit("rate", "r", 10, 2, 1.0), *(rate("r:1", n, 1, last_refill=PAST) for n in (0, 1)),
            *(rate("gone:1", n, 1) for n in (0, 1)), rate("r:2", 0, 1), *(rate("r:3", n, 1) for n in (0, 2)),
        ),
        holding=(lock(BUCKETS, "shard = 0"),),
        arguments=(10,),
        answer=[(0, 0, 0)],
    ),
    Situation(
        statement="limiter/sweep_buckets",
        says="missing shards are made in their order, the later not before the earlier",
        given=(limit("rate", "r", 10, 3, 1.0), *(rate(f"r:{n}", 0, 1) for n in range(9, 0, -1))),
        holding=(MAKE.format("rate", "r:1", 1),),
        gives_up=True,
        arguments=(10,),
        waits=True,
        meanwhile={
            MAKE.format("rate", "r:1", 2): [("r:1", 2)],
            **{MAKE.format("rate", f"r:{n}", 1): [(f"r:{n}", 1)] for n in range(2, 10)},
        },
        answer=[(0, 18, 0)],
    ),
    Situation(
        statement="limiter/sweep_buckets",
        says="missing shards are made in their order, however many there are",
        given=(limit("rate", "r", MANY, MANY, 1.0), every_other("rate", "r:1"), *noted(BUCKETS, "shard")),
        arguments=(10,),
        answer=[(0, MANY // 2, 0)],
        after={NOTED_IN_ORDER: [(MANY // 2, True)]},
        spills=True,
    ),
    Situation(
        statement="limiter/sync_config",
        says="limits that are new or changed are stored, and no others",
        given=(limit("rate", "same", 10, 1, 1.0), limit("rate", "old", 10, 1, 1.0), limit("conc", "other", 7)),
        arguments=(["rate", "rate", "conc"], ["same", "old", "new"], [1.0, 2.0, None], [10.0, 10.0, 5.0], [1, 1, 2]),
        answer=[("rate", "old"), ("conc", "new")],
        after={
            "SELECT name, rate, capacity, shards FROM gen_durable_bucket_configs ORDER BY 1": [
                ("new", None, 5.0, 2), ("old", 2.0, 10.0, 1), ("other", None, 7.0, 1), ("same", 1.0, 10.0, 1),
            ]
        },
    ),
    Situation(
        statement="limiter/sync_config",
        says="limits are met in their order, a later one is not stored meanwhile",
        holding=(limit("conc", "a", 1),),
        arguments=(["rate", "conc", "conc"], ["a", "b", "a"], [1.0, None, None], [1.0] * 3, [1] * 3),
        waits=True,
        meanwhile={
            "INSERT INTO gen_durable_bucket_configs (kind, name, capacity) VALUES ('conc', 'b', 1), ('rate', 'a', 1) "
            "ON CONFLICT DO NOTHING RETURNING name": [("b",), ("a",)],
        },
        answer=[("conc", "b"), ("rate", "a")],
    ),
)  # fmt: skip

SITUATIONS: Final = (*ADMIT, *CREDIT, *RECONCILE, *SWEEP)
