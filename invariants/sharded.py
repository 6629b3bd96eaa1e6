"""A run on several servers, judged: each ledger by itself with its part of the history, and one report of all.

Rules:

1. An operation belongs to the shard that the execution or group it names lives in (`engine.store.shards`), and there it
   names rows by the shard's own seqs. One that names several, such as a listing, is taken apart. One that names none
   (a sweep that failed, a phase) belongs to all; a claim that brought nothing, and a count, to the first.
2. A rule's verdict is its worst one; what it checked is the sum, and where a shard had nothing to check the others say.
3. What is handed over from one shard to another is judged by the shard that hands it over (`invariants/elsewhere.py`):
   whether it arrived, once where it must be once, in the order of its emitter, and after its target was made. Whether
   it was acknowledged too early only as far as the two servers' clocks tell. Where a ledger is not whole, none of this
   can be judged, and the rules that it is for are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from engine.store.shards import MAX_SHARDS, shard_of
from invariants.areas import SEEN_RULES
from invariants.depth import together
from invariants.elsewhere import Digest, Elsewhere
from invariants.endings import promises_of
from invariants.evidence import Evidence, LedgerSummary
from invariants.history.operations import Operation
from invariants.judge import Transactions, judge
from invariants.verdict import MAX_VIOLATIONS, NOTHING_SUBJECT, Judgement, Report, Violation
from invariants.witness import is_unknown

# Servers of one machine have one clock, which may be set back a little.
CLOCK_STEP_MS: Final = 5.0
_SEVERITY: Final = ("not_exercised", "held", "unknown", "violated")
_RELAYS: Final = ("relay.deliver", "relay.broadcast", "relay.spawn")


class Recorded(msgspec.Struct, frozen=True):
    """What there is of one shard: its ledger, which can be read again and again, and what is known of it."""

    transactions: Transactions
    evidence: Evidence
    summary: LedgerSummary

    @property
    def is_whole(self) -> bool:
        """Whether the ledger can tell what is not in it."""
        summary = self.summary
        return self.evidence.no_ledger is None and summary.complete and not summary.differences


def judge_shards(
    shards: Sequence[Recorded],
    operations: Sequence[Operation] | None,
    is_over: Callable[[], bool] = lambda: False,
) -> Report:
    """Judge a run on as many servers. `is_over`: see `Judge`. Raises what reading the ledgers raises."""
    count = len(shards)
    whole = all(shard.is_whole for shard in shards)
    digests = [Digest(shard.transactions()) for shard in shards] if whole else []
    promises = promises_of(operations or ())
    slack_us = 1_000 * _slack_ms([shard.evidence for shard in shards])
    reports = []
    for place, shard in enumerate(shards):
        mine = None if operations is None else list(of_shard(operations, place, count))
        elsewhere = Elsewhere(place, count, digests, promises, slack_us)
        reports.append(
            judge(shard.transactions, mine, shard.evidence, shard.summary, elsewhere, is_over=is_over)
        )
    seen = {} if operations is None else _seen(shards[0], operations, is_over)
    return Report(
        tuple(
            seen.get(judgements[0].invariant) or merged(judgements)
            for judgements in zip(*(r.judgements for r in reports), strict=True)
        ),
        sum(report.transactions for report in reports),
        sum(report.changes for report in reports),
        0 if operations is None else len(operations),
        {name: sum(report.exercised.get(name, 0) for report in reports) for name in reports[0].exercised},
        reports[0].areas,
        depths=together([report.depths for report in reports]),
    )


def _seen(
    shard: Recorded, operations: Sequence[Operation], is_over: Callable[[], bool]
) -> dict[str, Judgement]:
    """The clients' view, of all shards at once: what is emitted in one is handed over in another."""
    names = {rule.name for rule in SEEN_RULES}
    whole = judge(lambda: (), operations, shard.evidence, shard.summary, is_over=is_over)
    return {each.invariant: each for each in whole.judgements if each.invariant in names}


