"""Which faults there are, and the plan of a run: pure, a function of the seed.

Rules:

1. Nothing is done in the first part of the load, so that there is something to disturb, and every fault is healed
   before its last part, so that recovery happens under load too.
2. A fault of the site `node` is done to the node in one place; a place suffers one at a time, and of several places one
   is left alone at any moment.
3. Of the faults of any other site one is in force at a time.
4. Every named fault occurs once before any occurs twice, so that none is left out while there is time for it; and once
   more in each further minute.
5. A load that is long enough begins with windows of faults by themselves, of as many kinds as `ALONE_SHARE` of its time
   holds, others with another seed: nothing else is in force then, nor for `SETTLE_S` after the heal. What is done among
   many others says nothing about how long recovery takes (`invariants/recovery.py`).
6. A run may fall behind: a server is down, a standby is not ready. What could not be done in time is done later as long
   as its kind has occurred less often than is promised; otherwise it is left out, for what piles up would come at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

QUIET_SHARE = 0.1
NODE, SERVER = "node", "server"
FAILOVERS = ("failover", "failover-async")
# How finely the planner looks for room, in seconds, and how often it tries its luck before it looks everywhere.
GRAIN_S = 0.1
DRAWS = 8
ROUND_S = 60.0
# How late a fault may be of which there were enough, and how many that is.
PATIENCE_S = 2.0
ENOUGH = 2
# Of the time in which there are faults; and how much of it is left to those that come together, at least.
ALONE_SHARE = 0.4
TOGETHER_S = 16.0
# What throughput was is measured in the time before, and when it is back in the time after.
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. `site`: see the module. `period_s`: mean time between two of it; `lasts_leases`: how long it
    lasts, in lease lengths. `own_server`: it needs a server that the harness started. `loses`: what was acknowledged
    may be lost by it, so it is done only where it is asked for by name."""

    name: str
    summary: str
    site: str
    period_s: float
    lasts_leases: tuple[float, float]
    own_server: bool = False
    loses: bool = False


FAULTS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("kill", "SIGKILL a node; heal: start a new one in its place", NODE, 3.0, (0.1, 0.8)),
        FaultKind("pause", "SIGSTOP a node past its leases; heal: SIGCONT", NODE, 4.0, (1.2, 1.8)),
        FaultKind("terminate", "pg_terminate_backend of sessions of nodes and clients", "backends", 4.0, (0.2, 0.6)),
        FaultKind("cancel", "pg_cancel_backend of their statements", "statements", 4.0, (0.3, 1.0)),
        FaultKind(
            "partition",
            "a proxy loses answers to COMMIT, then holds what a node and some clients send or are sent, or both; heal: "
            "what was held arrives late, or the connections are cut",
            NODE, 6.0, (1.8, 2.6), own_server=True,
        ),
        FaultKind(
            "slow", "the proxy delays a node and some clients, unevenly in both directions", NODE, 6.0, (1.0, 2.0),
            own_server=True,
        ),
        FaultKind("crash", "stop Postgres at once, as a crash does; heal: start it again", SERVER, 12.0, (0.1, 0.5),
                  own_server=True),
        FaultKind(
            "failover", "a standby is made and kept in step; heal: the server crashes, and the standby takes its place",
            SERVER, 45.0, (2.0, 3.0), own_server=True,
        ),
        FaultKind(
            "failover-async", "the same with a standby that no commit waits for: the last commits are lost",
            SERVER, 45.0, (2.0, 3.0), own_server=True, loses=True,
        ),
        FaultKind("skew", "a node whose clock is off by minutes or years", NODE, 8.0, (1.5, 2.5)),
        FaultKind("pool", "a node with one connection for everything", NODE, 8.0, (1.5, 2.5)),
        FaultKind("vacuum", "VACUUM (FREEZE) and ANALYZE without a pause", "tables", 8.0, (1.0, 2.0)),
        FaultKind("xmin", "a transaction keeps an old snapshot", "snapshot", 8.0, (1.5, 3.0)),
        FaultKind(
            "plan", "planner settings are flipped for new sessions, and a node starts anew with others", NODE, 8.0,
            (1.5, 2.5),
        ),
        FaultKind("stats", "the planner's statistics are removed; heal: ANALYZE", "tables", 8.0, (1.0, 2.0),
                  own_server=True),
        FaultKind("poison", "rows that fail when they are read or run, one for every batch", "rows", 5.0, (0.5, 1.5)),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: at `at_s` seconds into the load, for `lasts_s` seconds, on the node in place `place`; None where it is
    not a node's. `seed` drives what is left to it. `alone`: nothing else is done from then until it has settled."""

    at_s: float
    name: str
    place: int | None
    lasts_s: float
    seed: int
    alone: bool = False

    @property
    def ends_s(self) -> float:
        """When it is healed."""
        return self.at_s + self.lasts_s


