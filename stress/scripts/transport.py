"""Questions for the mutants of the transport, the relay and the sweeper: each has one right answer, and its mutant
gives another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import psycopg

from engine.operation import Operation
from engine.store import Execution, PostgresStore, TimerOp
from engine.transport import Message, PostgresTransport
from invariants.mutants.handover import store_relay_of
from stress.scripts.courier import Courier
from stress.scripts.depot import Interrupted
from stress.scripts.node import Notes
from stress.scripts.race import TIMEOUT_S
from stress.scripts.steps import watched

Script = Callable[[Courier], object]


def taken_over(courier: Courier) -> tuple[Message, Message]:
    """A claim whose lease has lapsed, and the claim that took its group over."""
    courier.publish("g", "e1", "e2", now=0.0)
    [old] = courier.claim(lease=10.0, now=0.0, token=courier.token_of("worker"))
    [new] = courier.claim(lease=10.0, now=20.0, token=courier.token_of("worker"))
    return old, new


def old_acks(courier: Courier) -> object:
    old, _ = taken_over(courier)
    return courier.ack(old, now=21.0), courier.messages()


def old_gives_back(courier: Courier) -> object:
    old, _ = taken_over(courier)
    done = courier.do(courier.queue.nack("g", old.token, 0.0, now=21.0))
    return done, courier.claim(now=22.0)


def old_renews(courier: Courier) -> object:
    old, _ = taken_over(courier)
    done = courier.do(courier.queue.extend("g", old.token, 1_000.0, now=21.0))
    return done, len(courier.claim(now=40.0))


def ack_of_another_message(courier: Courier) -> object:
    _, second = courier.publish("g", "e1", "e2")
    [message] = courier.claim()
    done = courier.ack(Message("g", second, "", message.token))
    return done, courier.messages()


def publish_into_a_lease(courier: Courier) -> object:
    courier.publish("g", "e1")
    courier.claim()
    courier.publish("g", "e2")
    return courier.claim()


def settled(courier: Courier, session: str, pending: Future[Any]) -> None:
    """Wait until an operation has ended or waits for a lock."""
    while not pending.done():
        pid = courier.race.session(session).info.backend_pid
        if courier.rows("SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0", pid):
            return
        wait([pending], 0.01)


def publish_into_a_drained_group(courier: Courier) -> object:
    """The last message is acknowledged while a publisher's transaction is open."""
    courier.publish("g", "e1")
    [message] = courier.claim()
    with courier.race.session("publisher").transaction():
        courier.publish("g", "e2", session="publisher")
        acked = courier.race.start("acker", courier.queue.ack([message]))
        settled(courier, "acker", acked)
    return acked.result(TIMEOUT_S), courier.drained()


def claim_beside_a_publisher(courier: Courier) -> object:
    courier.publish("g", "e1")
    with courier.race.session("publisher").transaction():
        courier.publish("g", "e2", session="publisher")
        return [message.event for message in courier.claim()]


def two_publishers(courier: Courier) -> object:
    """The one that began first commits last."""
    courier.publish("g", "e0")
    with courier.race.session("first").transaction():
        courier.publish("g", "e1", session="first")
        second = courier.race.start("second", courier.queue.publish(courier.publications("g", "e2")))
        settled(courier, "second", second)
        consumed = courier.drained()
    second.result(TIMEOUT_S)
    return consumed + courier.drained()


def publishers_meet(courier: Courier) -> object:
    """Two publishers of two groups, named in opposite orders; each is held up between the two."""
    turns = courier.rows(
        "SELECT DISTINCT ON (2) 'g' || n, hashtext('g' || n) & 1023 FROM generate_series(1, 50) AS n ORDER BY 2"
    )
    (first, _), (gate, gate_turn), (last, _), (other_gate, other_turn) = turns[:4]
    holder = courier.race.session("holder")
    with holder.transaction():
        for turn in (gate_turn, other_turn):
            holder.execute("SELECT pg_advisory_xact_lock(1735681638, %s)", (turn,))
        forth, back = (
            [each for name in names for each in courier.publications(name, "e")]
            for names in ((first, gate, last), (last, other_gate, first))
        )
        pending = [
            courier.race.begin("forth", courier.queue.publish(forth)),
            courier.race.begin("back", courier.queue.publish(back)),
        ]
    return {type(each.exception(TIMEOUT_S)).__name__ for each in pending}


