"""What a race is: plain data. How one is run is the controller's business.

A race file is a module of `stress/schedules/races/` that holds `RACES`, one or several. A session is a sequence of
actions (`actions`), each a real operation of the engine; before each, and between its statements, the search may let
another session go on. Results feed what follows: a claim's rows its outcomes, a flush's freed slots its credit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.limiter import Limit
from stress.schedules.actions import Action

# What a planner may be told; the order of locks must not depend on it. By name: settings of every session.
PLANNERS: Final[Mapping[str, Mapping[str, str]]] = {
    "generic": {"plan_cache_mode": "force_generic_plan"},
    "custom": {"plan_cache_mode": "force_custom_plan"},
    "no-nestloop": {"plan_cache_mode": "force_generic_plan", "enable_nestloop": "off"},
    "no-indexscan": {
        "plan_cache_mode": "force_generic_plan",
        "enable_indexscan": "off",
        "enable_indexonlyscan": "off",
        "enable_bitmapscan": "off",
    },
}
# Of statements that are not the engine's. The engine's sessions keep the planner from what its statements cannot bear;
# here each of these leaves it no choice, for a plan that hangs on how large a table has become is under no control.
FOREIGN_PLANNERS: Final[Mapping[str, Mapping[str, str]]] = {
    "hashed": {
        "plan_cache_mode": "force_generic_plan",
        "enable_nestloop": "off",
        "enable_mergejoin": "off",
        "enable_seqscan": "off",
    },
    # A subquery is run once a row.
    "nested": {
        "plan_cache_mode": "force_generic_plan",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_hashagg": "off",
        "enable_sort": "off",
        "enable_material": "off",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
    },
    "scanned": {
        "plan_cache_mode": "force_generic_plan",
        "enable_nestloop": "off",
        "enable_mergejoin": "off",
        "enable_indexscan": "off",
        "enable_indexonlyscan": "off",
        "enable_bitmapscan": "off",
    },
}
MAX_SESSIONS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """One race.

    `setup` runs first, alone; `finish` last, alone, when every session has ended or died. `invariants`: those that at
    least one schedule must have been subject to; every other one is judged too. `at_rest`: where no session died,
    nothing is left to do after `finish`, also without some of its actions, and what is only true then is judged.
    `settings`: of single sessions, beside the planner's. `row_gates`: by session, the label of the row, or the
    identity, key, name or target, before which it stops a second time inside of its statements. `stops`: the sessions
    that stop inside of statements and before the commit of a statement by itself; None: all. The others take a
    statement whole, which keeps a race of many sessions small. `inner`: the sessions that stop between the statements
    of a function, too. `contends`: that some schedule must block a session or change an answer. `covers`: the pairs of
    operations that it decides, for the table in docs/races.md.
    """

    name: str
    summary: str
    sessions: Mapping[str, tuple[Action, ...]]
    setup: tuple[Action, ...] = ()
    finish: tuple[Action, ...] = ()
    invariants: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    at_rest: bool = False
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    row_gates: Mapping[str, str] = field(default_factory=dict)
    stops: tuple[str, ...] | None = None
    inner: tuple[str, ...] = ()
    contends: bool = True
    covers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert 1 <= len(self.sessions) <= MAX_SESSIONS, self.name
        named = set(self.row_gates) | set(self.settings) | set(self.stops or ()) | set(self.inner)
        assert named <= set(self.sessions), self.name

    def stops_inside(self, session: str) -> bool:
        """Whether that session stops inside of its statements."""
        return self.stops is None or session in self.stops
