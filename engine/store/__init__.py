"""The store: versioned executions with compare-and-set, outbox, dedupe, timers, spawns and trace (store.md)."""

from engine.store.async_postgres import AsyncPostgresStore
from engine.store.contract import AsyncStore, Store
from engine.store.execution import (
    Child,
    Commit,
    CommitOutcomeUnknown,
    ConflictUnexplained,
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
from engine.store.sharded import AsyncShardedStore, ShardedStore
from engine.store.sqlite import SqliteStore
from engine.values import UnstorableValue

__all__ = [
    "AsyncPostgresStore",
    "AsyncShardedStore",
    "AsyncStore",
    "Child",
    "Commit",
    "CommitOutcomeUnknown",
    "ConflictUnexplained",
    "Emit",
    "Event",
    "EventAlreadyProcessed",
    "Execution",
    "ExecutionSummary",
    "Page",
    "PostgresStore",
    "Refusal",
    "ShardedStore",
    "Spawn",
    "SqliteStore",
    "Store",
    "StoreBusy",
    "StoreConflict",
    "TimerOp",
    "UnstorableValue",
]
