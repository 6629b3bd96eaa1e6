"""A run on two servers: each ledger is judged with its part of the history, and what crosses from one to the other by
what both ledgers tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.store.shards import shard_of, ticket
from invariants.elsewhere import Elsewhere
from invariants.evidence import Evidence, LedgerSummary
from invariants.history import Operation
from invariants.judge import Judge
from invariants.sharded import Recorded, judge_shards, merged, of_shard
from invariants.verdict import NOTHING_SUBJECT, Judgement, Report, Violation
from tests.fixtures.store_traces import AT_REST, COMPLETE, StoreTrace

EXERCISED = msgspec.structs.replace(AT_REST, exercises=())


def named(shard: int, count: int = 2, prefix: str = "x") -> str:
    """An id that lives in that shard."""
    return next(f"{prefix}{n}" for n in range(1_000) if shard_of(f"{prefix}{n}", count) == shard)


# A parent and an uncle in the first shard, a child and a target in the second.
PARENT, CHILD, TARGET = named(0, prefix="parent"), named(1, prefix="child"), named(1, prefix="target")


class Shards:
    """Two traces whose transactions come at the same seconds, and one history."""

    def __init__(self) -> None:
        self.traces = (StoreTrace(), StoreTrace())
        self.operations: list[Operation] = []

    def __getitem__(self, shard: int) -> StoreTrace:
        return self.traces[shard]

    def idle(self, seconds: int = 1, shard: int = 0) -> None:
        """Let that many seconds go by in a shard's ledger."""
        for _ in range(seconds):
            name = f"idle{len(self[shard].transactions)}-"
            self[shard].version(named(shard, prefix=name), 1).done()

    def judge(self, *, whole: bool = True, evidence: Evidence = EXERCISED) -> Report:
        operations = [o for trace in self.traces for o in trace.operations]
        summaries = (COMPLETE, COMPLETE if whole else LedgerSummary(reason="it was cut off"))
        recorded = [
            Recorded(lambda trace=trace: trace.transactions, evidence, summary)  # type: ignore[misc]
            for trace, summary in zip(self.traces, summaries, strict=True)
        ]
        return judge_shards(recorded, operations)

    def of(self, invariant: str, **how: Any) -> Judgement:
        return next(j for j in self.judge(**how).judgements if j.invariant == invariant)


def handed_over() -> Shards:
    """A fork and two emits of the first shard, whose child and target live in the second; all arrive."""
    shards = Shards()
    here, there = shards.traces
    here.commit(PARENT, 1, emits=[(CHILD, "e1"), (TARGET, "e2"), (TARGET, "e3")], forks=[CHILD])
    here.told(PARENT, 1, kind="fail", result={"error": "StoreConflict", "found": 2})
    here.did("relay", "relay.spawn", {"seqs": [ticket(0, 1)]}, {"seqs": [ticket(0, 1)]})
    seqs = [ticket(0, seq) for seq in (1, 2, 3)]
    here.did("relay", "relay.deliver", {"seqs": seqs}, {"seqs": seqs})
    there.version(CHILD, 1, parent=PARENT).done()
    for group, event in ((CHILD, "e1"), (TARGET, "e2"), (TARGET, "e3"), (TARGET, "e2")):
        there.publish(group, event)
    shards.idle(5)
    for seq in (1, 2, 3):
        here.drop("outbox", seq).done()
    here.drop("spawns", 1).done()
    return shards


@pytest.mark.parametrize("invariant", ["outbox-no-loss", "spawn-once", "cas-chain", "commit-atomic"])
def test_what_crosses_shards_and_arrives_is_held(invariant: str) -> None:
    found = handed_over().of(invariant)
    assert (found.verdict, found.violations) == ("held", ())
    assert found.checked


def never_delivered(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, emits=[(TARGET, "e1"), (TARGET, "e2")])
    shards[1].publish(TARGET, "e2")
    for seq in (1, 2):
        shards[0].drop("outbox", seq).done()


def left_in_the_outbox(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, emits=[(TARGET, "e1")])
    shards[1].publish(TARGET, "e1")


def delivered_much_later(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, emits=[(TARGET, "e1")])
    shards[0].drop("outbox", 1).done()
    shards.idle(5, shard=1)
    shards[1].publish(TARGET, "e1")


def delivered_out_of_order(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, emits=[(TARGET, "e1"), (TARGET, "e2")])
    for event in ("e2", "e1"):
        shards[1].publish(TARGET, event)
    for seq in (1, 2):
        shards[0].drop("outbox", seq).done()


def delivered_before_birth(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, emits=[(CHILD, "e1")], forks=[CHILD])
    shards[1].publish(CHILD, "e1")
    shards[1].version(CHILD, 1, parent=PARENT).done()
    shards.idle(2)
    shards[0].drop("outbox", 1).drop("spawns", 1).done()


