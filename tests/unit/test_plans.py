"""Plans as pure data: one form for all versions, shapes, hazards, growth, comparing, rendering."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from engine.errors import UsageError
from engine.statements import Catalogue
from invariants.mutants import PLANS
from results.plans import arguments, render
from results.plans.command import baselines
from results.plans.comparing import Explanation, aligned, compare, read_explanations
from results.plans.folder import (
    Capture,
    Captured,
    Environment,
    Explained,
    Index,
    Table,
    read,
    write_environment,
    write_statement,
)
from results.plans.growth import Point, fitted, slope
from results.plans.hazards import hazards_of
from results.plans.profiles import PROFILES
from results.plans.shapes import SHAPES, Shape, check, check_statement, scan_name
from results.plans.tree import Node, parse, paths, shape, walk

RECORDED = Path(__file__).parents[1] / "fixtures" / "plans"
CATALOGUE = Catalogue.load()


def recorded(name: str) -> Node:
    return parse(json.loads((RECORDED / f"{name}.json").read_text("utf-8"))).root


def leaf(alias: str = "g", **more: object) -> Node:
    given = {"kind": "Index Scan", "relation": "gen_durable", "alias": alias, "index": "gen_durable_pick"}
    return msgspec.convert({**given, "role": "Outer", "rows": 10.0, "loops": 1.0, "hits": 12, **more}, Node)


def over(*children: Node, kind: str = "Nested Loop", **more: object) -> Node:
    node = msgspec.convert(
        {"kind": kind, "role": "Outer", "rows": 10.0, "loops": 1.0, "hits": 20, **more}, Node
    )
    return msgspec.structs.replace(node, children=children)


def captured(
    plan: Node, generic: Node | None = None, *, label: str = "picker/claim", alternate: Node | None = None
) -> Captured:
    return Captured(
        label=label,
        statement=label.partition("@")[0],
        text="SELECT",
        key="k",
        plans={
            "custom": Explained(plan=plan, alternate=alternate),
            "generic": Explained(plan=generic or plan),
        },
    )


def a_capture(*statements: Captured, major: int = 18, settings: dict[str, str] | None = None) -> Capture:
    return Capture(
        environment=Environment(
            version=f"{major}.1",
            major=major,
            source="test",
            settings=settings or {"work_mem": "4MB"},
            profile=PROFILES["medium"],
            repetitions=1,
            tables={"gen_durable": Table(100_000, 4_000), "timers": Table(1_000, 10)},
            indexes={"gen_durable_pick": Index("gen_durable", "status = 'runnable'")},
            labels=[each.label for each in statements],
        ),
        statements={each.label: each for each in statements},
    )


def rules(plan: Node, shape: Shape) -> set[str]:
    found = check_statement(
        captured(plan), {"gen_durable": Table(100_000, 1), "timers": Table(1_000, 1)}, 100, shape
    )
    return {violation.rule for violation in found}


def test_every_statement_has_arguments_and_a_shape() -> None:
    assert arguments.missing(CATALOGUE) == []
    assert set(SHAPES) == set(CATALOGUE)
    assert set(arguments.BY_LABEL) == {case.label for case in arguments.CASES}
    assert len(arguments.BY_LABEL) == len(arguments.CASES)


def test_a_statement_without_arguments_is_missing() -> None:
    assert arguments.missing([*CATALOGUE, "picker/new"]) == ["picker/new"]


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_mutant_applies(name: str) -> None:
    mutant = PLANS[name]
    patched = mutant.apply(CATALOGUE)
    assert {label for label in CATALOGUE if patched[label].text != CATALOGUE[label].text} == set(
        mutant.statements
    )
    assert mutant.statements or mutant.alterations()


@pytest.mark.parametrize("name", ["picker-claim", "relay-move"])
def test_13_and_18_name_the_same_scans_and_indexes(name: str) -> None:
    old, new = recorded(f"{name}-13"), recorded(f"{name}-18")

    def scans(root: Node) -> list[tuple[str, str]]:
        return [
            (scan_name(path, node), node.index) for path, node in paths(root) if node.relation and node.index
        ]

    assert scans(old) == scans(new)


def test_what_versions_write_differently_is_one_form() -> None:
    old, new = recorded("relay-move-13"), recorded("relay-move-18")
    conditions = [
        [node.conditions["Index Cond"] for node in walk(root) if node.index == "outbox_pkey"]
        for root in (old, new)
    ]
    assert conditions[0] == conditions[1] == [["(seq = ANY (subquery))"]][0]
    # A generic plan's own parameters stay.
    assert any("$3" in condition for node in walk(old) for condition in node.conditions.values())


def test_memoize_of_14_is_all_that_13_lacks_in_the_claim() -> None:
    rows = list(aligned(recorded("picker-claim-13"), recorded("picker-claim-18")))
    alone = {
        (row.left or row.right or Node(kind="")).kind for row in rows if row.left is None or row.right is None
    }
    replaced = {row.right.kind for row in rows if row.left and row.right and row.left.kind != row.right.kind}
    assert "Memoize" in alone | replaced
    assert "Tid Scan" not in alone | replaced


def test_the_recorded_claims_keep_their_shape() -> None:
    for name in ("picker-claim-13", "picker-claim-18"):
        tables = {"gen_durable": Table(100_000, 1)}
        assert check_statement(captured(recorded(name)), tables, 20, SHAPES["picker/claim"]) == []


def test_rows_of_a_node_are_those_of_all_its_loops_and_those_looked_at_in_vain() -> None:
    told = {"Node Type": "Seq Scan", "Actual Rows": 2.5, "Actual Loops": 4, "Rows Removed by Filter": 3}
    assert parse({"Plan": told}).root.handled == 22


def test_the_numbers_of_a_run_are_no_part_of_a_shape() -> None:
    assert shape(leaf()) == shape(leaf(rows=99.0, loops=7.0, hits=1))
    assert shape(leaf()) != shape(leaf(index="gen_durable_pkey"))


@pytest.mark.parametrize(
    ("rule", "plan", "shaped"),
    [
        ("seq-scan", leaf(kind="Seq Scan", index=""), Shape()),
        ("index", leaf(index="gen_durable_lease"), Shape(probes={"g": ("gen_durable_pick",)})),
        ("index", leaf("h"), Shape(probes={"h": ("gen_durable_pick",), "g": ("gen_durable_pick",)})),
        ("index", leaf(index="gen_durable_pkey"), Shape(probes={"g": ("tid",)})),
        ("stranger", leaf("h"), Shape(closed=True)),
        ("rows", leaf(rows=500.0), Shape()),
        ("rows", leaf(removed=500.0), Shape()),
        ("loops", leaf(rows=0.0, loops=300.0), Shape()),
        ("sort", over(leaf(), kind="Sort", rows=300.0), Shape()),
        ("pages", leaf(hits=9_999), Shape()),
        (
            "condition",
            leaf(conditions={"Filter": "split_part(key, ':', 1) = 'g'"}),
            Shape(forbids=("split_part",)),
        ),
        ("hashed-subplan", over(leaf(role="SubPlan"), kind="Index Scan", hashed=True), Shape()),
        ("over-claim", over(over(over(leaf(), kind="LockRows"), kind="Limit")), Shape()),
    ],
)
def test_a_broken_rule_is_named_and_the_sound_plan_breaks_none(rule: str, plan: Node, shaped: Shape) -> None:
    assert rules(plan, shaped) == {rule}
    assert rules(leaf(), Shape(probes={"g": ("gen_durable_pick",)}, closed=True)) == set()


def test_a_limit_over_locks_is_sound_at_the_top_and_in_a_cte() -> None:
    locks = over(over(leaf(), kind="LockRows"), kind="Limit")
    assert rules(locks, Shape()) == set()
    cte = msgspec.structs.replace(locks, name="CTE candidate", role="InitPlan")
    assert rules(over(cte, over(leaf("c"))), Shape()) == set()


def test_what_was_never_executed_breaks_nothing() -> None:
    assert rules(over(leaf(kind="Seq Scan", index="", loops=0.0)), Shape()) == set()


def test_a_small_table_may_be_read_whole() -> None:
    small = leaf("t", kind="Seq Scan", index="", relation="timers", rows=1_000.0)
    assert rules(over(small, kind="Hash", rows=1_000.0), Shape(probes={"t": ("timers_pkey",)})) == set()


def test_a_statement_that_the_server_refused_is_a_violation() -> None:
    refused = Captured(label="picker/claim", statement="picker/claim", text="", key="", error="no such index")
    assert [(each.rule, each.message) for each in check(a_capture(refused))] == [("failed", "no such index")]


def test_hazards_are_named_with_their_node() -> None:
    indexes = {"gen_durable_pick": Index("gen_durable", "status = 'runnable'")}
    lost = captured(leaf(hits=100), leaf(index="gen_durable_pkey", hits=900), label="x")
    assert [each.kind for each in hazards_of(lost, indexes)] == ["generic-worse", "partial-lost"]
    update = over(over(leaf()), kind="Update", relation="gen_durable", alias="g")
    assert {(each.kind, each.node) for each in hazards_of(captured(update), indexes)} == {
        ("lock-order", "Update g")
    }
    off = captured(leaf(estimate=5_000.0, rows=2.0))
    assert {each.kind for each in hazards_of(off, indexes)} == {"estimate"}


def test_a_change_of_rows_that_a_cte_has_locked_has_no_order() -> None:
    cte = over(over(leaf(), kind="LockRows"), kind="Limit", name="CTE c", role="InitPlan")
    update = over(
        cte,
        over(leaf("c", kind="CTE Scan", cte="c", index="")),
        kind="Update",
        relation="gen_durable",
        alias="g",
    )
    assert list(hazards_of(captured(update), {})) == []


@pytest.mark.parametrize(
    ("severity", "verdict", "plan"),
    [
        ("shape", "regressed", leaf(index="gen_durable_pkey")),
        ("shape", "regressed", leaf(conditions={"Filter": "new"})),
        ("work", "regressed", leaf(hits=900)),
        ("work", "regressed", leaf(wal_bytes=90_000)),
        ("work", "regressed", leaf(rows=900.0)),
        ("estimate", "same", leaf(estimate=5_000.0, rows=10.0)),
    ],
)
def test_a_difference_has_a_severity(severity: str, verdict: str, plan: Node) -> None:
    comparison = compare(a_capture(captured(leaf(), label="x")), a_capture(captured(plan, label="x")))
    assert {each.severity for each in comparison.differences} == {severity}
    assert (comparison.verdict, comparison.exit_code) == (verdict, 1 if verdict == "regressed" else 0)


def test_a_capture_is_the_same_as_itself_and_better_is_no_regression() -> None:
    one = a_capture(captured(leaf(hits=900)))
    assert compare(one, one).verdict == "same"
    better = compare(one, a_capture(captured(leaf(hits=1))))
    assert (better.verdict, {each.severity for each in better.differences}) == ("same", {"better"})


def test_a_plan_that_a_second_analyze_had_seen_is_a_tie() -> None:
    other = leaf(index="gen_durable_pkey")
    comparison = compare(a_capture(captured(leaf(), alternate=other)), a_capture(captured(other, leaf())))
    assert {each.severity for each in comparison.differences} == {"tie"}
    assert comparison.verdict == "same"


def test_a_statement_on_one_side_is_an_error() -> None:
    comparison = compare(
        a_capture(captured(leaf()), captured(leaf(), label="x")), a_capture(captured(leaf()))
    )
    assert [(each.label, each.severity) for each in comparison.differences] == [("x", "error")]


def test_an_explained_difference_is_no_regression_only_where_the_explanation_fits() -> None:
    a, b = a_capture(captured(leaf()), major=13), a_capture(captured(leaf(index="gen_durable_pkey")))
    fits = Explanation("picker/*", "shape", "a reason", match="gen_durable_pkey", majors=(13,))
    assert compare(a, b, [fits]).verdict == "changed-explained"
    for misfit in (
        Explanation("store/*", "shape", "x"),
        Explanation("picker/claim", "work", "x"),
        Explanation("picker/claim", "shape", "x", match="elsewhere"),
        Explanation("picker/claim", "shape", "x", majors=(14, 15)),
    ):
        assert compare(a, b, [misfit]).verdict == "regressed"


def test_explanations_are_read_and_a_broken_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "explanations.toml"
    assert read_explanations(path) == ()
    path.write_text(
        '[[accepted]]\nstatement = "*"\nseverity = "shape"\nmajors = [13]\nreason = "r"\n', "utf-8"
    )
    assert read_explanations(path) == (Explanation("*", "shape", "r", majors=(13,)),)
    path.write_text("[[accepted]]\nnonsense = 1\n", "utf-8")
    with pytest.raises(UsageError, match="nonsense"):
        read_explanations(path)


def test_captures_of_other_data_are_not_compared() -> None:
    one = a_capture(captured(leaf()))
    environment = msgspec.structs.replace(one.environment, profile=PROFILES["small"])
    with pytest.raises(UsageError, match="other data"):
        compare(one, Capture(environment=environment, statements=one.statements))


def test_a_comparison_says_settings_first_and_shows_both_trees() -> None:
    a = a_capture(captured(leaf()))
    b = a_capture(
        captured(leaf(index="gen_durable_pkey", conditions={"Filter": "a < b"})), settings={"work_mem": "1MB"}
    )
    comparison = compare(a, b)
    assert render.text(comparison).splitlines()[2] == "setting work_mem: 4MB → 1MB"
    assert render.text(comparison).splitlines()[-1] == "verdict: regressed"
    assert "| `work_mem` | 4MB | 1MB |" in render.markdown(comparison)
    page = render.html(comparison)
    assert "Index Scan by gen_durable_pick" in page
    assert "Index Scan by gen_durable_pkey" in page
    assert "a &lt; b" in page


def test_a_capture_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = a_capture(captured(over(leaf()), leaf(), label="picker/signal@id"))
    for each in one.statements.values():
        write_statement(tmp_path, each)
    with pytest.raises(UsageError, match="holds no capture"):
        read(tmp_path)
    write_environment(tmp_path, one.environment)
    assert read(tmp_path) == one


def test_the_exponent_of_growth_is_that_of_the_data() -> None:
    assert slope([(10, 10), (100, 1_000), (1_000, 100_000)]) == pytest.approx(2)
    assert slope([(10, 5), (10, 7)]) is None


def test_what_grows_with_the_table_or_faster_than_the_batch_is_named() -> None:
    def growth(table: float, batch: float) -> str:
        points = [
            Point(rows, size, 1_000 * (rows / 10_000) ** table * (size / 25) ** batch, 1_000.0)
            for rows in (10_000, 100_000)
            for size in (25, 100)
        ]
        return fitted("x", "custom", points).broken

    assert growth(0, 1) == ""
    assert "table: exponent 0.50" in growth(0.5, 1)
    assert "batch: exponent 2.00" in growth(0, 2)


BASELINES = sorted(path.name for path in baselines().iterdir() if path.is_dir())


@pytest.mark.parametrize("major", BASELINES)
def test_a_committed_baseline_is_whole_and_holds_its_shapes(major: str) -> None:
    capture = read(baselines() / major)
    assert (str(capture.environment.major), capture.environment.profile) == (major, PROFILES["medium"])
    assert set(capture.statements) == set(arguments.BY_LABEL)
    assert check(capture) == []


# Who changes several rows in the order of its plan, and why nobody waits for it in another order.
IN_THE_ORDER_OF_A_PLAN = {
    "picker/flush_consume": "an inbox is changed under the lock of its target only",
    "picker/flush_drop": "the same",
    "picker/flush_join": "the flush's first statement has locked the parents",
    "limiter/reconcile": "limiter/reconcile_lock has locked the shards",
    "store/commit": "store/lock has locked the executions, and with them what is theirs",
    "relay/make": "relay/spawns has locked the spawns",
    "relay/move": "a lane has one relay at a time, and whoever else removes its rows removes one",
}


@pytest.mark.parametrize("major", BASELINES)
def test_what_is_changed_in_the_order_of_a_plan_has_a_reason_why_nobody_waits_in_a_circle(major: str) -> None:
    capture = read(baselines() / major)
    found = {
        captured.label.partition("@")[0]
        for captured in capture.statements.values()
        for hazard in hazards_of(captured, capture.environment.indexes)
        if hazard.kind == "lock-order"
    }
    assert found <= set(IN_THE_ORDER_OF_A_PLAN)


@pytest.mark.parametrize(("a", "b"), list(pairwise(BASELINES)))
def test_what_differs_between_the_baselines_of_two_versions_is_explained(a: str, b: str) -> None:
    reasons = read_explanations(baselines() / "explanations.toml")
    comparison = compare(read(baselines() / a), read(baselines() / b), reasons)
    assert [str(each) for each in comparison.differences if each.counts] == []
