"""The transport: messages in groups, one consumer per group at a time, first in first out (store.md)."""

from engine.transport.clients import AsyncPostgresTransport, PostgresTransport
from engine.transport.queue import GroupState, Message, Publication

__all__ = ["AsyncPostgresTransport", "GroupState", "Message", "PostgresTransport", "Publication"]
