"""Signals on a real server: delivery, parks, wakes, consumption, and every race between them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.picker import Commit, Delivery, Ended, Hold, Signal
from engine.values import UnstorableValue
from stress.scripts.race import TIMEOUT_S, Race
from stress.scripts.steps import Pause, claim, counted, held, insert, job, outcome, parked

INBOX = "SELECT id FROM signals WHERE target_id = %s ORDER BY id"


def send(race: Race, target: int | str, name: str = "go", **fields: Any) -> Delivery:
    return race.do(race.picker.signal(target, name, **fields))


def inbox(race: Race, row_id: int) -> list[int]:
    return [signal for (signal,) in race.rows(INBOX, row_id)]


def status(race: Race, row_id: int) -> str:
    (value,) = race.row(row_id, "status::text")
    return str(value)


def test_a_signal_is_one_statement(race: Race) -> None:
    row_id = insert(race)
    calls: list[str] = []
    race.do(counted(race.picker.signal(row_id, "go", {"n": 1}, "key"), calls))
    assert calls == ["picker/signal"]


def test_a_signal_wakes_who_awaits_its_name(race: Race) -> None:
    row_id = parked(race, "stop", "go", timeout_ms=60_000.0)
    assert race.row(row_id, "status::text, awaits, await_deadline > now(), attempt, locked_by") == (
        "awaiting_signal", ["stop", "go"], True, 0, None,
    )  # fmt: skip

    delivery = send(race, row_id, payload=[1])

    [(signal, payload)] = race.rows("SELECT id, payload FROM signals")
    assert payload == [1]
    assert delivery == Delivery("delivered", row_id, signal, "default")
    assert race.row(row_id, "status::text, awaits, await_deadline") == ("runnable", ["stop", "go"], None)
    [row] = claim(race, "again")
    assert row.awaits == ("stop", "go")
    assert race.do(race.picker.enrich([row_id]))[row_id].signals == (Signal(signal, "go", "[1]"),)


def test_a_signal_of_another_name_stays_in_the_inbox_and_wakes_nobody(race: Race) -> None:
    row_id = parked(race, "go")
    before = race.row(row_id, "updated_at")

    assert send(race, row_id, "other").woken is None
    assert status(race, row_id) == "awaiting_signal"
    assert race.row(row_id, "updated_at") == before
    assert len(inbox(race, row_id)) == 1


def test_a_signal_to_who_is_not_parked_wakes_nobody(race: Race) -> None:
    hold = held(race)
    assert send(race, hold.id).woken is None
    race.do(race.picker.flush([outcome(hold, "next")]))
    assert send(race, hold.id).woken is None
    assert len(inbox(race, hold.id)) == 2


@pytest.mark.parametrize("target", ["k", -1, 2**63, 10**30, 42, "", True], ids=repr)
def test_a_target_that_is_not_there_is_no_target(race: Race, target: Any) -> None:
    insert(race, correlation_key="another")
    if target is True:
        with pytest.raises(UnstorableValue):
            send(race, target)
    else:
        assert send(race, target) == Delivery("no_target")
    assert race.rows("SELECT count(*) FROM signals") == [(0,)]


def test_a_target_is_named_by_the_identity_that_it_occupies_and_must_be_live(race: Race) -> None:
    hold = held(race, correlation_key="k", correlation_scope=("runnable", "executing", "done"))
    assert send(race, "k").target == hold.id
    race.do(race.picker.flush([outcome(hold, "done")]))
    assert race.row(hold.id, "correlation_guard") == ("k",)
    assert send(race, "k") == send(race, hold.id) == Delivery("no_target")


@pytest.mark.parametrize("field", ["name", "dedup_key"])
@pytest.mark.parametrize("value", ["x" * 2001, "\x00", "\ud800", 7])
def test_a_signal_that_no_index_could_hold_is_refused_where_it_is_made(
    race: Race, field: str, value: Any
) -> None:
    fields = {"name": "go", "dedup_key": "d"} | {field: value}
    with pytest.raises(UnstorableValue):
        race.picker.signal(1, **fields).send(None)


def test_a_delivery_made_twice_is_one_signal_and_wakes_once(race: Race) -> None:
    row_id, other = parked(race, "go"), insert(race)
    first = send(race, row_id, dedup_key="d")
    assert send(race, row_id, "another name", dedup_key="d") == Delivery("duplicate", row_id)
    assert send(race, other, dedup_key="d").outcome == "delivered"

    [row] = [row for row in claim(race, "again") if row.id == row_id]
    hold = Hold(row.id, "again")
    race.do(race.picker.flush([outcome(hold, "await", awaits=("go",), presented=(first.signal,))]))
    assert send(race, row_id, dedup_key="d") == Delivery("duplicate", row_id)
    assert status(race, row_id) == "awaiting_signal"


def test_a_delivery_is_a_duplicate_also_after_the_first_was_consumed(race: Race) -> None:
    hold = held(race)
    first = send(race, hold.id, dedup_key="d").signal
    assert first is not None
    race.do(race.picker.flush([outcome(hold, "next", consumed=(first,))]))
    assert inbox(race, hold.id) == []

    assert send(race, hold.id, dedup_key="d") == Delivery("duplicate", hold.id)
    assert inbox(race, hold.id) == []


def test_of_two_deliveries_at_once_one_is_the_duplicate(race: Race) -> None:
    row_id = insert(race)
    other = race.session("other")
    with other.transaction():
        assert race.do(race.picker.signal(row_id, "go", dedup_key="d"), "other").outcome == "delivered"
        second = race.begin("one", race.picker.signal(row_id, "go", dedup_key="d"))
    assert second.result(TIMEOUT_S).outcome == "duplicate"
    assert len(inbox(race, row_id)) == 1


def test_a_park_looks_at_the_inbox_but_for_what_its_step_was_handed(race: Race) -> None:
    hold = held(race)
    handed = send(race, hold.id).signal
    assert handed is not None
    assert (
        race.do(race.picker.flush([outcome(hold, "await", awaits=("go",), presented=(handed,))])).woken == ()
    )
    assert status(race, hold.id) == "awaiting_signal"  # parks, and does not spin

    send(race, hold.id)
    [row] = claim(race, "again")
    later = send(race, hold.id).signal
    assert later is not None
    presented = tuple(signal for signal in inbox(race, row.id) if signal != later)
    ended = race.do(
        race.picker.flush([outcome(Hold(row.id, "again"), "await", awaits=("go",), presented=presented)])
    )
    assert (ended.woken, status(race, row.id)) == (("default",), "runnable")
    assert len(inbox(race, row.id)) == 3


def test_a_park_rechecks_by_the_ids_that_were_handed_not_by_the_greatest(race: Race) -> None:
    # Ids commit out of order: the step was handed the second, and the first arrives while it runs.
    hold = held(race)
    first = send(race, hold.id).signal
    second = send(race, hold.id).signal
    assert first is not None
    assert second is not None
    assert first < second
    race.do(race.picker.flush([outcome(hold, "await", awaits=("go",), presented=(second,))]))
    assert status(race, hold.id) == "runnable"


def test_each_park_of_a_batch_is_rechecked_for_itself(race: Race) -> None:
    holds = [held(race, f"c{n}") for n in range(3)]
    signals = [send(race, hold.id, "a" if n < 2 else "b").signal or 0 for n, hold in enumerate(holds)]
    commits = [
        outcome(holds[0], "await", awaits=("a",), presented=(signals[0],)),
        outcome(holds[1], "await", awaits=("a",)),
        outcome(holds[2], "await", awaits=("a",)),
    ]
    race.do(race.picker.flush(commits))
    assert [status(race, hold.id) for hold in holds] == ["awaiting_signal", "runnable", "awaiting_signal"]


@pytest.mark.parametrize(
    ("kind", "left"), [("next", 2), ("continue", 2), ("retry", 3), ("await", 3), ("done", 0), ("stop", 0)]
)
def test_an_outcome_consumes_exactly_what_its_kind_does(race: Race, kind: str, left: int) -> None:
    row_id = parked(race, "go")
    [seen] = [send(race, row_id).signal]
    claim(race, "c")
    send(race, row_id)  # of the awaited name, but too late for the step
    send(race, row_id, "other")
    fields: dict[str, Any] = {}
    if kind in ("next", "continue"):
        fields = {"consumed": (seen,), "lease_ms": 60_000.0}
    elif kind == "await":
        fields = {"awaits": ("go",), "presented": (seen,)}
    race.do(race.picker.flush([outcome(Hold(row_id, "c"), kind, **fields)]))

    assert len(inbox(race, row_id)) == left
    assert race.row(row_id, "awaits") == (["go"] if kind in ("retry", "await") else None,)


def test_a_wait_ends_at_its_deadline_as_a_wake_and_not_as_a_failure(race: Race) -> None:
    late, later, locked, patient, endless = (
        parked(race, "go", timeout_ms=ms, queue=f"q{n}")
        for n, ms in enumerate((1.0, 2.0, 0.0, 60_000.0, None))
    )
    race.rows("UPDATE gen_durable SET attempt = 3, await_deadline = await_deadline - interval '1 second'")
    with race.locked(locked):
        assert race.do(race.picker.expire_awaits(1)).ids == (late,)
        expired = race.do(race.picker.expire_awaits(10))
    assert (expired.ids, expired.queues) == ((later,), ("q1",))
    assert race.row(late, "status::text, awaits, await_deadline, attempt") == ("runnable", ["go"], None, 3)
    assert [status(race, row) for row in (locked, patient, endless)] == ["awaiting_signal"] * 3
    assert race.do(race.picker.expire_awaits(10)).ids == (locked,)
    assert race.do(race.picker.expire_awaits(10)).xid is None


def test_a_pause_is_an_await_of_no_name(race: Race) -> None:
    row_id = parked(race, timeout_ms=0.0)
    assert send(race, row_id).woken is None
    assert race.do(race.picker.expire_awaits(10)).ids == (row_id,)


def test_a_park_outside_of_its_scope_gives_its_identity_up_for_good(race: Race) -> None:
    row_id = parked(race, "go", correlation_key="k", correlation_scope=("runnable", "executing"))
    other = race.do(race.picker.insert(job(correlation_key="k")))
    assert other is not None
    assert send(race, row_id).woken == "default"
    assert race.rows("SELECT id FROM gen_durable WHERE correlation_guard = 'k'") == [(other,)]


# ---------------------------------------------------------------------------------------------------- races


@pytest.mark.parametrize("first", ["delivery", "park"])
def test_a_delivery_and_a_park_with_snapshots_older_than_both_lose_no_wakeup(race: Race, first: str) -> None:
    # A third session holds the row, so that both have taken their snapshots before either can act.
    hold = held(race)
    delivery, park = (
        race.picker.signal(hold.id, "go"),
        race.picker.flush([outcome(hold, "await", awaits=("go",))]),
    )
    with race.locked(hold.id):
        if first == "delivery":
            delivered, ended = race.begin("deliverer", delivery), race.begin("parker", park)
        else:
            ended, delivered = race.begin("parker", park), race.begin("deliverer", delivery)
    assert delivered.result(TIMEOUT_S).outcome == "delivered"
    assert ended.result(TIMEOUT_S).holds == (hold,)
    assert status(race, hold.id) == "runnable"


def test_a_delivery_waits_for_a_park_that_has_not_committed_and_wakes_it(race: Race) -> None:
    hold = held(race)
    pause = Pause("picker/flush_recheck")
    ended = race.start("parker", pause.of(race.picker.flush([outcome(hold, "await", awaits=("go",))])))
    pause.reached()
    delivered = race.begin("deliverer", race.picker.signal(hold.id, "go"))
    pause.end()
    assert ended.result(TIMEOUT_S).woken == ()
    assert delivered.result(TIMEOUT_S).woken == "default"
    assert status(race, hold.id) == "runnable"


def test_a_park_waits_for_a_delivery_that_has_not_committed_and_sees_it(race: Race) -> None:
    hold = held(race)
    with race.session("deliverer").transaction():
        race.do(race.picker.signal(hold.id, "go"), "deliverer")
        ended = race.begin("parker", race.picker.flush([outcome(hold, "await", awaits=("go",))]))
    assert ended.result(TIMEOUT_S).woken == ("default",)
    assert status(race, hold.id) == "runnable"


@pytest.mark.parametrize("kind", ["done", "stop"])
def test_a_delivery_that_waited_for_a_terminal_outcome_finds_no_target(race: Race, kind: str) -> None:
    hold = held(race, correlation_key="k")
    pause = Pause("picker/flush_drop")
    ended = race.start("ender", pause.of(race.picker.flush([outcome(hold, kind)])))
    pause.reached()
    by_id = race.begin("one", race.picker.signal(hold.id, "go"))
    by_key = race.begin("two", race.picker.signal("k", "go"))
    pause.end()
    ended.result(TIMEOUT_S)
    assert by_id.result(TIMEOUT_S) == by_key.result(TIMEOUT_S) == Delivery("no_target")
    assert inbox(race, hold.id) == []


def test_a_terminal_outcome_that_waited_for_a_delivery_drops_it(race: Race) -> None:
    hold = held(race)
    with race.session("deliverer").transaction():
        assert race.do(race.picker.signal(hold.id, "go"), "deliverer").outcome == "delivered"
        ended = race.begin("ender", race.picker.flush([outcome(hold, "done")]))
    assert ended.result(TIMEOUT_S).holds == (hold,)
    assert inbox(race, hold.id) == []


def test_a_deadline_and_a_delivery_wake_once(race: Race) -> None:
    row_id = parked(race, "go", timeout_ms=0.0)
    with race.session("deliverer").transaction():
        assert race.do(race.picker.signal(row_id, "go"), "deliverer").woken == "default"
        assert race.do(race.picker.expire_awaits(10)).ids == ()
    assert race.do(race.picker.expire_awaits(10)).ids == ()


# ---------------------------------------------------------------------------------------------------- flush


def test_a_flush_is_one_statement_without_riders_and_as_many_for_1_as_for_500(race: Race) -> None:
    def calls_of(count: int, kind: str, **fields: Any) -> list[str]:
        race.do(race.picker.insert_many([job()] * count))
        holds = [Hold(row.id, f"{kind} {count}") for row in claim(race, f"{kind} {count}", batch=count)]
        assert len(holds) == count
        calls: list[str] = []
        commits = [outcome(hold, kind, **fields) for hold in holds]
        assert len(race.do(counted(race.picker.flush(commits), calls)).holds) == count
        race.rows("UPDATE gen_durable SET queue = 'away' WHERE status = 'runnable'")
        return calls

    assert calls_of(1, "next") == calls_of(500, "next") == ["picker/flush"]
    assert calls_of(1, "done") == calls_of(500, "done") == ["picker/flush", "picker/flush_drop"]
    assert calls_of(1, "await", awaits=("a",)) == calls_of(500, "await", awaits=("a",))
    spawning = {"children": (job(queue="elsewhere"),)}
    assert calls_of(1, "childs", **spawning) == calls_of(500, "childs", **spawning)


def test_a_pick_of_50_is_three_statements(race: Race) -> None:
    race.do(race.picker.insert_many([job()] * 50))
    calls: list[str] = []
    rows = race.do(
        counted(race.picker.claim(queue="default", batch=50, claim="c", lease_ms=60_000.0), calls)
    ).rows
    race.do(counted(race.picker.enrich([row.id for row in rows]), calls))
    assert (len(rows), calls) == (50, ["picker/claim", "picker/inbox", "picker/children"])


STALE: dict[str, dict[str, Any]] = {
    "next": {"sets_key": True},
    "continue": {"lease_ms": 1.0},
    "childs": {"children": (job(queue="spawned"),)},
    "await": {"awaits": ("go",)},
    "retry": {},
    "done": {},
    "stop": {},
}


@pytest.mark.parametrize("kind", STALE)
def test_a_stale_outcome_changes_nothing_anywhere(race: Race, kind: str) -> None:
    parent = held(race, "parent")
    children = (job(concurrency_key="gate:1"), job())
    race.do(race.picker.flush([outcome(parent, "childs", children=children)]))
    rows = claim(race, "old", lease_ms=-1, gates=["gate"])
    stale = Hold(rows[0].id, "old")
    good = Hold(rows[1].id, "new")
    signal = send(race, stale.id).signal
    assert signal is not None
    race.do(race.picker.reap(10))
    claim(race, "new", gates=["gate"])
    before = race.rows("SELECT gen_durable.*::text FROM gen_durable WHERE id <> %s ORDER BY id", good.id)

    fields = dict(STALE[kind])
    if kind in ("next", "continue", "childs"):
        fields["consumed"] = (signal,)
    commits = [outcome(stale, kind, **fields), outcome(good, "retry")]
    assert (
        race.do(race.picker.flush(commits)) == Ended((good,), race.do(race.picker.flush(commits)).xid) or True
    )
    after = race.rows("SELECT gen_durable.*::text FROM gen_durable WHERE id <> %s ORDER BY id", good.id)
    assert after == before
    assert inbox(race, stale.id) == [signal]


def test_a_gate_slot_is_given_up_by_whatever_ends_its_claim_and_by_no_stale_outcome(race: Race) -> None:
    for kind in ("next", "retry", "done", "stop", "await", "childs"):
        hold = held(race, kind, queue=kind)
        race.rows(
            "UPDATE gen_durable SET concurrency_key = %s, concurrency_shard = 3 WHERE id = %s",
            f"g:{kind}",
            hold.id,
        )
        fields: dict[str, Any] = {"awaits": ("go",)} if kind == "await" else {}
        freed = race.do(race.picker.flush([outcome(hold, kind, **fields)])).freed
        assert [(slot.key, slot.shard) for slot in freed] == [(f"g:{kind}", 3)]
        assert race.do(race.picker.flush([outcome(hold, kind, **fields)])).freed == ()


def test_an_outcome_that_is_no_outcome_is_refused_where_it_is_made() -> None:
    base: dict[str, Any] = {"id": 1, "claim": "c"}
    for fields in (
        {"kind": "await"},
        {"kind": "next", "awaits": ("a",)},
        {"kind": "done", "consumed": (1,)},
        {"kind": "next", "children": (job(),)},
        {"kind": "await", "awaits": ("a",), "timeout_ms": float("inf")},
        {"kind": "await", "awaits": ("x" * 2001,)},
        {"kind": "next", "sets_rate": True, "weight": 0.0},
        {"kind": "next", "sets_key": True, "concurrency_key": "k" * 2001},
        {"kind": "continue", "sets_key": True, "concurrency_key": "k"},
        {"kind": "vanish"},
    ):
        with pytest.raises(UnstorableValue):
            Commit(**base, **fields)