def never_made(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, forks=[CHILD])
    shards[0].drop("spawns", 1).done()


def made_twice(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, forks=[CHILD])
    shards[1].version(CHILD, 1, parent=PARENT).done()
    shards[1].version(CHILD, 1, parent=PARENT).done()


def made_much_later(shards: Shards) -> None:
    shards[0].commit(PARENT, 1, forks=[CHILD])
    shards[0].drop("spawns", 1).done()
    shards.idle(5, shard=1)
    shards[1].version(CHILD, 1, parent=PARENT).done()


def saved_in_the_wrong_shard(shards: Shards) -> None:
    shards[0].version(CHILD, 1).done()


def child_of_another_shard_stays(shards: Shards) -> None:
    shards[0].version(PARENT, 1, status="DONE").done()
    shards[0].told(PARENT, 0, ends=True)
    shards[1].version(CHILD, 1, parent=PARENT).done()


def waits_for_one_of_another_shard(shards: Shards) -> None:
    shards[0].version(PARENT, 1).done()
    shards[0].told(PARENT, 0, ends=True, needs=[TARGET])
    shards[1].version(TARGET, 1).done()


BROKEN: list[tuple[str, Callable[[Shards], None], str]] = [
    ("outbox-no-loss", never_delivered, f"shard 0: outbox row 1 (e1 to {TARGET}) was acknowledged and never"),
    ("outbox-no-loss", left_in_the_outbox, "stands in the outbox at rest"),
    ("outbox-no-loss", delivered_much_later, "was acknowledged before it was delivered"),
    ("outbox-no-loss", delivered_out_of_order, "row 2"),
    ("outbox-no-loss", delivered_before_birth, "was delivered before its target was made"),
    ("spawn-once", never_made, f"shard 0: child {CHILD} of {PARENT} was acknowledged and not made"),
    ("spawn-once", made_twice, "is made a second time"),
    ("spawn-once", made_much_later, "was acknowledged before it was made"),
    ("cas-chain", saved_in_the_wrong_shard, "is saved here, and lives in shard 1"),
    ("execution-ends", child_of_another_shard_stays, f"shard 1: execution {CHILD}, a child of {PARENT}, is"),
    ("execution-ends", waits_for_one_of_another_shard, f"shard 0: execution {PARENT} is RUNNING at rest"),
]


@pytest.mark.parametrize(
    ("invariant", "breach", "says"), BROKEN, ids=[breach.__name__ for _, breach, _ in BROKEN]
)
def test_what_crosses_shards_and_goes_wrong_is_found(
    invariant: str, breach: Callable[[Shards], None], says: str
) -> None:
    shards = Shards()
    breach(shards)
    found = shards.of(invariant)
    assert found.verdict == "violated", found
    assert says in " | ".join(violation.summary for violation in found.violations)


@pytest.mark.parametrize(("shares_clock", "found"), [(True, 1), (False, 0)])
def test_of_one_machines_servers_a_publication_a_second_late_is_too_late(
    shares_clock: bool, found: int
) -> None:
    shards = Shards()
    shards[0].commit(PARENT, 1, emits=[(TARGET, "e1")])
    shards[0].drop("outbox", 1).done()
    shards.idle(2, shard=1)
    shards[1].publish(TARGET, "e1")
    evidence = msgspec.structs.replace(EXERCISED, shares_clock=shares_clock)
    assert shards.of("outbox-no-loss", evidence=evidence).violated == found


def test_a_promise_that_needs_one_of_another_shard_is_void_where_that_was_never_saved() -> None:
    shards = Shards()
    shards[0].version(PARENT, 1).done()
    shards[0].told(PARENT, 0, ends=True, needs=[TARGET])
    assert shards.of("execution-ends").verdict == "not_exercised"


@pytest.mark.parametrize("invariant", ["outbox-no-loss", "spawn-once"])
def test_where_a_ledger_is_not_whole_what_crosses_shards_is_unknown(invariant: str) -> None:
    shards = Shards()
    never_delivered(shards)
    never_made(shards)
    found = shards.of(invariant, whole=False)
    assert found.verdict == "unknown"
    assert "what crosses shards cannot be judged" in (found.reason or "")


def test_a_recorders_judge_says_nothing_of_what_lives_elsewhere() -> None:
    shards = handed_over()
    judge = Judge(elsewhere=Elsewhere(0, 2))
    for transaction in shards[0].transactions:
        judge.observe(transaction)
    assert judge.violations == 0


