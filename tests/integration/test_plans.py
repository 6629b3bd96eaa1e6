"""Every statement's plan, captured on a real server: the shapes hold, and each known bad form is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.postgres import Server, fresh_database
from engine.sessions import SETTINGS
from engine.statements import Catalogue
from invariants.mutants import FREE_PLANS, KEPT_PLANS, PLANS, Patch
from results.plans import shapes
from results.plans.arguments import CASES, Case
from results.plans.capture import Session, capture_all, create, prepare, with_ties
from results.plans.comparing import compare
from results.plans.conditions import captured_under
from results.plans.folder import Capture, read
from results.plans.kept import kept_capture
from results.plans.profiles import PROFILES, Profile, grown
from results.plans.tree import walk
from results.plans.verdict import RULES, broken
from stress.mutants.instruments import Bench, control, see

# Captures are made once a module, in whichever test comes first: minutes on a machine with much else to do.
pytestmark = pytest.mark.timeout(900)

CATALOGUE = Catalogue.load()
# Large enough for the bad forms to show, small enough to be seeded in a second or two.
PROFILE = grown(30_000, like=PROFILES["medium"], batch=100)


@dataclass(frozen=True)
class Seeded:
    """A database with the profile's data, and copies of it."""

    server: Server
    dsn: str
    profile: Profile = PROFILE

    def captured(
        self,
        dsn: str,
        cases: Sequence[Case] = CASES,
        catalogue: Catalogue = CATALOGUE,
        settings: str = SETTINGS,
    ) -> Capture:
        session = Session(dsn, settings=settings, repetitions=1 if self.profile.name == "small" else 3)
        try:
            statements = capture_all(session, catalogue, self.profile, cases=cases)
            if cases is CASES:
                statements = with_ties(session, catalogue, self.profile, statements)
            environment = session.environment(source="test", profile=self.profile, labels=statements)
        finally:
            session.close()
        return Capture(environment=environment, statements=statements)


@pytest.fixture(scope="module")
def seeded(server: Server) -> Iterator[Seeded]:
    with fresh_database(server) as dsn:
        prepare(dsn, PROFILE)
        yield Seeded(server, dsn)


@pytest.fixture(scope="module")
def sound(seeded: Seeded) -> Capture:
    return seeded.captured(seeded.dsn)


def of(*statements: str) -> list[Case]:
    return [case for case in CASES if case.statement in statements]


def test_every_statement_is_captured_in_both_modes_and_none_fails(sound: Capture) -> None:
    assert {each.statement for each in sound.statements.values()} == set(CATALOGUE)
    assert [each.label for each in sound.statements.values() if each.error] == []
    assert all(set(each.plans) == {"custom", "generic"} for each in sound.statements.values())


def test_a_capture_changes_nothing(seeded: Seeded, sound: Capture) -> None:
    with psycopg.connect(seeded.dsn) as connection:
        counts = connection.execute(
            "SELECT status::text, count(*) FROM gen_durable GROUP BY status ORDER BY status"
        ).fetchall()
    assert ("executing", PROFILE.executing) in counts
    assert sum(count for _, count in counts) == PROFILE.rows


def test_statements_inside_functions_are_captured_or_it_is_said_why_not(sound: Capture) -> None:
    cas = sound.statements["store/commit_cas"]
    if cas.functions == "auto_explain":
        texts = [inner.text for inner in cas.plans["custom"].inner]
        assert any(text.startswith("UPDATE executions") for text in texts), texts
    else:
        assert cas.functions.startswith("not captured: ")


def test_the_claim_stops_at_its_limit_and_rides_what_it_should(sound: Capture) -> None:
    hot = [violation for violation in shapes.check(sound) if violation.label.startswith("picker/claim")]
    assert hot == []


