"""The scenario `statechart`: parcels and hubs from their start to their end, told twice, late, and out of order."""

from __future__ import annotations

from random import Random
from typing import Any

from stress.scenarios.charts import CHARTS, HUB, PACKING_S, PARCEL, WAITING_S
from stress.scenarios.store_scenario import Act, Listing, Start, StoreScenario, Tell

PARCELS = (2, 6)
LISTINGS = 0.06
# What a client may tell a parcel, and when: about when its timer would do the same.
TOLD = (("rush", PACKING_S), ("repack", PACKING_S), ("collect", PACKING_S + WAITING_S), ("lose", 0.2))


def next_acts(random: Random, _: int) -> tuple[Act, ...]:
    """One hub with its parcels; now and then a look at all."""
    if random.random() < LISTINGS:
        return (Listing(random.choice((None, "RUNNING", "DONE")), random.choice((20, 100))),)
    hub = f"{random.getrandbits(128):032x}"
    parcels = [f"{random.getrandbits(128):032x}" for _ in range(random.randint(*PARCELS))]
    # The hub first: a report that arrives before its hub is there is told to nobody.
    executions: list[tuple[str, str, dict[str, Any]]] = [(HUB.definition_id, hub, {"expected": len(parcels)})]
    executions += (
        (PARCEL.definition_id, each, {"hub": hub, "label": "x" * random.randrange(9)}) for each in parcels
    )
    acts: list[Act] = [Start(tuple(executions), together=random.random() < 0.5, ends=True, waits=True)]
    for parcel in parcels:
        if random.random() < 0.5:
            kind, when_s = random.choice(TOLD)
            acts.append(
                Tell(
                    parcel,
                    f"{parcel}:{kind}",
                    kind,
                    {},
                    copies=random.choice((1, 1, 2, 3)),
                    pause_ms=random.uniform(0, 0.3) * when_s * 1_000,
                )
            )
    return tuple(acts)


STATECHART = StoreScenario(
    name="statechart",
    summary="statecharts with timers, forks and joins on the store, the relay and the transport, to their ends",
    charts=CHARTS,
    next_acts=next_acts,
    clients=8,
    pause_ms=150.0,
    max_backlog=200,
    look_every=1,
    exercises=(
        "outbox-no-loss", "effect-once", "timer-rearm", "spawn-once", "trace-ring", "listing-complete",
        "execution-ends",
    ),
)  # fmt: skip