@pytest.mark.parametrize(("handed", "violated"), [(("e1", "e2"), 0), (("e1",), 1)])
def test_what_callers_were_told_is_judged_of_all_shards_at_once(
    handed: tuple[str, ...], violated: int
) -> None:
    shards = Shards()
    commit = {
        "execution": PARENT,
        "expected": 0,
        "event": None,
        "emits": 2,
        "timers": 0,
        "spawns": 0,
        "trace": False,
    }
    shards[0].did("p", "store.commit", {**commit, "to": [[TARGET, "e1"], [TARGET, "e2"]]}, {"version": 1})
    for seq, event in enumerate(handed):
        message = {"group": TARGET, "seq": seq, "event": event}
        shards[1].did("c", "transport.claim", {"token": f"t{seq}"}, [message])
    found = shards.of("seen-outbox")
    assert (found.checked, found.violated) == (2, violated)


def operation(f: str, value: Any, result: Any = None, kind: Any = "ok") -> Operation:
    return Operation("p", 0, f, kind, value, result, 0, 1)


HERE, THERE = named(0), named(1)
TAKEN_APART = [
    (operation("store.load", {"execution": HERE}, {"version": 1}), 1, 0),
    (operation("store.commit", {"execution": THERE}, {"version": 1}), 0, 1),
    (operation("transport.publish", {"group": THERE, "event": "e"}, {"seq": 1}), 0, 1),
    (operation("transport.publish", {"messages": [[HERE, "e"]]}, {"seqs": [1]}), 1, 0),
    (operation("transport.claim", {"token": "t"}, [{"group": THERE, "seq": 1, "event": "e"}]), 0, 1),
    (operation("transport.claim", {"token": "t"}, {"group": THERE, "seq": 1, "event": "e"}), 0, 1),
    (operation("transport.claim", {"token": "t"}, None), 1, 0),
    (operation("transport.claim", {"token": "t"}, {"error": "x", "sqlstate": "57014"}, "fail"), 1, 1),
    (operation("transport.claim", {"token": "t"}, {"error": "x", "sqlstate": "22023"}, "fail"), 1, 0),
    (operation("transport.claim", {"token": "t"}, None, "info"), 1, 1),
    (operation("transport.ack", {"messages": [{"group": HERE, "seq": 1, "token": "t"}]}, [True]), 1, 0),
    (operation("transport.nack", {"group": THERE, "token": "t"}, True), 0, 1),
    (operation("relay.deliver", {"seqs": [ticket(1, 4)]}, {}), 0, 1),
    (operation("relay.timers", {}, {"error": "x"}, "fail"), 1, 1),
    (operation("phase", {"phase": "load"}, {}), 1, 1),
    (operation("count", {"event": "conflict", "amount": 1}), 1, 0),
]


@pytest.mark.parametrize(("one", "first", "second"), TAKEN_APART, ids=lambda each: getattr(each, "f", ""))
def test_an_operation_belongs_to_the_shard_of_what_it_names(one: Operation, first: int, second: int) -> None:
    assert [len(list(of_shard([one], shard, 2))) for shard in range(2)] == [first, second]


def test_what_an_operation_says_of_several_shards_is_taken_apart() -> None:
    listing = operation("store.list", {"filters": {}}, {"ids": [HERE, THERE]})
    seqs = [ticket(0, 7), ticket(1, 3), ticket(1, 4)]
    deliver = operation("relay.deliver", {"seqs": seqs}, {"seqs": seqs})
    timers = operation("relay.timers", {}, {"fired": [[HERE, "p", 1.0], [THERE, "q", 2.0]]})
    parts = list(of_shard([listing, deliver, timers], 1, 2))
    assert parts[0].result == {"ids": [THERE]}
    assert parts[1].value == parts[1].result == {"seqs": [3, 4]}
    assert parts[2].result == {"fired": [[THERE, "q", 2.0]]}


def test_the_worst_verdict_counts_and_where_one_shard_had_nothing_to_check_the_others_say() -> None:
    held, nothing = Judgement("r", "held", 3), Judgement("r", "unknown", 0, reason=NOTHING_SUBJECT)
    violated = Judgement("r", "violated", 2, 1, (Violation("it broke"),))
    unknown = Judgement("r", "unknown", 1, reason="why")
    assert merged([held, nothing]) == held
    assert merged([nothing, nothing]) == nothing
    assert merged([held, unknown]) == Judgement("r", "unknown", 4, reason="shard 1: why")
    assert merged([unknown, unknown]) == Judgement("r", "unknown", 2, reason="why")
    assert merged([unknown, violated]) == Judgement("r", "violated", 3, 1, (Violation("shard 1: it broke"),))
    assert merged([Judgement("r", "not_exercised", 0), held]) == held


def test_what_two_shards_were_put_through_is_added_up() -> None:
    exercised = handed_over().judge().exercised
    assert (exercised["outbox_delivered"], exercised["spawns_made"], exercised["conflicts_lost"]) == (3, 1, 1)