def stream_of_new_groups(courier: Courier) -> object:
    """A group waits while new ones keep coming."""
    courier.publish("old", "old", now=0.0)
    served = []
    for now in (1.0, 2.0, 3.0):
        courier.publish(f"new {now}", f"new {now}", now=now)
        [message] = courier.claim(now=now)
        courier.ack(message, now=now)
        served.append(message.event)
    return served


def round_robin(courier: Courier) -> object:
    courier.publish("a", "a1", "a2", now=0.0)
    courier.publish("b", "b1", now=1.0)
    served = []
    for now in (2.0, 3.0):
        [message] = courier.claim(now=now)
        courier.ack(message, now=now)
        served.append(message.event)
    return served


def ack_between_look_and_lock(courier: Courier) -> object:
    """A claim has seen two groups and is about to lease the first, when the second's head is acknowledged."""
    courier.publish("first", "f1", now=0.0)
    courier.publish("second", "s1", "s2", now=1.0)
    with courier.gate("slow", "transport_groups UPDATE"):
        claimed = courier.race.begin("slow", courier.queue.claim(2, now=5.0))
        [message] = courier.claim(now=5.0)
        assert message.event == "s1"
        courier.ack(message, now=5.0)
    return [message.event for message in claimed.result(TIMEOUT_S)]


def relays_at_one_target(courier: Courier) -> object:
    """A relay that is slow to hand over the first row, while another one works."""
    courier.emit("x", "e1", "e2")
    with courier.gate("slow", "outbox DELETE"):
        slow = courier.race.begin("slow", courier.handover.move(16, 1, 0))
        courier.move("quick")
    slow.result(TIMEOUT_S)
    courier.move("quick")
    return courier.delivered("x")


def dying(courier: Courier, operation: Operation[Any], requests: int) -> None:
    """Perform an operation; its backend dies before the request of that number, if it comes that far."""
    sent = 0

    def before(_: list[str]) -> None:
        nonlocal sent
        if sent == requests:
            courier.terminate("mortal")
        sent += 1

    try:
        courier.do(watched(operation, before), "mortal")
    except psycopg.OperationalError:
        courier.race.forget("mortal")


def relay_dies(courier: Courier) -> object:
    courier.emit("x", "e1")
    dying(courier, courier.handover.move(16, 10, 0), 2)
    courier.move()
    return courier.outbox(), courier.delivered()


def late_commit(courier: Courier) -> object:
    """An emit that drew the lower seq commits after a higher one was delivered."""
    with courier.race.session("late").transaction():
        courier.emit("x", "e1", session="late")
        courier.emit("y", "e2")
        courier.move()
    courier.move()
    return sorted(courier.delivered())


def emit_to_a_child(courier: Courier) -> object:
    """A parent forks a child and tells it something, in one commit."""
    courier.parent()
    courier.fork("child")
    courier.emit("child", "e1")
    courier.move()
    courier.do(courier.handover.spawn(0, 10))
    courier.move()
    return courier.delivered("child")


def spawn_again(courier: Courier) -> object:
    courier.parent()
    for _ in range(2):
        courier.fork("child")
        courier.do(courier.handover.spawn(0, 10))
        courier.rows("UPDATE executions SET version = version + 1 WHERE id = 'child'")
    return courier.rows("SELECT version FROM executions WHERE id = 'child'")


def rearmed_under_a_sweep(courier: Courier) -> object:
    """A timer is armed anew after a sweep through the store's contract has read it."""
    with PostgresStore.from_dsn(courier.dsn, catalogue=courier.catalogue) as store:
        courier.arm("p", 5.0)
        [due] = store.due_timers(10.0)
        courier.arm("p", 50.0)
        store.delete_timer(*due)
    return courier.rows("SELECT path, fire_at FROM timers")


def cancelled_under_a_sweep(courier: Courier) -> object:
    """A cancel commits before the sweep's statement that fires."""
    courier.arm("p", 5.0)

    def before(names: list[str]) -> None:
        if {"relay/sweep", "relay/fire"} & set(names):
            courier.rows("DELETE FROM timers")

    courier.do(watched(courier.handover.sweep(10, 10.0), before))
    return courier.outbox()


