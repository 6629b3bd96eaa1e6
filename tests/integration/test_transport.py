"""What the transport promises, call by call, of both clients alike."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from engine.sessions import OutcomeUnknown, Unavailable
from engine.store import Event, UnstorableValue
from engine.transport import AsyncPostgresTransport, GroupState, Message, PostgresTransport, Publication
from stress.scripts.courier import Courier
from stress.scripts.node import Notes


class Client:
    """One of the clients, its calls answered at once."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            answer = getattr(self._transport, name)(*arguments, **named)
            return self._runner.run(answer) if inspect.iscoroutine(answer) else answer

        return call

    def end(self) -> None:
        self.close()
        self._runner.close()

    @classmethod
    def open(cls, kind: str, dsn: str, **options: Any) -> Client:
        if kind == "sync":
            return cls(PostgresTransport.from_dsn(dsn, **options))
        client = cls(None)
        client._transport = client._runner.run(AsyncPostgresTransport.from_dsn(dsn, **options))
        return client


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def transport(kind: str, database: str) -> Iterator[Client]:
    client = Client.open(kind, database)
    yield client
    client.end()


def test_messages_of_a_group_come_one_at_a_time_in_the_order_of_their_publishing(transport: Client) -> None:
    seqs = [transport.publish("g", text) for text in ("e1", "e2", "e3")]
    assert seqs == sorted(seqs)
    for text, seq in zip(("e1", "e2", "e3"), seqs, strict=True):
        message = transport.claim()
        assert (message.group_id, message.seq, message.event) == ("g", seq, text)
        assert transport.claim() is None
        assert transport.ack("g", seq, message.token)
    assert transport.claim() is None


def test_an_event_comes_back_as_it_was_published(transport: Client) -> None:
    event = Event(
        id="e1", kind="paid", payload={"nul": "\x00", "text": "grüße 🐘", "n": 1.5, "deep": {"a": [None]}}
    )
    transport.publish("g", event)
    assert transport.claim().decoded() == event


