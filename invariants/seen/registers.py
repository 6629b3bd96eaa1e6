"""Compare-and-set registers: is there an order of a history's operations, one moment each, that explains every answer?

The register holds a version that begins at 0. Three things may be done to it:

    write v     it goes from v - 1 to v, and from nothing else
    read v      it is v

Each took effect at one moment between its start and its end. A write of unknown outcome did so at any time from its
start on, or never. A write that was refused changed nothing; where its caller was told the version found, it is a read.

Linearizability of registers is hard in general, and easy here, because a version is written from one other version
only, and never left but for the next:

1. The moments w(1) <= w(2) <= … of the writes are all that is to be found. Of several writes of one version that were
   told to have happened, all but one are wrong. Where none was told, the one to take is the unknown one that began
   first: it never ended, so whatever another could explain it explains too.
2. A write of v needs start <= w(v) <= end. A read of v needs w(v) <= its end, and w(v + 1) >= its start; if both hold,
   the later of its start and w(v) is a moment for it. So every answer bounds w from below or from above, and w exists
   if and only if the least w that the lower bounds allow, the greatest of all up to v, is within the upper bound of v.

So the answer is exact, without a search, in n log n; and where there is no order, the two operations that bound one
version from both sides are the smallest evidence there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

FOREVER_NS = 2**63 - 1


class Act(msgspec.Struct, frozen=True, gc=False):
    """What was done to a register. `end_ns` None: nobody knows whether it was. `told`: what says so."""

    kind: Literal["write", "read"]
    version: int
    start_ns: int
    end_ns: int | None
    told: object = None


class Contradiction(msgspec.Struct, frozen=True):
    """Why no order explains a history, and the acts that contradict each other."""

    summary: str
    acts: tuple[Act, ...]


class _Bound(msgspec.Struct, frozen=True, gc=False):
    at_ns: int
    act: Act | None


def contradiction(acts: Sequence[Act], *, written_unseen: Iterable[int] = ()) -> Contradiction | None:
    """None where the history is linearizable. `written_unseen`: versions that somebody may have written who is not in
    the history, at any time, once."""
    told: dict[int, Act] = {}
    unknown: dict[int, Act] = {version: Act("write", version, 0, None) for version in written_unseen}
    reads: dict[int, list[Act]] = {}
    for act in acts:
        if act.kind == "read":
            if act.end_ns is not None:
                reads.setdefault(act.version, []).append(act)
        elif act.end_ns is None:
            first = unknown.get(act.version)
            if first is None or act.start_ns < first.start_ns:
                unknown[act.version] = act
        elif (other := told.setdefault(act.version, act)) is not act:
            return Contradiction(f"version {act.version} was written twice", (other, act))
    greatest = max([*told, *reads], default=0)
    lowest = _Bound(0, None)
    for version in range(1, greatest + 1):
        write = told.get(version) or unknown.get(version)
        if write is None:
            return _unwritten(version, [*reads.get(version, ()), *_after(version, told, reads)])
        before = [_Bound(read.start_ns, read) for read in reads.get(version - 1, ())]
        lowest = max([lowest, _Bound(write.start_ns, write), *before], key=_at)
        after = [_Bound(read.end_ns or 0, read) for read in reads.get(version, ())]
        end_ns = FOREVER_NS if write.end_ns is None else write.end_ns
        highest = min([_Bound(end_ns, write), *after], key=_at)
        if lowest.at_ns > highest.at_ns:
            return _too_late(lowest, highest)
    return None


def _at(bound: _Bound) -> int:
    return bound.at_ns


def _after(version: int, told: dict[int, Act], reads: dict[int, list[Act]]) -> Iterable[Act]:
    """What says that there was a later version, the first such."""
    later = [act for each, act in told.items() if each > version]
    later += [act for each, found in reads.items() if each > version for act in found]
    return sorted(later, key=lambda act: (act.version, act.start_ns))[:1]


def _unwritten(version: int, seen: Sequence[Act]) -> Contradiction:
    return Contradiction(
        f"version {version} was there, and nobody who could have written it says so", tuple(seen[:1])
    )


def _too_late(lowest: _Bound, highest: _Bound) -> Contradiction:
    assert lowest.act is not None
    assert highest.act is not None
    late, early = lowest.act, highest.act
    seen = "written" if early.kind == "write" else "read"
    before = "began to be written" if late.kind == "write" else "was still read"
    return Contradiction(
        f"version {early.version} was {seen} by an operation that had ended before version {late.version} {before}",
        (early, late),
    )
