"""What the harness itself takes of the machine's memory, by what it is for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

import msgspec
import psutil

# By the module that a process runs.
ROLES = {
    "invariants": "recorder",
    "stress.judge_process": "judge",
    "stress.swarm.node_process": "nodes",
    "stress.swarm.store_process": "nodes",
    "stress.swarm.locust_master": "clients",
    "stress.swarm.locust_worker": "clients",
}
HARNESS = "harness"


class Memory(msgspec.Struct, frozen=True):
    """Resident bytes by role: the harness itself, which lives as long as the soak, and its children, which live for a
    round. No server is counted."""

    bytes: Mapping[str, int]

    @property
    def harness(self) -> int:
        """Of the process that lasts."""
        return self.bytes.get(HARNESS, 0)


def measure() -> Memory:
    """Now."""
    me = psutil.Process(os.getpid())
    found: Counter[str] = Counter({HARNESS: me.memory_info().rss})
    for child in me.children(recursive=True):
        try:
            words = child.cmdline()
            role = ROLES.get(words[words.index("-m") + 1]) if "-m" in words[:-1] else None
            if role is not None:
                found[role] += child.memory_info().rss
        except psutil.Error:
            continue
    return Memory(dict(found))
