"""The reference store with its relay, its transport and its statecharts as a subject."""

from __future__ import annotations

from stress.subjects.subject import Subject

# What is on its way to somebody. An execution that waits for nothing that is on its way can only be moved by a client.
ON_ITS_WAY = """
    SELECT count(*), sum(w.mark)::text FROM (
        SELECT seq FROM outbox
        UNION ALL
        SELECT seq FROM spawns
        UNION ALL
        SELECT seq FROM transport_messages
        UNION ALL
        SELECT (fire_at * 1000)::bigint FROM timers
    ) AS w (mark)
"""

STORE = Subject(
    name="store",
    areas=("store", "transport"),
    node="stress.swarm.store_process",
    user="stress.swarm.store_users:StoreUser",
    unfinished=ON_ITS_WAY,
    waiting=ON_ITS_WAY,
    shards=True,
)
