"""The scenario `mixed`: a bit of everything the engine offers, with enough contention for each race to occur."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from engine.picker import LIVE, Job, Status
from engine.policy import QueuePolicy
from stress.scenarios.children import EXERCISES as CHILDREN
from stress.scenarios.family import Family, family
from stress.scenarios.inline import EXERCISES as INLINE
from stress.scenarios.inline import chain
from stress.scenarios.limits import EXERCISES as LIMITED
from stress.scenarios.limits import LIMITS, limited
from stress.scenarios.limits import opening as open_limits
from stress.scenarios.mailbox import Mailbox, conversation
from stress.scenarios.scenario import Insert, InsertMany, Operation, Planned, Scenario
from stress.scenarios.script import InlineScript, Script, ThreadedScript, expected_end, initial_state
from stress.scenarios.signals import EXERCISES as SIGNALS

HOT_KEYS = 8
SPREAD_KEYS = 500
IDENTITIES_PER_WINDOW = 18
QUEUES = ("default", "bulk", "urgent")
PRIORITIES = (-5, 0, 0, 0, 3, 9)
SCOPES: tuple[tuple[Status, ...], ...] = (
    LIVE,
    LIVE,
    (*LIVE, "done"),
    (*LIVE, "failed"),
    ("runnable",),
    ("runnable", "executing"),
)
# How often each kind of script is drawn.
SCRIPTS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.40, ("done",)),
    (0.20, ("next", "next", "done")),
    (0.08, ("retry:1", "done")),
    (0.04, ("next", "retry:2", "next", "done")),
    (0.10, ("sleep:15", "done")),
    (0.06, ("next", "sleep:60", "next", "done")),
    (0.02, ("sleep:600", "done")),
    (0.05, ("stop",)),
    (0.03, ("next", "raise")),
    (0.02, ("unstorable",)),
)
MANY = (5, 40)
SHARE_OF_BATCHES = 0.18
# Of the other acts: conversations, families, chains in line, and jobs that need a slot or tokens.
SHARES = (("plain", 0.65), ("conversation", 0.12), ("family", 0.05), ("chain", 0.08), ("limited", 0.10))
# What limits hold back would fill the window of other jobs' picks.
GATED, RATED = "gated", "rated"
MAX_IN_QUEUE = {GATED: 60, RATED: 60}
# Long enough for a client to finish its conversation in most cases, short enough to be over many times in a run.
RETENTION_MS = 1_500.0


def opening(random: Random) -> tuple[Operation, ...]:
    """One act of each kind but the plain one."""
    rated = tuple(
        Insert(_in_own_queue(act.planned)) for act in open_limits(random) if isinstance(act, Insert)
    )
    return (
        conversation(random, QUEUES[0]),
        Insert(family(random, QUEUES[0])),
        Insert(chain(random, QUEUES[0])),
        Insert(_in_own_queue(limited(random))),
        *rated,
    )


def next_operation(random: Random, window: int) -> Operation:
    """One act of any kind; now and then a batch whose identities clash with those of other batches of the moment."""
    if random.random() >= SHARE_OF_BATCHES:
        kind = random.choices([kind for kind, _ in SHARES], [share for _, share in SHARES])[0]
        queue = random.choices(QUEUES, (6, 3, 1))[0]
        match kind:
            case "conversation":
                return conversation(random, queue)
            case "family":
                return Insert(family(random, queue))
            case "chain":
                return Insert(chain(random, queue))
            case "limited":
                return Insert(_in_own_queue(limited(random)))
            case _:
                return Insert(plain(random, window))
    return InsertMany(tuple(plain(random, window, clash=True) for _ in range(random.randint(*MANY))))


def _in_own_queue(planned: Planned) -> Planned:
    own = GATED if planned.job.rate_limit is None else RATED
    return replace(planned, job=replace(planned.job, queue=own))


def plain(random: Random, window: int, *, clash: bool = False) -> Planned:
    """A job of a script; one that may `clash` takes one of the identities of its moment."""
    script = random.choices([words for _, words in SCRIPTS], [share for share, _ in SCRIPTS])[0]
    status, result = expected_end(script)
    job = Job(
        fsm=random.choice((Script.name, Script.name, Script.name, ThreadedScript.name)),
        step="odd",
        state=initial_state(script),
        queue=random.choices(QUEUES, (6, 3, 1))[0],
        priority=random.choice(PRIORITIES),
        eligible_at=_eligible_at(random),
        concurrency_key=_concurrency_key(random),
        correlation_key=_identity(random, window) if clash or random.random() < 0.1 else None,
        correlation_scope=random.choice(SCOPES),
    )
    return Planned(job, status, result)


def _eligible_at(random: Random) -> datetime | None:
    """Mostly at once; some in the near future. A client's clock: only the server's comparison with it counts."""
    if random.random() < 0.9:
        return None
    return datetime.now(UTC) + timedelta(milliseconds=random.randint(50, 1500))


def _concurrency_key(random: Random) -> str | None:
    draw = random.random()
    if draw < 0.70:
        return None
    # Few: a hot key is served one row at a time, and what comes faster fills the queues and starves the rest.
    if draw < 0.73:
        return f"hot:{random.randrange(HOT_KEYS)}"
    # Bare numbers too: a key must never be mistaken for a row's id.
    return random.choice(("spread:{}", "{}")).format(random.randrange(SPREAD_KEYS))


def _identity(random: Random, window: int) -> str:
    return f"order-{window}-{random.randrange(IDENTITIES_PER_WINDOW)}"


MIXED = Scenario(
    name="mixed",
    summary="plain and keyed jobs, several queues and priorities, retries, failures, scheduled jobs, clashing batches, "
    "conversations, families, chains in line, gates and rate limits; rows are collected while the load runs",
    machines=(Script, ThreadedScript, InlineScript, Mailbox, Family),
    queues=(
        *(QueuePolicy(name=name, concurrency=24, prefetch=24) for name in QUEUES),
        *(QueuePolicy(name=name, concurrency=12, prefetch=4) for name in (GATED, RATED)),
    ),
    next_operation=next_operation,
    opening=opening,
    clients=12,
    pause_ms=4.0,
    max_backlog=1_200,
    exercises=tuple(sorted({"gc-safe", "k1-exclusion", *SIGNALS, *CHILDREN, *INLINE, *LIMITED})),
    limits=LIMITS,
    max_in_queue=MAX_IN_QUEUE,
    retention_ms=RETENTION_MS,
    pokes="some",
)
