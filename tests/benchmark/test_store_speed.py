"""What a commit of the store costs, against the bare compare-and-set that it is made of: one prepared UPDATE on one
psycopg connection. Each figure is a ratio of two that are measured in turns, on one server in one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from engine.store import PostgresStore
from tests.fixtures.stores import execution, full

CONTEXT = {f"field{n}": "some text of an order" for n in range(20)}
BATCH, TURNS = 100, 15
_UPDATE = b"UPDATE executions SET data = $1, version = $2 + 1 WHERE id = $3 AND version = $2::integer"


class Costs:
    """Commits by kind, each on executions of its own."""

    def __init__(self, dsn: str) -> None:
        self._store = PostgresStore.from_dsn(dsn)
        self._connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
        self._cursor = psycopg.RawCursor(self._connection)
        self._saved, self._full, self._bare = (execution(id_, context=CONTEXT) for id_ in ("s", "f", "b"))
        self._batch = [execution(f"b{n:03}", context=CONTEXT) for n in range(BATCH)]
        self._store.save(self._bare)
        self._data = "x" * 800
        self._mark = 0

    def close(self) -> None:
        self._store.close()
        self._connection.close()

    def bare(self) -> None:
        version = self._bare.version
        assert self._cursor.execute(_UPDATE, (self._data, version, self._bare.id)).rowcount == 1
        self._bare.version = version + 1

    def state_only(self) -> None:
        self._store.save(self._saved)

    def with_effects(self) -> None:
        commit = full(self._full, self._next())
        self._store.commit(
            commit.execution,
            commit.emits,
            commit.processed_event_id,
            commit.timers,
            commit.spawns,
            commit.trace,
        )

    def batch(self) -> None:
        answers = self._store.commit_many([full(subject, self._next()) for subject in self._batch])
        assert answers == [None] * BATCH

    def _next(self) -> str:
        self._mark += 1
        return f"m{self._mark}"


@pytest.mark.parametrize(
    ("kind", "times", "commits", "at_least"),
    [("state_only", 100, 1, 0.03), ("with_effects", 40, 1, 0.01), ("batch", 2, BATCH, 0.05)],
)
def test_commits_against_the_bare_update(
    benchmark: Any, database: str, kind: str, times: int, commits: int, at_least: float
) -> None:
    costs = Costs(database)
    act: Callable[[], None] = getattr(costs, kind)
    act()
    costs.bare()
    measured = benchmark.enabled
    best = {"bare": 1e9, kind: 1e9}

    def turn() -> None:
        for name, do, count in (("bare", costs.bare, 100), (kind, act, times)):
            started = time.perf_counter()
            for _ in range(count if measured else 1):
                do()
            best[name] = min(best[name], (time.perf_counter() - started) / count)

    benchmark.pedantic(turn, rounds=TURNS if measured else 1)
    costs.close()
    if measured:
        ratio = best["bare"] / best[kind] * commits
        benchmark.extra_info["commits_per_second"] = round(commits / best[kind])
        benchmark.extra_info["of_the_bare_update"] = round(ratio, 2)
        assert ratio > at_least