@pytest.mark.parametrize(
    "name", [name for name, mutant in PLANS.items() if mutant.statements and name not in KEPT_PLANS]
)
def test_the_plan_mutant_is_named(name: str, seeded: Seeded) -> None:
    mutant = PLANS[name]
    settings = "" if name in FREE_PLANS else SETTINGS
    cases = of(*mutant.statements)
    if name in FREE_PLANS:
        assert shapes.check(seeded.captured(seeded.dsn, cases, settings=settings)) == []
    found = shapes.check(seeded.captured(seeded.dsn, cases, mutant.apply(CATALOGUE), settings))
    assert broken(found) & set(mutant.caught_by), found
    assert {violation.label.partition("@")[0] for violation in found} == set(mutant.statements)


def test_the_matrix_is_shown_by_plans_what_a_statement_costs_and_accuses_no_sound_one(
    seeded: Seeded, sound: Capture
) -> None:
    with ExitStack() as stack:
        bench = Bench(seeded.server, stack, _plans=(seeded.dsn, sound))
        caught = see("plans", bench, PLANS["claim-not-exists"], 1)
        assert (caught.sight, caught.by) == ("caught", ("hashed-subplan",))
        assert see("plans", bench, PLANS["claim-guard-is-null"], 1).sight == "caught"
        patch = Patch("UPDATE gen_durable AS g", "UPDATE nowhere AS g")
        refused = replace(PLANS["claim-not-exists"], statements={"picker/claim": (patch,)})
        assert see("plans", bench, refused, 1).sight == "unknown"
        assert control("plans", bench, "every statement", 1).sight == "held"


def kept_breaks(capture: Capture) -> set[str]:
    """What kept plans break: statement and invariant."""
    return {f"{each.label.partition('@')[0]} {RULES[each.rule]}" for each in shapes.check(capture)}


@pytest.fixture(scope="module")
def kept(server: Server) -> dict[str, set[str]]:
    """What the plans break that a session keeps from when there was next to nothing: of the sound engine and of all
    mutants of such plans at once, which are of different statements."""
    everything = CATALOGUE
    for name in sorted(KEPT_PLANS):
        everything = PLANS[name].apply(everything)
    captures = kept_capture(server, PROFILE, {"sound": CATALOGUE, "": everything})
    return {which: kept_breaks(capture) for which, capture in captures.items()}


def test_a_plan_that_is_kept_from_an_empty_queue_reads_no_more_than_its_batch(
    kept: dict[str, set[str]],
) -> None:
    assert kept["sound"] == set()


@pytest.mark.parametrize("name", sorted(name for name in KEPT_PLANS if PLANS[name].statements))
def test_the_mutant_of_a_kept_plan_is_named(name: str, kept: dict[str, set[str]]) -> None:
    mutant = PLANS[name]
    wanted = {f"{statement} {invariant}" for statement in mutant.statements for invariant in mutant.caught_by}
    assert wanted <= kept[""]


_SECONDARY = """
SELECT c.relname, pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = c.oid)
ORDER BY c.relname
"""


def test_a_kept_plan_is_as_good_where_the_indexes_were_made_in_another_order(
    server: Server, database: str
) -> None:
    # As a restored dump makes them. On empty tables all indexes cost the same, and the last one that answers is taken.
    create(database)
    with psycopg.connect(database) as connection:
        indexes = connection.execute(_SECONDARY).fetchall()
    again = [text for name, definition in indexes for text in (f"DROP INDEX {name}", definition)]
    [capture] = kept_capture(server, PROFILE, {"": CATALOGUE}, alterations=again).values()
    assert kept_breaks(capture) == set()


@pytest.mark.parametrize("name", sorted(name for name in KEPT_PLANS if PLANS[name].schema))
def test_an_index_that_answers_others_too_is_named_by_their_kept_plans(name: str, server: Server) -> None:
    mutant = PLANS[name]
    [capture] = kept_capture(
        server, PROFILE, {"": CATALOGUE}, cases=of("picker/claim"), alterations=mutant.alterations()
    ).values()
    assert kept_breaks(capture) == {f"picker/claim {invariant}" for invariant in mutant.caught_by}


