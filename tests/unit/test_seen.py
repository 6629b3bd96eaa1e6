"""The rules of the clients' view on recorded runs: as recorded they hold, with one operation changed they say which."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from invariants.areas import RECONCILING, SEEN_RULES
from invariants.commits import COMMIT
from invariants.history import Operation
from invariants.seen.holds import Holds, Span, by_name, most_at_once
from invariants.seen.limits import Configured
from invariants.witness import Witness
from tests.fixtures.recordings import Recording, recording

# The rule, the recording, and what to change: answers with all operations and those that must be named.
Edited = tuple[list[Operation], list[Operation]]


def claim_after_the_end(run: Recording) -> Edited:
    end, row = next(
        (flush, row)
        for flush in run.named("flush")
        for row, _, kind in flush.value["outcomes"]
        if kind == "done" and any(done == row for done, _ in flush.result["committed"])
    )
    late = next(o for o in reversed(run.named("claim")) if o.result["ids"] and o.start_ns > (end.end_ns or 0))
    operations = run.edited(late, result={**late.result, "ids": [*late.result["ids"], row]})
    return operations, [end, late]


def outcome_of_no_step(run: Recording) -> Edited:
    step = next(o for o in run.named("step") if o.result["kind"] == "done")
    flush = next(
        o
        for o in run.named("flush")
        if [step.value["id"], step.value["claim"], "done"] in o.value["outcomes"]
    )
    return run.edited(step, result={"kind": "retry"}), [flush]


def job_without_an_end(run: Recording) -> Edited:
    insert = next(o for o in run.named("insert") if o.result["id"] is not None)
    return run.edited(insert, result={"id": 10**9}), [insert]


def renamed(run: Recording, span: Span, key: str) -> tuple[list[Operation], Operation]:
    """The claim that a span begins with says another key of its row."""
    row = int(span.name.split()[1])
    keys = [[each, key if each == row else old] for each, old in span.first.result["keys"]]
    return run.edited(span.first, result={**span.first.result, "keys": keys}), span.first


def two_of_one_key(run: Recording) -> Edited:
    witness = Witness(run.operations)
    spans = [(key, span) for key, span in Holds(witness).of_keys() if span.first.f == "claim"]
    one, other, key = next(
        (one, other, key)
        for key, one in spans
        for another, other in spans
        if another != key
        and max(one.begin_ns, other.begin_ns) < min(one.end_ns, other.end_ns)
        and not {key.split(":")[0]} & set(Configured(witness).gates)
    )
    operations, claim = renamed(run, other, key)
    return operations, [one.first, claim]


def one_more_in_a_full_gate(run: Recording) -> Edited:
    witness = Witness(run.operations)
    gates, slots = Configured(witness).gates, by_name(Holds(witness).of_slots())
    keys = Holds(witness).of_keys()
    first_turns = {(span.name, span.end_ns): span for _, span in keys if span.first.f == "claim"}
    for key, spans in slots.items():
        full = most_at_once(spans)
        if len(full) < gates[key.split(":")[0]]:
            continue
        begin, end = max(s.begin_ns for s in full), min(s.end_ns for s in full)
        for other, others in slots.items():
            for span in others:
                turn = first_turns.get((span.name, span.end_ns))
                if other != key and turn and max(begin, span.begin_ns) < min(end, span.end_ns):
                    return renamed(run, turn, key)[0], [span.first]
    raise AssertionError("no gate was full while another was used")


def a_weight_too_much(run: Recording) -> Edited:
    admit = next(
        o for o in run.named("admit") if o.value["rates"] and o.result["admitted"] and not o.result["denied"]
    )
    rates = [[row, key, 10_000.0] for row, key, _ in admit.value["rates"]]
    return run.edited(admit, value={**admit.value, "rates": rates}), [admit]


def signal_not_handed(run: Recording) -> Edited:
    witness = Witness(run.operations)
    sent = {o.result["signal"]: o for o in run.named("signal")}
    step = next(
        o
        for o in run.named("step")
        if any(
            (sent[s].end_ns or 0) < witness.claims[o.value["claim"]].start_ns
            for s in o.value["signals"]
            if s in sent
        )
    )
    return run.edited(step, value={**step.value, "signals": []}), [step]


def signal_delivered_twice(run: Recording) -> Edited:
    first, second, *_ = [o for o in run.named("signal") if o.result["outcome"] == "delivered"]
    return run.edited(second, result={**second.result, "signal": first.result["signal"]}), [first, second]


def load_of_the_past(run: Recording) -> Edited:
    commits = {(o.value["execution"], o.result["version"]): o for o in run.named(COMMIT)}
    load, commit = next(
        (load, commit)
        for load in run.named("store.load")
        if (commit := commits.get((load.value["execution"], 1))) and (commit.end_ns or 0) < load.start_ns
    )
    return run.edited(load, result={"version": None}), [load, commit]


def event_processed_twice(run: Recording) -> Edited:
    events: dict[str, Operation] = {}
    for o in run.named(COMMIT):
        if o.value["event"] is not None:
            first = events.setdefault(o.value["execution"], o)
            if first is not o:
                return run.edited(o, value={**o.value, "event": first.value["event"]}), [first, o]
    raise AssertionError("no execution processed two events")


def emit_not_handed_over(run: Recording) -> Edited:
    sent = {(target, event): o for o in run.named(COMMIT) for target, event in o.value["to"]}
    claims = [o for o in run.named("transport.claim") if o.result]
    times = [(m["group"], m["event"]) for o in claims for m in o.result]
    for claim in claims:
        for message in claim.result:
            pair = (message["group"], message["event"])
            if pair in sent and times.count(pair) == 1:
                kept = [m for m in claim.result if m is not message]
                return run.edited(claim, result=kept), [sent[pair]]
    raise AssertionError("nothing was handed over once")


def message_acknowledged_twice(run: Recording) -> Edited:
    acks = [o for o in run.named("transport.ack") if "messages" in o.value and all(o.result)]
    first, second = next(
        (one, other)
        for one in acks
        for other in acks
        if one.start_ns < other.start_ns
        and one.value["messages"][0]["group"] == other.value["messages"][0]["group"]
    )
    again, *rest = second.value["messages"]
    again = {**again, "seq": first.value["messages"][0]["seq"]}
    return run.edited(second, value={"messages": [again, *rest]}), [first, second]


PLANTED: list[tuple[str, str, Callable[[Recording], Edited]]] = [
    ("seen-single-owner", "mixed", claim_after_the_end),
    ("seen-executed", "mixed", outcome_of_no_step),
    ("seen-executed", "mixed", job_without_an_end),
    ("seen-k1-exclusion", "mixed", two_of_one_key),
    ("seen-gate-cap", "limits", one_more_in_a_full_gate),
    ("seen-rate-budget", "limits", a_weight_too_much),
    ("seen-signals", "mixed", signal_not_handed),
    ("seen-signals", "mixed", signal_delivered_twice),
    ("seen-cas-chain", "store", load_of_the_past),
    ("seen-effect-once", "store", event_processed_twice),
    ("seen-outbox", "store", emit_not_handed_over),
    ("seen-group-exclusive", "store", message_acknowledged_twice),
]


def test_every_rule_of_the_clients_view_has_its_planted_violation() -> None:
    assert {rule for rule, _, _ in PLANTED} == {rule.name for rule in SEEN_RULES}


@pytest.mark.parametrize(("rule", "name", "edit"), PLANTED)
def test_one_operation_changed_is_found_and_named(
    rule: str, name: str, edit: Callable[[Recording], Edited]
) -> None:
    run = recording(name)
    assert run.of(rule).verdict == "held"
    operations, named = edit(run)
    found = run.of(rule, operations)
    assert found.verdict == "violated"
    said = [line for violation in found.violations for line in violation.operations]
    by_place = dict(zip(map(id, run.operations), operations, strict=True))
    for operation in named:
        assert by_place[id(operation)].describe() in said


@pytest.mark.parametrize("name", ["mixed", "store", "limits"])
def test_a_run_without_a_ledger_is_judged_by_what_was_seen_and_is_unknown(name: str) -> None:
    report = recording(name).judge(ledger=False)
    seen = {rule.name for rule in SEEN_RULES}
    assert {j.verdict for j in report.judgements if j.invariant in seen} == {"held", "not_exercised"}
    assert report.verdict == "unknown"
    assert {j.verdict for j in report.judgements if j.invariant in {r.name for r in RECONCILING}} == {
        "unknown"
    }


def test_a_job_without_an_end_is_lost_unless_it_was_not_due_within_the_run() -> None:
    run = recording("mixed")
    _, (insert,) = job_without_an_end(run)
    begun_ms = run.operations[-1].begun_us // 1_000
    for due_ms, verdict in ((begun_ms - 1, "violated"), (begun_ms + 1, "held")):
        job = {**insert.value["job"], "eligible_at": due_ms}
        operations = run.edited(insert, value={**insert.value, "job": job}, result={"id": 10**9})
        assert run.of("seen-executed", operations).verdict == verdict


def test_what_follows_a_failover_that_loses_commits_is_not_judged() -> None:
    run = recording("mixed")
    operations, (end, late) = claim_after_the_end(run)
    value = {"fault": "failover-async", "target": "server", "pid": 0}
    at = late.start_ns - 1
    assert at > (end.end_ns or 0)
    loss = Operation("harness", 10_000, "fault", "ok", value, {"did": {}}, at, at + 1, 0, end.machine)
    kept = sorted([*operations, loss], key=lambda o: o.start_ns)
    assert run.of("seen-single-owner", kept).verdict == "held"
    harmless = msgspec.structs.replace(loss, value={**value, "fault": "failover"})
    kept = sorted([*operations, harmless], key=lambda o: o.start_ns)
    assert run.of("seen-single-owner", kept).verdict == "violated"


def test_histories_of_two_machines_have_no_order() -> None:
    run = recording("mixed")
    one = run.named("claim")[0]
    found = run.of("seen-single-owner", run.edited(one, machine="another"))
    assert found.checked == 0
    assert found.verdict == "not_exercised"


@pytest.mark.parametrize(
    ("name", "f"),
    [*(("mixed", f) for f in ("insert", "claim", "flush", "signal", "admit")),
     *(("store", f) for f in (COMMIT, "store.load", "transport.ack", "relay.deliver"))],
)  # fmt: skip
def test_an_answer_that_is_lost_is_held_against_nobody(name: str, f: str) -> None:
    run = recording(name)
    lost = run.edited(
        next(o for o in run.named(f) if _did_something(o)), type="info", result=None, end_ns=None
    )
    seen = {rule.name for rule in SEEN_RULES}
    judgements = run.judge(lost, ledger=False).judgements
    assert {j.verdict for j in judgements if j.invariant in seen} == {"held", "not_exercised"}


def _did_something(o: Operation) -> bool:
    """Whether it tells of something; the first version of an execution may be a relay's."""
    if not isinstance(o.result, dict):
        return bool(o.result)
    return bool(
        o.result.get("ids", True) and o.result.get("signal", True) and o.result.get("version", 2) != 1
    )


