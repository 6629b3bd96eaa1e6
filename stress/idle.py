"""What nodes that have nothing to do cost the server: the harness's part of it, counted by the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from stress.swarm.configs import INSTANCE
from stress.swarm.swarm import Swarm

# How long the server is watched before a node is there: recorder and harness ask it things too.
BASE_S = 3.0
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
NODES = """
SELECT count(DISTINCT split_part(application_name, '#', 1)) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, %s)
"""


@dataclass(slots=True)
class IdleServer:
    """Counts its transactions, by the server's statistics, which are up to a second late."""

    connection: psycopg.Connection[Any]
    swarm: Swarm

    def has_all_nodes(self) -> bool:
        """Whether each node has a session."""
        return self._one(NODES, f"{INSTANCE}@") >= self.swarm.config.nodes

    def counted(self, wait: Callable[[float], None], seconds: float) -> tuple[int, float]:
        """Transactions while `wait` takes that long, and how long it took."""
        before, began = self._one(TRANSACTIONS), time.monotonic()
        wait(seconds)
        return self._one(TRANSACTIONS) - before, time.monotonic() - began

    def _one(self, query: str, *parameters: object) -> int:
        row = self.connection.execute(query.encode(), parameters).fetchone()
        assert row is not None
        return int(row[0])