def plan_faults(
    names: tuple[str, ...], *, seed: int, seconds: float, nodes: int, lease_s: float
) -> tuple[PlannedFault, ...]:
    """The faults of a run in time order; see the module's rules. Every named fault occurs at least once when the load
    is long enough to hold it."""
    random = Random(f"faults/{seed}")
    begin_s, end_s = seconds * QUIET_SHARE, seconds * (1 - QUIET_SHARE)
    alone = _alone(names, seed, begin_s, end_s, nodes, lease_s)
    planned = list(alone)
    begin_s = max((fault.ends_s + SETTLE_S for fault in alone), default=begin_s)
    # The longest first: what is short finds room in between.
    longest = sorted(names, key=lambda name: (-FAULTS[name].lasts_leases[1], name))
    rounds = longest * max(1, int(seconds // ROUND_S))
    for fault in alone:
        rounds.remove(fault.name)
    for name in rounds:
        lasts_s = lease_s * random.uniform(*FAULTS[name].lasts_leases)
        for at_s in _moments(random, begin_s, end_s - lasts_s):
            places = _places(planned, name, at_s, at_s + lasts_s, nodes)
            if places:
                planned.append(_fault(random, name, at_s, places, lasts_s))
                break
    for name in names:
        kind = FAULTS[name]
        at_s = begin_s + random.random() * kind.period_s
        while True:
            lasts_s = lease_s * random.uniform(*kind.lasts_leases)
            if at_s + lasts_s > end_s:
                break
            apart = all(
                fault.name != name or abs(fault.at_s - at_s) >= kind.period_s / 2 for fault in planned
            )
            if apart and (places := _places(planned, name, at_s, at_s + lasts_s, nodes)):
                planned.append(_fault(random, name, at_s, places, lasts_s))
            at_s += kind.period_s * random.uniform(0.5, 1.5)
    return tuple(sorted(planned, key=lambda fault: (fault.at_s, fault.name)))


def _alone(
    names: tuple[str, ...], seed: int, begin_s: float, end_s: float, nodes: int, lease_s: float
) -> list[PlannedFault]:
    """One of each of some kinds, one after the other. Of a source of its own: what else is planned is not concerned."""
    random = Random(f"alone/{seed}")
    planned: list[PlannedFault] = []
    at_s, time_s = begin_s, min(ALONE_SHARE * (end_s - begin_s), end_s - begin_s - TOGETHER_S)
    for name in random.sample(names, len(names)):
        lasts_s = lease_s * random.uniform(*FAULTS[name].lasts_leases)
        if at_s - begin_s + lasts_s + SETTLE_S <= time_s:
            place = random.randrange(nodes) if FAULTS[name].site == NODE else None
            planned.append(PlannedFault(at_s, name, place, lasts_s, random.randrange(2**31), alone=True))
            at_s += lasts_s + SETTLE_S
    return planned


def is_left_out(planned: PlannedFault, now_s: float, fired: int) -> bool:
    """Whether a fault comes too late, `now_s` into the load, of whose kind there were so many."""
    return now_s - planned.at_s > PATIENCE_S and fired >= ENOUGH


def _moments(random: Random, begin_s: float, last_s: float) -> Iterator[float]:
    """Some at random, then all."""
    if last_s < begin_s:
        return
    for _ in range(DRAWS):
        yield random.uniform(begin_s, last_s)
    for step in range(int((last_s - begin_s) / GRAIN_S) + 1):
        yield begin_s + step * GRAIN_S


def _fault(random: Random, name: str, at_s: float, places: list[int | None], lasts_s: float) -> PlannedFault:
    return PlannedFault(at_s, name, random.choice(places), lasts_s, random.randrange(2**31))


def _places(
    planned: list[PlannedFault], name: str, begin_s: float, end_s: float, nodes: int
) -> list[int | None]:
    """Where there is room for it at that time: nowhere, in some places, or, for what is not done to a node, at None."""
    at_once = [fault for fault in planned if fault.at_s < end_s and begin_s < fault.ends_s]
    if FAULTS[name].site != NODE:
        return [] if any(FAULTS[fault.name].site == FAULTS[name].site for fault in at_once) else [None]
    taken = {fault.place for fault in at_once}
    free: list[int | None] = [place for place in range(nodes) if place not in taken]
    return free if len(free) > 1 or nodes == 1 else []
