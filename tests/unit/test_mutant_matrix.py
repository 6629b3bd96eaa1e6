"""The matrix counts a catch as one, says so of a survivor, and believes no instrument that accuses the sound engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import UsageError
from invariants.mutants import PLANS, REGISTRY
from results.plans.shapes import Violation
from results.plans.verdict import RULES
from stress.mutants.asking import Ask, take_in, take_over, work
from stress.mutants.concerns import callers, machines_of, statements_of
from stress.mutants.instruments import Bench, concerning, control_items
from stress.mutants.matrix import Matrix, Row, instruments_for
from stress.mutants.pool import Lost
from stress.mutants.report import compared, document, read, sentences, written
from stress.mutants.seen import INSTRUMENTS, Instrument, Seen, Sight


def seen(instrument: Instrument, sight: Sight, seconds: float = 1.0) -> Seen:
    return Seen(
        instrument=instrument, sight=sight, seconds=seconds, by=("single-owner",) * (sight == "caught")
    )


def drawn(seed: int) -> Seen:
    return Seen(instrument="model", sight="held", seed=seed)


def matrix(*sights: Seen, control: Seen | None = None) -> Matrix:
    sound = seen("script", "held") if control is None else control
    return Matrix({"m": Row("m", "is broken", list(sights))}, {(sound.instrument, "item"): sound})


@pytest.mark.parametrize(
    ("sights", "verdict"),
    [
        ([seen("script", "caught")], "held"),
        ([seen("script", "held"), seen("model", "caught")], "held"),
        ([seen("script", "held"), seen("model", "held")], "violated"),
        ([seen("script", "apart"), seen("model", "apart")], "violated"),
        ([seen("script", "held"), seen("model", "unknown")], "unknown"),
        ([], "unknown"),
    ],
)
def test_a_mutant_that_nothing_caught_fails_the_matrix_and_a_doubt_is_no_catch(
    sights: list[Seen], verdict: str
) -> None:
    assert matrix(*sights).verdict == verdict


@pytest.mark.parametrize(
    ("sight", "verdict"), [("held", "held"), ("caught", "violated"), ("unknown", "unknown")]
)
def test_an_instrument_that_accuses_the_sound_engine_is_not_believed(sight: Sight, verdict: str) -> None:
    found = matrix(seen("script", "caught"), control=seen("script", sight))
    assert found.verdict == verdict
    assert any("ACCUSED" in line for line in sentences(found)) == (sight == "caught")


def test_the_time_to_the_catch_counts_every_instrument_before_it() -> None:
    row = Row(
        "m", "", [seen("script", "held", 2.0), seen("model", "caught", 3.0), seen("explore", "caught", 9.0)]
    )
    assert row.caught_after_s == 5.0
    assert row.cell("script") == "held"
    assert row.cell("model") == "3.0 s"
    assert row.cell("swarm") == ""


def test_of_several_seeds_a_cell_says_how_many_caught_it() -> None:
    row = Row("m", "", [seen("model", "caught"), seen("model", "held"), seen("model", "caught")])
    assert row.cell("model") == "2 of 3"


def test_what_breaks_only_a_plan_is_shown_to_plans_alone_unless_all_is_asked() -> None:
    assert instruments_for(False, full=False) == ("plans",)
    assert instruments_for(False, full=True) == instruments_for(True, full=False) == INSTRUMENTS


def test_an_instrument_that_crashes_is_unknown() -> None:
    broken: Bench = None  # type: ignore[assignment]
    [found] = work(broken, Ask("outcome-unguarded", ("script",), (1,)))
    assert found.sight == "unknown"
    assert "AttributeError" in found.detail


def test_the_page_has_a_row_for_every_mutant_and_one_for_the_sound_engine() -> None:
    page = document(matrix(seen("script", "caught")), "how")
    assert "| `m` | 1.0 s |" in page
    assert "| (none: the sound engine) | held (1 s) |" in page


def test_the_page_of_all_instruments_has_steps_and_how_many_seeds_caught_it() -> None:
    sights = [seen("script", "caught"), seen("explore", "held", 3.0), seen("swarm", "apart")]
    sights += [seen("model", "caught", 2.0), seen("model", "caught", 4.0), seen("model", "held", 9.0)]
    page = compared(matrix(*sights), "how")
    assert "| `m` | 1.0 s, 0 | 2 of 3: 4.0 s, 0 | held, 0 | apart |  | is broken |" in page
    assert "| model | 1 | 1 | 0 | 3.0 s |" in page
    assert "Still to be asked: `m` (plans)." in page
    assert "Still to be asked: `m` (model, explore, swarm, plans)." in compared(
        matrix(seen("script", "held"), drawn(1), drawn(2), seen("explore", "unknown")), "how"
    )


@pytest.mark.parametrize("name", [*REGISTRY, *PLANS])
def test_a_mutant_of_statements_concerns_those_and_what_calls_its_functions(name: str) -> None:
    mutant = REGISTRY.get(name) or PLANS[name]
    statements = statements_of(mutant)
    assert set(mutant.statements) <= statements
    assert all(callers(function) for function in mutant.functions)
    if any(statement.startswith(("picker/", "limiter/")) for statement in statements):
        assert machines_of(mutant)


def test_a_run_that_goes_on_asks_what_was_left_open_and_what_is_named(tmp_path: Path) -> None:
    caught, held, doubt = seen("script", "caught"), seen("script", "held"), seen("script", "unknown")
    names = ("outcome-unguarded", "dedup-forgets", "no-check")
    earlier = Matrix(
        {name: Row(name, "", [sight]) for name, sight in zip(names, (caught, held, caught), strict=True)},
        {("script", "good"): held, ("script", "doubtful"): doubt},
    )
    written(earlier, tmp_path, {"seed": 1}, "how")
    known = read(tmp_path / "verdict.json").matrix
    now = Matrix({name: Row(name, "") for name in names})
    asks = [Ask(name, ("script",), (1,)) for name in names]
    asks += [Ask(None, ("script",), (1,), item) for item in ("good", "doubtful", "new")]
    left = [ask.mutant or ask.item for ask in asks if not take_over(now, known, ask, frozenset({"no-check"}))]
    assert left == ["dedup-forgets", "no-check", "doubtful", "new"]
    assert now.rows["outcome-unguarded"].catch == caught
    assert now.control == {("script", "good"): held}


def test_a_full_run_goes_on_with_the_instruments_and_seeds_that_it_had_not_come_to(tmp_path: Path) -> None:
    earlier = Matrix(
        {
            "outcome-unguarded": Row("outcome-unguarded", "", [drawn(1), drawn(2), drawn(3), seen("script", "caught")]),
            "no-check": Row("no-check", "", [drawn(1), drawn(2), seen("script", "unknown")]),
        },
        {("swarm", "mixed, seed 1"): seen("swarm", "held")},
    )  # fmt: skip
    written(earlier, tmp_path, {"seed": 1, "only": ["outcome-unguarded", "no-check"]}, "how")
    known = read(tmp_path / "verdict.json")
    assert (known.seed, known.only) == (1, ("outcome-unguarded", "no-check"))
    now = Matrix({name: Row(name, "") for name in known.only})
    instruments: tuple[Instrument, ...] = ("script", "model", "swarm")
    seeds = {"script": (1,), "model": (1, 2, 3), "swarm": (1,)}
    asks = [
        Ask(m, (one,), (seed,), all_=True) for m in known.only for one in instruments for seed in seeds[one]
    ]
    asks += [Ask(None, ("swarm",), (seed,), "mixed", all_=True) for seed in (1, 2)]
    left = [
        (ask.mutant or ask.key[1], *ask.instruments, *ask.seeds)
        for ask in asks
        if not take_over(now, known.matrix, ask, frozenset())
    ]
    assert left == [
        ("outcome-unguarded", "swarm", 1), ("no-check", "script", 1), ("no-check", "model", 3),
        ("no-check", "swarm", 1), ("mixed, seed 2", "swarm", 2),
    ]  # fmt: skip
    assert [one.seed for one in now.rows["outcome-unguarded"].of("model")] == [1, 2, 3]


def test_of_an_earlier_run_with_another_seed_only_the_seeds_asked_for_are_taken_over() -> None:
    earlier = Matrix({"no-check": Row("no-check", "", [drawn(1), drawn(2), drawn(3)])}, {})
    now = Matrix({"no-check": Row("no-check", "")})
    asks = [Ask("no-check", ("model",), (seed,), all_=True) for seed in (2, 3, 4)]
    assert [take_over(now, earlier, ask, frozenset()) for ask in asks] == [True, True, False]
    assert [one.seed for one in now.rows["no-check"].seen] == [2, 3]


def test_of_a_worker_that_was_lost_only_the_seed_that_it_had_is_asked_again() -> None:
    earlier = Matrix({"no-check": Row("no-check", "", [drawn(1), drawn(3)])}, {})
    asks = [Ask("no-check", ("model",), (seed,), all_=True) for seed in (1, 2, 3)]
    take_in(earlier, asks[1], Lost("it was gone"))
    now = Matrix({"no-check": Row("no-check", "")})
    assert [take_over(now, earlier, ask, frozenset()) for ask in asks] == [True, False, True]


def test_a_run_that_goes_on_is_full_where_the_earlier_one_was(tmp_path: Path) -> None:
    for full in (False, True):
        written(Matrix({}), tmp_path, {"seed": 1, "full": full}, "how")
        assert read(tmp_path / "verdict.json").full == full


@pytest.mark.parametrize("name", sorted(PLANS))
def test_what_a_plan_mutant_names_stands_for_rules_that_a_plan_can_break(name: str) -> None:
    broken = [Violation("picker/claim", "custom", rule, "", "") for rule in RULES]
    concerned = {RULES[one.rule] for one in concerning(PLANS[name], broken)}
    assert concerned == set(PLANS[name].caught_by)


def test_a_mutant_that_is_about_something_else_is_caught_by_whatever_its_plan_breaks() -> None:
    broken = [Violation("picker/claim", "custom", rule, "", "") for rule in RULES]
    assert concerning(REGISTRY["outcome-unguarded"], broken) == broken


def test_of_the_sound_engine_is_asked_what_the_mutants_may_meet_and_nothing_else() -> None:
    assert list(control_items([REGISTRY["dedup-forgets"], PLANS["claim-not-exists"]])) == [
        ("script", "dedup-forgets"), ("model", "coordination"), ("model", "picker"),
        ("explore", "delivery-again-after-consumption"), ("swarm", "mixed"), ("plans", "every statement"),
    ]  # fmt: skip


def test_what_is_no_verdict_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text('{"schema": 1}', "utf-8")
    with pytest.raises(UsageError, match="no verdict of a run of mutants"):
        read(tmp_path / "verdict.json")
