"""Plans as pure data: one form for all versions, shapes, hazards, growth, comparing, rendering."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from engine.errors import UsageError
from engine.statements import Catalogue
from invariants.mutants import PLANS
from invariants.plans import PLAN_INVARIANTS
from results.plans import arguments, reference, render
from results.plans.comparing import Explanation, aligned, compare, read_explanations
from results.plans.conditions import overclaims
from results.plans.folder import (
    Capture,
    Captured,
    Environment,
    Explained,
    Index,
    Inner,
    Table,
    read,
    write_environment,
    write_statement,
)
from results.plans.growth import Point, fitted, slope
from results.plans.hazards import hazards_of
from results.plans.profiles import PROFILES
from results.plans.reference import baselines
from results.plans.shapes import OTHERS, SHAPES, Shape, check, check_statement, scan_name
from results.plans.tree import Node, NoPlan, blanked, parse, paths, shape, walk
from results.plans.verdict import INVARIANTS, RULES, Judged, judge

RECORDED = Path(__file__).parents[1] / "fixtures" / "plans"
CATALOGUE = Catalogue.load()


def recorded(name: str) -> Node:
    return parse([json.loads((RECORDED / f"{name}.json").read_text("utf-8"))]).root


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
    assert parse([{"Plan": told}]).root.handled == 22


def scan(**told: object) -> Node:
    """A scan as EXPLAIN tells it, parsed."""
    return parse([{"Plan": {"Node Type": "Seq Scan", "Relation Name": "t", "Alias": "t", **told}}]).root


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("(NOT (hashed SubPlan 1))", "(NOT (ANY (id = (hashed SubPlan 1).col1)))"),
        (
            "((queue = 'z)('::text) OR (hashed SubPlan 2))",
            "((queue = 'z)('::text) OR (ANY ((a = (hashed SubPlan 2).col1) AND (b = (hashed SubPlan 2).col2))))",
        ),
        ("((SubPlan 1) OR (SubPlan 2))", "((ALL (p > (SubPlan 1).col1)) OR (ANY (p < (SubPlan 2).col1)))"),
        ("(NOT (SubPlan 1))", "(NOT EXISTS(SubPlan 1))"),
        ("((SubPlan 1) > 5)", "((SubPlan 1) > 5)"),
        ("(id = ANY ('{1,2}'::bigint[]))", "(id = ANY ('{3}'::bigint[]))"),
        (
            "(a = '2024-01-01 00:00:00+00'::timestamp with time zone)",
            "(a = '2025'::timestamp with time zone)",
        ),
        ("(a = '1.5'::numeric(10,2))", "(a = '2'::numeric(10,2))"),
    ],
)
def test_a_condition_is_the_same_in_the_writing_of_any_version(older: str, newer: str) -> None:
    assert shape(scan(Filter=older)) == shape(scan(Filter=newer))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(queue = 'a'::text)", "(queue = 'b'::text)"),
        ("(state = 'ready'::q.state)", "(state = 'done'::q.state)"),
        ("(CASE WHEN (q = 'a'::text) THEN 'x'::text ELSE 'y'::text END = 'x'::text)",
         "(CASE WHEN (q = 'a'::text) THEN 'y'::text ELSE 'y'::text END = 'x'::text)"),
        ("(NOT (hashed SubPlan 1))", "(NOT (SubPlan 1))"),
        ("(p > (SubPlan 1))", "(p < (SubPlan 1))"),
    ],
)  # fmt: skip
def test_a_condition_that_says_another_thing_is_another(one: str, other: str) -> None:
    assert shape(scan(Filter=one)) != shape(scan(Filter=other))


@pytest.mark.parametrize("ran", ["SubPlan 1", "SubPlan 2"])
def test_of_alternative_subplans_the_one_that_ran_is_kept(ran: str) -> None:
    def below(name: str) -> dict[str, object]:
        told = {"Node Type": "Seq Scan", "Parent Relationship": "SubPlan", "Subplan Name": name}
        return {**told, "Actual Loops": 1 if name == ran else 0}

    plans = [below("SubPlan 1"), below("SubPlan 2")]
    text = "(alternatives: SubPlan 1 or hashed SubPlan 2)"
    node = scan(Filter=text, Plans=plans)
    newer = "(SubPlan 1)" if ran == "SubPlan 1" else "(hashed SubPlan 1)"
    only = [{**below(ran), "Subplan Name": "SubPlan 1"}]
    assert shape(node) == shape(scan(Filter=newer, Plans=only))


def test_what_a_statement_was_asked_with_is_no_part_of_its_plan() -> None:
    def asked(key: str, number: int) -> Node:
        return blanked(
            scan(Filter=f"((key = '{key}'::text) AND (n = {number}) AND (m = 7) AND (q = 'it''s'::text))"),
            [key, str(number), "it's"],
        )

    assert shape(asked("order-105", 5)) == shape(asked("order-55", 6))
    assert "(m = 7)" in asked("a", 5).conditions["Filter"]
    # A generic plan's parameters are no numbers.
    assert blanked(scan(Filter="(a = $1)"), ["1"]).conditions == {"Filter": "(a = $1)"}


def test_a_parallel_scan_is_another_than_one_alone() -> None:
    parallel = scan(**{"Parallel Aware": True})
    assert parallel.title() == "Parallel Seq Scan on t"
    assert shape(parallel) != shape(scan())


@pytest.mark.parametrize(("rows", "found"), [(10.0, set()), (60_000.0, {"seq-scan"})])
def test_a_scan_that_a_limit_has_ended_did_not_read_a_users_table_whole(rows: float, found: set[str]) -> None:
    plan = over(leaf(kind="Seq Scan", index="", rows=rows), kind="Limit")
    told = check_statement(captured(plan, label="take"), {"gen_durable": Table(100_000, 1)}, 100_000, OTHERS)
    assert {each.rule for each in told} == found


def test_how_a_system_catalog_is_read_is_nobodys_plan() -> None:
    def over_catalog(**more: object) -> Node:
        return over(leaf("d", relation="pg_database", **more), leaf())

    a, b = over_catalog(index="pg_database_oid_index"), over_catalog(kind="Seq Scan", index="")
    assert compare(a_capture(captured(a)), a_capture(captured(b))).differences == ()


def test_a_statement_that_a_rule_made_two_of_is_both_and_one_of_none_is_refused() -> None:
    one = {"Plan": {"Node Type": "Result", "Shared Hit Blocks": 3}}
    both = parse([one, one]).root
    assert (both.kind, len(both.children), both.buffers) == ("Rewritten", 2, 6)
    with pytest.raises(NoPlan):
        parse([])


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


def test_a_limit_over_locks_that_runs_once_or_is_asked_for_each_row_claims_no_more() -> None:
    """`id = ANY (ARRAY(SELECT ... LIMIT n FOR UPDATE SKIP LOCKED))`, and a LATERAL that names its outer row."""

    def limited(**more: object) -> Node:
        locked = leaf("j", **more)
        return over(over(locked, kind="LockRows"), kind="Limit")

    array = msgspec.structs.replace(limited(), role="InitPlan", name="InitPlan")
    assert rules(over(array, leaf(), kind="Update", relation="gen_durable"), Shape()) == set()
    lateral = limited(conditions={"Index Cond": "(queue = q.name)"})
    assert rules(over(leaf("q"), lateral), Shape()) == set()
    assert rules(over(leaf("q"), limited(conditions={"Index Cond": "(queue = 'a'::text)"})), Shape()) == {
        "over-claim"
    }


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


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SELECT id FROM t WHERE a = 1 FOR UPDATE", True),
        ("SELECT id FROM t WHERE a = 1 ORDER BY id FOR UPDATE", False),
        ("SELECT id FROM t WHERE a = 1 FOR UPDATE skip  locked", False),
    ],
)
def test_locks_that_are_waited_for_in_the_order_of_a_scan_are_named(text: str, named: bool) -> None:
    plan = over(leaf(), kind="LockRows")
    told = msgspec.structs.replace(captured(plan, label="take"), text=text)
    assert {each.kind for each in hazards_of(told, {})} == ({"lock-order"} if named else set())


def test_a_kept_plan_has_no_wrong_estimates_and_a_users_statement_is_hot() -> None:
    off = leaf(estimate=5_000.0, rows=2.0)
    kept = msgspec.structs.replace(captured(off), plans={"kept": Explained(plan=off)})
    assert list(hazards_of(kept, {})) == []
    assert {each.kind for each in hazards_of(captured(off, label="take"), {})} == {"estimate"}
    assert list(hazards_of(captured(off, label="client/page"), {})) == []


def test_a_generic_plan_with_another_index_that_costs_no_more_has_lost_none() -> None:
    indexes = {"gen_durable_pick": Index("gen_durable", "status = 'runnable'")}
    assert list(hazards_of(captured(leaf(), leaf(index="gen_durable_pkey"), label="x"), indexes)) == []


def test_a_change_of_rows_that_a_cte_has_locked_has_no_order() -> None:
    cte = over(over(leaf(), kind="LockRows"), kind="Limit", name="CTE c", role="InitPlan")
    update = over(
        cte,
        over(leaf("c", kind="CTE Scan", cte="c", index="")),
        kind="Update",
        relation="gen_durable",
        alias="g",
    )
    skips = msgspec.structs.replace(captured(update), text="... FOR UPDATE SKIP LOCKED ...")
    assert list(hazards_of(skips, {})) == []


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


def test_a_probe_that_finds_one_row_in_three_is_no_more_work_where_fractions_are_shown() -> None:
    old, new = leaf(rows=0.0, loops=300.0), leaf(rows=0.33, loops=300.0)
    assert compare(a_capture(captured(old), major=17), a_capture(captured(new), major=18)).differences == ()
    assert (
        compare(a_capture(captured(old), major=18), a_capture(captured(new), major=18)).verdict == "regressed"
    )


def test_a_statement_inside_a_function_that_one_side_has_not_is_told() -> None:
    def calling(*texts: str) -> Captured:
        inner = tuple(Inner(text=text, calls=1, plan=leaf()) for text in texts)
        return msgspec.structs.replace(
            captured(leaf(), label="x"), plans={"custom": Explained(plan=leaf(), inner=inner)}
        )

    comparison = compare(a_capture(calling("A", "B")), a_capture(calling("A", "C")))
    assert [each.message for each in comparison.differences] == ["run only in A", "run only in B"]
    # One side could not look inside.
    assert compare(a_capture(calling("A")), a_capture(calling())).verdict == "same"


def test_settings_that_somebody_made_explain_a_plan_and_another_version_s_default_does_not() -> None:
    a, plan = a_capture(captured(leaf())), captured(leaf(index="gen_durable_pkey"))
    made = compare(a, a_capture(plan, settings={"work_mem": "64kB"}))
    assert (made.verdict, made.exit_code) == ("changed-explained", 0)
    assert made.differences[0].reason == "other settings: work_mem 4MB → 64kB"
    lost = compare(a, a_capture(settings={"work_mem": "64kB"}))
    assert lost.verdict == "regressed"
    older = a_capture(captured(leaf()), major=14, settings={"hash_mem_multiplier": "1"})
    newer = a_capture(plan, major=15, settings={"hash_mem_multiplier": "2"})
    assert compare(older, newer).verdict == "regressed"


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
    assert render.text(comparison).splitlines()[-1] == "verdict: changed-explained"
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


def test_a_deeper_tree_and_rows_that_no_longer_share_pages_are_no_growth_and_a_longer_walk_is() -> None:
    def growth(large: float) -> float | None:
        points = [
            Point(10_000, 100, 100.0, 300.0, descents=100.0, apart=100.0),
            Point(100_000, 100, 100.0, large, descents=100.0, apart=100.0),
        ]
        return fitted("x", "custom", points).table

    assert growth(500.0) == pytest.approx(0)
    assert growth(1_500.0) == pytest.approx(0.636, abs=0.01)


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


def test_a_seq_scan_in_a_session_that_is_barred_from_it_means_that_no_index_answers() -> None:
    small = captured(leaf("t", kind="Seq Scan", index="", relation="timers", rows=1_000.0))
    tables, shaped = {"timers": Table(1_000, 1)}, Shape(probes={"t": ("timers_pkey",)}, rows=20)
    assert check_statement(small, tables, 100, shaped) == []
    assert {each.rule for each in check_statement(small, tables, 100, shaped, barred=True)} == {
        "index",
        "seq-scan",
    }


def test_of_a_kept_plan_only_what_it_reads_counts() -> None:
    def broken_by(plan: Node) -> set[str]:
        kept = Captured(label="x", statement="x", text="", key="", plans={"kept": Explained(plan=plan)})
        tables, shaped = {"gen_durable": Table(100_000, 1)}, Shape(probes={"g": ("gen_durable_pick",)})
        return {each.rule for each in check_statement(kept, tables, 100, shaped)}

    assert broken_by(over(leaf(index="gen_durable_pkey"), kind="Sort", rows=5_000.0)) == set()
    assert broken_by(leaf(rows=5_000.0)) == {"rows"}
    assert broken_by(leaf(kind="Seq Scan", index="")) == {"seq-scan"}


def verdicts(*judged: Judged, explanations: Sequence[Explanation] = ()) -> dict[str, str]:
    return {each.invariant: each.verdict for each in judge(judged, explanations).invariants}


def test_the_list_of_invariants_has_those_of_plans() -> None:
    assert dict(PLAN_INVARIANTS) == dict(INVARIANTS)
    assert set(RULES.values()) <= set(INVARIANTS)
    assert {name for mutant in PLANS.values() for name in mutant.caught_by} <= set(INVARIANTS)


def test_a_sound_capture_holds_and_has_no_other_version_to_be_stable_beside() -> None:
    capture = a_capture(captured(leaf(), label="x"))
    assert verdicts(Judged(capture)) == {
        "plan-index": "held",
        "plan-o-batch": "held",
        "plan-generic": "held",
        "plan-stable": "not_exercised",
    }
    assert judge([Judged(capture)]).exit_code == 0


@pytest.mark.parametrize(
    ("invariant", "judged"),
    [
        ("plan-index", Judged(a_capture(captured(leaf(kind="Seq Scan", index=""), label="x")))),
        ("plan-o-batch", Judged(a_capture(captured(leaf(rows=900.0), label="x")))),
        ("plan-o-batch", Judged(a_capture(captured(leaf(), label="x")), excess=["x: growth"], fits=1)),
        ("plan-generic", Judged(a_capture(captured(leaf(), leaf(hits=900), label="x")))),
        (
            "plan-stable",
            Judged(
                a_capture(captured(leaf(), label="x")),
                others=[a_capture(captured(leaf(index="gen_durable_pkey"), label="x"), major=17)],
            ),
        ),
    ],
)
def test_what_breaks_an_invariant_of_plans_breaks_it_alone(invariant: str, judged: Judged) -> None:
    found = verdicts(judged)
    assert [name for name, word in found.items() if word == "violated"] == [invariant]
    assert judge([judged]).exit_code == 1


def test_what_is_explained_breaks_neither_stable_nor_generic() -> None:
    capture = a_capture(captured(leaf(), leaf(hits=900), label="x"))
    other = a_capture(captured(leaf(index="gen_durable_pkey"), leaf(hits=900), label="x"), major=17)
    accepted = [Explanation("x", severity, "a reason") for severity in ("hazard", "shape")]
    found = verdicts(Judged(capture, others=[other]), explanations=accepted)
    assert (found["plan-generic"], found["plan-stable"]) == ("held", "held")


def test_a_statement_that_nothing_asked_makes_the_verdict_unknown() -> None:
    verdict = judge([Judged(a_capture(captured(leaf(), label="x")), missing=["picker/new"])])
    assert (verdict.verdict, verdict.exit_code) == ("unknown", 4)
    assert "picker/new" in (verdict.reason or "")


def test_only_statements_of_the_same_text_are_held_against_another_version() -> None:
    other = a_capture(
        msgspec.structs.replace(captured(leaf(index="gen_durable_pkey"), label="x"), text="SELECT 2"),
        major=17,
    )
    judged = Judged(a_capture(captured(leaf(), label="x")), others=[other])
    assert verdicts(judged)["plan-stable"] == "not_exercised"


def test_a_claim_that_brings_more_than_its_batch_is_told_under_any_plan() -> None:
    assert overclaims(a_capture(captured(leaf(rows=100.0)))) == ()
    assert len(overclaims(a_capture(captured(leaf(rows=101.0))))) == 2


def test_a_revision_of_a_baseline_is_read_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*command: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost", *command],
            check=True,
        )

    old, new = a_capture(captured(leaf(hits=1))), a_capture(captured(leaf(hits=2)))
    monkeypatch.setattr(reference, "baselines", lambda: tmp_path)
    git("init", "-q")
    for capture in (old, new):
        for each in capture.statements.values():
            write_statement(tmp_path / "18", each)
        write_environment(tmp_path / "18", capture.environment)
        git("add", "-A")
        git("commit", "-qm", "baseline")
    assert reference.named("18") == new
    assert reference.named("HEAD:18") == new
    assert reference.named("HEAD~1:18") == old
    for name, told in (
        ("HEAD~9:18", "is no revision here"),
        ("HEAD:17", "has no baseline of 17"),
        ("17", "there is no baseline of 17: there are 18"),
        ("nowhere", "is no folder"),
        (":18", "is no folder"),
        ("--help:18", "is no revision"),
    ):
        with pytest.raises(UsageError, match=told):
            reference.named(name)
