"""A schedule is told in the steps that matter, with the reason, and carried elsewhere in a form that says the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from engine.errors import UsageError
from engine.statements import Catalogue, Statement
from invariants.mutants import REGISTRY
from results.report import lanes
from stress.schedules import story
from stress.schedules.controller import STOPS, Step, Wait
from stress.schedules.coverage import CAUGHT_BY_RACE, CONSTRAINTS, NO_RACE, document
from stress.schedules.export import isolation_spec, pytest_file
from stress.schedules.gates import (
    CLOCK,
    INNER,
    _functions,
    gated,
    needs_call,
    only_reads,
    touched,
    with_gate,
    with_inner_gates,
)
from stress.schedules.locks import circle
from stress.schedules.pairs import OPERATIONS, PAIRS, Operation, Pair, apart, pairs
from stress.schedules.race import Race
from stress.schedules.races import ALL
from stress.schedules.record import Schedule, read_schedule, reduced
from stress.schedules.search import Choice
from stress.schedules.session import OPEN, literal
from stress.schedules.stored_pairs import STORED_OPERATIONS, STORED_PAIRS, stored_apart, stored_pairs
from stress.schedules.worker import races

ROOT = Path(__file__).parents[2]
READY = (("a", "ready", ()), ("b", "ready", ()))


def step(
    session: str,
    came: str,
    statement: str = "x/y",
    *,
    began: bool = True,
    committed: tuple[str, ...] = (),
    others: tuple[tuple[str, str], ...] = (),
    states: tuple[tuple[str, str, tuple[str, ...]], ...] = READY,
    sql: tuple[str, ...] = (),
    waits: tuple[Wait, ...] = (),
) -> Step:
    what = f"do: {statement}"
    return Step(Choice(session), what, statement, began, committed, came, others, states, sql, False, waits)


def test_a_stop_that_nobody_used_is_no_step_of_the_story() -> None:
    steps = [step("a", STOPS), step("a", f"1 row; {OPEN}", began=False), step("a", "committed", "commit")]
    assert story.table(steps, ["a", "b"]) == [["1", "do: x/y → 1 row; committed", ""]]


def test_a_stop_that_another_session_used_is_told_as_a_snapshot() -> None:
    steps = [
        step("a", STOPS),
        step("b", "committed", "commit", committed=("b",)),
        step("a", "no rows", began=False),
    ]
    rows = story.table(steps, ["a", "b"])
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert rows[0][1] == "do: x/y: takes its snapshot"
    assert rows[2][1] == "x/y goes on → no rows"
    assert story.reasons(steps) == ["x/y of a sees the state of step 1: not what b committed at step 2."]


BLOCKED = (("a", "ready", ()), ("b", "blocked", ("a",)))


def test_a_wait_is_drawn_from_the_step_in_which_it_began_to_the_one_that_ended_it() -> None:
    steps = [
        step("a", "1 row"),
        step("b", "waits", states=BLOCKED, waits=(Wait("b", ("a",), "row 1 of t"),)),
        step("a", "1 row", states=BLOCKED),
        step("a", "committed", "commit", committed=("a",), others=(("b", "1 row"),)),
    ]
    drawn = story.drawn(steps, ["a", "b"])
    assert drawn.waits == (lanes.Wait("b", ("a",), "row 1 of t", 1, 3),)
    grid = lanes.grid(drawn)
    # The lanes' names, then the first two steps; the arrow stands below the second, and reaches from b's lane to a's.
    [arrow] = [line for line in grid.lines if line.towards]
    assert (arrow.row, arrow.column, arrow.end_column, arrow.towards) == (4, 2, 3, "left")
    [bar] = grid.bars
    assert (bar.column, bar.row, bar.end_row) == (3, 4, 6)
    assert [box.what.title for box in grid.lines if box.row == 6] == ["do: commit", "↳ 1 row"]


def test_a_wait_for_another_holder_is_another_arrow_and_one_that_never_ended_goes_to_the_end() -> None:
    other = (("a", "ready", ()), ("b", "blocked", ("c",)))
    steps = [
        step("b", "waits", states=BLOCKED, waits=(Wait("b", ("a",), "x"),)),
        step("a", "committed", "commit", states=other, waits=(Wait("b", ("c",), "x"),)),
    ]
    drawn = story.drawn(steps, ["a", "b", "c"])
    assert drawn.waits == (lanes.Wait("b", ("a",), "x", 0, 1), lanes.Wait("b", ("c",), "x", 1, None))
    assert [line.towards for line in lanes.grid(drawn).lines if line.towards] == ["left", "right"]


def test_a_circle_is_read_off_what_the_server_says_of_it() -> None:
    detail = (
        "Process 71 waits for ShareLock on transaction 812; blocked by process 72.\n"
        "Process 72 waits for ExclusiveLock on tuple (0,1) of relation 16444 of database 5; blocked by process 71."
    )
    assert circle(detail) == [(71, 72), (72, 71)]


def test_who_waited_for_whom_is_said_with_the_steps() -> None:
    waits = (("a", "ready", ()), ("b", "blocked", ("a",)))
    steps = [
        step("b", "waits", states=waits),
        step("a", "committed", "commit", committed=("a",), others=(("b", "1 row"),)),
    ]
    assert "b waits for a from step 1 to step 2, in x/y." in story.reasons(steps)
    assert story.table(steps, ["a", "b"])[1][2] == "↳ 1 row"


def test_a_deadlock_is_said() -> None:
    steps = [step("a", "DeadlockDetected; the caller gets DeadlockDetected")]
    assert story.reasons(steps) == ["At step 1 the server finds sessions waiting for each other in a circle."]


def test_what_comes_after_a_deadlock_is_not_told() -> None:
    steps = [step("a", "DeadlockDetected; the caller gets DeadlockDetected"), step("b", "1 row")]
    assert story.found_at(steps) == steps[:1]
    assert story.found_at(steps[1:]) == steps[1:]


def schedule(**fields: object) -> Schedule:
    told = {
        "race": "lost-wakeup",
        "mutant": "park-without-recheck",
        "planner": "generic",
        "actions": {"worker": (0,), "client": (0,)},
        "choices": [["client"], ["worker", "dies"]],
    }
    return Schedule(**(told | fields))  # type: ignore[arg-type]


def test_a_schedule_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_bytes(msgspec.json.encode(schedule()))
    assert read_schedule(path) == schedule()
    assert read_schedule(path).steps() == (Choice("client"), Choice("worker", dies=True))


@pytest.mark.parametrize("text", [b"", b"{}", b'{"race": 1}', msgspec.json.encode(schedule(schema=9))])
def test_a_file_that_is_no_schedule_is_refused_with_a_sentence(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=r"schedule\.json"):
        read_schedule(path)


def test_a_schedule_of_a_race_that_has_changed_is_refused() -> None:
    with pytest.raises(UsageError, match="has changed"):
        reduced(ALL["lost-wakeup"], {"worker": (7,)})


def test_a_pytest_file_is_python_and_holds_its_schedule() -> None:
    text = pytest_file(schedule(summaries=['a "quoted" line\nand another']))
    compile(text, "exported", "exec")
    assert "def test_lost_wakeup_park_without_recheck() -> None:" in text


def test_arguments_become_literals_whatever_they_hold() -> None:
    statement = Statement.parse("x/y", "SELECT $1::text, $2::bigint[], $1::text, $3::text")
    assert (
        literal(statement, ("it's", [1, 2], None))
        == "SELECT 'it''s'::text, '{1,2}'::bigint[], 'it''s'::text, NULL::text"
    )


def test_a_spec_stops_and_goes_on_in_the_order_of_the_schedule() -> None:
    steps = [
        step("a", STOPS, sql=("BEGIN", "UPDATE t SET x = '{}'")),
        step("b", "1 row", sql=("DELETE FROM t",)),
        step("a", "1 row", began=False),
    ]
    spec = isolation_spec(
        schedule(), ["CREATE TABLE t ()"], ["INSERT INTO t VALUES (1)"], steps, {}, {"a": {"gate.row": "7"}}
    )
    assert "SET gate.row = '7';" in spec
    assert r"UPDATE t SET x = E'\x7b\x7d'" in spec
    permutation = spec.splitlines()[-1]
    assert permutation == "permutation a_1_stops a_1_1 a_1_2 b_2 open_3 jobs inbox counters"


@pytest.mark.parametrize(
    ("came", "state", "ends"),
    [("1 row", "ready", "pg_terminate_backend"), (STOPS, "gate", "pg_cancel_backend")],
)
def test_in_a_spec_a_session_is_terminated_between_two_statements_and_cancelled_inside_of_one(
    came: str, state: str, ends: str
) -> None:
    begins = step("a", came, sql=("UPDATE t SET x = 1",), states=(("a", state, ()), ("b", "ready", ())))
    dies = Step(Choice("a", dies=True), "dies", "", True, (), "", (), READY)
    unseen = Step(Choice("b", dies=True), "dies", "", True, (), "", (), READY)
    spec = isolation_spec(schedule(), [], [], [begins, dies, unseen], {}, {})
    assert ends in spec
    assert spec.splitlines()[-1].endswith("a_1 a_2_dies jobs inbox counters")
    assert "session b" not in spec


def test_a_gate_in_a_text_stands_before_the_first_locking_scan() -> None:
    catalogue = Catalogue.load()
    for name in gated(catalogue):
        text = gated(catalogue)[name].text
        assert text.count("schedule_gate()") == (1 if needs_call(catalogue[name]) else 0)
    assert "WHERE (SELECT schedule_gate()) AND g.id = coalesce(" in with_gate(catalogue["picker/signal"])


def test_what_a_statement_touches_is_read_from_its_text() -> None:
    catalogue = Catalogue.load()
    tables = ("gen_durable", "signals", "signal_receipts", "gen_durable_buckets")
    assert touched(catalogue["maintenance/gc_delete"], tables) == {
        "gen_durable",
        "signals",
        "signal_receipts",
    }
    assert touched(catalogue["limiter/credit"], tables) == {"gen_durable_buckets"}
    assert only_reads(catalogue["picker/inbox"])
    assert not only_reads(catalogue["limiter/reconcile_lock"])


def test_the_table_of_races_in_the_docs_is_current() -> None:
    assert (ROOT / "docs" / "races.md").read_text("utf-8") == document()


@pytest.mark.parametrize(
    ("operations", "races", "all_pairs", "why_apart"),
    [
        (OPERATIONS, PAIRS, pairs, apart),
        (STORED_OPERATIONS, STORED_PAIRS, stored_pairs, stored_apart),
    ],
    ids=["picker", "store, relay and transport"],
)
def test_every_pair_of_operations_that_shares_a_table_has_a_race(
    operations: Mapping[str, Operation],
    races: Sequence[Race],
    all_pairs: Callable[[], list[Pair]],
    why_apart: Callable[[Pair], str | None],
) -> None:
    covered = {pair for race in races for pair in race.covers}
    for one, other in all_pairs():
        share = operations[one].tables & operations[other].tables
        assert ((one, other) in covered) == bool(share)
        assert (why_apart((one, other)) is None) == bool(share)


def test_no_two_operations_and_no_two_races_are_called_alike() -> None:
    assert not set(OPERATIONS) & set(STORED_OPERATIONS)
    assert len(races()) == len(ALL) + len(PAIRS) + len(STORED_PAIRS)


def test_what_a_statement_touches_is_read_from_the_functions_that_it_calls_too() -> None:
    catalogue = Catalogue.load()
    tables = ("executions", "processed_events", "outbox", "transport_groups", "transport_messages")
    assert touched(catalogue["store/commit_cas"], tables) == {"executions", "processed_events"}
    # By way of transport_remove, and with a look at the clock.
    assert touched(catalogue["transport/ack"], tables) == {"transport_groups", "transport_messages", CLOCK}
    assert not only_reads(catalogue["store/commit_cas"])
    assert only_reads(catalogue["transport/depth"])


def test_a_function_keeps_its_stops_where_a_statement_is_there_to_stop_before() -> None:
    definitions = dict(_functions())
    for name, statements in INNER.items():
        stops = with_inner_gates(name, definitions[name]).count("schedule_inner")
        assert stops == sum(definitions[name].count(statement) for statement in statements)
        assert all(statement in definitions[name] for statement in statements)


def test_every_race_of_the_documents_has_races_that_exist() -> None:
    assert {name for _, _, names in CONSTRAINTS for name in names} <= set(ALL)
    assert len(ALL) + len(PAIRS) >= 40
    for race in ALL.values():
        named = {name for pair in race.covers for name in pair}
        assert named <= set(OPERATIONS) | set(STORED_OPERATIONS), race.name


def test_every_mutant_has_a_race_that_catches_it_or_a_reason_why_it_is_none() -> None:
    assert set(CAUGHT_BY_RACE) | set(NO_RACE) == set(REGISTRY)
    assert set(CAUGHT_BY_RACE.values()) <= set(ALL)
