"""Faults: what is done to nodes and server while the load runs, by a seeded plan, each with a heal.

`plan` says what happens when and where, and is pure; `acts` has what each fault does, `ground` what it does it to.
"""

from stress.faults.plan import FAULTS, FaultKind, PlannedFault, plan_faults

__all__ = ["FAULTS", "FaultKind", "PlannedFault", "plan_faults"]
