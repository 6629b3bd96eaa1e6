"""A verdict as CI reads it: what failed fails there, what is unknown does not pass, and any text comes through."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.ci import MOST_BYTES, MOST_SHOWN, Case, Files, Outcome, junit, markdown
from engine.errors import UsageError
from stress.ci_profile import RACES, SCENARIOS, ci_request

HELD = Case(name="single-owner", verdict="held", checked=1_234)
VIOLATED = Case(name="k1-exclusion", verdict="violated", told="two rows of key 7\n  commit 12\n  commit 13")
UNKNOWN = Case(name="gate-cap", verdict="unknown", told="nothing in this run was subject to it")
SKIPPED = Case(name="no-spin", verdict="not_exercised")


def outcome(*cases: Case, reason: str | None = None) -> Outcome:
    return Outcome(
        title="stress mixed",
        word="violated",
        reason=reason,
        cases=cases,
        facts={"seed": "7", "PostgreSQL": "18.6 (embedded)"},
        reproduce="nox -s stress -- --seed 7",
        seconds=20.0,
    )


def test_each_finding_is_a_test_case_of_its_kind_and_they_are_counted() -> None:
    root = ElementTree.fromstring(junit([outcome(HELD, VIOLATED, UNKNOWN, SKIPPED), outcome(HELD)]))
    assert root.attrib == {"tests": "5", "failures": "1", "errors": "1", "skipped": "1"}
    first, second = root.findall("testsuite")
    assert (first.attrib["name"], first.attrib["tests"], second.attrib["failures"]) == (
        "stress mixed",
        "4",
        "0",
    )
    kinds = {case.attrib["name"]: [child.tag for child in case] for case in first.findall("testcase")}
    assert kinds == {
        "single-owner": [], "k1-exclusion": ["failure"], "gate-cap": ["error"], "no-spin": ["skipped"],
    }  # fmt: skip
    failure = first.find("testcase/failure")
    assert failure is not None
    assert failure.text is not None
    assert failure.attrib["message"] == "two rows of key 7"
    assert "commit 13" in failure.text
    assert failure.text.endswith("nox -s stress -- --seed 7")
    properties = {each.attrib["name"]: each.attrib["value"] for each in first.iter("property")}
    assert properties["seed"] == "7"


def test_an_outcome_that_judged_nothing_is_an_error_and_not_an_empty_success() -> None:
    root = ElementTree.fromstring(junit([outcome(reason="interrupted")]))
    assert (root.attrib["tests"], root.attrib["errors"]) == ("1", "1")
    error = root.find("testsuite/testcase/error")
    assert error is not None
    assert error.attrib["message"] == "interrupted"


@pytest.mark.parametrize("text", ["\x00\x0b\x1b[31m", "\ud800", "\ufffe", "]]><&\"'", "日本 \U0001f600"])
def test_any_text_that_a_job_may_hold_leaves_the_file_readable(text: str) -> None:
    case = Case(name=f"name {text}", verdict="violated", told=f"key {text}")
    [found] = ElementTree.fromstring(junit([outcome(case)])).iter("testcase")
    legal = "".join(
        char if char.isprintable() and char not in "\ud800\ufffe" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
    assert found.attrib["name"] == f"name {legal}"


def test_a_summary_tells_the_verdict_first_and_then_why() -> None:
    lines = markdown(outcome(HELD, VIOLATED, UNKNOWN, SKIPPED)).splitlines()
    assert lines[0] == "### pgreferee: stress mixed: **violated**"
    assert "1 held, 1 violated, 1 unknown, 1 not exercised" in lines
    assert "| `k1-exclusion` | violated | two rows of key 7 |" in lines
    assert "| `gate-cap` | unknown | nothing in this run was subject to it |" in lines
    assert "  commit 13" in lines
    assert "single-owner 1,234" in lines
    assert lines[-2] == "Again: `nox -s stress -- --seed 7`"


def test_a_summary_stays_small_and_its_fences_closed_whatever_the_evidence() -> None:
    told = "first | line <b>\n" + "```\n" * 20_000
    many = [Case(name=f"rule-{number}", verdict="violated", told=told) for number in range(3 * MOST_SHOWN)]
    text = markdown(outcome(*many))
    assert len(text.encode()) < 2 * MOST_BYTES
    assert f"and {2 * MOST_SHOWN} more" in text
    assert "first \\| line &lt;b>" in text
    assert text.count("\n````text\n") == text.count("\n````\n") == MOST_SHOWN


def test_a_summary_is_appended_and_a_junit_file_written_anew(tmp_path: Path) -> None:
    files = Files(tmp_path / "races.xml", tmp_path / "summary.md")
    for _ in range(2):
        files.write(outcome(HELD))
    assert (tmp_path / "summary.md").read_text().count("### pgreferee") == 2
    assert (tmp_path / "races.xml").read_text().count("<testsuite ") == 1


def test_a_file_that_cannot_be_written_any_more_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        Files(tmp_path / "gone" / "races.xml", None).write(outcome(HELD))


def test_the_ci_profile_races_queue_and_store_and_draws_its_races_by_the_seed() -> None:
    def asked(seed: int, mutant: str | None = None) -> tuple[list[str], tuple[str, ...]]:
        request = ci_request(pg=("embedded",), nodes=4, seed=seed, faults="all", mutant=mutant)
        return [config.scenario for config in request.runs], request.races

    assert asked(1) == asked(1)
    assert asked(1)[0] == list(SCENARIOS)
    assert asked(1)[1] != asked(2)[1]
    assert len(set(asked(1)[1])) == RACES
    assert asked(1, "outcome-unguarded")[0] == ["mixed"]
    assert asked(1, "outbox-outside")[0] == ["store"]


def test_a_server_of_the_users_is_asked_for_again_without_its_password() -> None:
    request = ci_request(pg=("dsn:postgresql://me:secret@db/x",), nodes=4, seed=1, faults="all", mutant=None)
    assert request.command() == 'nox -s stress -- --profile ci --seed 1 --pg "dsn:$PGREFEREE_DSN"'