@pytest.mark.parametrize(
    ("group_id", "event", "options"),
    [
        ("g" * 2_001, "e", {}),
        ("g\x00", "e", {}),
        ("g", "e\x00", {}),
        ("g", "\ud800", {}),
        ("g", Event(id="e", kind="k", payload={"n": float("nan")}), {}),
        ("g", Event(id="e", kind="k", payload={"n": "\udfff"}), {}),
        ("g", "e", {"priority": 5}),
        ("g", "e", {"priority": -1}),
        ("g", "e", {"now": float("nan")}),
    ],
)
def test_what_cannot_be_stored_is_refused_before_it_is_sent(
    transport: Client, group_id: str, event: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(UnstorableValue):
        transport.publish(group_id, event, **options)
    assert transport.depth() == 0


@pytest.mark.parametrize("group_id", ["", "g" * 2_000, "ä" * 1_000, "quo'te\"\\{},"])
def test_any_group_id_that_fits_works(transport: Client, group_id: str) -> None:
    transport.publish_many([(group_id, "e1"), (group_id, "e2")])
    for _ in range(2):
        message = transport.claim()
        assert message.group_id == group_id
        assert transport.ack(group_id, message.seq, message.token)
    assert transport.groups() == []


def test_publish_many_keeps_the_order_given_and_answers_with_seqs_in_that_order(transport: Client) -> None:
    items = [("b", "1"), ("a", "2"), ("b", "3"), ("c", "4"), ("a", "5")]
    seqs = transport.publish_many(items)
    assert seqs == sorted(seqs)
    assert len(set(seqs)) == 5
    assert transport.publish_many([]) == []
    events = []
    while messages := transport.claim_many(10):
        assert transport.ack_many(messages) == [True] * len(messages)
        events.append([message.event for message in messages])
    assert [sorted(each) for each in events] == [["1", "2", "4"], ["3", "5"]]


def test_publish_many_takes_ten_thousand_in_one_round_trip(kind: str, database: str) -> None:
    notes = Notes()
    transport = Client.open(kind, database, observer=notes)
    transport.publish_many((f"g{n % 777}", f"e{n}") for n in range(10_000))
    assert len(notes.operations) == 1
    assert transport.depth() == 10_000
    transport.end()


def test_a_claim_serves_the_group_that_has_waited_longest(transport: Client) -> None:
    for group_id, now in (("c", 1.0), ("a", 2.0), ("b", 3.0)):
        transport.publish(group_id, group_id, now=now)
    assert [transport.claim(now=4.0).group_id for _ in range(3)] == ["c", "a", "b"]


def test_a_group_is_out_of_reach_while_it_is_leased_and_free_when_the_lease_has_run_out(
    transport: Client,
) -> None:
    transport.publish("g", "e", now=0.0)
    old = transport.claim(now=0.0, lease=10.0)
    assert transport.claim(now=9.9) is None
    new = transport.claim(now=10.0)
    assert (new.seq, new.token) == (old.seq, new.token)
    assert new.token != old.token


def test_a_lapsed_lease_is_its_holders_until_somebody_takes_it(transport: Client) -> None:
    transport.publish("g", "e", now=0.0)
    message = transport.claim(now=0.0, lease=10.0)
    assert transport.extend("g", message.token, 10.0, now=50.0)
    assert transport.claim(now=59.0) is None
    assert transport.ack("g", message.seq, message.token, now=100.0)


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_a_lease_that_was_taken_over_changes_nothing(transport: Client, call: str) -> None:
    transport.publish_many([("g", "e1"), ("g", "e2")], now=0.0)
    old = transport.claim(now=0.0, lease=10.0)
    transport.claim(now=10.0, lease=10.0)
    before = transport.groups(), transport.depth()
    arguments = {"ack": (old.seq, old.token), "nack": (old.token,), "extend": (old.token,)}[call]
    assert getattr(transport, call)("g", *arguments, now=11.0) is False
    assert (transport.groups(), transport.depth()) == before


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_a_token_is_spent_with_its_ack_or_nack(transport: Client, call: str) -> None:
    transport.publish_many([("g", "e1"), ("g", "e2")])
    message = transport.claim()
    assert (
        transport.ack("g", message.seq, message.token)
        if call != "nack"
        else transport.nack("g", message.token)
    )
    arguments = {
        "ack": (message.seq + 1, message.token),
        "nack": (message.token,),
        "extend": (message.token,),
    }[call]
    assert getattr(transport, call)("g", *arguments) is False


def test_an_ack_of_anything_but_the_head_changes_nothing(transport: Client) -> None:
    _, second, other = transport.publish_many([("g", "e1"), ("g", "e2"), ("h", "e3")])
    message, _ = transport.claim_many(2)
    for seq in (second, other, 0, 2**62):
        assert transport.ack("g", seq, message.token) is False
    assert transport.depth() == 3
    assert transport.ack("g", message.seq, message.token)


def test_a_batch_of_acks_answers_for_each(transport: Client) -> None:
    transport.publish_many([("a", "1"), ("a", "2"), ("b", "3")])
    first, second = transport.claim_many(5)
    assert {first.token} == {second.token}
    batch = [second, ("a", first.seq, "stranger"), first, ("a", first.seq + 1, first.token), first]
    assert transport.ack_many(batch) == [True, False, True, False, False]
    assert transport.ack_many([]) == []
    assert transport.claim().event == "2"


def test_a_group_given_back_with_a_delay_is_parked_and_a_publish_does_not_wake_it(transport: Client) -> None:
    transport.publish("g", "e1", now=0.0)
    message = transport.claim(now=0.0)
    assert transport.nack("g", message.token, 5.0, now=1.0)
    transport.publish("g", "e2", now=2.0)
    assert transport.claim(now=5.9) is None
    assert transport.claim(now=6.0).event == "e1"


def test_a_group_given_back_at_once_comes_after_all_that_are_ready(transport: Client) -> None:
    transport.publish("a", "a", now=0.0)
    transport.publish("b", "b", now=1.0)
    transport.nack("a", transport.claim(now=2.0).token, now=2.0)
    assert [transport.claim(now=3.0).event for _ in range(2)] == ["b", "a"]


def test_a_group_that_was_served_comes_after_all_that_are_ready(transport: Client) -> None:
    transport.publish_many([(group_id, f"{group_id}{n}") for n in (1, 2) for group_id in "abc"], now=0.0)
    served = []
    for now in range(1, 7):
        message = transport.claim(now=float(now))
        transport.ack(message.group_id, message.seq, message.token, now=float(now))
        served.append(message.event)
    assert served == ["a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_floor_of_priority_passes_over_what_is_below(transport: Client) -> None:
    for priority in (None, 1, 2, 3, 4):
        transport.publish(f"p{priority}", "e", priority)
    assert {message.group_id for message in transport.claim_many(10, min_priority=3)} == {"p3", "p4"}
    assert transport.claim(min_priority=5) is None
    assert len(transport.claim_many(10, min_priority=-3)) == 3


def test_a_priority_holds_for_a_new_group_and_is_changed_by_set_priority_only(transport: Client) -> None:
    transport.publish("g", "e1", 3)
    transport.publish("g", "e2", 1)
    transport.publish("g", "e3")
    assert [group.priority for group in transport.groups()] == [3]
    assert transport.set_priority("g", 2)
    assert [group.priority for group in transport.groups()] == [2]
    assert transport.set_priority("nobody", 2) is False


def test_the_first_priority_of_a_batch_is_the_new_groups(transport: Client) -> None:
    transport.publish_many([Publication("g", "e1", 2), Publication("g", "e2", 4), Publication("h", "e3")])
    assert [(group.group_id, group.priority) for group in transport.groups()] == [("g", 2), ("h", 0)]


def test_groups_and_depth_tell_what_there_is(transport: Client) -> None:
    transport.publish_many([("a", "1"), ("a", "2"), ("b", "3")], now=7.0)
    message = transport.claim(now=8.0, lease=2.0)
    assert transport.groups() == [
        GroupState("a", message.token, 10.0, 0, 2),
        GroupState("b", None, 7.0, 0, 1),
    ]
    assert transport.groups(limit=1) == transport.groups()[:1]
    assert transport.groups(after="a") == transport.groups()[1:]
    assert (transport.depth(), transport.depth("a"), transport.depth("c")) == (3, 2, 0)


def test_the_servers_clock_decides_where_no_time_is_given(transport: Client, database: str) -> None:
    transport.publish("g", "e")
    message = transport.claim(lease=0.0)
    assert transport.claim(lease=1_000.0).token != message.token
    assert transport.claim() is None


@pytest.mark.parametrize(
    "named",
    [{"lease": -1.0}, {"lease": float("nan")}, {"lease": float("inf")}, {"limit": -1}, {"limit": 10_001}],
)
def test_a_claim_has_limits(transport: Client, named: dict[str, Any]) -> None:
    with pytest.raises(UnstorableValue):
        transport.claim_many(**{"limit": 1} | named)


def test_no_server_is_unavailable_and_a_lost_one_leaves_the_outcome_unknown(courier: Courier) -> None:
    with PostgresTransport("host=127.0.0.1 port=1 connect_timeout=1") as nowhere, pytest.raises(Unavailable):
        nowhere.claim()
    with PostgresTransport(courier.gated("transport_messages INSERT")) as transport:
        with courier.closed_gate():
            pending = courier.race.call(transport.publish, "g", "e")
            courier.until(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgreferee transport'"
                " AND wait_event_type = 'Lock'",
                wanted=1,
            )
            courier.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'pgreferee transport'"
            )
            with pytest.raises(OutcomeUnknown):
                pending.result()
        assert transport.depth() == 0
        assert transport.publish("g", "e") > 0


def test_an_observer_is_told_what_a_history_holds(kind: str, database: str) -> None:
    notes = Notes()
    transport = Client.open(kind, database, observer=notes)
    seq = transport.publish("g", Event(id="e1", kind="k"))
    message: Message = transport.claim(token="t")
    transport.ack("g", message.seq, "stranger")
    transport.nack("g", "t")
    transport.claim(min_priority=4)
    assert [(name, value) for _, name, value in notes.completions] == [
        ("transport.publish", {"seq": seq}),
        ("transport.claim", {"group": "g", "seq": seq, "event": "e1"}),
        ("transport.ack", False),
        ("transport.nack", True),
        ("transport.claim", None),
    ]
    assert notes.sent("transport.publish") == [{"group": "g", "event": "e1"}]
    assert notes.sent("transport.claim")[0] == {"token": "t", "limit": 1}
    assert notes.sent("transport.ack") == [{"group": "g", "seq": seq, "token": "stranger"}]
    transport.end()


def test_both_clients_have_the_same_calls() -> None:
    def calls(client: type) -> dict[str, object]:
        return {
            name: list(inspect.signature(getattr(client, name)).parameters)
            for name in vars(client)
            if not name.startswith("_") and name != "open"
        }

    assert calls(PostgresTransport) == calls(AsyncPostgresTransport)
