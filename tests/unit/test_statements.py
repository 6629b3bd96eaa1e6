"""Statements are read from their files, know the types of their parameters, and turn arguments into Postgres' text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from engine.statements import AREAS, Area, Catalogue, Statement, array_literal, load_migrations
from engine.values import TooLarge, bytes_sent


def test_a_statement_knows_its_comment_and_the_types_of_its_parameters() -> None:
    statement = Statement.parse(
        "a/b", "-- Says what.\n-- And why.\nSELECT $2::text[], $1::double precision\n"
    )

    assert statement.comment == "Says what.\nAnd why."
    assert statement.types == ("double precision", "text[]")
    assert statement.query == b"SELECT $2::text[], $1::double precision"


@pytest.mark.parametrize(
    "text", ["SELECT $1", "SELECT $2::text", "SELECT $1::text, $1", "SELECT $1::text, $1::int"]
)
def test_a_parameter_without_one_type_is_refused(text: str) -> None:
    if text == "SELECT $1::text, $1":  # one cast is declaration enough
        assert Statement.parse("a/b", text).types == ("text",)
        return
    with pytest.raises(ValueError, match="a/b"):
        Statement.parse("a/b", text)


def test_every_statement_of_the_engine_says_what_it_is_for_and_which_index_it_rides() -> None:
    for name, statement in Catalogue.load().items():
        assert "Index:" in statement.comment, name
        assert "Race:" in statement.comment or "Race 1:" in statement.comment, name


def test_a_patched_catalogue_differs_in_the_named_statement_alone() -> None:
    sound = Catalogue.load()
    patched = sound.patched({"picker/reap": "SELECT $1::bigint"})

    assert {name for name in sound if sound[name] != patched[name]} == {"picker/reap"}
    with pytest.raises(KeyError):
        sound.patched({"picker/none": "SELECT 1"})


@pytest.mark.parametrize("area", AREAS)
def test_migrations_are_numbered_without_a_gap(area: Area) -> None:
    versions = [migration.version for migration in load_migrations(area)]
    assert versions == list(range(1, len(versions) + 1))
    assert versions


@pytest.mark.parametrize(
    ("sql_type", "value", "encoded"),
    [
        ("text", None, None),
        ("text", "", ""),
        ("bigint", 2**63 - 1, "9223372036854775807"),
        ("boolean", True, "t"),
        ("double precision", 1e308, "1e+308"),
        ("timestamptz", datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (
            "timestamptz",
            datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=23))),
            "2026-01-01T01:00:00+00:00",
        ),
        ("bigint[]", [1, None, -1], "{1,NULL,-1}"),
        ("bigint[]", [], "{}"),
        ("text[]", ["NULL", None, "", 'a"b', "a\\b", "{,}"], '{"NULL",NULL,"","a\\"b","a\\\\b","{,}"}'),
    ],
)
def test_an_argument_is_sent_as_the_text_that_postgres_reads(
    sql_type: str, value: object, encoded: str | None
) -> None:
    assert Statement.parse("a/b", f"SELECT $1::{sql_type}").encode((value,)) == [encoded]


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [
        ("text", b"x"),
        ("text", object()),
        ("text[]", [1]),
        ("text[]", "abc"),
        ("bigint[]", 1),
        ("bigint[]", [b"1"]),
    ],
)
def test_an_argument_of_a_foreign_type_is_refused(sql_type: str, value: object) -> None:
    with pytest.raises(TypeError):
        Statement.parse("a/b", f"SELECT $1::{sql_type}").encode((value,))


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Statement.parse("a/b", "SELECT $1::timestamptz").encode((datetime(2026, 1, 1),))  # noqa: DTZ001


def test_a_wrong_number_of_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 1"):
        Statement.parse("a/b", "SELECT $1::text").encode(("a", "b"))


def test_no_statement_takes_a_lock_that_outlives_its_transaction() -> None:
    migrations = [migration.text for area in AREAS for migration in load_migrations(area)]
    texts = [*migrations, *(statement.text for statement in Catalogue.load().values())]
    assert [text for text in texts if re.search(r"\bpg_(try_)?advisory_(lock|unlock)", text)] == []


@pytest.mark.parametrize("texts", [[], [""], ["a", "\U0001d11e" * 3, '"\\"', "\n"]])
def test_what_an_element_costs_is_what_it_adds_to_the_literal(texts: list[str]) -> None:
    literal = array_literal(texts)
    # Braces around them, and no comma behind the last.
    assert len(literal.encode()) == sum(map(bytes_sent, texts)) + 2 - bool(texts)


def test_a_statement_is_asked_with_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.statements.MAX_SENT_BYTES", 40)
    statement = Statement.parse("a/b", "SELECT $1::text, $2::text[]")
    for texts in (["x" * 8], ["\U0001d11e" * 2], ['"' * 4]):
        statement.encode(("\U0001d11e" * 7, texts))
        with pytest.raises(TooLarge, match="44 bytes"):
            statement.encode(("\U0001d11e" * 8, texts))
