"""From the store to the transport: relays, children, timers (docs/findings.md, "The transport and the relay")."""

from stress.schedules.executions import commit, delete_timers, make, move, read_due, sweep
from stress.schedules.groups import drained
from stress.schedules.race import Race
from stress.schedules.stored_pairs import DUE, LATER, TIMER

RACES = (
    Race(
        name="relays-of-one-lane",
        summary="two relays take one emitter's events to one target, one event at a time",
        setup=(commit("e", emits=("g", "g")),),
        sessions={"one": (move(limit=1),), "two": (move(limit=1), move(limit=1))},
        finish=(move(), move(), *drained(2)),
        at_rest=True,
        invariants=("outbox-no-loss",),
        covers=(("move", "move"),),
    ),
    Race(
        name="emit-committed-late",
        summary="an emit that drew its place early is committed behind one that a relay has delivered",
        setup=(commit("e"), commit("f")),
        sessions={
            "early": (commit("e", emits=("g",)),),
            "late": (commit("f", emits=("g",)),),
            "relay": (move("r"),),
        },
        stops=("early",),
        finish=(move("r"), *drained(2)),
        at_rest=True,
        invariants=("outbox-no-loss",),
        covers=(("commit complex", "move"), ("commit complex", "commit complex")),
    ),
    Race(
        name="child-before-its-events",
        summary="an event for a child and the child's making meet at two relays, while its parent commits",
        setup=(commit("e"),),
        sessions={
            "parent": (commit("e", spawns=("k",), emits=("k",)),),
            "hands": (move(),),
            "makes": (make(),),
        },
        stops=("makes",),
        finish=(make(), move(), *drained(2)),
        at_rest=True,
        invariants=("outbox-no-loss", "spawn-once"),
        covers=(("move", "make"), ("commit complex", "make"), ("commit complex", "move")),
    ),
    Race(
        name="child-made-by-hand",
        summary="a child is saved, and moved on, by hand while two relays make it",
        setup=(commit("e", spawns=("k",)),),
        sessions={"hand": (commit("k"), commit("k")), "one": (make(),), "two": (make(),)},
        stops=("hand", "one"),
        finish=(make(), *drained(3)),
        at_rest=True,
        invariants=("spawn-once", "cas-chain"),
        covers=(("first save", "make"), ("make", "make")),
    ),
    Race(
        name="cancel-meets-sweep",
        summary="a due timer is cancelled while it is swept",
        setup=(commit("e", arm={TIMER: DUE}),),
        sessions={"cancels": (commit("e", cancel=(TIMER,)),), "sweeps": (sweep(),)},
        invariants=("timer-rearm", "commit-atomic"),
        covers=(("commit complex", "sweep"),),
    ),
    Race(
        name="rearm-meets-sweeps",
        summary="a due timer is armed anew, for the same instant, while two sweep",
        setup=(commit("e", arm={TIMER: DUE}),),
        sessions={"arms": (commit("e", arm={TIMER: DUE}),), "one": (sweep(),), "two": (sweep(),)},
        stops=("arms", "one"),
        invariants=("timer-rearm",),
        covers=(("commit complex", "sweep"), ("sweep", "sweep")),
    ),
    Race(
        name="stale-sweep-meets-rearm",
        summary="a sweep in steps deletes what it fired, which was armed for another instant meanwhile",
        setup=(commit("e", arm={TIMER: DUE}),),
        sessions={
            "sweeps": (read_due("d"), delete_timers("d")),
            "arms": (commit("e", arm={TIMER: LATER}),),
        },
        invariants=("timer-rearm",),
        covers=(("commit complex", "delete timer"),),
    ),
)
