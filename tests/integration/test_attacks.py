"""Attacks on the sound engine that once succeeded, beyond those that a mutant keeps open."""

from __future__ import annotations

import pytest

from tests.fixtures.arena import Arena, of, verdicts
from tests.integration.test_mutants import OpenArena, two_claims_of_two_keys

PLANS: dict[str, dict[str, str]] = {
    "its own": {},
    "no nested loop": {"enable_nestloop": "off"},
    "no look-up by tid": {"enable_tidscan": "off"},
}


def use_the_plan_of_a_small_table(arena: Arena) -> None:
    """A table of a few pages whose size the planner knows, as autovacuum leaves it: the planner takes a hash join,
    which does not keep the order of what it joins."""
    arena.on_rows_ready = lambda: arena.execute("VACUUM ANALYZE gen_durable")


@pytest.mark.parametrize("plan", PLANS)
def test_two_claims_of_a_small_table_do_not_deadlock(plan: str, open_arena: OpenArena) -> None:
    arena = open_arena(None)
    arena.session_settings = PLANS[plan]
    use_the_plan_of_a_small_table(arena)
    two_claims_of_two_keys(arena)
    report = arena.judge()
    assert of(report, "no-deadlock").verdict == "held", verdicts(report)
    assert of(report, "k1-exclusion").verdict == "held", verdicts(report)
