"""What an instrument saw of one mutant, or of the sound engine; plain data."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

# `apart`: the instrument has nothing to show this mutant to; `detail` says why.
Sight = Literal["caught", "held", "unknown", "apart"]
Instrument = Literal["script", "model", "explore", "swarm", "plans"]
# From the cheapest to the dearest. Plans come last because what breaks anything else is nothing to them.
INSTRUMENTS: Final[tuple[Instrument, ...]] = ("script", "model", "explore", "swarm", "plans")
# Those that draw, and so are asked with a seed.
DRAWING: Final[frozenset[Instrument]] = frozenset(("model", "swarm"))
# Of `--full`: how often an instrument that draws is asked.
FULL_SEEDS: Final = 3
STEPS: Final[dict[Instrument, str]] = {
    "script": "scripts",
    "model": "operations",
    "explore": "schedules",
    "swarm": "transactions",
    "plans": "statements",
}


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer. `seconds` and `steps` are until the first catch, or until the budget was used up; what a step is
    says `STEPS`. `by`: what caught it. `seed` is None where nothing is drawn."""

    instrument: Instrument
    sight: Sight
    seconds: float = 0.0
    steps: int = 0
    seed: int | None = None
    by: tuple[str, ...] = ()
    detail: str = ""
    evidence: tuple[str, ...] = ()


def apart(instrument: Instrument, why: str) -> Seen:
    """There is nothing to show it to."""
    return Seen(instrument=instrument, sight="apart", detail=why)
