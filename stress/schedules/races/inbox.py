"""Signals and parks: nothing lost, nothing twice (picker.md §3, §7, fifth row)."""

from stress.schedules.actions import Outcome, claim, collect, enrich, expire, flush, insert, signal
from stress.schedules.race import Race

_PARKED = (insert("r"), claim("c"), enrich("c"), flush("c", Outcome("await")))
_OVERDUE = (insert("r"), claim("c"), enrich("c"), flush("c", Outcome("await", fields={"timeout_ms": -1.0})))

RACES = (
    Race(
        name="delivery-twice",
        summary="one delivery is made twice, while its target is parked and woken",
        setup=_PARKED,
        sessions={
            "one": (signal("r", dedup="d"),),
            "two": (signal("r", dedup="d"),),
            "worker": (claim("e"), enrich("e"), flush("e", Outcome("next"))),
        },
        stops=("one", "two"),
        invariants=("signal-dedup", "no-lost-signal"),
        covers=(("signal", "signal"), ("claim", "signal"), ("flush next", "signal")),
    ),
    Race(
        name="delivery-again-after-consumption",
        summary="a delivery is repeated while the step that saw it consumes it",
        setup=(*_PARKED, signal("r", dedup="d"), claim("e"), enrich("e")),
        sessions={"worker": (flush("e", Outcome("next")),), "client": (signal("r", dedup="d"),)},
        invariants=("signal-dedup", "no-lost-signal"),
        covers=(("flush next", "signal"),),
    ),
    Race(
        name="delivery-again-to-the-parked",
        summary="a row has parked again beside a signal that it saw; the delivery is repeated, and another comes",
        setup=(*_PARKED, signal("r", dedup="d"), claim("e"), enrich("e"), flush("e", Outcome("await"))),
        sessions={"again": (signal("r", dedup="d"),), "other": (signal("r", "stop", dedup="s"),)},
        invariants=("no-spin", "signal-dedup"),
        covers=(("signal", "signal"),),
    ),
    Race(
        name="signal-to-the-dead",
        summary="a delivery meets the end of its target, and the collector comes at once",
        setup=(insert("r", correlation_key="k"), claim("c")),
        sessions={
            "client": (signal("r", key="k"),),
            "worker": (flush("c", Outcome("done")),),
            "collector": (collect(),),
        },
        stops=("client",),
        invariants=("no-lost-signal",),
        covers=(("flush done", "signal"), ("signal", "collect"), ("flush done", "collect")),
    ),
    Race(
        name="park-again",
        summary="a step that saw a signal parks on its name all the same, while another comes",
        setup=(insert("r"), claim("c"), signal("r"), enrich("c")),
        sessions={"worker": (flush("c", Outcome("await")),), "client": (signal("r"),)},
        invariants=("no-spin", "no-lost-wakeup"),
        covers=(("flush await", "signal"),),
    ),
    Race(
        name="ids-out-of-order",
        summary="a signal of a smaller id commits after one of a greater id was handed to its step",
        setup=(insert("late"), insert("seen"), claim("c")),
        sessions={
            "one": (signal("late"),),
            "two": (signal("seen"),),
            "worker": (enrich("c"), flush("c", Outcome("await"))),
        },
        stops=("one",),
        invariants=("no-lost-wakeup", "no-lost-signal"),
        covers=(("flush await", "signal"), ("signal", "signal")),
    ),
    Race(
        name="expiry-meets-delivery",
        summary="a wait runs out while what it waits for is delivered, and the row is claimed",
        setup=_OVERDUE,
        sessions={"sweeper": (expire(),), "client": (signal("r"),), "picker": (claim("d"), enrich("d"))},
        stops=("sweeper", "client"),
        invariants=("no-lost-signal", "lifecycle"),
        covers=(("signal", "expire"), ("claim", "expire"), ("claim", "signal")),
    ),
    Race(
        name="woken-and-parked-again",
        summary="two signals, an expiry and a second park: the second signal must not be taken for seen",
        setup=_OVERDUE,
        sessions={
            "client": (signal("r"), signal("r")),
            "worker": (claim("d"), enrich("d"), flush("d", Outcome("await"))),
            "sweeper": (expire(),),
        },
        stops=("client",),
        invariants=("no-lost-wakeup", "no-lost-signal", "no-spin"),
        covers=(("flush await", "signal"), ("signal", "expire"), ("flush await", "expire")),
    ),
    Race(
        name="consumed-exactly",
        summary="a signal comes while the step goes on that has consumed an earlier one of its name",
        setup=(*_PARKED, signal("r"), claim("e"), enrich("e")),
        sessions={
            "worker": (flush("e", Outcome("next")),),
            "client": (signal("r"),),
        },
        invariants=("no-lost-signal",),
        covers=(("flush next", "signal"),),
    ),
)
