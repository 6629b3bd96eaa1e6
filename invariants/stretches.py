"""In which stretches of a run a limit's configuration surely was one and the same.

Rules:

1. A process writes down what it is configured with when it boots (`sync_config`); the last one to commit is right. What
   it writes stands in its history (`limits`).
2. Several that overlap leave one of their configurations, and nobody says which; one of unknown outcome may have left
   what was there before.
3. Between one (or several that overlap) and the next nothing changes. What was admitted within such a stretch, by a
   statement that began after the one had ended, saw its configuration.
4. A counter enters a stretch with at most its capacity, whatever was before: levels are clamped to it, and a key
   without rows is worth just that. So each stretch has the whole budget of its own configuration and no other.

Without a record of who wrote what, there is one stretch, with the greatest configuration that ever was and one more
burst for each change.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from invariants.changes import Policy
from invariants.history.operations import Operation
from invariants.witness import Witness, is_unknown

EVER_NS = 2**63


class Stretch(msgspec.Struct, frozen=True):
    """From the one time to the other, in nanoseconds, `rate` and `burst` are the most that was configured."""

    from_ns: int
    to_ns: int
    rate: float
    burst: float


def stretches(witness: Witness, kind: str, name: str, ever: Sequence[Policy]) -> list[Stretch]:
    """Those of one limit, which the ledger has seen with these configurations, in order."""
    if len({(policy.rate, policy.capacity, policy.shards) for policy in ever}) == 1:
        return [_stretch(0, EVER_NS, ever)]
    if not witness.limits:
        burst = max(policy.capacity for policy in ever)
        return [Stretch(0, EVER_NS, max(policy.rate or 0.0 for policy in ever), burst * len(ever))]
    found: list[Stretch] = []
    before: list[Policy] = []
    writes = _writes(witness, kind, name)
    while writes:
        together = [writes.pop(0)]
        over_ns = _over_ns(witness, together[0][0])
        while writes and writes[0][0].start_ns <= over_ns:
            together.append(writes.pop(0))
            over_ns = max(over_ns, _over_ns(witness, together[-1][0]))
        possible = [policy for _, policy in together]
        if all(is_unknown(o) for o, _ in together):
            possible += before
        to_ns = writes[0][0].start_ns if writes else EVER_NS
        if over_ns < to_ns:
            found.append(_stretch(over_ns, to_ns, possible))
        before = possible
    return found


def _writes(witness: Witness, kind: str, name: str) -> list[tuple[Operation, Policy]]:
    """Who may have written that limit down, in the order in which they began."""
    writes = []
    for o in witness.limiters:
        if o.f != "sync_config" or (o.type == "fail" and not is_unknown(o)):
            continue
        policy = witness.limits.get(o.process, {}).get((kind, name))
        if policy is not None:
            writes.append((o, Policy(*policy)))
    return sorted(writes, key=lambda write: write[0].start_ns)


def _over_ns(witness: Witness, o: Operation) -> int:
    over_ns = witness.over_ns(o)
    return EVER_NS if over_ns is None else over_ns


def _stretch(from_ns: int, to_ns: int, possible: Sequence[Policy]) -> Stretch:
    return Stretch(
        from_ns,
        to_ns,
        max(policy.rate or 0.0 for policy in possible),
        max(policy.capacity for policy in possible),
    )
