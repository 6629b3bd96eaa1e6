"""Every statement answers, leaves, waits for and holds what it should, whatever its plan; and what it would otherwise
do shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine.postgres import Server, fresh_database
from engine.statements import Catalogue
from stress.mutants.ablating import STATEMENT_AREAS
from stress.mutants.ablation import of_functions, of_statements
from stress.mutants.concerns import statements_of
from stress.situations import ALL, by_statement
from stress.situations.site import Site
from stress.situations.situation import Situation, free, held, job, lock

CATALOGUE = Catalogue.load()


@pytest.fixture(scope="module")
def site(server: Server) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack.enter_context(fresh_database(server)), stack)


@pytest.mark.parametrize("statement", list(by_statement()))
def test_the_sound_statement_does_what_is_right(site: Site, statement: str) -> None:
    departures = [site.departure(situation, CATALOGUE) for situation in by_statement()[statement]]
    assert departures == [None] * len(departures)


def test_every_statement_that_has_something_to_take_out_is_asked_in_a_situation() -> None:
    variants = [*of_statements(CATALOGUE, dict.fromkeys(STATEMENT_AREAS)), *of_functions()]
    asked = by_statement()
    assert [one.name for one in variants if not statements_of(one.mutant) & asked.keys()] == []


def test_a_situation_has_one_name() -> None:
    names = [situation.name for situation in ALL]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("situation", "told"),
    [
        (Situation(statement="client/outcome", says="", arguments=(1,), answer=[(1,)], shows=(0,)), "it answers []"),
        (Situation(statement="client/outcome", says="", arguments=(1,), waits=True, holding=("SELECT 1",)),
         "it did not wait"),
        (Situation(statement="picker/reap", says="", arguments=(1,), given=(job(1),),
                   after={"SELECT count(*) FROM gen_durable": [(2,)]}), "shows [(1,)], not [(2,)]"),
        (Situation(statement="picker/release", says="", arguments=([1], ["c"]), given=(held(1),),
                   holding=(lock("gen_durable", "id = 1"),)), "LockNotAvailable"),
        (Situation(statement="picker/release", says="", arguments=([1, 2], ["c", "c"]), given=(held(1), held(2)),
                   holding=(lock("gen_durable", "id = 2"),), waits=True,
                   meanwhile={free("gen_durable", "id"): [(1,)]}), "while it waits"),
        (Situation(statement="picker/release", says="", arguments=([1], ["c"]), given=(held(1),),
                   beside={"SELECT FROM gen_durable FOR UPDATE": []}), "somebody else waits"),
    ],
)  # fmt: skip
def test_a_departure_is_told(site: Site, situation: Situation, told: str) -> None:
    assert told in (site.departure(situation, CATALOGUE) or "")
    # And leaves nothing behind.
    assert site.departure(by_statement()["picker/reap"][0], CATALOGUE) is None
