"""A delivery meets the park of its target (picker.md §3, deliver signal)."""

from stress.schedules.actions import Outcome, claim, enrich, flush, insert, signal
from stress.schedules.race import Race

RACES = (
    Race(
        name="lost-wakeup",
        summary="a delivery meets the park of its target",
        setup=(insert("r"), claim("c"), enrich("c")),
        sessions={
            "worker": (flush("c", Outcome("await")),),
            "client": (signal("r"),),
        },
        invariants=("no-lost-wakeup", "no-lost-signal"),
        covers=(("flush await", "signal"),),
    ),
)
