"""Time to recover: how long after a fault until as much is done as before, and until what it orphaned runs again. Pure,
from the history alone, on one clock.

Throughput is work that was acknowledged to nodes: outcomes of flushes, commits of the store, messages. What it was is
its mean over the `BEFORE_S` before the fault. What it is, at a moment, is its mean over the `WINDOW_S` that begin then,
looked at every `STEP_S`. It fell when one holds less than `SHARE` of what it was, and is back with the first window
after that which holds as much; the time is from the fault's beginning to that window's. It is 0 where no window fell
short, up to one that begins after the heal.

A number needs a fault by itself. Where another was in force in the time before, or the next one, or the load's end,
came first, none is said: not seen. Loads are uneven: differences of less than a window say nothing.

The bound: a claim that was renewed just before the heal has run out after a lease, the next sweep takes it back, and it
is claimed again. So what a fault did to claims is over as long after its heal as an orphan has until it runs again.

An orphan is a row that a node held when it was killed or frozen, and did not end itself. It is taken back by a reap,
and runs again when somebody claims it. From the lease and the intervals of sweeps and polls follows a bound for either,
which holds for nodes that get the processor when they want it, a server that answers, and rows that nobody stands
before: more is told, and no violation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from invariants.exercise import Span
from invariants.history.operations import Operation
from invariants.witness import committed, ended, is_unknown

BEFORE_S: Final = 2.0
WINDOW_S: Final = 1.0
STEP_S: Final = 0.1
SHARE: Final = 0.9
# Whose victim holds claims and cannot speak for them.
ORPHANING: Final = ("kill", "pause")
SECOND_NS: Final = 1_000_000_000


class Bounds(msgspec.Struct, frozen=True):
    """After how many milliseconds an orphan should have been taken back, and run again."""

    taken_back_ms: float
    run_again_ms: float


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Of one fault. `throughput_ms`: None where it was not seen, and `not_seen` says why; `throughput_bound_ms`: what
    the lease implies, None where the fault was not healed. `orphans`: how many rows;
    `taken_back_ms` and `run_again_ms`: the longest that one had to wait, None where none did; `taken_back_late` and
    `run_again_late`: how many of them waited longer than the bound; `still_waiting`: how many were never seen to run
    again."""

    throughput_ms: float | None = None
    throughput_bound_ms: float | None = None
    not_seen: str | None = None
    orphans: int = 0
    taken_back_ms: float | None = None
    run_again_ms: float | None = None
    taken_back_late: int = 0
    run_again_late: int = 0
    still_waiting: int = 0


def recoveries(operations: Sequence[Operation], bounds: Bounds) -> list[Recovery]:
    """Of every fault of a history, in its order. The operations come sorted by their start."""
    faults = [o for o in operations if o.f == "fault"]
    throughput = _Throughput(operations)
    claims = _Claims(operations) if any(fault.value["fault"] in ORPHANING for fault in faults) else None
    found = []
    for fault in faults:
        recovery = throughput.back(fault, [other for other in faults if other is not fault])
        if fault.latency_ms is not None:
            bound_ms = fault.latency_ms + bounds.run_again_ms
            recovery = msgspec.structs.replace(recovery, throughput_bound_ms=bound_ms)
        if claims is not None and fault.value["fault"] in ORPHANING:
            recovery = claims.orphans(fault, recovery, bounds)
        found.append(recovery)
    return found


