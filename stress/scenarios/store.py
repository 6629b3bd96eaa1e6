"""The scenario `store`: a few hot executions that clients, nodes and messages all write to."""

from __future__ import annotations

from random import Random

from engine.statechart import Chart, Go, Scope, State
from stress.scenarios.store_scenario import Act, Bump, Listing, Note, Start, StoreScenario, Tell

HOT = tuple(f"hot-{number}" for number in range(12))
PATHS = ("quarter", "half", "whole")
# How often each kind of act is drawn.
SHARES = (("bump", 0.50), ("batch", 0.15), ("tell", 0.18), ("first", 0.05), ("note", 0.06), ("list", 0.06))


def _bump(scope: Scope) -> None:
    scope.context["events"] = scope.context.get("events", 0) + 1


COUNTER = Chart("counter", State("counter", on={"bump": Go(None, do=_bump)}))


def bump(random: Random, targets: tuple[str, ...]) -> Bump:
    """A commit of these executions, state-only or with effects of every kind."""
    if random.random() < 0.5:
        return Bump(targets, COUNTER.definition_id)
    return Bump(
        targets,
        COUNTER.definition_id,
        emits=tuple(random.choices(HOT, k=random.randrange(3))),
        arm=tuple((path, random.uniform(0.01, 0.4)) for path in random.sample(PATHS, random.randrange(3))),
        cancel=tuple(random.sample(PATHS, random.randrange(2))),
        traced=random.random() < 0.5,
    )


def next_acts(random: Random, window: int) -> tuple[Act, ...]:
    """One act; executions of the moment, which nobody has saved yet, are drawn from the window."""
    kind = random.choices([kind for kind, _ in SHARES], [share for _, share in SHARES])[0]
    match kind:
        case "bump":
            return (bump(random, (random.choice(HOT),)),)
        case "batch":
            return (bump(random, tuple(random.sample(HOT, random.randint(2, 5)))),)
        case "tell":
            event_id = f"{random.getrandbits(64):016x}"
            return (Tell(random.choice(HOT), event_id, "bump", {}, copies=random.choice((1, 1, 2))),)
        case "first":
            fresh = f"fresh-{window}-{random.randrange(3)}"
            return (Start(((COUNTER.definition_id, fresh, {}),), together=random.random() < 0.5, ends=False),)
        case "note":
            return (Note(random.choice(HOT)),)
        case _:
            return (Listing(random.choice((None, None, "RUNNING")), random.choice((5, 50))),)


CONTENTION = StoreScenario(
    name="store",
    summary="a few hot executions that clients, nodes and messages all write to: compare-and-set, effects, batches",
    charts=(COUNTER,),
    next_acts=next_acts,
    clients=10,
    pause_ms=8.0,
    max_backlog=500,
    contenders=3,
    exercises=(
        "conflict-typed", "outbox-no-loss", "effect-once", "timer-rearm", "trace-ring", "read-fresh",
        "listing-complete",
    ),
)  # fmt: skip
