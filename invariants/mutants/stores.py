"""Stores that take one step of their protocol differently: mutants that no edit of a statement can express."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from engine.operation import Begin, Operation, call
from engine.operation import Commit as Ended
from engine.statements import Catalogue, Statement
from engine.store import PostgresStore, dbapi
from engine.store.encoding import Prepared, bounded, cursor_of, place_of, prepare, summary_of
from engine.store.execution import Commit, CommitOutcomeUnknown, Execution, Page, StoreConflict
from engine.store.operations import Operations, refusal_of
from engine.store.postgres import T
from invariants.mutants.mutant import Mutant

_EMIT = Statement.parse(
    "store/emit", "INSERT INTO outbox (target_id, event) SELECT * FROM unnest($1::text[], $2::text[])"
)
_PAGE = Statement.parse(
    "store/page_by_offset",
    "SELECT e.id, e.definition_id, e.version, e.status, e.outcome, e.active_path, e.parent_id "
    "FROM executions AS e ORDER BY e.id OFFSET $1::bigint LIMIT $2::bigint",
)


class EmitsApart(Operations):
    """State and outbox in two transactions."""

    def commit(self, commit: Commit) -> Operation[None]:
        """As the store's, without the outbox, which comes after."""
        yield from super().commit(msgspec.structs.replace(commit, emits=()))
        outbox = prepare(commit).outbox
        yield call(_EMIT, [target for target, _ in outbox], [event for _, event in outbox])


class PagesByOffset(Operations):
    """A cursor that says how many rows came before."""

    def list_executions(
        self,
        status: str | Iterable[str] | None = None,
        definition_id: str | None = None,
        roots_only: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Operation[Page]:
        """As the store's, of all executions."""
        assert status is None
        assert definition_id is None
        assert not roots_only
        offset = int(place_of(cursor) or 0)
        rows = yield call(_PAGE, offset, bounded(limit) + 1)
        items = tuple(summary_of(row) for row in rows[:limit])
        return Page(items, cursor_of(str(offset + limit)) if len(rows) > limit else None)


class ForgetsRollback(Operations):
    """A lost commit ends with its error, and with nothing else."""

    def _compare_and_set(self, commit: Prepared) -> Operation[StoreConflict | None]:
        _, rows = yield (
            Begin(),
            call(
                self._sql["store/commit_cas"],
                commit.id, commit.definition_id, commit.data, commit.expected, commit.event,
                commit.status, commit.outcome, commit.active_path, commit.parent_id,
            ),
        )  # fmt: skip
        if rows[0][0]:
            yield Ended()
            commit.execution.version = commit.expected + 1
            return None
        rows = yield (call(self._sql["store/why"], commit.id, commit.event),)
        return refusal_of(commit.id, commit.expected, *rows[0][0])


class Careless:
    """Drives operations over an injected connection and ends no transaction but by `Ended`; `reads_end`: nor does a
    statement outside of one where that is false."""

    def __init__(self, connection: dbapi.Connection, reads_end: bool) -> None:
        self._connection = connection
        self._reads_end = reads_end

    def run(self, operation: Operation[T]) -> T:
        """Run one to its end, and clean nothing up."""
        try:
            pending: Any = next(operation)
            while True:
                requests = pending if isinstance(pending, tuple) else (pending,)
                answers = [dbapi._one(self._connection, request) for request in requests]
                if self._reads_end and not isinstance(pending, tuple):
                    self._connection.commit()
                pending = operation.send(answers if isinstance(pending, tuple) else answers[0])
        except StopIteration as stop:
            result: T = stop.value
            return result

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class CommitsAgain(PostgresStore):
    """A commit whose answer was lost is done again, and its second answer given for the first."""

    def commit(self, execution: Execution, *effects: Any, **named: Any) -> None:
        """Commit, and once more."""
        try:
            super().commit(execution, *effects, **named)
        except CommitOutcomeUnknown:
            super().commit(execution, *effects, **named)


def operations_of(mutant: Mutant | None, *, trace_max: int) -> Operations:
    """The store's operations, as the mutant has broken them."""
    kinds: dict[str, type[Operations]] = {
        "emits-apart": EmitsApart, "pages-by-offset": PagesByOffset, "forgets-rollback": ForgetsRollback,
    }  # fmt: skip
    if mutant is None:
        return Operations(trace_max=trace_max)
    kind = next((kinds[step] for step in mutant.protocol if step in kinds), Operations)
    return kind(mutant.apply(Catalogue.load()), trace_max=trace_max)


def store_of(mutant: Mutant | None, connection: Any, *, trace_max: int) -> PostgresStore:
    """The store over an injected connection, as the mutant has broken it."""
    catalogue = Catalogue.load() if mutant is None else mutant.apply(Catalogue.load())
    steps = frozenset() if mutant is None else mutant.protocol
    made = CommitsAgain if "commits-again" in steps else PostgresStore
    store = made(connection, trace_max=trace_max, catalogue=catalogue)
    store._operations = operations_of(mutant, trace_max=trace_max)
    if steps & {"forgets-rollback", "keeps-snapshot"}:
        if "keeps-snapshot" in steps:
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.commit()
        store._driver = Careless(connection, reads_end="keeps-snapshot" not in steps)
    return store