def rearmed_for_the_same_instant(courier: Courier) -> object:
    for _ in range(2):
        courier.arm("p", 5.0)
        courier.do(courier.handover.sweep(10, 10.0))
    return len({event_id for _, event_id in courier.outbox()})


def rearmed_for_the_same_instant_under_a_sweep(courier: Courier) -> object:
    """The timer is armed anew before a sweep through the contracts first writes to the store."""
    with PostgresStore.from_dsn(courier.dsn) as store, PostgresTransport.from_dsn(courier.dsn) as transport:
        execution, arm = Execution(id="x", definition_id="d"), TimerOp("schedule", "p", 5.0)
        store.commit(execution, timers=[arm])

        def rearm() -> None:
            with PostgresStore.from_dsn(courier.dsn) as other:
                other.commit(execution, timers=[arm])

        overtaken = Interrupted(store, ("commit", "delete_timer"), rearm)
        relay = store_relay_of(courier.mutant, overtaken, transport, Notes())
        relay.sweep(10.0)
    return courier.rows("SELECT path, fire_at FROM timers")


def acks_meet(courier: Courier) -> object:
    """Two relays remove the first row and the last; each is held up between the two."""
    courier.rows(
        "INSERT INTO outbox (seq, target_id, event) SELECT seq, NULL, '{}' FROM generate_series(4, 1, -1) AS seq"
    )
    ways = {
        "as indexed": {"enable_seqscan": "off", "enable_bitmapscan": "off"},
        "as they lie": {"enable_indexscan": "off", "enable_bitmapscan": "off"},
    }
    holder = courier.race.session("holder")
    with holder.transaction():
        holder.execute("SELECT FROM outbox WHERE seq IN (2, 3) FOR UPDATE")
        pending = []
        for (name, settings), held_up in zip(ways.items(), (2, 3), strict=True):
            courier.race.session(name, settings)
            pending.append(courier.race.begin(name, courier.handover.ack([1, held_up, 4])))
    return {type(each.exception(TIMEOUT_S)).__name__ for each in pending}


# By mutant: the question, and the right answer.
QUESTIONS: dict[str, tuple[Script, object]] = {
    "ack-without-token": (old_acks, ([False], ["e1", "e2"])),
    "nack-without-token": (old_gives_back, (False, [])),
    "extend-without-token": (old_renews, (False, 1)),
    "token-is-worker": (old_acks, ([False], ["e1", "e2"])),
    "ack-any-message": (ack_of_another_message, ([False], ["e1", "e2"])),
    "publish-clears-lease": (publish_into_a_lease, []),
    "publish-holds-nothing": (publish_into_a_drained_group, ([True], ["e2"])),
    "remove-without-look": (publish_into_a_drained_group, ([True], ["e2"])),
    "publishers-hide-groups": (claim_beside_a_publisher, ["e1"]),
    "publishers-race": (two_publishers, ["e0", "e1", "e2"]),
    "publishers-unordered": (publishers_meet, {"NoneType"}),
    "new-groups-first": (stream_of_new_groups, ["old", "new 1.0", "new 2.0"]),
    "ack-keeps-turn": (round_robin, ["a1", "b1"]),
    "head-from-snapshot": (ack_between_look_and_lock, ["f1", "s2"]),
    "relays-skip-locked": (relays_at_one_target, ["e1", "e2"]),
    "relay-acks-first": (relay_dies, ([], ["e1"])),
    "relay-keeps-cursor": (late_commit, ["e1", "e2"]),
    "emit-overtakes-birth": (emit_to_a_child, ["start:child", "e1"]),
    "spawn-overwrites": (spawn_again, [(3,)]),
    "sweep-deletes-any": (rearmed_under_a_sweep, [("p", 50.0)]),
    "sweep-in-steps": (cancelled_under_a_sweep, []),
    "sweep-by-instant": (rearmed_for_the_same_instant_under_a_sweep, [("p", 5.0)]),
    "acks-unordered": (acks_meet, {"NoneType"}),
    "timer-event-repeats": (rearmed_for_the_same_instant, 2),
}