def _slack_ms(evidences: Sequence[Evidence]) -> float:
    if all(evidence.shares_clock for evidence in evidences):
        return CLOCK_STEP_MS
    return 2 * max(evidence.clock_slack_ms for evidence in evidences)


def merged(judgements: Sequence[Judgement]) -> Judgement:
    """One rule's judgements of all shards as one."""
    checked = sum(judgement.checked for judgement in judgements)
    telling = [
        (shard, judgement)
        for shard, judgement in enumerate(judgements)
        if not (checked and judgement.reason == NOTHING_SUBJECT)
    ]
    worst = max((judgement.verdict for _, judgement in telling), key=_SEVERITY.index)
    violations = [
        Violation(f"shard {shard}: {each.summary}", each.transactions, each.operations)
        for shard, judgement in telling
        for each in judgement.violations
    ]
    reasons: dict[str, list[str]] = {}
    for shard, judgement in telling:
        if judgement.reason is not None:
            reasons.setdefault(judgement.reason, []).append(str(shard))
    said = [
        reason if len(where) == len(judgements) else f"shard {', '.join(where)}: {reason}"
        for reason, where in reasons.items()
    ]
    return Judgement(
        judgements[0].invariant,
        worst,
        checked,
        sum(judgement.violated for judgement in judgements),
        tuple(violations[:MAX_VIOLATIONS]),
        "; ".join(said) if said and worst == "unknown" else None,
    )


def of_shard(operations: Iterable[Operation], shard: int, count: int) -> Iterable[Operation]:
    """The part of a history that concerns a shard."""

    def lives_here(name: str) -> bool:
        return shard_of(name, count) == shard

    for operation in operations:
        part = _part(operation, shard, lives_here)
        if part is not None:
            yield part


def _part(o: Operation, shard: int, lives_here: Callable[[str], bool]) -> Operation | None:
    if o.f == "count":
        return o if shard == 0 else None
    if o.f in ("store.load", "store.commit"):
        return o if lives_here(o.value["execution"]) else None
    if o.f == "store.list" and o.type == "ok":
        return _with(o, result={**o.result, "ids": [each for each in o.result["ids"] if lives_here(each)]})
    if o.f in _RELAYS:
        return _relayed(o, shard)
    if o.f == "relay.timers" and o.type == "ok":
        fired = [each for each in o.result["fired"] if lives_here(each[0])]
        return _with(o, result={**o.result, "fired": fired})
    if o.f.startswith("transport."):
        group = _group(o)
        if group is None:
            # Of a claim that was never answered nobody says where it leased; one that found nothing counts once.
            return o if shard == 0 or is_unknown(o) else None
        return o if lives_here(group) else None
    return o


def _group(o: Operation) -> str | None:
    """A group that an operation of the transport names; all that it names live in one shard."""
    if "group" in o.value:
        return str(o.value["group"])
    messages = o.value.get("messages") or (o.result if o.f == "transport.claim" and o.type == "ok" else None)
    if not messages:
        return None
    first = messages if isinstance(messages, dict) else messages[0]
    return str(first["group"] if isinstance(first, dict) else first[0])


def _relayed(o: Operation, shard: int) -> Operation | None:
    """A relay names rows by tickets."""
    named = [each for each in (o.value, o.result) if isinstance(each, dict) and "seqs" in each]
    if not named:
        return o
    if not any(seq % MAX_SHARDS == shard for each in named for seq in each["seqs"]):
        return None
    return _with(o, value=_own(o.value, shard), result=_own(o.result, shard))


def _own(told: Any, shard: int) -> Any:
    if not isinstance(told, dict) or "seqs" not in told:
        return told
    return {**told, "seqs": [seq // MAX_SHARDS for seq in told["seqs"] if seq % MAX_SHARDS == shard]}


def _with(o: Operation, **changes: Any) -> Operation:
    return msgspec.structs.replace(o, **changes)
