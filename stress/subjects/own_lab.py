"""A lab of a queue's own statements: its schema, its gates, its rules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast

import psycopg
from typing_extensions import override

from invariants.foreign_schedules import judge_schedule
from invariants.ledger.pgoutput import Transaction
from stress.schedules.actions import World
from stress.schedules.controller import Run
from stress.schedules.gates import FUNCTIONS, triggers
from stress.schedules.lab import Judged, Lab, left_by
from stress.schedules.race import FOREIGN_PLANNERS, Race
from stress.subjects.own_races import OwnWorld, gated_statements
from stress.subjects.sql_queue import SqlQueue


class OwnLab(Lab):
    """Runs races of one queue."""

    planners = FOREIGN_PLANNERS
    stops_within = ()

    def __init__(self, dsn: str, stack: ExitStack, queue: SqlQueue) -> None:
        self.queue = queue
        super().__init__(dsn, stack, None)

    @override
    def _install(self, control: psycopg.Connection[Any]) -> None:
        self.queue.set_up(self.dsn)

    @override
    def _prepare(self) -> None:
        self._statements = gated_statements(self.queue)

    @override
    def _new_world(self, race: Race) -> World:
        # Its actions ask no more of a memory than this one has.
        return cast(Any, OwnWorld(self.queue, self._statements))  # type: ignore[no-any-return]

    @override
    def _judge(self, race: Race, run: Run, transactions: Sequence[Transaction]) -> Judged:
        operations = sorted(run.operations, key=lambda one: (one.start_ns, one.process, one.index))
        at_rest = race.at_rest and run.complete and not any(step.choice.dies for step in run.steps)
        assert self.queue.rows is not None
        report = judge_schedule(transactions, operations, self.queue.rows, run.deadlocks, at_rest=at_rest)
        return Judged(run, report, left_by(transactions))

    @property
    @override
    def schema(self) -> tuple[str, ...]:
        return (self.queue.schema.read_text("utf-8"), FUNCTIONS, triggers(self.tables))