def riders(capture: Capture, index: str) -> list[Case]:
    """The cases of which a plan, or one inside of their functions, rides an index or arbitrates by it."""
    answer = []
    for case in CASES:
        for explained in capture.statements[case.label].plans.values():
            trees = (explained.plan, *(inner.plan for inner in explained.inner))
            nodes = [node for tree in trees for node in walk(tree)]
            if any(
                node.index == index
                or index in node.conditions.get("Conflict Arbiter Indexes", "").split(", ")
                for node in nodes
            ):
                answer.append(case)
                break
    return answer


_INDEX = """
SELECT i.indrelid::regclass::text, pg_get_indexdef(i.indexrelid), c.conname, pg_get_constraintdef(c.oid)
FROM pg_index AS i LEFT JOIN pg_constraint AS c ON c.conindid = i.indexrelid AND c.contype IN ('p', 'u')
WHERE i.indexrelid = %s::regclass
"""
_REFERENCES = """
SELECT c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint AS c
WHERE c.contype = 'f' AND c.conindid = %s::regclass
"""


@contextmanager
def without(connection: psycopg.Connection[Any], index: str, dropping: Sequence[str] = ()) -> Iterator[None]:
    """The schema without an index, constraint or foreign keys that rest on it; `dropping`: in other words."""
    row = connection.execute(_INDEX, [index]).fetchone()
    assert row is not None
    table, definition, constraint, constraint_definition = row
    references = connection.execute(_REFERENCES, [index]).fetchall()
    for place, name, _ in references:
        connection.execute(f"ALTER TABLE {place} DROP CONSTRAINT {name}".encode())
    drop = f"ALTER TABLE {table} DROP CONSTRAINT {constraint}" if constraint else f"DROP INDEX {index}"
    for text in dropping or (drop,):
        connection.execute(text.encode())
    try:
        yield
    finally:
        connection.execute(f"DROP INDEX IF EXISTS {index}".encode())
        connection.execute(
            (
                f"ALTER TABLE {table} ADD CONSTRAINT {constraint} {constraint_definition}"
                if constraint
                else definition
            ).encode()
        )
        for place, name, text in references:
            connection.execute(f"ALTER TABLE {place} ADD CONSTRAINT {name} {text}".encode())
        connection.execute(f"VACUUM (ANALYZE) {table}".encode())


# An index that no statement of the catalogue rides.
UNRIDDEN = {"pgreferee_migrations_pkey"}


@dataclass(frozen=True)
class Loss:
    """What the statements that ride an index made of its absence: those that regressed, and the invariants broken."""

    riders: frozenset[str]
    verdict: str
    regressed: frozenset[str]
    broken: frozenset[str]


@pytest.fixture(scope="module")
def little(server: Server) -> Iterator[Seeded]:
    with fresh_database(server) as dsn:
        prepare(dsn, PROFILES["small"])
        yield Seeded(server, dsn, PROFILES["small"])


