"""Scenarios: what the clients do, which machines the nodes run, and what must come of each job.

A scenario is pure: from a random source it makes client operations, and from a job's plan it tells the terminal
outcome that the machine prescribes. `SCENARIOS` holds them by name.
"""

from __future__ import annotations

from stress.scenarios.batches import BATCHES
from stress.scenarios.children import CHILDREN
from stress.scenarios.churn import CHURN
from stress.scenarios.deploy import DEPLOY
from stress.scenarios.far_future import FAR_FUTURE
from stress.scenarios.hot_key import HOT_KEY
from stress.scenarios.inline import INLINE
from stress.scenarios.limits import LIMITED
from stress.scenarios.mixed import MIXED
from stress.scenarios.poisoned import POISON
from stress.scenarios.pokes_dropped import POKES_DROPPED
from stress.scenarios.quiet import QUIET
from stress.scenarios.saturated_gate import SATURATED_GATE
from stress.scenarios.scenario import Converse, Insert, InsertMany, Operation, Planned, Scenario, Send
from stress.scenarios.signals import SIGNALS
from stress.scenarios.statechart import STATECHART
from stress.scenarios.store import CONTENTION
from stress.scenarios.store_scenario import StoreScenario
from stress.scenarios.thundering_herd import THUNDERING_HERD

AnyScenario = Scenario | StoreScenario

SCENARIOS: dict[str, AnyScenario] = {
    scenario.name: scenario
    for scenario in (
        MIXED, SIGNALS, CHILDREN, INLINE, LIMITED, BATCHES, POKES_DROPPED, HOT_KEY, SATURATED_GATE, FAR_FUTURE,
        THUNDERING_HERD, DEPLOY, CHURN, POISON, QUIET, CONTENTION, STATECHART,
    )
}  # fmt: skip

__all__ = [
    "SCENARIOS",
    "AnyScenario",
    "Converse",
    "Insert",
    "InsertMany",
    "Operation",
    "Planned",
    "Scenario",
    "Send",
    "StoreScenario",
]
