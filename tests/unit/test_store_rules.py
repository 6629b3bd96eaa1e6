"""Every rule of the store and of the transport: held on a sound ledger, violated on one that breaks it alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import msgspec
import pytest
from rich.console import Console

from invariants.areas import AREAS, RECONCILING, RULES, STORED_RULES
from invariants.evidence import Evidence, LedgerSummary
from invariants.picker import PICKER_RULES
from invariants.render import print_report
from invariants.verdict import Judgement
from tests.fixtures.store_traces import AT_REST, StoreTrace, clock
from tests.fixtures.traces import Trace

NAMES = frozenset(rule.name for rule in STORED_RULES)
RING = msgspec.structs.replace(AT_REST, trace_max=2)


def full() -> StoreTrace:
    """Something of everything, as it should be."""
    trace = StoreTrace()
    first = trace.commit("a", 1, emits=[("b", "e1"), (None, "e2")], arm=[("wait", 10.0)], trace=0)
    trace.load("a", 1)
    trace.refused("a", 0, 1, version=0, clean=True)
    trace.publish("b", "e1", told=False)
    trace.delivered(*first)
    trace.claim("b", "t1", 1)
    trace.commit("b", 1, event="e1", trace=0)
    trace.ack("b", "t1", 1)
    trace.told("b", 1, event="e1", kind="fail", result={"error": "EventAlreadyProcessed", "found": 1})
    trace.listing("a", "b")
    # The timer is armed anew after the sweep has read it, and fires at its new time.
    trace.commit("a", 2, arm=[("wait", 20.0)], forks=["a.1"], trace=1)
    trace.version("a.1", 1, parent="a").done()
    trace.drop("spawns", 1).done()
    trace.did("relay", "relay.spawn", {"seqs": [1]}, {})
    trace.fired("a", "wait", 20.0)
    trace.drop("timers", "a", "wait").done()
    # The ring is full: its first step goes.
    trace.version("a", 3).put("trace", "a", 2, "{}").drop("trace", "a", 0).done()
    trace.told("a", 2, trace=True)
    trace.load("a", 3)
    trace.load("nobody", None)
    # A commit whose answer was lost: it happened, and its retry says so.
    trace.version("a", 4).done()
    trace.told("a", 3, kind="info")
    trace.refused("a", 3, 4)
    # Two groups take turns.
    trace.publish("g", "m1")
    trace.publish("h", "m2")
    trace.publish("g", "m3")
    trace.claim("g", "t2", 2)
    trace.ack("g", "t2", 2, last=False)
    trace.claim("h", "t3", 3, lease=-1)
    trace.claim("h", "t4", 3)
    trace.acked("h", "t3", 3, told=False)
    trace.ack("h", "t4", 3)
    trace.claim("g", "t5", 4)
    trace.put("transport_groups", "g", None, clock(0), 0).done()
    trace.did("consumer", "transport.nack", {"group": "g", "token": "t5"}, True)
    trace.claim("g", "t6", 4)
    trace.put("transport_groups", "g", "t6", clock(99), 0).done()
    trace.did("consumer", "transport.extend", {"group": "g", "token": "t6"}, True)
    trace.ack("g", "t6", 4)
    trace.listing("a", "b", "a.1")
    trace.listing("a", "b", roots_only=True)
    # One that was to end has, and so have its child and its child's child.
    trace.version("hub", 1).done()
    trace.told("hub", 0, ends=True, needs=["parcel"])
    trace.version("parcel", 1).done()
    trace.told("parcel", 0, kind="info", ends=True)
    trace.version("parcel.1", 1, parent="parcel", status="DONE").done()
    trace.version("parcel.1.1", 1, parent="parcel.1", status="CANCELLED").done()
    trace.version("parcel", 2, status="FAILED").done()
    trace.version("hub", 2, status="DONE").done()
    return trace


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_sound_ledger_is_held(name: str) -> None:
    judgement = full().of(name, RING)
    assert (judgement.verdict, judgement.violations) == ("held", ())
    assert judgement.checked


def lost_update(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.commit("a", 2, process="one")
    trace.version("a", 2).done()


def two_told_of_one_version(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.told("a", 0)


def begins_late(trace: StoreTrace) -> None:
    trace.commit("a", 2)


def data_of_another_version(trace: StoreTrace) -> None:
    trace.version("a", 1, said=0).done()


def outbox_without_state(trace: StoreTrace) -> None:
    trace.emit("b", "e1")
    trace.done()


def marker_without_state(trace: StoreTrace) -> None:
    trace.put("processed_events", "a", "e1").done()


def fired_twice(trace: StoreTrace) -> None:
    trace.commit("a", 1, arm=[("wait", 1.0)])
    trace.drop("timers", "a", "wait")
    trace.emit("a", "timer")
    trace.emit("a", "timer")
    trace.done()


def timer_without_state(trace: StoreTrace) -> None:
    trace.version("b", 1).put("timers", "a", "wait", 1.0).done()


def fork_without_state(trace: StoreTrace) -> None:
    trace.fork("a", "a.1")
    trace.done()


def emit_left_out(trace: StoreTrace) -> None:
    trace.version("a", 1).done()
    trace.told("a", 0, emits=1)


def marker_left_out(trace: StoreTrace) -> None:
    trace.version("a", 1).done()
    trace.told("a", 0, event="e1")


def fork_left_out(trace: StoreTrace) -> None:
    trace.version("a", 1).done()
    trace.told("a", 0, spawns=1, kind="info")


def trace_left_out(trace: StoreTrace) -> None:
    trace.version("a", 1).done()
    trace.told("a", 0, trace=True)


def timer_too_many(trace: StoreTrace) -> None:
    trace.version("a", 1).put("timers", "a", "wait", 1.0).done()
    trace.told("a", 0)


def raw_error(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.told(
        "a", 0, kind="fail", result={"error": "UniqueViolation", "sqlstate": "23505", "message": "taken"}
    )


def nothing_found(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.refused("a", 0, None)


def expected_found(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.refused("a", 1, 1)


def older_found(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.refused("a", 2, 1)


def object_left_ahead(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.refused("a", 0, 1, version=1)


def transaction_left_open(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.refused("a", 0, 1, clean=False)


def emit_left_at_rest(trace: StoreTrace) -> None:
    trace.commit("a", 1, emits=[("b", "e1")])


def acknowledged_by_nobody(trace: StoreTrace) -> None:
    one, two = trace.commit("a", 1, emits=[("b", "e1"), ("b", "e2")])
    trace.delivered(one)
    trace.drop("outbox", two).done()


def acknowledged_before_published(trace: StoreTrace) -> None:
    trace.delivered(*trace.commit("a", 1, emits=[("b", "e1")]))
    trace.publish("b", "e1")


def acknowledged_and_never_published(trace: StoreTrace) -> None:
    one, two = trace.commit("a", 1, emits=[("b", "e1"), ("b", "e2")])
    trace.publish("b", "e1")
    trace.delivered(one, two)


def published_out_of_order(trace: StoreTrace) -> None:
    seqs = trace.commit("a", 1, emits=[("b", "e1"), ("b", "e2")])
    trace.publish("b", "e2")
    trace.publish("b", "e1")
    trace.delivered(*seqs)


def emitted_out_of_order(trace: StoreTrace) -> None:
    trace.version("a", 1).emit("b", "e1", seq=9)
    trace.done()
    trace.version("a", 2).emit("b", "e2", seq=8)
    trace.done()


def delivered_youngest_first(trace: StoreTrace) -> None:
    one, two = trace.commit("a", 1, emits=[("b", "e1"), ("b", "e2")])
    trace.delivered(two, one)


def effect_twice(trace: StoreTrace) -> None:
    trace.commit("a", 1, event="e1")
    trace.version("a", 2).done()
    trace.told("a", 1, event="e1")


def marker_forgotten(trace: StoreTrace) -> None:
    trace.version("a", 1).put("processed_events", "a", "e1").done()
    trace.drop("processed_events", "a", "e1").done()
    trace.version("a", 2).put("processed_events", "a", "e1").done()


def stale_sweep(trace: StoreTrace) -> None:
    trace.commit("a", 1, arm=[("wait", 10.0)])
    trace.commit("a", 2, arm=[("wait", 20.0)])
    trace.fired("a", "wait", 10.0)
    trace.drop("timers", "a", "wait").done()


def fired_after_its_cancel(trace: StoreTrace) -> None:
    trace.commit("a", 1, arm=[("wait", 10.0)])
    trace.commit("a", 2, cancel=["wait"])
    trace.fired("a", "wait", 10.0)


def fired_after_it_was_moved(trace: StoreTrace) -> None:
    trace.commit("a", 1, arm=[("wait", 10.0)])
    trace.commit("a", 2, arm=[("wait", 20.0)])
    trace.fired("a", "wait", 10.0)


def fired_from_nowhere(trace: StoreTrace) -> None:
    trace.commit("a", 1, arm=[("wait", 10.0)])
    trace.fired("a", "wait", 11.0)


def cancelled_under_a_sweep(trace: StoreTrace) -> None:
    trace.commit("a", 1, arm=[("wait", 10.0)])
    trace.commit("a", 2, cancel=["wait"])
    trace.emit("a", "timer")
    trace.done()


def fired_under_one_id(trace: StoreTrace) -> None:
    for version in (1, 2):
        trace.commit("a", version, arm=[("wait", 10.0)])
        trace.drop("timers", "a", "wait")
        trace.emit("a", "timer")
        trace.done()


def delivered_to_the_unborn(trace: StoreTrace) -> None:
    seqs = trace.commit("a", 1, emits=[("a.1", "e1")], forks=["a.1"])
    trace.publish("a.1", "e1")
    trace.delivered(*seqs)


def child_never_made(trace: StoreTrace) -> None:
    trace.commit("a", 1, forks=["a.1"])
    trace.drop("spawns", 1).done()


def child_left_at_rest(trace: StoreTrace) -> None:
    trace.commit("a", 1, forks=["a.1"])


def child_made_over(trace: StoreTrace) -> None:
    trace.commit("a", 1, forks=["a.1"])
    trace.version("a.1", 1).done()
    trace.version("a.1", 2).done()
    trace.version("a.1", 1).done()
    trace.drop("spawns", 1).done()


def child_made_again(trace: StoreTrace) -> None:
    trace.commit("a", 1, forks=["a.1"])
    trace.version("a.1", 1).done()
    trace.drop("executions", "a.1").done()
    trace.version("a.1", 1).done()
    trace.drop("spawns", 1).done()


def step_left_out(trace: StoreTrace) -> None:
    trace.commit("a", 1, trace=0)
    trace.commit("a", 2, trace=2)


def step_rewritten(trace: StoreTrace) -> None:
    trace.commit("a", 1, trace=0)
    trace.put("trace", "a", 0, "[]").done()


def newest_step_dropped(trace: StoreTrace) -> None:
    trace.commit("a", 1, trace=0)
    trace.version("a", 2).put("trace", "a", 1, "{}").drop("trace", "a", 1).done()


def ring_too_long(trace: StoreTrace) -> None:
    for version in (1, 2, 3):
        trace.commit("a", version, trace=version - 1)
    trace.version("a", 4).put("trace", "a", 3, "{}").drop("trace", "a", 0).done()


def ring_too_short(trace: StoreTrace) -> None:
    trace.commit("a", 1, trace=0)
    trace.version("a", 2).put("trace", "a", 1, "{}").drop("trace", "a", 0).done()


def stale_load(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.commit("a", 2)
    trace.load("a", 1)


def load_of_nothing(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.load("a", None)


def shown_twice(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.listing("a", "a")


def not_shown(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.commit("b", 1)
    trace.listing("b")


def not_shown_under_its_status(trace: StoreTrace) -> None:
    trace.commit("a", 1, status="DONE")
    trace.listing(status=["DONE", "FAILED"])


def shown_and_unheard_of(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.listing("a", "b")


def told_and_not_done(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.told("a", 1)


def done_and_told_refused(trace: StoreTrace) -> None:
    trace.commit("a", 1)
    trace.version("a", 2).done()
    trace.refused("a", 1, 2)


def taken_while_held(trace: StoreTrace) -> None:
    trace.publish("g", "m")
    trace.claim("g", "t1", 1)
    trace.claim("g", "t2", 1)


def publish_clears_the_lease(trace: StoreTrace) -> None:
    trace.publish("g", "m")
    trace.claim("g", "t1", 1)
    trace.put("transport_groups", "g", None, None, 0)
    trace.publish("g", "n")


def youngest_first(trace: StoreTrace) -> None:
    trace.publish("g", "m")
    second = trace.publish("g", "n")
    trace.claim("g", "t1", second)
    trace.ack("g", "t1", second, last=False)


def gone_and_handed_out(trace: StoreTrace) -> None:
    first, second = trace.publish("g", "m"), trace.publish("g", "n")
    trace.claim("g", "t1", first)
    trace.ack("g", "t1", first, last=False)
    trace.claim("g", "t2", first)
    trace.ack("g", "t2", second)


def youngest_handed_out(trace: StoreTrace) -> None:
    trace.publish("g", "m")
    trace.claim("g", "t1", trace.publish("g", "n"))


def acknowledged_by_an_old_lease(trace: StoreTrace) -> None:
    seq = trace.publish("g", "m")
    trace.claim("g", "t1", seq, lease=-1)
    trace.claim("g", "t2", seq)
    trace.ack("g", "t1", seq)


def deleted_though_told_nothing(trace: StoreTrace) -> None:
    seq = trace.publish("g", "m")
    trace.claim("g", "t1", seq)
    trace.ack("g", "t0", seq, told=False)


def acknowledged_and_still_there(trace: StoreTrace) -> None:
    seq = trace.publish("g", "m")
    trace.claim("g", "t1", seq)
    trace.acked("g", "t1", seq)


def given_back_by_a_stranger(trace: StoreTrace) -> None:
    seq = trace.publish("g", "m")
    trace.claim("g", "t1", seq, lease=-1)
    trace.claim("g", "t2", seq)
    trace.put("transport_groups", "g", None, clock(9), 0).done()
    trace.did("consumer", "transport.nack", {"group": "g", "token": "t1"}, True)


def renewed_by_a_stranger(trace: StoreTrace) -> None:
    seq = trace.publish("g", "m")
    trace.claim("g", "t1", seq, lease=-1)
    trace.claim("g", "t2", seq)
    trace.put("transport_groups", "g", "t2", clock(99), 0).done()
    trace.did("consumer", "transport.extend", {"group": "g", "token": "t1"}, True)


def two_claims_of_one_name(trace: StoreTrace) -> None:
    seq = trace.publish("g", "m")
    trace.claim("g", "t1", seq, lease=-1)
    trace.claim("g", "t1", seq)


def message_without_a_group(trace: StoreTrace) -> None:
    first = trace.publish("g", "m")
    trace.publish("g", "n")
    trace.claim("g", "t1", first)
    trace.ack("g", "t1", first)


def publish_meets_the_end_of_its_group(trace: StoreTrace) -> None:
    trace.publish("g", "m", row=False)


def message_gone(trace: StoreTrace) -> None:
    one, two = trace.publish("g", "m"), trace.publish("g", "n")
    trace.claim("g", "t1", one)
    trace.ack("g", "t1", one, last=False)
    trace.drop("transport_messages", two).drop("transport_groups", "g").done()


def message_left_at_rest(trace: StoreTrace) -> None:
    trace.publish("g", "m")


def published_nowhere(trace: StoreTrace) -> None:
    trace.publish("g", "m")
    trace.did("client", "transport.publish", {"group": "g", "event": "n"}, {"seq": 7})


def new_groups_first(trace: StoreTrace) -> None:
    trace.publish("old", "m")
    for number in range(45):
        seq = trace.publish(f"new{number}", "m")
        trace.claim(f"new{number}", f"t{number}", seq)
        trace.ack(f"new{number}", f"t{number}", seq)


def one_group_again_and_again(trace: StoreTrace) -> None:
    trace.publish("old", "m")
    seqs = [trace.publish("busy", f"m{number}") for number in range(45)]
    for number, seq in enumerate(seqs):
        trace.claim("busy", f"t{number}", seq)
        trace.ack("busy", f"t{number}", seq, last=number == 44)


def stays_running(trace: StoreTrace) -> None:
    trace.version("a", 1).done()
    trace.told("a", 0, ends=True)


def answer_lost_and_running(trace: StoreTrace) -> None:
    trace.version("a", 1).done()
    trace.told("a", 0, kind="info", ends=True)


def waits_in_vain(trace: StoreTrace) -> None:
    trace.version("a", 1).done()
    trace.told("a", 0, ends=True, needs=["b"])
    trace.version("b", 1, status="DONE").done()


def promised_and_not_there(trace: StoreTrace) -> None:
    trace.told("a", 0, ends=True)


def grandchild_stays(trace: StoreTrace) -> None:
    trace.version("a", 1, status="DONE").done()
    trace.told("a", 0, ends=True)
    trace.version("a.1", 1, parent="a", status="DONE").done()
    trace.version("a.1.1", 1, parent="a.1", status="PENDING").done()


BROKEN: list[tuple[str, Callable[[StoreTrace], None], str]] = [
    ("cas-chain", lost_update, "goes from version 2 to version 2"),
    ("cas-chain", two_told_of_one_version, "2 commits were told that they made version 1"),
    ("cas-chain", begins_late, "begins at version 2"),
    ("cas-chain", data_of_another_version, "is at version 1, and its data say 0"),
    (
        "commit-atomic",
        outbox_without_state,
        "outbox row 1 is written in a transaction that writes no execution",
    ),
    ("commit-atomic", fired_twice, "outbox row 2 is written in a transaction that writes no execution"),
    ("commit-atomic", marker_without_state, "event e1 is marked without a new version"),
    ("commit-atomic", timer_without_state, "timer wait is armed without a new version"),
    ("commit-atomic", fork_without_state, "child a.1 is forked without a new version"),
    ("commit-atomic", emit_left_out, "1 events were to be emitted, and 0 stand in the outbox"),
    ("commit-atomic", marker_left_out, "event e1 was to be marked, and is not"),
    ("commit-atomic", fork_left_out, "1 children were to be forked, and 0 are"),
    ("commit-atomic", trace_left_out, "1 steps were to be traced, and 0 are"),
    ("commit-atomic", timer_too_many, "0 timers were to be changed, and 1 are"),
    ("conflict-typed", raw_error, "ended with UniqueViolation: taken"),
    ("conflict-typed", nothing_found, "was refused without the version found"),
    ("conflict-typed", expected_found, "found the very version that it expected"),
    ("conflict-typed", older_found, "an execution's version never falls"),
    ("conflict-typed", object_left_ahead, "left its object at version 1"),
    ("conflict-typed", transaction_left_open, "left a transaction open"),
    ("outbox-no-loss", emit_left_at_rest, "outbox row 1 (e1 to b) stands in the outbox at rest"),
    ("outbox-no-loss", acknowledged_by_nobody, "outbox row 2 (e2 to b) was acknowledged, and no relay"),
    ("outbox-no-loss", acknowledged_before_published, "(e1 to b) was acknowledged before it was delivered"),
    ("outbox-no-loss", acknowledged_and_never_published, "(e2 to b) was acknowledged and never delivered"),
    ("outbox-no-loss", published_out_of_order, "was delivered after row 2 of the same emitter"),
    ("outbox-no-loss", emitted_out_of_order, "outbox row 8 (e2 to b) stands before row 9, emitted earlier"),
    ("outbox-no-loss", delivered_youngest_first, "relay delivers rows [2, 1]: not oldest first"),
    ("effect-once", effect_twice, "event e1 took effect on execution a 2 times, last as version 2"),
    ("effect-once", marker_forgotten, "a second time: its marker was gone"),
    (
        "timer-rearm",
        stale_sweep,
        "armed for 20.000000, is gone without a commit: it was fired for 10.000000 only",
    ),
    ("timer-rearm", fired_after_its_cancel, "was cancelled by a commit that had been answered before"),
    ("timer-rearm", fired_after_it_was_moved, "was cancelled by a commit that had been answered before"),
    ("timer-rearm", fired_from_nowhere, "for 11.000000, which was never armed"),
    ("timer-rearm", cancelled_under_a_sweep, "event timer goes out, and no timer with it"),
    ("timer-rearm", fired_under_one_id, "event timer was the event of an earlier firing too"),
    ("outbox-no-loss", delivered_to_the_unborn, "was delivered before its target was made"),
    ("spawn-once", child_never_made, "child a.1 of a was acknowledged and not made"),
    ("spawn-once", child_left_at_rest, "child a.1 of a is still to be made at rest"),
    ("spawn-once", child_made_over, "child a.1 is made a second time, over version 2"),
    ("spawn-once", child_made_again, "child a.1 is made a second time"),
    ("trace-ring", step_left_out, "step 2 follows step 0"),
    ("trace-ring", step_rewritten, "step 0 was changed"),
    ("trace-ring", newest_step_dropped, "step 1 was dropped before step 0"),
    ("trace-ring", ring_too_long, "its ring holds 3 steps, not the last 2"),
    ("trace-ring", ring_too_short, "its ring was cut to 1 steps, not the last 2"),
    ("read-fresh", stale_load, "at version 1, and version 2 had been committed before"),
    ("read-fresh", load_of_nothing, "at version None, and version 1 had been committed before"),
    ("listing-complete", shown_twice, "shows a more than once"),
    ("listing-complete", not_shown, "does not show a, which was there before it began"),
    ("listing-complete", not_shown_under_its_status, "does not show a, which was there before it began"),
    ("listing-complete", shown_and_unheard_of, "shows b, which never existed"),
    ("unknown-outcome", told_and_not_done, "version 2 was never committed, and its writer was told so"),
    (
        "unknown-outcome",
        done_and_told_refused,
        "every commit that could have made it was told that it failed",
    ),
    ("group-exclusive", taken_while_held, "t2 takes it while t1 holds it for 29.000000 s more"),
    ("group-exclusive", publish_clears_the_lease, "a publish ended the lease of t1"),
    ("group-fifo", gone_and_handed_out, "message 1 is handed out, and is gone"),
    ("group-fifo", youngest_handed_out, "message 2 is handed out before message 1, published earlier"),
    ("group-fifo", youngest_first, "message 2 goes before message 1, published earlier"),
    (
        "lease-fenced",
        acknowledged_by_an_old_lease,
        "while t2 holds the group: t1 was told that its ack took effect",
    ),
    ("lease-fenced", deleted_though_told_nothing, "every ack was told that it changed nothing"),
    ("lease-fenced", acknowledged_and_still_there, "was told that it took effect, and the message stayed"),
    ("lease-fenced", given_back_by_a_stranger, "a nack of t1, who did not hold it, took effect"),
    ("lease-fenced", renewed_by_a_stranger, "a renewal of t1, who did not hold it, took effect"),
    ("lease-fenced", two_claims_of_one_name, "2 claims carry the token t1"),
    ("no-lost-message", message_without_a_group, "1 messages wait, and no claim can find them"),
    ("no-lost-message", publish_meets_the_end_of_its_group, "1 messages wait, and no claim can find them"),
    ("no-lost-message", message_gone, "message 2 is gone, and nobody acknowledged it"),
    ("no-lost-message", message_left_at_rest, "at rest 1 messages wait, the first is 1"),
    ("no-lost-message", published_nowhere, "message 7 was told published, and never was"),
    ("execution-ends", stays_running, "execution a is RUNNING at rest, and was to end"),
    ("execution-ends", answer_lost_and_running, "execution a is RUNNING at rest, and was to end"),
    ("execution-ends", waits_in_vain, "execution a is RUNNING at rest, and was to end"),
    ("execution-ends", promised_and_not_there, "execution a was told saved, and never was"),
    ("execution-ends", grandchild_stays, "execution a.1.1, a child of a.1, is PENDING at rest"),
    ("group-fairness", new_groups_first, "group old has been ready since commit 1"),
    ("group-fairness", one_group_again_and_again, "the last to busy"),
]


@pytest.mark.parametrize(
    ("invariant", "breach", "says"), BROKEN, ids=[f"{name}-{breach.__name__}" for name, breach, _ in BROKEN]
)
def test_a_broken_ledger_is_found(invariant: str, breach: Callable[[StoreTrace], None], says: str) -> None:
    trace = StoreTrace()
    breach(trace)
    judgement = trace.of(invariant, RING)
    assert judgement.verdict == "violated", judgement
    assert says in " | ".join(violation.summary for violation in judgement.violations)


def test_every_rule_has_a_broken_ledger() -> None:
    assert {invariant for invariant, _, _ in BROKEN} == NAMES


def test_a_violation_shows_the_rows_of_its_execution_in_order_and_who_wrote_them() -> None:
    trace = StoreTrace()
    trace.commit("b", 1)
    lost_update(trace)
    [violation] = trace.of("cas-chain").violations
    assert [(t.number, t.who) for t in violation.transactions] == [
        (2, "worker store.commit"), (3, "one store.commit"), (4, "one store.commit")
    ]  # fmt: skip
    last = violation.transactions[-1].changes[0]
    assert (last.table, last.id, last.before["version"], last.after["version"]) == (
        "executions",
        "a",
        "2",
        "2",
    )
    assert "data" not in last.after


def test_a_violation_of_the_transport_shows_the_leases_and_messages_of_its_group() -> None:
    trace = StoreTrace()
    trace.publish("other", "m")
    acknowledged_by_an_old_lease(trace)
    [violation] = trace.of("lease-fenced").violations
    assert [(t.number, t.who) for t in violation.transactions] == [
        (2, None), (3, "consumer transport.claim"), (4, "consumer transport.claim"), (5, None)
    ]  # fmt: skip
    assert [row.table for row in violation.transactions[-1].changes] == [
        "transport_messages",
        "transport_groups",
    ]


def test_a_run_is_held_to_the_rules_of_its_own_areas() -> None:
    of_the_store = {
        j.invariant: j.verdict
        for j in full().judge(msgspec.structs.replace(AT_REST, exercises=())).judgements
    }
    for rule in PICKER_RULES:
        expected = "held" if rule.name in ("contention-quiet", "no-deadlock") else "not_exercised"
        assert of_the_store[rule.name] == expected
    of_the_picker = Trace().judge(Evidence(at_rest=True, exercises=())).judgements
    assert {j.verdict for j in of_the_picker if j.invariant in NAMES} == {"not_exercised"}


def test_every_area_expects_its_own_rules_and_no_others() -> None:
    everywhere = {rule.name for rule in RECONCILING}
    for area in AREAS.values():
        mine = {rule.name for rule in area.rules}
        assert area.always <= mine
        assert {rule.name for rule in RULES if area.expects(rule.name, None)} == mine | everywhere
        assert {rule.name for rule in RULES if area.expects(rule.name, ())} == area.always | everywhere
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_a_rule_of_another_area_is_judged_where_something_was_subject_to_it() -> None:
    trace = StoreTrace()
    lost_update(trace)
    evidence = Evidence(at_rest=True, areas=("picker",), exercises=())
    assert trace.of("cas-chain", evidence).verdict == "violated"


def test_without_a_history_the_ledger_alone_still_tells_of_lost_updates_and_halves() -> None:
    for breach, name in ((lost_update, "cas-chain"), (outbox_without_state, "commit-atomic")):
        trace = StoreTrace()
        breach(trace)
        assert trace.of(name, history=False).verdict == "violated"
    for rule in STORED_RULES:
        if rule.needs_history:
            assert full().of(rule.name, history=False).verdict in ("unknown", "not_exercised")


def test_a_sequence_that_commits_out_of_order_is_no_breach_of_the_order() -> None:
    """Number 2 is committed and consumed; number 1, drawn before it, is committed while it is consumed."""
    trace = StoreTrace()
    trace.put("transport_messages", 2, "g", "{}").put("transport_groups", "g", None, None, 0).done()
    trace.claim("g", "t", 2)
    trace.put("transport_messages", 1, "g", "{}").done()
    trace.ack("g", "t", 2, last=False)
    assert trace.of("group-fifo").verdict == "held"


def test_an_unanswered_ack_may_be_the_one_that_took_effect() -> None:
    trace = StoreTrace()
    seq = trace.publish("g", "m")
    trace.claim("g", "t", seq)
    trace.ack("g", "t", seq)
    trace.operations.pop()
    trace.did("consumer", "transport.ack", {"group": "g", "seq": seq, "token": "t"}, None, "info")
    assert trace.of("lease-fenced").verdict == "held"
    assert trace.of("no-lost-message").verdict == "held"


def test_many_messages_in_one_call_are_judged_like_one() -> None:
    sound, broken = StoreTrace(), StoreTrace()
    for trace, fence in ((sound, [True, False]), (broken, [True, True])):
        one, two = trace.publish("g", "m", told=False), trace.publish("h", "m", told=False)
        value = {"messages": [["g", "m"], ["h", "m"]]}
        trace.did("client", "transport.publish", value, {"seqs": [one, two]})
        trace.claim("g", "t", one)
        trace.claim("h", "other", two)
        trace.ack("g", "t", one, told=False)
        trace.operations.pop()
        acks = [{"group": "g", "seq": one, "token": "t"}, {"group": "h", "seq": two, "token": "t"}]
        trace.did("consumer", "transport.ack", {"messages": acks}, fence)
    assert sound.of("lease-fenced").verdict == "held"
    assert broken.of("lease-fenced").verdict == "violated"
    at_work = msgspec.structs.replace(AT_REST, at_rest=False)
    assert sound.of("no-lost-message", at_work).violations == ()


def test_a_relay_may_say_what_it_delivered_only_afterwards() -> None:
    sound, lost, unknown = StoreTrace(), StoreTrace(), StoreTrace()
    for trace in (sound, lost, unknown):
        one, two = trace.commit("a", 1, emits=[("b", "e1"), ("c", "e2")])
        trace.did("relay", "relay.deliver", {}, {"seqs": [one, two] if trace is sound else [one]})
        trace.drop("outbox", one).drop("outbox", two).done()
    unknown.did("relay", "relay.deliver", {}, None, "info")
    assert sound.of("outbox-no-loss").verdict == "held"
    assert lost.of("outbox-no-loss").verdict == "violated"
    assert unknown.of("outbox-no-loss").verdict == "held"


def test_a_delivery_of_unknown_outcome_excuses_one_transaction_after_its_beginning() -> None:
    def judged(before: int, after: int, *, nobodys: bool = False) -> Judgement:
        trace = StoreTrace()
        target = None if nobodys else "b"
        seqs = trace.commit(
            "a", 1, emits=[("b", "e0"), *((target, f"e{n}") for n in range(1, 1 + before + after))]
        )
        trace.delivered(seqs[0])
        for seq in seqs[1 : 1 + before]:
            trace.drop("outbox", seq).done()
        trace.did("relay", "relay.deliver", {}, None, "info", at=len(trace.transactions) + 5)
        # Nothing but time; the clocks may be a second apart.
        for number in range(8):
            trace.version("clock", number + 1).done()
        for seq in seqs[1 + before :]:
            trace.drop("outbox", seq).done()
        return trace.of("outbox-no-loss")

    assert judged(0, 1).verdict == "held"
    for beyond in (judged(0, 2), judged(1, 0), judged(1, 1), judged(0, 1, nobodys=True)):
        assert [each.summary.rpartition(") ")[2] for each in beyond.violations] == [
            "was acknowledged, and no relay delivered it"
        ]


def test_a_sweep_of_unknown_outcome_excuses_what_goes_after_its_beginning() -> None:
    def judged(*, sweeps_at: float) -> Judgement:
        trace = StoreTrace()
        trace.commit("a", 1, arm=[("p", 1.0)])
        for number in range(8):
            trace.version("clock", number + 1).done()
        trace.drop("timers", "a", "p").done()
        trace.did("relay", "relay.timers", {}, None, "info", at=len(trace.transactions) + sweeps_at)
        return trace.of("timer-rearm")

    assert judged(sweeps_at=-3).verdict == "held"
    assert judged(sweeps_at=3).verdict == "violated"


def test_a_timer_that_is_armed_anew_for_the_same_instant_is_not_the_one_that_was_fired() -> None:
    def judged(*, rearmed_first: bool, told: bool = True) -> Judgement:
        trace = StoreTrace()
        trace.commit("a", 1, arm=[("p", 1.0)])
        if rearmed_first:
            trace.commit("a", 2, arm=[("p", 1.0)])
        event = {"id": "t", "kind": "timer", "payload": {"path": "p", "fire_at": 1.0}}
        trace.put("transport_messages", 1, "a", json.dumps(event)).put("transport_groups", "a", None, None, 0)
        trace.done()
        if not rearmed_first:
            trace.commit("a", 2, arm=[("p", 1.0)])
        if told:
            trace.fired("a", "p", 1.0)
        else:
            trace.did("relay", "relay.timers", {}, None, "info")
        trace.drop("timers", "a", "p").done()
        return trace.of("timer-rearm")

    for told in (True, False):
        assert judged(rearmed_first=True, told=told).verdict == "held"
        lost = judged(rearmed_first=False, told=told)
        assert ["armed anew, and no event" in each.summary for each in lost.violations] == [True]


def test_emits_to_several_targets_are_delivered_side_by_side() -> None:
    trace = StoreTrace()
    seqs = trace.commit("a", 1, emits=[("b", "e1"), ("c", "e2")])
    trace.publish("c", "e2")
    trace.publish("b", "e1")
    trace.delivered(*seqs)
    assert trace.of("outbox-no-loss").verdict == "held"


def test_a_timer_that_fires_becomes_a_row_of_the_outbox_in_the_same_transaction() -> None:
    trace = StoreTrace()
    trace.commit("a", 1, arm=[("wait", 1.0)])
    trace.drop("timers", "a", "wait")
    trace.emit("a", "timer")
    trace.done()
    assert trace.of("commit-atomic").verdict == "held"


def test_a_put_off_group_is_not_overtaken() -> None:
    trace = StoreTrace()
    trace.publish("old", "m")
    trace.put("transport_groups", "old", None, clock(1e6), 0).done()
    for number in range(45):
        seq = trace.publish(f"new{number}", "m")
        trace.claim(f"new{number}", f"t{number}", seq)
    assert trace.of("group-fairness").verdict == "held"


def test_a_group_whose_claim_is_under_way_is_passed_by_and_not_overtaken() -> None:
    trace = StoreTrace()
    trace.publish("old", "m")
    seqs = [trace.publish(f"new{number}", "m") for number in range(20)]
    for number, seq in enumerate(seqs):
        trace.claim(f"new{number}", f"t{number}", seq)
    trace.claim("old", "held-all-the-while", 1)
    assert trace.of("group-fairness").verdict == "held"
    late = StoreTrace()
    new_groups_first(late)
    for number in range(100):
        late.version(f"other{number}", 1).done()
    late.claim("old", "at-last", 1)
    assert late.of("group-fairness").verdict == "violated"


def test_steps_that_one_statement_drops_are_dropped_in_any_order() -> None:
    trace = StoreTrace()
    for index in range(7):
        if index == 4:
            trace.done()
        trace.put("trace", "a", index, "{}")
    trace.drop("trace", "a", 1).drop("trace", "a", 0).drop("trace", "a", 2).done()
    assert trace.of("trace-ring").verdict == "held"


def test_a_group_below_the_floor_is_not_overtaken_by_those_above() -> None:
    trace = StoreTrace()
    trace.publish("low", "m")
    for number in range(45):
        group = f"high{number}"
        trace.put("transport_messages", 100 + number, group, "{}").put(
            "transport_groups", group, None, None, 3
        ).done()
        trace.put("transport_groups", group, f"t{number}", clock(1e6), 3).done()
    assert trace.of("group-fairness").verdict == "held"


@pytest.mark.parametrize(
    ("breach", "invariant"), [(told_and_not_done, "unknown-outcome"), (published_nowhere, "no-lost-message")]
)
def test_what_a_ledger_that_was_cut_does_not_show_may_have_come_after_its_end(
    breach: Callable[[StoreTrace], None], invariant: str
) -> None:
    trace = StoreTrace()
    breach(trace)
    assert trace.of(invariant).verdict == "violated"
    assert trace.of(invariant, summary=LedgerSummary(reason="cut")).verdict == "unknown"


def test_an_execution_that_was_deleted_begins_anew() -> None:
    trace = StoreTrace()
    trace.commit("a", 1)
    trace.drop("executions", "a").done()
    trace.refused("a", 1, None)
    trace.load("a", None)
    trace.listing()
    trace.version("a", 1).done()
    for name in ("cas-chain", "conflict-typed", "listing-complete"):
        assert trace.of(name).verdict == "held", name
    assert trace.of("read-fresh").verdict == "unknown"


def test_commits_that_share_a_transaction_are_held_to_what_all_of_them_asked_for() -> None:
    whole, short = StoreTrace(), StoreTrace()
    for trace, emits in ((whole, 3), (short, 2)):
        trace.version("a", 1).version("b", 1).version("a", 2)
        for number in range(emits):
            trace.emit("c", f"e{number}")
        trace.done()
        trace.told("a", 0, emits=1)
        trace.told("b", 0, emits=1)
        trace.told("a", 1, emits=1)
    assert whole.of("commit-atomic").verdict == "held"
    assert short.of("commit-atomic").verdict == "violated"


def test_a_refusal_whose_reason_was_lost_is_not_judged_for_want_of_it() -> None:
    trace = StoreTrace()
    trace.commit("a", 1)
    trace.refused("a", 0, None, error="ConflictUnexplained")
    assert trace.of("conflict-typed").checked == 0
    trace.refused("a", 0, None, error="ConflictUnexplained", clean=False)
    assert trace.of("conflict-typed").verdict == "violated"


def test_what_was_never_sent_is_no_conflict() -> None:
    trace = StoreTrace()
    trace.told("a", 0, kind="fail", result={"error": "UnstorableValue"})
    assert trace.of("conflict-typed").violations == ()


def test_the_table_of_a_run_leaves_out_the_areas_that_it_is_not_about() -> None:
    console = Console(width=200, file=StringIO())
    print_report(console, Trace().judge(Evidence(at_rest=True, deadlocks=0, exercises=())))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "single-owner" in shown
    assert "cas-chain" not in shown


@pytest.mark.parametrize(
    "says",
    [
        {},
        {"ends": True, "needs": ["b"]},
        {"ends": True, "kind": "fail", "result": {"error": "StoreConflict", "found": 1}},
    ],
    ids=["nothing", "with one that was never saved", "and was refused"],
)
def test_an_execution_that_promises_nothing_that_can_be_kept_may_stay_as_it_is(says: dict[str, Any]) -> None:
    trace = StoreTrace()
    trace.version("a", 1).done()
    trace.told("a", 0, **says)
    judgement = trace.of("execution-ends")
    assert (judgement.checked, judgement.violations) == (0, ())


def test_a_promise_whose_answer_was_lost_need_not_have_been_made() -> None:
    trace = StoreTrace()
    trace.told("a", 0, kind="info", ends=True)
    assert trace.of("execution-ends").violations == ()


def test_what_is_still_under_way_has_not_failed_to_end() -> None:
    trace = StoreTrace()
    stays_running(trace)
    assert trace.of("execution-ends", msgspec.structs.replace(AT_REST, at_rest=False)).verdict == "unknown"


def test_the_table_of_a_run_of_the_store_leaves_out_the_pickers_rules_that_nothing_was_subject_to() -> None:
    console = Console(width=200, file=StringIO())
    print_report(console, full().judge(msgspec.structs.replace(AT_REST, exercises=())))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "cas-chain" in shown
    assert "no-deadlock" in shown
    assert "single-owner" not in shown