@pytest.fixture(scope="module")
def losses(little: Seeded) -> dict[str, Loss]:
    """By index of the schema, each dropped alone; and the mutant whose index has another predicate."""
    before = little.captured(little.dsn, tuple(CASES))
    answer = {}
    with psycopg.connect(little.dsn, autocommit=True) as connection:
        indexes = connection.execute(
            "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        ).fetchall()
        droppings: list[tuple[str, str, tuple[str, ...]]] = [(name, name, ()) for (name,) in indexes]
        droppings.append(
            ("predicate-mismatch", "gen_durable_pick", PLANS["predicate-mismatch"].alterations())
        )
        for name, index, dropping in droppings:
            concerned = riders(before, index)
            with without(connection, index, dropping):
                after = little.captured(little.dsn, concerned)
            labels = frozenset(case.label for case in concerned)
            was = Capture(
                environment=before.environment,
                statements={label: before.statements[label] for label in labels},
            )
            comparison = compare(was, after)
            answer[name] = Loss(
                labels,
                comparison.verdict,
                frozenset(each.label for each in comparison.differences if each.counts),
                frozenset(broken(shapes.check(after))),
            )
    return answer


def test_without_any_one_index_those_that_rode_it_have_regressed(losses: dict[str, Loss]) -> None:
    assert len(losses) > 25
    assert {name for name, loss in losses.items() if not loss.riders} == UNRIDDEN
    unnoticed = {
        name: loss.riders - loss.regressed
        for name, loss in losses.items()
        if loss.riders and (loss.verdict != "regressed" or not loss.regressed)
    }
    assert unnoticed == {}


@pytest.mark.parametrize(
    "name", [name for name, mutant in PLANS.items() if mutant.schema and name not in KEPT_PLANS]
)
def test_the_mutant_of_the_schema_is_named(name: str, losses: dict[str, Loss]) -> None:
    loss = losses[
        name.removeprefix("index-missing-").replace("-", "_") if name != "predicate-mismatch" else name
    ]
    assert loss.broken & set(PLANS[name].caught_by), loss


def test_capturing_five_times_gives_the_same_each_time(little: Seeded) -> None:
    first = little.captured(little.dsn)
    for _ in range(5):
        comparison = compare(first, little.captured(little.dsn))
        assert comparison.verdict == "same", [str(each) for each in comparison.differences if each.counts]


def test_what_a_condition_changes_is_recorded_and_a_claim_brings_no_more_than_its_batch(
    server: Server, tmp_path: Path
) -> None:
    found = captured_under(
        server,
        PROFILES["small"],
        tmp_path,
        ["swarm", "old-snapshot", "stale-statistics", "no-index-scan"],
        cases=of("picker/claim"),
    )
    assert [each.condition for each in found] == [
        "swarm",
        "old-snapshot",
        "stale-statistics",
        "no-index-scan",
    ]
    assert [each.overclaims for each in found] == [()] * 4
    swarm, snapshot, _, forced = found
    assert int(swarm.note.split()[0]) >= 0
    # What ended under the snapshot is still there: the claim walks past it.
    assert any(each.severity == "work" and "buffers" in each.message for each in snapshot.differences)
    assert any(each.severity == "shape" for each in forced.differences)
    for each in found:
        told = json.loads((tmp_path / "under" / each.condition / "differences.json").read_text("utf-8"))
        assert len(told["differences"]) == len(each.differences)
        read(tmp_path / "under" / each.condition)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "results", "plans", *arguments], capture_output=True, text=True, timeout=110
    )


def test_statements_of_ones_own_are_captured_and_compared(tmp_path: Path, pg_spec: str) -> None:
    sql = tmp_path / "sql"
    sql.mkdir()
    (sql / "take.sql").write_text("-- Take.\nSELECT j.id FROM job AS j WHERE j.id = $1::bigint\n", "utf-8")
    (sql / "take.json").write_text("[7]", "utf-8")
    schema, seed = tmp_path / "schema.sql", tmp_path / "seed.sql"
    schema.write_text("CREATE TABLE job (id bigint PRIMARY KEY);", "utf-8")
    seed.write_text("INSERT INTO job SELECT generate_series(1, 20000);", "utf-8")
    out = tmp_path / "out"
    own = ["--sql", str(sql), "--schema", str(schema), "--seed", str(seed)]
    done = run("capture", "--pg", pg_spec, "--out", str(out), *own)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "verdict: held"), done.stdout + done.stderr
    [folder] = [place for place in out.iterdir() if place.is_dir()]
    assert (out / "verdict.json").is_file()
    page = tmp_path / "page.html"
    compared = run("compare", str(folder), str(folder), "--html", str(page))
    assert (compared.returncode, compared.stdout.splitlines()[-1]) == (0, "verdict: same")
    assert page.read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "nowhere", "nowhere"),
        ("capture", "--pg", "12"),
        ("capture", "--profile", "huge"),
        ("capture", "--sql", "."),
        ("capture", "--under", "rain"),
        ("compare", "HEAD~1000000:18", "18"),
    ],
)
def test_wrong_usage_ends_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
