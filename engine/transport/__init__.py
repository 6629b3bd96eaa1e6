"""The transport: messages in groups, one consumer per group at a time, first in first out (store.md)."""

from engine.transport.clients import AsyncPostgresTransport, PostgresTransport
from engine.transport.queue import GroupState, Message, Publication
from engine.transport.sharded import AsyncShardedTransport

__all__ = [
    "AsyncPostgresTransport",
    "AsyncShardedTransport",
    "GroupState",
    "Message",
    "PostgresTransport",
    "Publication",
]
