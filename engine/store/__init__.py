"""The store: versioned executions with compare-and-set, outbox, dedupe, timers, spawns and trace (store.md)."""

from engine.store.async_postgres import AsyncPostgresStore
from engine.store.execution import (
    Child,
    Commit,
    CommitOutcomeUnknown,
    Emit,
    Event,
    EventAlreadyProcessed,
    Execution,
    ExecutionSummary,
    Page,
    Refusal,
    Spawn,
    StoreConflict,
    TimerOp,
)
from engine.store.operations import StoreBusy
from engine.store.postgres import PostgresStore
from engine.values import UnstorableValue

__all__ = [
    "AsyncPostgresStore",
    "Child",
    "Commit",
    "CommitOutcomeUnknown",
    "Emit",
    "Event",
    "EventAlreadyProcessed",
    "Execution",
    "ExecutionSummary",
    "Page",
    "PostgresStore",
    "Refusal",
    "Spawn",
    "StoreBusy",
    "StoreConflict",
    "TimerOp",
    "UnstorableValue",
]
