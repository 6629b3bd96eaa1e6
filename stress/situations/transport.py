"""Situations of the transport's statements and functions. `at` is always 100: a group is free up to there."""

from __future__ import annotations

from typing import Final

from stress.situations.situation import GATE, Situation, few_were_looked_at, free, lock, looked_at, row

GROUPS: Final = "transport_groups"
LEASES: Final = "SELECT group_id, locked_by FROM transport_groups ORDER BY 1"
MESSAGES: Final = "SELECT seq FROM transport_messages ORDER BY 1"
TURN: Final = 1735681638
# Of a publish to all of these the turns are taken in order.
NAMES: Final = [f"g{n}" for n in range(12)]
TURNS: Final = "SELECT DISTINCT hashtext('g' || n) & 1023 AS number FROM generate_series(0, 11) AS n"


def group(name: str, since: float = 0, holder: str | None = None, priority: int = 0) -> str:
    return row("transport_groups", group_id=name, locked_by=holder, lock_expiry=since, priority=priority)


def message(seq: int, name: str) -> str:
    return row("transport_messages", seq=seq, group_id=name, event=f"e{seq}")


def ready(*names: str) -> tuple[str, ...]:
    """Groups that have waited since 0, 1, 2 ..., with a message each: 1, 2, 3 ..."""
    made = [(group(name, n), message(n + 1, name)) for n, name in enumerate(names)]
    # The youngest lie first.
    return tuple(text for pair in reversed(made) for text in pair)