def told_of_a_version_that_is_not(run: Recording) -> Edited:
    commit = run.named(COMMIT)[0]
    value, result = {**commit.value, "expected": 9_000}, {"version": 9_001}
    return run.edited(commit, value=value, result=result), [commit]


def told_of_another_transaction(run: Recording) -> Edited:
    flush = next(o for o in run.named("flush") if o.result["committed"])
    return run.edited(flush, result={**flush.result, "xid": 3}), [flush]


def told_of_a_lease_that_is_not(run: Recording) -> Edited:
    heartbeat, *_ = (o for o in run.named("heartbeat") if o.result["ids"])
    holds = [[10**9, "nobody"], *heartbeat.value["holds"]]
    return run.edited(heartbeat, value={"holds": holds}, result={"ids": [10**9]}), [heartbeat]


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("store", told_of_a_version_that_is_not),
        ("mixed", job_without_an_end),
        ("mixed", told_of_another_transaction),
        ("mixed", told_of_a_lease_that_is_not),
    ],
)
def test_what_was_told_and_not_done_is_named(name: str, edit: Callable[[Recording], Edited]) -> None:
    run = recording(name)
    assert run.of("told-is-done", ledger=True).verdict == "held"
    operations, [named] = edit(run)
    found = run.of("told-is-done", operations, ledger=True)
    by_place = dict(zip(map(id, run.operations), operations, strict=True))
    assert found.verdict == "violated"
    assert by_place[id(named)].describe() in found.violations[0].operations


