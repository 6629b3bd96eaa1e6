"""Faults: what is done to nodes and server while the load runs, by a seeded plan, each with a heal.

`plan_faults` is pure: it says what happens to which node and when. The runner carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

# Nothing is done to the nodes in the first part of the load, so that there is something to disturb, and every fault is
# healed before its end, so that recovery happens under load too.
QUIET_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. `period_s`: mean time between two of it; `lasts_leases`: how long it lasts, in lease lengths."""

    name: str
    summary: str
    period_s: float
    lasts_leases: tuple[float, float]


FAULTS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("kill", "SIGKILL a node; heal: start a new one in its place", 3.0, (0.1, 0.8)),
        FaultKind("pause", "SIGSTOP a node past its leases; heal: SIGCONT", 4.0, (1.2, 1.8)),
    )
}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: at `at_s` seconds into the load, on the node in place `place`, for `lasts_s` seconds."""

    at_s: float
    name: str
    place: int
    lasts_s: float


def plan_faults(
    names: tuple[str, ...], *, seed: int, seconds: float, nodes: int, lease_s: float
) -> tuple[PlannedFault, ...]:
    """The faults of a run in time order. At least one node is left alone at any moment; a single node is never
    disturbed for good. Every named fault occurs at least once when the load is long enough to hold it."""
    random = Random(f"faults/{seed}")
    planned: list[PlannedFault] = []
    for name in names:
        kind = FAULTS[name]
        at_s = seconds * QUIET_SHARE + random.random() * 0.5
        while True:
            lasts_s = lease_s * random.uniform(*kind.lasts_leases)
            if at_s + lasts_s > seconds * (1 - QUIET_SHARE):
                break
            free = _free_places(planned, at_s, at_s + lasts_s, nodes)
            if free:
                planned.append(PlannedFault(at_s, name, random.choice(free), lasts_s))
            at_s += kind.period_s * random.uniform(0.5, 1.5)
    return tuple(sorted(planned, key=lambda fault: (fault.at_s, fault.place)))


def _free_places(planned: list[PlannedFault], begin_s: float, end_s: float, nodes: int) -> list[int]:
    """Places that no planned fault overlaps, unless taking one would leave no node alone."""
    taken = {fault.place for fault in planned if fault.at_s < end_s and begin_s < fault.at_s + fault.lasts_s}
    free = [place for place in range(nodes) if place not in taken]
    return free if len(free) > 1 or nodes == 1 else []