class _Throughput:
    """Acknowledged work over time."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        done = sorted((o.end_ns, amount) for o in operations if o.end_ns is not None and (amount := _work(o)))
        self._times = [at for at, _ in done]
        self._sums = [0, *accumulate(amount for _, amount in done)]
        self._span = Span(operations)

    def back(self, fault: Operation, others: Iterable[Operation]) -> Recovery:
        """When it is back to what it was."""
        begin = fault.start_ns
        before = begin - round(BEFORE_S * SECOND_NS)
        horizon = self._span.to_ns
        whose = "the load ended"
        for other in others:
            over = 2**63 if other.end_ns is None else other.end_ns
            if other.start_ns <= begin and over > before:
                return Recovery(not_seen=f"{other.value['fault']} was in force before")
            if begin <= other.start_ns < horizon:
                horizon, whose = other.start_ns, f"{other.value['fault']} came"
        if before < self._span.from_ns:
            return Recovery(not_seen="the load had just begun")
        wanted = SHARE * self._mean(before, begin)
        if wanted == 0:
            return Recovery(not_seen="nothing was done before")
        healed = 2**63 if fault.end_ns is None else fault.end_ns
        width, step = round(WINDOW_S * SECOND_NS), round(STEP_S * SECOND_NS)
        fell = False
        for at in range(begin, horizon - width + 1, step):
            enough = self._mean(at, at + width) >= wanted
            if fell and enough:
                return Recovery(throughput_ms=(at - begin) / 1e6)
            fell = fell or not enough
            if not fell and at >= healed:
                return Recovery(throughput_ms=0.0)
        return Recovery(not_seen=f"{whose} first")

    def _mean(self, begin_ns: int, end_ns: int) -> float:
        """A second's work."""
        first, last = bisect_left(self._times, begin_ns), bisect_left(self._times, end_ns)
        return (self._sums[last] - self._sums[first]) * SECOND_NS / (end_ns - begin_ns)


class _Claims:
    """Who held which row from when to when, as nodes were told."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._claims: dict[str, list[Operation]] = {}
        # When each row was handed out; when its holder gave each claim up, or may have; when others took it back.
        self._runs: dict[int, list[tuple[int, str]]] = {}
        self._given_up: dict[tuple[int, str], int] = {}
        self._perhaps: set[tuple[int, str]] = set()
        self._taken_back: dict[tuple[int, str], int] = {}
        for o in operations:
            if o.f == "claim" and o.type == "ok":
                self._claims.setdefault(o.process, []).append(o)
                for row in o.result["ids"]:
                    self._runs.setdefault(row, []).append((o.end_ns or o.start_ns, o.value["claim"]))
            elif o.f in ("flush", "release") and o.type == "ok":
                self._given_up.update(dict.fromkeys(ended(o), o.end_ns or o.start_ns))
            elif o.f in ("flush", "release") and is_unknown(o):
                holds = o.value["outcomes"] if o.f == "flush" else o.value["holds"]
                self._perhaps.update((hold[0], hold[1]) for hold in holds)
            elif o.f in ("reap", "reclaim") and o.type == "ok":
                self._taken_back.update(dict.fromkeys(committed(o), o.end_ns or o.start_ns))
        for runs in self._runs.values():
            runs.sort()

    def orphans(self, fault: Operation, recovery: Recovery, bounds: Bounds) -> Recovery:
        """Add what became of the rows that the victim held."""
        begin = fault.start_ns
        back: list[float] = []
        again: list[float] = []
        orphans = still_waiting = 0
        for claim in self._claims.get(fault.value["target"], ()):
            if (claim.end_ns or 0) > begin:
                continue
            for row in claim.result["ids"]:
                hold = (row, claim.value["claim"])
                # Whoever was frozen may end it when it wakes.
                if hold in self._given_up or self._taken_back.get(hold, begin) < begin:
                    continue
                runs = self._runs[row]
                place = bisect_left(runs, (begin, ""))
                # Another has had it meanwhile; or it is over, by a flush whose answer was lost.
                if runs[place - 1][1] != hold[1] or (place == len(runs) and hold in self._perhaps):
                    continue
                orphans += 1
                if hold in self._taken_back:
                    back.append((self._taken_back[hold] - begin) / 1e6)
                if place < len(runs):
                    again.append((runs[place][0] - begin) / 1e6)
                else:
                    still_waiting += 1
        return msgspec.structs.replace(
            recovery,
            orphans=orphans,
            taken_back_ms=max(back, default=None),
            run_again_ms=max(again, default=None),
            taken_back_late=sum(ms > bounds.taken_back_ms for ms in back),
            run_again_late=sum(ms > bounds.run_again_ms for ms in again),
            still_waiting=still_waiting,
        )


def _work(o: Operation) -> int:
    if o.type != "ok":
        return 0
    if o.f == "flush":
        return len(o.result["committed"])
    if o.f == "transport.ack":
        return sum(map(bool, o.result)) if isinstance(o.result, list) else int(bool(o.result))
    return int(o.f in ("store.commit", "run"))
