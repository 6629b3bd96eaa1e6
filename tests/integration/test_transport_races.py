"""Races of publishers, claims and acknowledgements, decided by locks and never by sleeping; and deaths in between."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from engine.transport import Message, PostgresTransport
from stress.scripts.courier import Courier
from stress.scripts.race import TIMEOUT_S

CONSUMERS, MESSAGES, GROUPS = 16, 400, 23


def whole(courier: Courier) -> bool:
    """Every message has its group's row."""
    return not courier.rows(
        "SELECT 1 FROM transport_messages WHERE group_id NOT IN (SELECT group_id FROM transport_groups)"
    )


def test_a_publisher_of_a_group_that_is_being_removed_makes_it_anew(courier: Courier) -> None:
    courier.publish("g", "e1")
    [message] = courier.claim()
    with courier.race.session("acker").transaction():
        assert courier.ack(message, session="acker") == [True]
        published = courier.race.begin("publisher", courier.queue.publish(courier.publications("g", "e2")))
    published.result(TIMEOUT_S)
    assert whole(courier)
    assert courier.drained() == ["e2"]


def test_a_publisher_that_rolls_back_leaves_no_group_that_stays(courier: Courier) -> None:
    courier.publish("g", "e1")
    [message] = courier.claim()
    with courier.race.session("publisher").transaction(force_rollback=True):
        courier.publish("g", "e2", session="publisher")
        assert courier.ack(message) == [True]
        assert courier.groups() == {"g": None}
        assert courier.claim() == []
    courier.publish("h", "e3")
    assert [each.event for each in courier.claim()] == ["e3"]
    assert set(courier.groups()) == {"h"}


def test_an_empty_group_does_not_end_a_claim(courier: Courier) -> None:
    courier.rows(
        "INSERT INTO transport_groups (group_id, lock_expiry) SELECT 'empty ' || n, 0 FROM generate_series(1, 99) n"
    )
    courier.publish("g", "e1")
    assert [each.event for each in courier.claim()] == ["e1"]
    assert list(courier.groups()) == ["g"]


def test_a_claim_returns_nothing_that_is_locked_and_locks_nothing_that_it_does_not_return(
    courier: Courier,
) -> None:
    for number in range(50):
        courier.publish(f"g{number:02}", "e", now=float(number))
    for settings in ({}, {"enable_indexscan": "off", "enable_indexonlyscan": "off"}, {"enable_sort": "off"}):
        first = courier.race.session("first", settings)
        with first.transaction(force_rollback=True):
            taken = courier.claim(3, session="first", now=100.0)
            assert [each.group_id for each in taken] == ["g00", "g01", "g02"]
            free = courier.rows("SELECT group_id FROM transport_groups FOR UPDATE SKIP LOCKED")
            assert len(free) == 47
            with courier.race.session("second").transaction(force_rollback=True):
                others = courier.claim(40, session="second", now=100.0)
                assert [each.group_id for each in others] == [f"g{number:02}" for number in range(3, 43)]


def test_a_claim_goes_on_behind_a_hundred_locked_groups(courier: Courier) -> None:
    for number in range(101):
        courier.publish(f"g{number:03}", "e", now=float(number))
    with courier.race.session("first").transaction():
        courier.claim(100, session="first", now=200.0)
        assert [each.group_id for each in courier.claim(now=200.0)] == ["g100"]


def test_neither_claims_nor_acks_wait_for_a_publisher(courier: Courier) -> None:
    courier.publish("g", "e1", "e2")
    [message] = courier.claim()
    with courier.race.session("publisher").transaction():
        courier.publish("g", "e3", session="publisher")
        assert courier.ack(message) == [True]
        [message] = courier.claim()
        assert message.event == "e2"
        assert courier.ack(message) == [True]
    assert courier.drained() == ["e3"]


def test_an_ack_that_meets_a_take_over_waits_for_it_and_changes_nothing(courier: Courier) -> None:
    courier.publish("g", "e1", now=0.0)
    [old] = courier.claim(now=0.0, lease=1.0)
    with courier.race.session("new").transaction():
        [new] = courier.claim(session="new", now=5.0)
        acked = courier.race.begin("old", courier.queue.ack([old], now=5.0))
    assert acked.result(TIMEOUT_S) == [False]
    assert courier.groups() == {"g": new.token}
    assert courier.messages() == ["e1"]


def test_batches_of_acks_in_opposite_orders_do_not_deadlock(courier: Courier) -> None:
    courier.publish("a", "a1", "a2")
    courier.publish("b", "b1", "b2")
    messages = courier.claim(2)
    with courier.race.session("holder").transaction():
        courier.race.session("holder").execute("SELECT 1 FROM transport_groups FOR UPDATE")
        forth = courier.race.begin("forth", courier.queue.ack(messages))
        back = courier.race.begin("back", courier.queue.ack(messages[::-1]))
    assert sorted(map(tuple, (forth.result(TIMEOUT_S), back.result(TIMEOUT_S)))) == [
        (False, False),
        (True, True),
    ]


