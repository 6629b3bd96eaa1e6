"""Verdicts: held, violated with the evidence, or unknown with the reason.

1. Violated beats unknown beats held.
2. Nothing checked at all is unknown, never held.
3. A checker that raises is unknown, with the exception as the reason.
4. A run may declare which invariants it exercises (`Evidence.exercises`). One that it does not declare and that
   nothing was subject to is `not_exercised`: listed, and no part of the run's verdict. A declared one that nothing
   was subject to stays unknown, and an undeclared one that something was subject to is judged like any other, so a
   declaration can hide nothing. A run of which nothing at all was exercised is unknown.
5. Evidence is bounded: the first violations of each invariant are kept whole, the rest are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from invariants.depth import Depth

Verdict = Literal["held", "violated", "unknown"]
# What can become of one invariant.
Finding = Literal["held", "violated", "unknown", "not_exercised"]
EXIT_CODES: Final[dict[Verdict, int]] = {"held": 0, "violated": 1, "unknown": 4}
MAX_VIOLATIONS: Final = 20
NOTHING_SUBJECT: Final = "nothing in this run was subject to it"


class Row(msgspec.Struct, frozen=True):
    """One row's way through a transaction, reduced to the columns that matter: absent is an empty map. `id` is the
    row's, for a bucket the shard's, for a row of the store what it is known by beside its execution or group."""

    id: int | str
    before: dict[str, str | None]
    after: dict[str, str | None]
    table: str = "gen_durable"


class Witnessed(msgspec.Struct, frozen=True):
    """A ledger transaction as evidence. `lsn` as Postgres writes it; `who` is the operation that did it,
    if known."""

    number: int
    xid: int
    lsn: str
    committed_at: str
    who: str | None
    changes: tuple[Row, ...]


class Violation(msgspec.Struct, frozen=True):
    """One violation: in prose, with the transactions in commit order and the history's operations."""

    summary: str
    transactions: tuple[Witnessed, ...] = ()
    operations: tuple[str, ...] = ()


class Judgement(msgspec.Struct, frozen=True):
    """What became of one invariant.

    `checked` says how often it was decided (the unit is the rule's own), `violated` how many violations there
    were, of which `violations` keeps the first.
    """

    invariant: str
    verdict: Finding
    checked: int
    violated: int = 0
    violations: tuple[Violation, ...] = ()
    reason: str | None = None


class Report(msgspec.Struct, frozen=True):
    """All judgements of a run, and what they rest on. `exercised`: see `invariants.exercise`. `areas`: what the run is
    about. `depths`: how much lay where as it went on."""

    judgements: tuple[Judgement, ...]
    transactions: int = 0
    changes: int = 0
    operations: int = 0
    exercised: dict[str, int] = msgspec.field(default_factory=dict)
    areas: tuple[str, ...] = ()
    depths: tuple[Depth, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The run's verdict."""
        return overall(j.verdict for j in self.judgements)

    @property
    def exit_code(self) -> int:
        """0 held, 1 violated, 4 unknown."""
        return EXIT_CODES[self.verdict]

    @property
    def reason(self) -> str | None:
        """Why the verdict is unknown, in one line; None otherwise."""
        if self.verdict != "unknown":
            return None
        by_reason: dict[str | None, list[str]] = {}
        for j in self.judgements:
            if j.verdict == "unknown":
                by_reason.setdefault(j.reason, []).append(j.invariant)
        said = sorted(f"{', '.join(sorted(names))}: {reason}" for reason, names in by_reason.items())
        return "; ".join(said) or "nothing was judged"

    def invariants(self) -> dict[str, dict[str, Any]]:
        """The `invariants` part of verdict.json."""
        return {
            j.invariant: {
                "verdict": j.verdict,
                "checked": j.checked,
                "violated": j.violated,
                "violations": [msgspec.to_builtins(violation) for violation in j.violations],
                **({} if j.reason is None else {"reason": j.reason}),
            }
            for j in self.judgements
        }


def exercises(counts: Mapping[str, int]) -> dict[str, dict[str, int | str]]:
    """The `exercised` part of verdict.json: what did not happen was not exercised."""
    return {
        name: {"count": count, "finding": "exercised" if count else "not_exercised"}
        for name, count in counts.items()
    }


def overall(verdicts: Iterable[Finding]) -> Verdict:
    """Violated beats unknown beats held; of no verdicts at all: unknown. What was not exercised has no say."""
    found = set(verdicts) - {"not_exercised"}
    if "violated" in found:
        return "violated"
    return "held" if found == {"held"} else "unknown"


def judgement(
    invariant: str,
    checked: int,
    violated: int,
    violations: Iterable[Violation],
    reason: str | None = None,
    *,
    expected: bool = True,
) -> Judgement:
    """A judgement by the rules above: `reason` makes it unknown unless it is violated. `expected`: the run declares
    it, or declares nothing."""
    kept = tuple(violations)[:MAX_VIOLATIONS]
    if violated:
        return Judgement(invariant, "violated", checked, violated, kept)
    if checked == 0 and not expected:
        return Judgement(invariant, "not_exercised", 0)
    if reason is not None:
        return Judgement(invariant, "unknown", checked, 0, (), reason)
    if checked == 0:
        return Judgement(invariant, "unknown", 0, 0, (), NOTHING_SUBJECT)
    return Judgement(invariant, "held", checked)
