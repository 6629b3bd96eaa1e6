"""Scripts for the mutants of store, relay and transport that show on a recorded ledger."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from engine.store import Execution, Spawn, TimerOp
from engine.transport import Message
from stress.scripts.depot import Depot, draft, emit, handed


def loaded(found: Execution | None) -> Execution:
    assert found is not None
    return found


def two_writers(depot: Depot) -> None:
    """Two objects at one version, both ways of committing."""
    one, two = depot.client("one"), depot.client("two")
    one.commit(draft("a"))
    first, second = loaded(one.load("a")), loaded(two.load("a"))
    one.commit(first)
    two.commit(second)
    two.commit(second, trace={"n": 1})


def two_first_saves(depot: Depot) -> None:
    one, two = depot.client("one"), depot.client("two")
    one.commit(draft("a"))
    two.commit(draft("a"))


def emits(depot: Depot) -> None:
    one = depot.client("one")
    one.commit(draft("a"), [emit("b", "e1")])
    depot.courier("relay").deliver()
    transport = depot.transport("consumer")
    message = handed(transport.claim(token="t"))
    transport.ack(message.group_id, message.seq, message.token)


def redelivered(depot: Depot) -> None:
    """The event is processed by another between the look at its marker and the load."""
    one, two = depot.client("one"), depot.client("two")
    one.commit(draft("a"))
    assert not one.store.is_processed("a", "e")
    two.commit(loaded(two.load("a")), event="e")
    one.commit(loaded(one.load("a")), event="e")


def many_steps(depot: Depot) -> None:
    one = depot.client("one")
    execution = draft("a")
    for number in range(5):
        one.commit(execution, trace={"n": number})
    one.store.append_trace("a", {"n": 5})


def load_after_another(depot: Depot) -> None:
    one, two = depot.client("one"), depot.client("two")
    execution = draft("a")
    two.commit(execution)
    one.load("a")
    two.commit(execution)
    one.load("a")


def listing_while_they_come(depot: Depot) -> None:
    one, two = depot.client("one"), depot.client("two")
    for name in "bcde":
        two.commit(draft(name))
    names = iter(("a0", "a1", "a2", "a3"))
    one.list_all(2, lambda: two.commit(draft(next(names))))


def answer_lost(depot: Depot) -> None:
    one = depot.client("one")
    execution = draft("a")
    one.commit(execution)
    one.connection.loses_answer = True
    one.commit(execution)
    one.commit(execution)


def rearmed_under_a_sweep(depot: Depot) -> None:
    one, relay = depot.client("one"), depot.client("relay")
    execution = draft("a")
    one.commit(execution, timers=[TimerOp("schedule", "p", 5.0)])
    relay.fire_by_contract(10.0, lambda: one.commit(execution, timers=[TimerOp("schedule", "p", 50.0)]))


def cancelled_under_a_sweep(depot: Depot) -> None:
    one, relay = depot.client("one"), depot.courier("relay")
    execution = draft("a")
    one.commit(execution, timers=[TimerOp("schedule", "p", 5.0)])
    relay.sweep(10.0, lambda: one.commit(execution, timers=[TimerOp("cancel", "p")]))


def rearmed_for_the_same_instant(depot: Depot) -> None:
    one, relay = depot.client("one"), depot.courier("relay")
    execution = draft("a")
    for _ in range(2):
        one.commit(execution, timers=[TimerOp("schedule", "p", 5.0)])
        relay.sweep(10.0)


def rearmed_for_the_same_instant_under_a_sweep(depot: Depot) -> None:
    one, execution = depot.client("one"), draft("a")
    rearm = [TimerOp("cancel", "p"), TimerOp("schedule", "p", 5.0)]
    one.commit(execution, timers=rearm)
    depot.sweep_by_contract("first", 10.0, lambda: one.commit(execution, timers=rearm))
    depot.sweep_by_contract("second", 10.0, lambda: None)
    depot.courier("relay").deliver()


def relay_dies(depot: Depot) -> None:
    """After two requests; what the first relay left the next one takes."""
    one, execution = depot.client("one"), draft("a")
    one.commit(execution, [emit("b", "e1")])
    depot.courier("mortal").deliver(2)
    one.commit(execution, [emit("b", "e2")])
    depot.courier("relay").deliver()
    consume_all(depot)


def consume_all(depot: Depot) -> None:
    """Take and acknowledge whatever waits, so that nothing is left to do."""
    transport = depot.transport("last")
    for number in count():
        message = transport.claim(token=f"last {number}")
        if message is None:
            return
        transport.ack(message.group_id, message.seq, message.token)


def late_commit(depot: Depot) -> None:
    """A row drew the lower number, and is committed after the higher one was delivered."""
    one, relay = depot.client("one"), depot.courier("relay")
    late = depot.session()
    with late.transaction():
        late.execute(
            "INSERT INTO executions (id, definition_id, data, version) VALUES ('late', 'd', '{}', 1)"
        )
        late.execute("INSERT INTO outbox (target_id, event) VALUES ('x', '{\"id\": \"e1\"}')")
        depot.own(late, "a commit that takes its time")
        one.commit(draft("a"), [emit("y", "e2")])
        relay.deliver()
    relay.deliver()
    consume_all(depot)


def relays_at_one_target(depot: Depot) -> None:
    """A relay has taken the first row's lock and not gone on, while another one works."""
    depot.client("one").commit(draft("a"), [emit("x", "e1"), emit("x", "e2")])
    slow = depot.session()
    with slow.transaction():
        slow.execute("SELECT pg_advisory_xact_lock(1735681639, lane) FROM generate_series(0, 15) AS lane")
        slow.execute("SELECT FROM outbox ORDER BY seq LIMIT 1 FOR UPDATE")
        depot.courier("quick").deliver()
    depot.courier("relay").deliver()


