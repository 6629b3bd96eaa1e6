"""The matrix: who caught which mutant, after how long; and the row without a mutant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from invariants.verdict import Verdict
from stress.mutants.seen import INSTRUMENTS, Instrument, Seen

# Figures that the matrix is held to on two cores that have nothing else to do; said, not judged, for a machine may be
# slow.
MEDIAN_S, LONGEST_S, WHOLE_S = 5.0, 60.0, 1_800.0


@dataclass(slots=True)
class Row:
    """One mutant. `seen` in the order in which the instruments were asked."""

    mutant: str
    summary: str
    seen: list[Seen] = field(default_factory=list)

    @property
    def catch(self) -> Seen | None:
        """The first answer that caught it."""
        return next((seen for seen in self.seen if seen.sight == "caught"), None)

    @property
    def caught_after_s(self) -> float | None:
        """Seconds from the first question to the first catch; None where nothing caught it."""
        spent = 0.0
        for seen in self.seen:
            spent += seen.seconds
            if seen.sight == "caught":
                return spent
        return None

    def add(self, seen: Iterable[Seen]) -> None:
        """More answers, each once."""
        each = dict.fromkeys((*self.seen, *seen))
        self.seen = sorted(each, key=lambda one: INSTRUMENTS.index(one.instrument))

    def of(self, instrument: Instrument) -> list[Seen]:
        """What one instrument said, once a seed."""
        return [seen for seen in self.seen if seen.instrument == instrument]

    def cell(self, instrument: Instrument) -> str:
        """That in a word: the seconds to the catch, the slowest seed's; or what became of it. Empty: never asked."""
        seen = self.of(instrument)
        if not seen:
            return ""
        if all(one.sight == "apart" for one in seen):
            return "apart"
        caught = [one for one in seen if one.sight == "caught"]
        if len(caught) == len(seen):
            return f"{max(one.seconds for one in caught):.1f} s"
        if caught:
            return f"{len(caught)} of {len(seen)}"
        return "unknown" if any(one.sight == "unknown" for one in seen) else "held"

    def full_cell(self, instrument: Instrument) -> str:
        """The same with the steps: until the catch, of the slowest seed that caught it; or all that were in vain."""
        seen, cell = self.of(instrument), self.cell(instrument)
        if cell in ("", "apart", "unknown"):
            return cell
        caught = [one for one in seen if one.sight == "caught"]
        slowest = max(caught or seen, key=lambda one: one.seconds)
        return (
            f"{cell}, {slowest.steps:,}"
            if len(caught) in (0, len(seen))
            else (f"{cell}: {slowest.seconds:.1f} s, {slowest.steps:,}")
        )


@dataclass(slots=True)
class Matrix:
    """All rows, and what the instruments made of the sound engine: `control` by instrument and item."""

    rows: dict[str, Row]
    control: dict[tuple[Instrument, str], Seen] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def survivors(self) -> list[str]:
        """Mutants that nothing caught."""
        return [row.mutant for row in self.rows.values() if row.catch is None]

    @property
    def accused(self) -> list[tuple[Instrument, str]]:
        """Where the sound engine was said to be broken."""
        return [key for key, seen in self.control.items() if seen.sight == "caught"]

    @property
    def undecided(self) -> list[tuple[Instrument, str]]:
        """Where nothing could be said of the sound engine."""
        return [key for key, seen in self.control.items() if seen.sight in ("unknown", "apart")]

    @property
    def verdict(self) -> Verdict:
        """Held: every mutant was caught, and the sound engine held by every instrument. Violated: a mutant was shown to
        all and caught by none, or the sound engine was accused. Unknown: neither could be said."""
        if self.accused or any(not is_in_doubt(self.rows[name]) for name in self.survivors):
            return "violated"
        return "unknown" if self.survivors or self.undecided or self.interrupted else "held"

    def control_cell(self, instrument: Instrument) -> str:
        """What became of the sound engine there."""
        seen = [one for (asked, _), one in self.control.items() if asked == instrument]
        if not seen:
            return ""
        for sight, word in (("caught", "VIOLATED"), ("unknown", "unknown"), ("apart", "unknown")):
            if any(one.sight == sight for one in seen):
                return word
        return f"held ({sum(one.seconds for one in seen):.0f} s)"

    def figures(self) -> Mapping[str, float | int]:
        """Counts, and seconds to the catch."""
        seconds = [row.caught_after_s for row in self.rows.values() if row.caught_after_s is not None]
        return {
            "mutants": len(self.rows),
            "caught": len(seconds),
            "median_s": round(median(seconds), 3) if seconds else 0.0,
            "longest_s": round(max(seconds), 3) if seconds else 0.0,
            "seconds": round(self.seconds, 1),
        }


def is_in_doubt(row: Row) -> bool:
    """Whether an instrument could not tell, or none was asked."""
    return not row.seen or any(seen.sight == "unknown" for seen in row.seen)


def instruments_for(in_registry: bool, *, full: bool) -> Sequence[Instrument]:
    """Whom a mutant meets, in order. What breaks nothing but a plan is shown to `plans` alone, for the others would
    rightly hold it; with `full`, to all that can be shown it."""
    if full:
        return INSTRUMENTS
    return INSTRUMENTS if in_registry else ("plans",)


def by_instrument(rows: Iterable[Row]) -> Mapping[Instrument, int]:
    """How many each one was the first to catch."""
    counts: dict[Instrument, int] = dict.fromkeys(INSTRUMENTS, 0)
    for row in rows:
        if row.catch is not None:
            counts[row.catch.instrument] += 1
    return counts
