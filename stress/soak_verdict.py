"""What a soak comes to: the worst of its rounds, and what only shows over many of them. Pure.

1. Violated beats unknown beats held, as within a run.
2. Rows that had ended and that no node had collected when a round was at rest, and tables that grow without bound
   (`stress/growth.py`), are findings, and make the soak `violated`: the engine says that it keeps neither.
3. A soak without a round that ended is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from invariants.verdict import Finding
from results.runs import VerdictWord
from stress.growth import growths, total_bytes, total_dead
from stress.soak_folder import Finished, Request, Sample, SoakVerdict, spread

WORST = ("violated", "unknown", "held", "not_exercised")
MB = 2**20


def conclude(
    request: Request, rounds: Sequence[Finished], samples: Sequence[Sample], stopped: str | None, command: str
) -> SoakVerdict:
    """The verdict; `stopped` says why it ended early, None when it had all its minutes."""
    findings = [*_kept(rounds), *_grown(samples)]
    verdict, reason = _worst(rounds, findings, stopped)
    invariants: dict[str, Finding] = {}
    for finished in rounds:
        for name, found in finished.invariants.items():
            invariants[name] = min(invariants.get(name, found), found, key=WORST.index)
    roles = sorted({role for sample in samples for role in sample.memory})
    return SoakVerdict(
        verdict=verdict,
        reason=reason,
        complete=stopped is None,
        seed=request.seed,
        minutes=request.minutes,
        took_minutes=round(sum(finished.took_s for finished in rounds) / 60, 2),
        rounds=dict(Counter(finished.verdict for finished in rounds)),
        transactions=sum(finished.transactions for finished in rounds),
        invariants=invariants,
        findings=tuple(findings),
        memory_mb={
            role: spread([round(sample.memory[role] / MB, 1) for sample in samples if role in sample.memory])
            for role in roles
        },
        tables_mb=spread([round(total_bytes(sample.tables) / MB, 1) for sample in samples if sample.between]),
        dead_rows=spread([total_dead(sample.tables) for sample in samples if sample.between]),
        reproduce=command,
    )


def _worst(
    rounds: Sequence[Finished], findings: Sequence[str], stopped: str | None
) -> tuple[VerdictWord, str | None]:
    for finished in rounds:
        if finished.verdict == "violated":
            return "violated", f"round {finished.round.number}, {finished.round.scenario}, was violated"
    if findings:
        return "violated", findings[0]
    if stopped is not None:
        return "unknown", stopped
    for finished in rounds:
        if finished.verdict == "unknown":
            return "unknown", f"round {finished.round.number}, {finished.round.scenario}: {finished.reason}"
    return ("held", None) if rounds else ("unknown", "no round came to its end")


def _kept(rounds: Sequence[Finished]) -> list[str]:
    return [
        f"round {finished.round.number}, {finished.round.scenario}: {finished.kept:,} rows had ended, were past their "
        "retention and were never collected"
        for finished in rounds
        if finished.kept and finished.rested
    ]


def _grown(samples: Sequence[Sample]) -> list[str]:
    """On each server by itself."""
    found: list[str] = []
    for server in sorted({sample.server for sample in samples}):
        mine = [sample.tables for sample in samples if sample.server == server and sample.between]
        found += growths(mine).values()
    return found
