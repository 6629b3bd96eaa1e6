"""Mutants of the transport, the relay and the timer sweeper: documented forms that the engine closed, and the mistakes
that such parts are made with (docs/findings.md)."""

from __future__ import annotations

from typing import Final

from invariants.mutants.mutant import Mutant, Patch

TRANSPORT_MUTANTS: Final = (
    Mutant(
        name="ack-without-token",
        summary="an ack names the group and the message, and not whose claim it ends",
        caught_by=("lease-fenced",),
        functions={"transport_ack": (Patch(" AND g.locked_by = item.holder", ""),)},
    ),
    Mutant(
        name="nack-without-token",
        summary="a group is given back by whoever names it",
        caught_by=("lease-fenced",),
        statements={"transport/nack": (Patch("g.locked_by = $2::text", "$2::text IS NOT NULL"),)},
    ),
    Mutant(
        name="extend-without-token",
        summary="a lease is renewed by whoever names the group",
        caught_by=("lease-fenced",),
        statements={"transport/extend": (Patch("g.locked_by = $2::text", "$2::text IS NOT NULL"),)},
    ),
    Mutant(
        name="token-is-worker",
        summary="a claim's token is its worker's name: taken over and claimed again, it is the same",
        caught_by=("lease-fenced",),
        protocol=frozenset(("claims-named-by-worker",)),
    ),
    Mutant(
        name="ack-any-message",
        summary="an ack removes the message that it names, the group's head or not",
        caught_by=("group-fifo",),
        functions={
            "transport_ack": (
                Patch(
                    "                AND m.seq = (\n"
                    "                    SELECT h.seq FROM transport_messages AS h\n"
                    "                    WHERE (h.group_id, h.seq) > (item.name, 0)\n"
                    "                    ORDER BY h.group_id, h.seq LIMIT 1\n"
                    "                );\n",
                    "                ;\n",
                ),
            )
        },
    ),
    Mutant(
        name="publish-clears-lease",
        summary="a publish sets the group's row up anew, the lease with it",
        caught_by=("group-exclusive",),
        functions={
            "transport_publish": (
                Patch(
                    "ON CONFLICT (group_id) DO NOTHING",
                    "ON CONFLICT (group_id) DO UPDATE SET locked_by = NULL, lock_expiry = excluded.lock_expiry",
                ),
            )
        },
    ),
    Mutant(
        name="publish-holds-nothing",
        summary="a publish finds the group's row there and does not hold it, as documented",
        caught_by=("no-lost-message",),
        functions={"transport_publish": (Patch(" ORDER BY g.group_id FOR KEY SHARE", ""),)},
    ),
    Mutant(
        name="remove-without-look",
        summary="a drained group's row is removed after waiting for a publisher, without another look",
        caught_by=("no-lost-message",),
        functions={
            "transport_remove": (
                Patch(
                    "    PERFORM FROM transport_groups AS g WHERE g.group_id = name FOR UPDATE SKIP LOCKED;\n"
                    "    IF NOT FOUND THEN\n"
                    "        RETURN false;\n"
                    "    END IF;\n",
                    "",
                ),
            )
        },
    ),
    Mutant(
        name="publishers-hide-groups",
        summary="a publish locks the group's row, and claims pass over what is locked, as documented",
        caught_by=("group-fairness",),
        functions={"transport_publish": (Patch("FOR KEY SHARE", "FOR UPDATE"),)},
    ),
    Mutant(
        name="publishers-race",
        summary="two publishers of a group draw their seqs before they know who is first",
        caught_by=("group-fifo",),
        functions={
            "transport_publish": (
                Patch("PERFORM pg_advisory_xact_lock(1735681638, turn.number)", "PERFORM turn.number"),
            )
        },
    ),
    Mutant(
        name="publishers-unordered",
        summary="publishers of several groups take their turns in the order of their messages",
        caught_by=("no-deadlock",),
        functions={
            "transport_publish": (
                Patch(
                    "SELECT DISTINCT hashtext(name) & 1023 AS number FROM unnest(names) AS name ORDER BY number",
                    "SELECT hashtext(name) & 1023 AS number FROM unnest(names) AS name",
                ),
            )
        },
    ),
    Mutant(
        name="new-groups-first",
        summary="a group that has never been leased comes before all others, as documented",
        caught_by=("group-fairness",),
        functions={"transport_publish": (Patch("transport_clock(at), coalesce", "0, coalesce"),)},
    ),
    Mutant(
        name="ack-keeps-turn",
        summary="an acknowledged group keeps its place instead of going behind the others",
        caught_by=("group-fairness",),
        functions={
            "transport_ack": (
                Patch(
                    "SET locked_by = NULL, lock_expiry = transport_clock(at)",
                    "SET locked_by = NULL, lock_expiry = 0",
                ),
            )
        },
    ),
    Mutant(
        name="head-from-snapshot",
        summary="the head message is read together with the group, before the group is locked, as in one statement",
        caught_by=("group-fifo",),
        functions={
            "transport_claim": (
                Patch(
                    "SELECT c.group_id, c.lock_expiry\n", "SELECT c.group_id, c.lock_expiry, h.seq, h.event\n"
                ),
                Patch(
                    ") AS c\n            ORDER BY c.lock_expiry, c.group_id\n",
                    ") AS c\n            CROSS JOIN LATERAL (\n"
                    "                SELECT m.seq, m.event FROM transport_messages AS m\n"
                    "                WHERE m.group_id = c.group_id ORDER BY m.seq LIMIT 1\n"
                    "            ) AS h\n            ORDER BY c.lock_expiry, c.group_id\n",
                ),
                Patch(
                    "            SELECT m.group_id, m.seq, m.event INTO group_id, seq, event\n"
                    "            FROM transport_messages AS m\n"
                    "            WHERE (m.group_id, m.seq) > (candidate.group_id, 0)\n"
                    "            ORDER BY m.group_id, m.seq LIMIT 1;\n",
                    "            group_id := candidate.group_id;\n"
                    "            seq := candidate.seq;\n"
                    "            event := candidate.event;\n",
                ),
            )
        },
    ),
    Mutant(
        name="relays-skip-locked",
        summary="relays share the outbox by row: what one has locked the other passes over, and goes on behind it",
        caught_by=("outbox-no-loss",),
        statements={
            "relay/move": (
                Patch("pg_try_advisory_xact_lock(1735681639, b.lane)", "b.lane IS NOT NULL"),
                Patch(
                    "        LIMIT $2::bigint\n",
                    "        LIMIT $2::bigint\n        FOR UPDATE OF o SKIP LOCKED\n",
                ),
            )
        },
    ),
    Mutant(
        name="relay-acks-first",
        summary="outbox rows are removed before they are delivered",
        caught_by=("outbox-no-loss", "execution-ends"),
        protocol=frozenset(("acks-first",)),
    ),
    Mutant(
        name="relay-keeps-cursor",
        summary="the relay goes on behind the last seq that it delivered",
        caught_by=("outbox-no-loss", "done-is-owned"),
        protocol=frozenset(("keeps-cursor",)),
    ),
    Mutant(
        name="emit-overtakes-birth",
        summary="an event is handed over before its target is made",
        caught_by=("outbox-no-loss",),
        statements={
            "relay/move": (
                Patch(
                    "            AND NOT EXISTS (SELECT FROM spawns AS s WHERE s.child_id = o.target_id OFFSET 0)\n",
                    "",
                ),
            )
        },
    ),
    Mutant(
        name="spawn-overwrites",
        summary="a child that is there already is made anew",
        caught_by=("spawn-once",),
        statements={
            "relay/make": (
                Patch(
                    "ON CONFLICT (id) DO NOTHING",
                    "ON CONFLICT (id) DO UPDATE SET data = excluded.data, version = 1",
                ),
            )
        },
    ),
    Mutant(
        name="sweep-deletes-any",
        summary="a fired timer is deleted by its path, whatever it was armed for meanwhile",
        caught_by=("timer-rearm",),
        statements={
            "store/delete_timer": (
                Patch("fire_at = $3::double precision", "$3::double precision IS NOT NULL"),
            )
        },
    ),
    Mutant(
        name="sweep-in-steps",
        summary="due timers are read, fired and then deleted, as documented",
        caught_by=("timer-rearm",),
        protocol=frozenset(("sweeps-in-steps",)),
    ),
    Mutant(
        name="acks-unordered",
        summary="delivered rows are removed in the order of the plan",
        caught_by=("no-deadlock",),
        statements={"relay/ack": (Patch("    ORDER BY o.seq\n    FOR UPDATE\n", ""),)},
    ),
    Mutant(
        name="sweep-by-instant",
        summary="a sweep through the contract publishes, then deletes what is armed for the instant that it read",
        caught_by=("timer-rearm",),
        protocol=frozenset(("deletes-by-instant",)),
    ),
    Mutant(
        name="timer-event-repeats",
        summary="the event of a timer that is armed again for the same instant is the same event",
        caught_by=("timer-rearm",),
        statements={"relay/sweep": (Patch("n.name, n.fire_at, n.seq),", "n.name, n.fire_at),"),)},
    ),
)
