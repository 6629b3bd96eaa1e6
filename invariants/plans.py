"""The invariants of plans, by name (claims.md, "Plans"): for the list of all that is judged.

They are judged by `nox -s plans`, on captured plans in place of a run's history (`results/plans/verdict.py`, which has
the same names and statements).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PLAN_INVARIANTS: Final[Mapping[str, str]] = {
    "plan-index": "each statement uses its own index, and none reads a large table whole",
    "plan-o-batch": "rows and buffers touched grow with the batch, not with the table, the backlog, the executing set"
    " or the terminal rows",
    "plan-generic": "the generic plan is as good as the custom one",
    "plan-stable": "a plan has the same shape from one major version to the next, or the difference is explained",
}
