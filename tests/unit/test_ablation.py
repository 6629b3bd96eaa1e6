"""What an ablation takes out of a text, and that it leaves the rest as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from pglast import parse_sql

from engine.errors import UsageError
from engine.statements import Catalogue, Statement
from stress.mutants.ablating import STATEMENT_AREAS, Ablation, settled, write
from stress.mutants.ablation import Variant, cut_out, cuts, of_functions, of_statements, untouched
from stress.mutants.ablation_page import document
from stress.mutants.concerns import functions_of_schema
from stress.mutants.redundancy import outdated, reviewed
from stress.mutants.trial import Trial

CATALOGUE = Catalogue.load()
AREAS = dict.fromkeys(STATEMENT_AREAS)
STATEMENTS = list(of_statements(CATALOGUE, AREAS))
FUNCTIONS = list(of_functions())


def taken(text: str) -> set[tuple[str, str]]:
    return {(cut.kind, " ".join(text[cut.start : cut.end].split())) for cut in cuts(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a FROM t WHERE b AND c = f(1, 2)", {("conjunct", "b"), ("conjunct", "c = f(1, 2)")}),
        ("SELECT a FROM t WHERE b OR c AND d", {("conjunct", "b OR c AND d")}),
        (
            "SELECT a FROM t WHERE b OR (c AND d)",
            {("conjunct", "b OR (c AND d)"), ("conjunct", "c"), ("conjunct", "d")},
        ),
        (
            "SELECT a FROM t JOIN u ON t.a = u.a AND u.b WHERE t.c",
            {("conjunct", "t.a = u.a"), ("conjunct", "u.b"), ("conjunct", "t.c")},
        ),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT FROM u WHERE u.b AND u.c)",
            {
                ("conjunct", "EXISTS (SELECT FROM u WHERE u.b AND u.c)"),
                ("conjunct", "u.b"),
                ("conjunct", "u.c"),
            },
        ),
        (
            "SELECT a FROM t ORDER BY a LIMIT 1 FOR NO KEY UPDATE OF t SKIP LOCKED",
            {
                ("order", "ORDER BY a"),
                ("lock", "FOR NO KEY UPDATE OF t SKIP LOCKED"),
                ("skip", "SKIP LOCKED"),
            },
        ),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", set()),
        (
            "INSERT INTO t VALUES (1) ON CONFLICT (a) WHERE b DO NOTHING RETURNING c",
            {("conflict", "ON CONFLICT (a) WHERE b DO NOTHING"), ("conjunct", "b")},
        ),
        (
            "SELECT a FROM t WHERE CASE WHEN b AND c THEN d END",
            {("conjunct", "CASE WHEN b AND c THEN d END")},
        ),
        ("SELECT DISTINCT ON (a) a FROM t", {("distinct", "DISTINCT ON (a)")}),
        ("SELECT a FROM t WHERE b -- AND c\n", {("conjunct", "b")}),
        ("SELECT count(*) FROM t GROUP BY a HAVING b", {("conjunct", "b")}),
    ],
)
def test_what_may_be_taken_out_of(text: str, expected: set[tuple[str, str]]) -> None:
    assert taken(text) == expected


def test_a_parameter_that_would_be_gone_is_named_all_the_same() -> None:
    text = "SELECT a FROM t WHERE a = $1::bigint AND b = $2::text"
    [first, second] = sorted(cuts(text), key=lambda cut: cut.start)
    for cut in (first, second):
        left = cut_out(text, cut, parameters=True)
        assert Statement.parse("x", left).types == ("bigint", "text")


@pytest.mark.parametrize("area", STATEMENT_AREAS)
def test_what_is_left_of_every_statement_is_sql(area: str) -> None:
    mine = [variant for variant in STATEMENTS if variant.where.startswith(f"{area}/")]
    for variant in mine:
        text = variant.mutant.apply(CATALOGUE)[variant.where].text
        assert text != CATALOGUE[variant.where].text, variant.name
        parse_sql(text)


def test_every_function_of_the_schema_is_altered_where_it_has_a_condition() -> None:
    assert {
        "harel_commit_cas",
        "transport_ack",
        "transport_claim",
        "transport_publish",
        "transport_remove",
    } <= {variant.where for variant in FUNCTIONS}
    for variant in FUNCTIONS:
        [text] = variant.mutant.alterations()
        assert text.startswith("CREATE OR REPLACE FUNCTION ")


def test_a_name_stands_for_one_variant() -> None:
    names = [variant.name for variant in (*STATEMENTS, *FUNCTIONS)]
    assert len(set(names)) == len(names)


def test_an_untouched_statement_is_the_statement() -> None:
    functions = dict(functions_of_schema())
    for variant in untouched(CATALOGUE, AREAS):
        if variant.where in functions:
            [text] = variant.mutant.alterations()
            assert text.replace("CREATE OR REPLACE ", "CREATE ") == functions[variant.where]
        else:
            assert variant.mutant.apply(CATALOGUE)[variant.where].text == CATALOGUE[variant.where].text


def test_an_order_ends_where_its_clause_does() -> None:
    assert taken("FOR one IN SELECT a FROM t ORDER BY a LOOP b := 1; END LOOP") == {("order", "ORDER BY a")}
    assert taken("INSERT INTO t SELECT a FROM u ORDER BY a RETURNING b") == {("order", "ORDER BY a")}


def test_a_run_that_goes_on_takes_over_what_was_caught_of_the_same_text(tmp_path: Path) -> None:
    [one, two, three, four] = STATEMENTS[:4]
    trials = [
        Trial(variant=one.name, digest=one.digest, outcome="caught", stage="load"),
        Trial(variant=two.name, digest="of another text", outcome="caught", stage="load"),
        Trial(variant=three.name, digest=three.digest, outcome="survived"),
    ]
    write(Ablation([one, two, three, four], {}, {t.variant: t for t in trials}), tmp_path)
    file = tmp_path / "ablation.json"
    assert list(settled([one, two, three, four], file, ())) == [one.name]
    assert settled([one], file, (one.where,)) == {}
    file.write_text('{"schema": 1}', "utf-8")
    with pytest.raises(UsageError, match=r"no ablation\.json of a run"):
        settled([one], file, ())


def test_of_what_is_sound_a_run_that_goes_on_takes_over_what_nothing_noticed(tmp_path: Path) -> None:
    [quiet, noticed, doubtful] = list(untouched(CATALOGUE, AREAS))[:3]
    trials = [
        Trial(variant=quiet.name, digest=quiet.digest, outcome="survived"),
        Trial(variant=noticed.name, digest=noticed.digest, outcome="caught", stage="situations"),
        Trial(variant=doubtful.name, digest=doubtful.digest, outcome="unknown"),
    ]
    found = Ablation([quiet, noticed, doubtful], {}, {t.variant: t for t in trials})
    assert (found.verdict, found.figures()["tried"]) == ("violated", 0)
    assert "3 of 3 statements and functions met the same instruments" in document(found, False)
    write(found, tmp_path)
    assert list(settled([quiet, noticed, doubtful], tmp_path / "ablation.json", ())) == [quiet.name]
    for variant, verdict in ((noticed, "unknown"), (doubtful, "held")):
        del found.trials[variant.name]
        assert found.verdict == verdict


def test_the_page_counts_what_was_caught_and_lists_what_is_open_and_what_is_explained() -> None:
    [caught, explained, left] = STATEMENTS[:3]
    trials = [
        Trial(variant=caught.name, outcome="caught", stage="situations"),
        Trial(variant=explained.name, outcome="survived"),
        Trial(variant=left.name, outcome="survived"),
    ]
    page = document(
        Ablation([caught, explained, left], {explained.name: "why"}, {t.variant: t for t in trials}), False
    )
    assert "3 of 3 tried: 1 caught, 1 explained below, 1 open" in page
    assert f"- `{left.name}` (survived)" in page
    assert f"| `{explained.name}` | why |" in page


def test_every_reviewed_entry_is_about_what_is_there_and_gives_a_reason() -> None:
    in_the_sql = [entry for entry in outdated([*STATEMENTS, *FUNCTIONS]) if entry.kind != "constraint"]
    assert in_the_sql == []
    assert all(len(entry.reason) > 20 for entry in reviewed())
    keys = [entry.key for entry in reviewed()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("outcome", "explained", "verdict"),
    [("caught", False, "held"), ("survived", False, "violated"), ("survived", True, "held"),
     ("unknown", False, "unknown"), ("unknown", True, "held")],
)  # fmt: skip
def test_what_survives_without_an_explanation_fails_the_ablation(
    outcome: str, explained: bool, verdict: str
) -> None:
    variant = STATEMENTS[0]
    trial = Trial(variant=variant.name, outcome=outcome)  # type: ignore[arg-type]
    found = Ablation([variant], {variant.name: "why"} if explained else {}, {variant.name: trial})
    assert found.verdict == verdict


def test_a_sound_statement_that_is_noticed_fails_the_ablation() -> None:
    sound: Variant = next(untouched(CATALOGUE, AREAS))
    trial = Trial(variant=sound.name, outcome="caught", stage="model", by="x")
    assert Ablation([sound], {}, {sound.name: trial}).verdict == "violated"