LEASED: Final = (
    *(group(name, 200, "t") for name in "dcba"), *(message(n, name) for n, name in ((22, "b"), (21, "b"), (11, "a"))),
)  # fmt: skip
SITUATIONS: Final = (
    # ---- publish
    Situation(
        statement="transport/publish",
        says="it makes the groups that are not there, in the priority that comes first, and changes no other",
        given=(group("a", 200, "t", 4), group("z", 1)),
        arguments=(
            ["a", *("b" if n % 2 else "c" for n in range(40))], ["e"] * 41, [0, *(n % 3 for n in range(40))], 100.0
        ),
        after={
            "SELECT group_id, locked_by, lock_expiry, priority FROM transport_groups ORDER BY 1": [
                ("a", "t", 200.0, 4), ("b", None, 100.0, 1), ("c", None, 100.0, 0), ("z", None, 1.0, 0),
            ],
            "SELECT group_id, count(*) FROM transport_messages GROUP BY 1 ORDER BY 1": [("a", 1), ("b", 20), ("c", 20)],
        },
    ),
    Situation(
        statement="transport/publish",
        says="seqs are drawn in the order of the messages",
        arguments=(["b", "a", "b"], ["1", "2", "3"], [0, 0, 0], 100.0),
        after={"SELECT event FROM transport_messages ORDER BY seq": [("1",), ("2",), ("3",)]},
    ),
    Situation(
        statement="transport/publish",
        says="it waits for the lowest turn first, and has no other meanwhile",
        holding=(f"SELECT pg_advisory_xact_lock({TURN}, min(t.number)) FROM ({TURNS}) AS t",),
        arguments=(NAMES, ["e"] * 12, [0] * 12, 100.0),
        waits=True,
        meanwhile={
            f"SELECT DISTINCT pg_try_advisory_xact_lock({TURN}, t.number) FROM ({TURNS} ORDER BY 1 OFFSET 1) AS t": [
                (True,)
            ],
        },
        after={"SELECT count(*) FROM transport_messages": [(12,)]},
    ),
    Situation(
        statement="transport/publish",
        says="it holds the groups' rows, and waits for the lowest first",
        given=(group("b"), group("a")),
        holding=(lock(GROUPS, "group_id = 'a'"),),
        arguments=(["b", "a"], ["e", "e"], [0, 0], 100.0),
        waits=True,
        meanwhile={free(GROUPS, "group_id"): [("b",)]},
        after={"SELECT count(*) FROM transport_messages": [(2,)]},
    ),
    # ---- claim
    Situation(
        statement="transport/claim",
        says="it leases who has waited the longest, with the head message, and changes no other group",
        given=(
            message(101, "z"),
            message(104, "y"),
            *ready(*"zyxwvutsrqpo"),
            group("leased", 200, "u"),
            message(102, "leased"),
            group("parked", 101),
            message(103, "parked"),
        ),
        arguments=(2, "w", 10.0, 0, 100.0),
        answer=[("z", 1, "e1"), ("y", 2, "e2")],
        in_order=True,
        after={
            LEASES: [
                ("leased", "u"), *((name, None) for name in ("o", "p", "parked", *"qrstuvwx")), ("y", "w"), ("z", "w"),
            ]
        },
    ),
    Situation(
        statement="transport/claim",
        says="who has waited the longest is first also where no index gives that order",
        given=("DROP INDEX transport_groups_ready", *ready(*"zyxwvutsrqpo")),
        arguments=(2, "w", 10.0, 0, 100.0),
        answer=[("z", 1, "e1"), ("y", 2, "e2")],
        in_order=True,
    ),
    Situation(
        statement="transport/claim",
        says="it looks at no group that is leased or parked, however many there are",
        given=(
            *ready("a"),
            *(group(f"leased {n}", 200, "u") for n in range(100)),
            looked_at(GROUPS),
        ),
        arguments=(2, "w", 10.0, 0, 100.0),
        answer=[("a", 1, "e1")],
        after={few_were_looked_at(GROUPS, 10): [(True,)]},
        as_planned=True,
    ),
    Situation(
        statement="transport/claim",
        says="of all priorities from the lowest on it leases who has waited the longest",
        given=(
            group("low", 0, None, 0), group("b", 2, None, 1), group("a", 1, None, 4), group("c", 3, None, 2),
            *(message(n, name) for n, name in enumerate(("c", "b", "a", "low"), 1)),
        ),
        arguments=(3, "w", 10.0, 1, 100.0),
        answer=[("a",), ("b",), ("c",)],
        shows=(0,),
        in_order=True,
    ),
    Situation(
        statement="transport/claim",
        says="groups that others hold are passed over, however many they are",
        given=ready(*"abcdefghijklmnopqrstuvwxyz"),
        holding=(lock(GROUPS, "group_id < 'y'", "FOR NO KEY UPDATE"),),
        arguments=(1, "w", 10.0, 0, 100.0),
        answer=[("y", 25, "e25")],
    ),
    *(
        Situation(
            statement="transport/claim",
            says=f"a group that another {did} since it was read is passed over",
            given=tuple(
                text for n, name in enumerate("ab") for text in (group(name, n, None, 1), message(n + 1, name))
            ),
            gate="a",
            holding=(
                f"SELECT pg_advisory_xact_lock({GATE})", f"UPDATE transport_groups SET {change} WHERE group_id = 'b'",
            ),
            waits=True,
            arguments=(2, "w", 10.0, 1, 100.0),
            answer=[("a",)],
            shows=(0,),
        )
        for did, change in (("leased", "lock_expiry = 200, locked_by = 'u'"), ("put behind", "priority = 0"))
    ),
    Situation(
        statement="transport/claim",
        says="a drained group is removed on the way, and no other",
        given=(group("a", 0), group("b", 1), message(2, "b"), group("c", 200, "u")),
        arguments=(1, "w", 10.0, 0, 100.0),
        answer=[("b",)],
        shows=(0,),
        after={LEASES: [("b", "w"), ("c", "u")]},
    ),
    Situation(
        statement="transport/claim",
        says="a drained group that a publisher holds is left to him",
        given=(group("a", 0), group("b", 1), message(2, "b")),
        holding=(lock(GROUPS, "group_id = 'a'", "FOR KEY SHARE"),),
        arguments=(1, "w", 10.0, 0, 100.0),
        answer=[("b",)],
        shows=(0,),
        after={LEASES: [("a", None), ("b", "w")]},
    ),
    # ---- ack
    *(
        Situation(
            statement="transport/ack",
            says=f"an ack of {what} takes effect: {done}",
            given=(*LEASED, group("x", 200, "other"), message(31, "x"), message(5, "0")),
            arguments=([name], [seq], [token], 100.0),
            answer=[(done,)],
            after={MESSAGES: [(n,) for n in (5, 11, 21, 22, 31) if not (done and n == seq)]},
        )
        for what, name, seq, token, done in (
            ("a head", "b", 21, "t", True),
            ("another group's head", "a", 21, "t", False),
            ("the next group's head, in a drained group", "c", 31, "t", False),
            ("another message of the group", "b", 22, "t", False),
            ("no message", "b", 99, "t", False),
            ("a head under another token", "b", 21, "u", False),
            ("a head under the token of another group", "x", 31, "t", False),
        )
    ),
    Situation(
        statement="transport/ack",
        says="a group with messages goes behind those that are ready, a drained one goes, others stay as they are",
        given=LEASED,
        arguments=(["b", "a"], [21, 11], ["t", "u"], 100.0),
        answer=[(True,), (False,)],
        in_order=True,
        after={
            "SELECT group_id, locked_by, lock_expiry FROM transport_groups ORDER BY 1": [
                ("a", "t", 200.0), ("b", None, 100.0), ("c", "t", 200.0), ("d", "t", 200.0),
            ]
        },
    ),
    Situation(
        statement="transport/ack",
        says="it answers in the order in which it was asked",
        given=LEASED,
        arguments=(["b", "a", "a"], [22, 11, 11], ["t", "t", "t"], 100.0),
        answer=[(False,), (True,), (False,)],
        in_order=True,
        after={LEASES: [("b", "t"), ("c", "t"), ("d", "t")]},
    ),
    Situation(
        statement="transport/ack",
        says="it waits for the lowest group first, and holds no other meanwhile",
        given=LEASED,
        holding=(lock(GROUPS, "group_id = 'a'", "FOR NO KEY UPDATE"),),
        arguments=(["b", "a"], [21, 11], ["t", "t"], 100.0),
        waits=True,
        meanwhile={free(GROUPS, "group_id"): [("b",), ("c",), ("d",)]},
        answer=[(True,), (True,)],
    ),
    Situation(
        statement="transport/ack",
        says="a group that another has leased while it waited is the other's",
        given=LEASED,
        holding=("UPDATE transport_groups SET locked_by = 'u' WHERE group_id = 'a'",),
        arguments=(["a"], [11], ["t"], 100.0),
        waits=True,
        answer=[(False,)],
        after={MESSAGES: [(11,), (21,), (22,)]},
    ),
    # ---- one group
    *(
        Situation(
            statement=f"transport/{statement}",
            says=f"it changes the group that it names{' under its token' * (len(arguments) > 2)}, and no other",
            given=(group("a", 200, "t"), group("b", 200, "t"), group("c", 200, "u")),
            arguments=("a", *arguments),
            answer=[("a",)],
            after={
                "SELECT group_id FROM transport_groups WHERE lock_expiry = 200 AND priority = 0 ORDER BY 1": [
                    ("b",), ("c",),
                ]
            },
        )
        for statement, arguments in (
            ("extend", ("t", 10.0, 100.0)), ("nack", ("t", 10.0, 100.0)), ("set_priority", (3,)),
        )
    ),
    *(
        Situation(
            statement=f"transport/{statement}",
            says="under another token it changes nothing",
            given=(group("a", 200, "u"),),
            arguments=("a", "t", 10.0, 100.0),
            answer=[],
        )
        for statement in ("extend", "nack")
    ),
    *(
        Situation(
            statement="transport/depth",
            says=f"it counts {what}",
            given=(*ready("a", "b"), message(9, "a")),
            arguments=(name, most),
            answer=[(count,)],
        )
        for what, name, most, count in (("a group", "a", 9, 2), ("all", None, 9, 3), ("no further", None, 2, 2))
    ),
    Situation(
        statement="transport/groups",
        says="the groups behind the place in order, with what each has",
        given=(*ready("a", "b", "c"), message(9, "b"), group("d", 9)),
        arguments=("a", 2),
        answer=[("b", 2), ("c", 1)],
        shows=(0, 4),
        in_order=True,
    ),
    Situation(
        statement="transport/groups",
        says="from the beginning, where no place is named",
        given=ready("a", "b"),
        arguments=(None, 9),
        answer=[("a",), ("b",)],
        shows=(0,),
        in_order=True,
    ),
)  # fmt: skip
