"""The invariants of plans: held, violated with what broke them, or unknown with the reason (claims.md, "Plans").

    plan-index     what the rules of `shapes` that are about access ask for
    plan-o-batch   what its rules about work ask for, and the growth of each statement
    plan-generic   no generic plan that is worse than the custom one, or that loses a partial index
    plan-stable    no difference between two versions that is not explained; only statements of the same text count

Violated beats unknown beats held. What nothing was subject to was not exercised, which has no say: plan-stable, where
there is no capture of another version on the same data. A statement that was not captured makes the first three
unknown. `invariants/plans.py` lists the same names with the same statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from results.plans.comparing import Difference, Explanation, compare
from results.plans.conditions import Under
from results.plans.folder import Capture
from results.plans.hazards import hazards
from results.plans.shapes import Violation, check

Finding = Literal["held", "violated", "unknown", "not_exercised"]
Word = Literal["held", "violated", "unknown"]
EXIT_CODES: Final[Mapping[Word, int]] = {"held": 0, "violated": 1, "unknown": 4}
MOST_VIOLATIONS: Final = 50

INDEX, O_BATCH, GENERIC, STABLE = "plan-index", "plan-o-batch", "plan-generic", "plan-stable"
INVARIANTS: Final[Mapping[str, str]] = {
    INDEX: "each statement uses its own index, and none reads a large table whole",
    O_BATCH: "rows and buffers touched grow with the batch, not with the table, the backlog, the executing set"
    " or the terminal rows",
    GENERIC: "the generic plan is as good as the custom one",
    STABLE: "a plan has the same shape from one major version to the next, or the difference is explained",
}
# The rules of `shapes`, by the invariant that each is of.
RULES: Final[Mapping[str, str]] = {
    "index": INDEX,
    "seq-scan": INDEX,
    "stranger": INDEX,
    "failed": INDEX,
    "rows": O_BATCH,
    "loops": O_BATCH,
    "sort": O_BATCH,
    "hashed-subplan": O_BATCH,
    "pages": O_BATCH,
    "over-claim": O_BATCH,
    "condition": O_BATCH,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One server's capture with all that is judged of it. `excess`: what grows too fast, or takes more than it was
    asked for, in sentences, of `fits` that could. `missing`: statements that nothing asked. `others`: captures of other
    versions to hold it against. `under`: what conditions changed; told, not judged."""

    capture: Capture
    excess: Sequence[str] = ()
    fits: int = 0
    missing: Sequence[str] = ()
    others: Sequence[Capture] = ()
    under: Sequence[Under] = ()


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one invariant. `checked`: plans, fits, statements or comparisons that were subject to it."""

    invariant: str
    verdict: Finding
    checked: int
    violated: int = 0
    violations: tuple[str, ...] = ()
    reason: str | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict.json`: of all captures of one session. `servers`: version and source of each."""

    schema: int = 1
    verdict: Word
    reason: str | None
    profile: str
    servers: tuple[str, ...]
    invariants: tuple[Judgement, ...]

    @property
    def exit_code(self) -> int:
        """0 held, 1 violated, 4 unknown."""
        return EXIT_CODES[self.verdict]


@dataclass(slots=True)
class _Tally:
    checked: int = 0
    found: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def judge(captures: Sequence[Judged], explanations: Sequence[Explanation] = ()) -> Verdict:
    """The verdict on all captures. Pure."""
    tallies = {name: _Tally() for name in INVARIANTS}
    for judged in captures:
        _tell(judged, tallies, explanations)
    judgements = tuple(_judgement(name, tally) for name, tally in tallies.items())
    words = {each.verdict for each in judgements} - {"not_exercised"}
    word: Word = "violated" if "violated" in words else "held" if words == {"held"} else "unknown"
    reasons = [f"{each.invariant}: {each.reason}" for each in judgements if each.verdict == "unknown"]
    return Verdict(
        verdict=word,
        reason="; ".join(reasons) or "nothing was captured" if word == "unknown" else None,
        profile=captures[0].capture.environment.profile.name if captures else "",
        servers=tuple(
            f"{each.capture.environment.version} ({each.capture.environment.source})" for each in captures
        ),
        invariants=judgements,
    )


def with_conditions(judged: Judged, under: Sequence[Under]) -> Judged:
    """What was captured, with what conditions changed. Pure."""
    found = [f"{sentence} under {each.condition}" for each in under for sentence in each.overclaims]
    return replace(judged, under=under, excess=[*judged.excess, *found], fits=judged.fits + len(under))


def broken(violations: Iterable[Violation]) -> set[str]:
    """The invariants that these violations of shapes break."""
    return {RULES[violation.rule] for violation in violations}


def _tell(judged: Judged, tallies: Mapping[str, _Tally], explanations: Sequence[Explanation]) -> None:
    capture, major = judged.capture, judged.capture.environment.major
    plans = sum(len(each.plans) for each in capture.statements.values())
    for violation in check(capture):
        tallies[RULES[violation.rule]].found.append(f"{major}: {violation}")
    tallies[INDEX].checked += plans
    tallies[O_BATCH].checked += plans + judged.fits
    tallies[O_BATCH].found += [f"{major}: {each}" for each in judged.excess]
    _generic(judged.capture, tallies[GENERIC], explanations)
    for other in judged.others:
        _stable(other, capture, tallies[STABLE], explanations)
    if judged.missing:
        reason = (
            f"no capture of {', '.join(judged.missing)}: results/plans/arguments.py has no arguments for it"
        )
        for name in (INDEX, O_BATCH, GENERIC):
            tallies[name].reasons.append(reason)


def _generic(capture: Capture, tally: _Tally, explanations: Sequence[Explanation]) -> None:
    major = capture.environment.major
    tally.checked += sum({"custom", "generic"} <= each.plans.keys() for each in capture.statements.values())
    for hazard in hazards(capture):
        if hazard.kind in ("generic-worse", "partial-lost"):
            as_difference = Difference(
                hazard.label, "both", "hazard", hazard.node, f"{hazard.kind}: {hazard.message}"
            )
            if not any(each.covers(as_difference, (major,)) for each in explanations):
                tally.found.append(f"{major}: {hazard}")


def _stable(other: Capture, capture: Capture, tally: _Tally, explanations: Sequence[Explanation]) -> None:
    same = [
        label
        for label, each in capture.statements.items()
        if label in other.statements and other.statements[label].text == each.text
    ]
    first, second = (Capture(environment=each.environment, statements={label: each.statements[label] for label in same})
                     for each in sorted((other, capture), key=lambda each: each.environment.major))  # fmt: skip
    tally.checked += len(same)
    tally.found += [
        f"{first.environment.major} → {second.environment.major}: {difference}"
        for difference in compare(first, second, explanations).differences
        if difference.counts
    ]


def _judgement(name: str, tally: _Tally) -> Judgement:
    count, reason = len(tally.found), "; ".join(dict.fromkeys(tally.reasons)) or None
    finding: Finding = (
        "violated" if count else "unknown" if reason else "held" if tally.checked else "not_exercised"
    )
    return Judgement(
        invariant=name,
        verdict=finding,
        checked=tally.checked,
        violated=count,
        violations=tuple(tally.found[:MOST_VIOLATIONS]),
        reason=reason if finding == "unknown" else None,
    )
