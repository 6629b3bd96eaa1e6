"""Publishers, claims and acknowledgements of the transport (docs/findings.md, "The transport and the relay")."""

from stress.schedules.groups import LAPSED_S, ack, claim, drained, extend, nack, publish, set_priority
from stress.schedules.race import Race

_LAPSED = (publish("g"), publish("g"), claim("c", lease_s=LAPSED_S))

RACES = (
    Race(
        name="published-while-drained",
        summary="a message is published while the ack of the last one removes its group",
        setup=(publish("g"), claim("c")),
        sessions={"publisher": (publish("g"),), "acker": (ack("c"),)},
        inner=("publisher", "acker"),
        finish=drained(1),
        at_rest=True,
        invariants=("no-lost-message", "group-fifo", "lease-fenced"),
        covers=(("publish", "ack"),),
    ),
    Race(
        name="drained-twice",
        summary="a group is drained, published to and claimed, and two publishers keep it",
        setup=(publish("g"), claim("c")),
        sessions={
            "one": (publish("g"),),
            "acker": (ack("c"),),
            "claimer": (claim("d"), ack("d")),
        },
        stops=("one", "acker"),
        invariants=("no-lost-message", "group-fifo", "group-exclusive"),
        covers=(("publish", "ack"), ("claim group", "ack"), ("publish", "claim group")),
    ),
    Race(
        name="claims-meet",
        summary="two claims meet at two groups, of which one becomes more urgent",
        setup=(publish("g"), publish("h")),
        sessions={
            "one": (claim("a", limit=2),),
            "two": (claim("b"),),
            "urgent": (set_priority("h", 3),),
        },
        stops=("one", "urgent"),
        inner=("one",),
        invariants=("group-exclusive", "group-fifo"),
        covers=(
            ("claim group", "claim groups"),
            ("claim groups", "set priority"),
            ("claim group", "set priority"),
        ),
    ),
    Race(
        name="taken-over",
        summary="a group whose lease has lapsed is taken over while its old holder acknowledges",
        setup=_LAPSED,
        sessions={"old": (ack("c"),), "new": (claim("d"), ack("d"))},
        invariants=("lease-fenced", "group-exclusive", "group-fifo"),
        covers=(("claim group", "ack"), ("ack", "ack")),
    ),
    Race(
        name="taken-over-and-given-back",
        summary="a group whose lease has lapsed is taken over while its old holder gives it back",
        setup=_LAPSED,
        sessions={"old": (nack("c"),), "new": (claim("d"), nack("d"))},
        invariants=("lease-fenced", "group-exclusive"),
        covers=(("claim group", "nack"), ("nack", "nack")),
    ),
    Race(
        name="taken-over-and-renewed",
        summary="a group whose lease has lapsed is taken over while its old holder renews it",
        setup=_LAPSED,
        sessions={"old": (extend("c"),), "new": (claim("d"), extend("d"))},
        invariants=("lease-fenced", "group-exclusive"),
        covers=(("claim group", "extend"), ("extend", "extend")),
    ),
    Race(
        name="head-acked-while-claimed",
        summary="between a claim's look at a lapsed group and its lock, its old holder acknowledges the head",
        setup=(
            publish("g"),
            publish("h", priority=1),
            publish("h"),
            claim("c", lease_s=LAPSED_S, min_priority=1),
        ),
        sessions={"claimer": (claim("d", limit=2),), "old": (ack("c"),)},
        inner=("claimer",),
        invariants=("group-fifo", "group-exclusive"),
        covers=(("claim groups", "ack"),),
    ),
    Race(
        name="publishers-in-opposite-orders",
        summary="two publish to two groups in opposite orders, each held up between them by one of its own",
        # Each waits for a publisher of its own, so that no commit sets both going at once.
        sessions={
            "one": (publish("m"),),
            "two": (publish("n"),),
            "forth": (publish("a", "m", "b"),),
            "back": (publish("b", "n", "a"),),
        },
        stops=("one", "two"),
        invariants=("no-deadlock", "no-lost-message"),
        covers=(("publish", "publish many"), ("publish many", "publish many")),
    ),
    Race(
        name="published-into-a-lease",
        summary="messages are published to a group while it is claimed",
        setup=(publish("g"),),
        sessions={"publisher": (publish("g"),), "claimer": (claim("c"),), "other": (claim("d"),)},
        stops=("publisher",),
        inner=("publisher",),
        invariants=("group-exclusive", "group-fifo"),
        covers=(("publish", "claim group"), ("claim group", "claim group")),
    ),
)
