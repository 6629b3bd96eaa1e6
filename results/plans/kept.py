"""Plans that a session keeps: made when next to nothing was there, and used when the tables are full.

A session prepares its statements once, and a generic plan stays until somebody analyses a table that it reads. What
costs nothing on an empty table may then be a scan of all rows for as long as nobody does. So the third plan of each
statement is that of a session which planned when the first job had come, the first execution and the first message:
without them, the statements about them are not sent. Before, all was empty and vacuumed. The tables are filled after
that, and not yet analysed. Each is run once, for a vacuum in between would end the plan, so buffers hold what earlier
runs left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec
import psycopg

from engine import sessions
from engine.postgres import Server, fresh_database
from engine.statements import Catalogue
from results.plans import sample
from results.plans.arguments import CASES, Case
from results.plans.capture import Session, create, empty, execution, fill, preparation
from results.plans.folder import Capture, Captured, Explained
from results.plans.profiles import Profile

# The first of each kind, and what it is asked for with.
FIRST: Final[Mapping[str, tuple[Any, ...]]] = {
    "picker/insert": ("order", 1, "charge", "{}", "default", 0, None, None, None, 1.0, None, "{}"),
    "store/commit_cas": ("first", "order", "d", 0, None, "RUNNING", None, "root", None),
    "transport/publish": (["first"], ["m"], [0], None),
}


class Kept:
    """A session that has planned every case; needs a database that `capture.create` made and nobody has filled."""

    def __init__(
        self,
        dsn: str,
        catalogue: Catalogue,
        cases: Iterable[Case],
        *,
        settings: str = sessions.SETTINGS,
    ) -> None:
        self._dsn = dsn
        self._catalogue = catalogue
        self._session = Session(dsn, settings=settings)
        self._begin()
        self._session.set("plan_cache_mode", "force_generic_plan")
        self._names: dict[str, Case] = {}
        for number, case in enumerate(cases):
            statement, name = catalogue[case.statement], f"kept{number}"
            try:
                self._session.connection.execute(preparation(name, statement).encode())
                self._session.plan(execution(name, [None] * len(statement.types)), "EXPLAIN (FORMAT JSON)")
            except psycopg.Error:
                # What the server refuses now it refuses later, and is told then.
                if self._session.connection.closed:
                    raise
                continue
            self._names[name] = case
        # The rows go, their pages stay.
        empty(dsn)

    def _begin(self) -> None:
        execute = self._session.connection.execute
        for name, arguments in FIRST.items():
            statement = self._catalogue[name]
            execute(preparation("first", statement).encode())
            execute(execution("first", statement.encode(arguments)))
            execute("DEALLOCATE first")

    def explained(self, profile: Profile) -> dict[str, Explained]:
        """Their plans by label, run on the data that are there now. Raises psycopg.Error."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            there = sample.read(connection, profile.rows, profile.batch)
        answer = {}
        for name, case in self._names.items():
            values = self._catalogue[case.statement].encode(tuple(case.make(there)))
            answer[case.label] = Explained(plan=self._session.plan(execution(name, values)).root)
        return answer

    def close(self) -> None:
        """End the session, and with it the plans."""
        self._session.close()


def kept_capture(
    server: Server,
    profile: Profile,
    catalogues: Mapping[str, Catalogue],
    *,
    cases: Sequence[Case] = CASES,
    alterations: Sequence[str] = (),
) -> dict[str, Capture]:
    """The kept plans of each catalogue, by its name, all in one database: nothing else is captured. `alterations` are
    run on the empty schema. Raises psycopg.Error."""
    with fresh_database(server) as dsn:
        create(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            for text in alterations:
                connection.execute(text.encode())
        keepers = {name: Kept(dsn, catalogue, cases) for name, catalogue in catalogues.items()}
        fill(dsn, profile, analysed=False)
        plans = {}
        for name, keeper in keepers.items():
            plans[name] = keeper.explained(profile)
            keeper.close()
        with closing(Session(dsn)) as session:
            environment = session.environment(source=server.source, profile=profile, labels=[])
    return {
        name: Capture(
            environment=environment,
            statements={
                label: Captured(
                    label=label, statement=label.partition("@")[0], text="", key="", plans={"kept": explained}
                )
                for label, explained in of.items()
            },
        )
        for name, of in plans.items()
    }


def with_kept(statements: Mapping[str, Captured], plans: Mapping[str, Explained]) -> dict[str, Captured]:
    """What was captured, with the plans that were kept. Pure."""
    return {
        label: msgspec.structs.replace(each, plans={**each.plans, "kept": plans[label]})
        if label in plans and not each.error
        else each
        for label, each in statements.items()
    }