def emit_to_a_child(depot: Depot) -> None:
    relay = depot.courier("relay")
    depot.client("one").commit(draft("a"), [emit("child", "e1")], spawns=[Spawn("child", "r", {})])
    relay.deliver()
    relay.spawn()
    relay.deliver()


def forked_twice(depot: Depot) -> None:
    """Two commits fork the same child."""
    one, relay = depot.client("one"), depot.courier("relay")
    execution = draft("a")
    for _ in range(2):
        one.commit(execution, spawns=[Spawn("child", "r", {})])
        relay.spawn()
        one.commit(loaded(one.load("child")))


def taken_over(depot: Depot) -> tuple[Message, Message]:
    """A claim whose lease has lapsed, and the claim that took its group over."""
    worker = depot.transport("worker")
    worker.publish_many([("g", "e1"), ("g", "e2")])
    old = handed(worker.claim(lease=0.0, token=depot.token_of("worker", 1)))
    new = handed(worker.claim(token=depot.token_of("worker", 2)))
    return old, new


def old_acks(depot: Depot) -> None:
    old, _ = taken_over(depot)
    depot.transport("old").ack(old.group_id, old.seq, old.token)


def old_gives_back(depot: Depot) -> None:
    old, _ = taken_over(depot)
    depot.transport("old").nack(old.group_id, old.token)


def old_renews(depot: Depot) -> None:
    old, _ = taken_over(depot)
    depot.transport("old").extend(old.group_id, old.token, 1_000.0)


def ack_of_another_message(depot: Depot) -> None:
    worker = depot.transport("worker")
    _, second = worker.publish_many([("g", "e1"), ("g", "e2")])
    message = handed(worker.claim(token="t"))
    worker.ack("g", second, message.token)


def publish_into_a_lease(depot: Depot) -> None:
    worker = depot.transport("worker")
    worker.publish("g", "e1")
    worker.claim(token="t1")
    worker.publish("g", "e2")


def stream_of_new_groups(depot: Depot) -> None:
    worker = depot.transport("worker")
    worker.publish("old", "e")
    for number in range(40):
        worker.publish(f"new{number}", "e")
        message = handed(worker.claim(token=f"t{number}"))
        worker.ack(message.group_id, message.seq, message.token)


def one_busy_group(depot: Depot) -> None:
    worker = depot.transport("worker")
    worker.publish_many([("busy", f"e{number}") for number in range(50)])
    worker.publish("other", "e")
    for number in range(45):
        message = handed(worker.claim(token=f"t{number}"))
        worker.ack(message.group_id, message.seq, message.token)


# By mutant: what is done. Those of the transport that a lock must decide are in `transport`.
SCRIPTS: dict[str, Callable[[Depot], None]] = {
    "cas-without-version": two_writers,
    "first-save-raises": two_first_saves,
    "conflict-without-found": two_writers,
    "conflict-keeps-transaction": two_writers,
    "outbox-outside": emits,
    "dedupe-before-load": redelivered,
    "ring-one-longer": many_steps,
    "ring-renumbered": many_steps,
    "read-keeps-snapshot": load_after_another,
    "pages-by-offset": listing_while_they_come,
    "lost-is-refused": answer_lost,
    "sweep-deletes-any": rearmed_under_a_sweep,
    "sweep-in-steps": cancelled_under_a_sweep,
    "sweep-by-instant": rearmed_for_the_same_instant_under_a_sweep,
    "timer-event-repeats": rearmed_for_the_same_instant,
    "relay-acks-first": relay_dies,
    "relay-keeps-cursor": late_commit,
    "relays-skip-locked": relays_at_one_target,
    "emit-overtakes-birth": emit_to_a_child,
    "spawn-overwrites": forked_twice,
    "ack-without-token": old_acks,
    "nack-without-token": old_gives_back,
    "extend-without-token": old_renews,
    "token-is-worker": old_acks,
    "ack-any-message": ack_of_another_message,
    "publish-clears-lease": publish_into_a_lease,
    "new-groups-first": stream_of_new_groups,
    "ack-keeps-turn": one_busy_group,
}
# A loss is one only when nothing comes any more. In these scripts nothing is left over by the sound engine.
TO_REST = frozenset(("relay-acks-first", "relay-keeps-cursor"))