@pytest.mark.parametrize("at", ["transport_groups INSERT", "transport_messages INSERT"])
def test_a_publish_that_dies_leaves_nothing(courier: Courier, at: str) -> None:
    items = [each for name in ("a", "b") for each in courier.publications(name, "e1", "e2")]
    with courier.gate("mortal", at):
        pending = courier.race.begin("mortal", courier.queue.publish(items))
        courier.terminate("mortal")
        assert isinstance(pending.exception(TIMEOUT_S), psycopg.OperationalError)
    assert (courier.messages(), courier.groups()) == ([], {})
    courier.do(courier.queue.publish(items))
    assert courier.drained() == ["e1", "e1", "e2", "e2"]


def test_a_claim_that_dies_leaves_its_groups_free(courier: Courier) -> None:
    courier.publish("g", "e1")
    with courier.gate("mortal", "transport_groups UPDATE"):
        pending = courier.race.begin("mortal", courier.queue.claim(1))
        courier.terminate("mortal")
        assert isinstance(pending.exception(TIMEOUT_S), psycopg.OperationalError)
    assert courier.groups() == {"g": None}
    assert courier.drained() == ["e1"]


@pytest.mark.parametrize(
    ("at", "published"),
    [("transport_messages DELETE", 1), ("transport_groups UPDATE", 2), ("transport_groups DELETE", 1)],
)
def test_an_ack_that_dies_has_not_happened_and_can_be_made_again(
    courier: Courier, at: str, published: int
) -> None:
    courier.publish("g", *(f"e{n}" for n in range(published)))
    [message] = courier.claim()
    with courier.gate("mortal", at):
        pending = courier.race.begin("mortal", courier.queue.ack([message]))
        courier.terminate("mortal")
        assert isinstance(pending.exception(TIMEOUT_S), psycopg.OperationalError)
    assert courier.groups() == {"g": message.token}
    assert len(courier.messages()) == published
    assert courier.ack(message) == [True]
    assert len(courier.drained()) == published - 1


def test_sixteen_consumers_get_each_message_once_and_in_its_groups_order(courier: Courier) -> None:
    """Publishers, batches and single claims, leases given back and renewed, all at once."""
    got: dict[str, list[str]] = defaultdict(list)
    held: set[str] = set()
    watch, published, acked = threading.Lock(), threading.Event(), 0

    def publish(first: int, transport: PostgresTransport) -> None:
        names = [f"g{number}" for number in range(first, GROUPS, 2)]
        chance = random.Random(first)
        for start in range(0, MESSAGES // 2, 5):
            chance.shuffle(names)
            transport.publish_many(
                (names[n % len(names)], f"{start + n:06}") for n in range(min(5, MESSAGES // 2 - start))
            )

    def consume(seed: int) -> None:
        nonlocal acked
        chance = random.Random(seed)
        with PostgresTransport(courier.dsn) as transport:
            while acked < MESSAGES:
                messages = transport.claim_many(chance.choice((1, 1, 4)))
                if not messages and published.is_set() and transport.depth() == 0:
                    return
                keep: list[Message] = []
                for message in messages:
                    with watch:
                        assert message.group_id not in held, "two consumers of one group"
                        held.add(message.group_id)
                    if chance.random() < 0.2:
                        with watch:
                            held.remove(message.group_id)
                        assert transport.nack(message.group_id, message.token, chance.choice((0.0, 0.001)))
                        continue
                    if chance.random() < 0.2:
                        assert transport.extend(message.group_id, message.token, 60.0)
                    keep.append(message)
                with watch:
                    for message in keep:
                        got[message.group_id].append(message.event)
                        held.remove(message.group_id)
                assert all(transport.ack_many(keep))
                with watch:
                    acked += len(keep)

    with (
        ThreadPoolExecutor(CONSUMERS + 2) as threads,
        PostgresTransport(courier.dsn) as one,
        PostgresTransport(courier.dsn) as two,
    ):
        consumers = [threads.submit(consume, seed) for seed in range(CONSUMERS)]
        for publisher in [threads.submit(publish, 0, one), threads.submit(publish, 1, two)]:
            publisher.result(60)
        published.set()
        for consumer in consumers:
            consumer.result(60)
    assert sum(map(len, got.values())) == MESSAGES
    assert all(events == sorted(set(events)) for events in got.values())
    assert (courier.messages(), courier.groups()) == ([], {})


def test_publishes_that_come_while_groups_are_drained_lose_nothing(courier: Courier) -> None:
    """Each group holds one message at a time, so that every ack removes a row which a publish may be looking at."""
    rounds, seen = 150, defaultdict[str, list[int]](list)
    stopped = threading.Event()

    def publish(group_id: str) -> None:
        with PostgresTransport(courier.dsn) as transport:
            for number in range(rounds):
                transport.publish(group_id, str(number))

    def consume() -> None:
        with PostgresTransport(courier.dsn) as transport:
            while not stopped.is_set():
                message = transport.claim()
                if message is not None:
                    seen[message.group_id].append(int(message.event))
                    assert transport.ack(message.group_id, message.seq, message.token)

    with ThreadPoolExecutor(8) as threads:
        consumers = [threads.submit(consume) for _ in range(4)]
        for publisher in [threads.submit(publish, group_id) for group_id in ("a", "b")]:
            publisher.result(60)
        courier.until("SELECT count(*) FROM transport_messages", wanted=0)
        stopped.set()
        for consumer in consumers:
            consumer.result(60)
    assert seen == {"a": list(range(rounds)), "b": list(range(rounds))}
    assert courier.groups() == {}