@pytest.mark.parametrize(
    ("name", "f", "said"),
    [
        ("mixed", "insert", "was inserted by nobody"),
        ("mixed", "claim", "by nobody"),
        ("mixed", "flush", "by nobody"),
        ("mixed", "signal", "by nobody's doing"),
        ("mixed", "gc", "was deleted by nobody"),
        ("store", COMMIT, "was made by nobody's doing"),
        ("store", "transport.ack", "went by nobody's doing"),
        ("store", "transport.claim", "was leased under token"),
    ],
)
def test_a_change_whose_operation_is_taken_away_has_no_owner(name: str, f: str, said: str) -> None:
    run = recording(name)
    assert run.of("done-is-owned", ledger=True).verdict == "held"
    o = next(o for o in run.named(f) if _did_something(o))
    found = run.of("done-is-owned", [each for each in run.operations if each is not o], ledger=True)
    assert found.verdict == "violated"
    assert any(said in violation.summary for violation in found.violations)
    assert all(violation.transactions for violation in found.violations)


@pytest.mark.parametrize(("name", "f"), [("mixed", "insert"), ("mixed", "flush"), ("store", COMMIT)])
def test_an_operation_of_unknown_outcome_may_own_what_it_did_and_asks_for_nothing(name: str, f: str) -> None:
    run = recording(name)
    lost = run.edited(run.named(f)[0], type="info", result=None, end_ns=None)
    for rule in RECONCILING:
        assert run.of(rule.name, lost, ledger=True).verdict == "held"
