"""Sessions that claim, flush, signal, spawn, expire and reap at random and at once: no error, no deadlock, and at every
moment the sums that coordination promises."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import psycopg
import pytest

from engine.operation import perform
from engine.picker import LIVE, Claimed, Commit, Hold, Job, Picker, Status, Surroundings
from tests.fixtures.node import Jobs

WORKERS, SECONDS, QUEUES, NAMES = 4, 6.0, ("a", "b"), ("x", "y")
KEYS = tuple(f"k{n}" for n in range(6))
SCOPES: tuple[tuple[Status, ...], ...] = (LIVE, ("runnable",), ("runnable", "executing"))

# Each counts what must not be, in one snapshot.
PROMISES = {
    "join-exact": """
        SELECT count(*) FROM gen_durable AS p WHERE p.children_pending <> (
            SELECT count(*) FROM gen_durable AS c WHERE c.parent_id = p.id AND c.status NOT IN ('done', 'failed'))""",
    "parents wait exactly while children live": """
        SELECT count(*) FROM gen_durable WHERE (status = 'awaiting_children') <> (children_pending > 0)""",
    "no-lost-wakeup": """
        SELECT count(*) FROM gen_durable AS g INNER JOIN signals AS s ON s.target_id = g.id
        WHERE g.status = 'awaiting_signal' AND s.name = ANY (g.awaits) AND NOT g.state -> 'handed' @> to_jsonb(s.id)""",
    "no inbox of the dead": """
        SELECT count(*) FROM gen_durable AS g INNER JOIN signals AS s ON s.target_id = g.id
        WHERE g.status IN ('done', 'failed')""",
    "deadlines belong to parks": """
        SELECT count(*) FROM gen_durable WHERE await_deadline IS NOT NULL AND status <> 'awaiting_signal'""",
}


def some_job(random: Random, depth: int) -> Job:
    return Job(
        fsm="load",
        step=str(depth),
        queue=random.choice(QUEUES),
        priority=random.randint(0, 2),
        concurrency_key=random.choice((None, None, *KEYS)),
        correlation_key=random.choice((None, *KEYS)),
        correlation_scope=random.choice(SCOPES),
    )


def some_outcome(random: Random, row: Claimed, around: Surroundings) -> Commit:
    awaited = tuple(each.id for each in around.signals if each.name in (row.awaits or ()))
    base: dict[str, Any] = {"id": row.id, "claim": row.claim, "turn": row.turn}
    depth = int(row.step)
    draw = random.random()
    if draw < 0.15:
        names = random.choice((("x",), ("y",), NAMES))
        handed = tuple(each.id for each in around.signals)
        return Commit(
            **base, kind="await", awaits=names, presented=handed, state=json.dumps({"handed": handed}),
            timeout_ms=random.choice((None, 0.0, 100.0)),
        )  # fmt: skip
    if draw < 0.35 and depth < 3:
        children = tuple(some_job(random, depth + 1) for _ in range(random.randint(0, 4)))
        return Commit(**base, kind="childs", children=children, consumed=awaited, step=str(depth + 1))
    if draw < 0.45:
        return Commit(**base, kind="retry", delay_ms=random.choice((0.0, 20.0)))
    if draw < 0.60:
        return Commit(**base, kind="next", consumed=awaited, sets_key=random.random() < 0.5)
    if draw < 0.65:
        # Nobody follows it: the reaper takes the row back.
        return Commit(**base, kind="continue", consumed=awaited, lease_ms=0.0)
    return Commit(**base, kind=random.choice(("done", "done", "stop")))


class Load:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.picker = Picker()
        self.until = time.monotonic() + SECONDS
        self.claims = 0
        self.lock = threading.Lock()

    def name(self) -> str:
        with self.lock:
            self.claims += 1
            return f"c{self.claims}"

    def work(self, seed: int) -> dict[str, int]:
        """Act at random until the time is up; what happened how often."""
        random, picker = Random(seed), self.picker
        seen: dict[str, int] = {}
        old: list[Commit] = []
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while time.monotonic() < self.until:
                draw = random.random()
                if draw < 0.15:
                    jobs = [some_job(random, 0) for _ in range(random.randint(1, 5))]
                    perform(connection, picker.insert_many(jobs))
                elif draw < 0.45:
                    target = random.choice(KEYS) if random.random() < 0.5 else random.randint(1, 300)
                    dedup = random.choice((None, "d1", "d2"))
                    outcome = perform(
                        connection, picker.signal(target, random.choice(NAMES), 1, dedup)
                    ).outcome
                    seen[outcome] = seen.get(outcome, 0) + 1
                elif draw < 0.55:
                    reaped = perform(connection, picker.reap(10)).holds
                    expired = perform(connection, picker.expire_awaits(10)).ids
                    seen["reaped"] = seen.get("reaped", 0) + len(reaped)
                    seen["expired"] = seen.get("expired", 0) + len(expired)
                else:
                    self._turn(connection, random, seen, old)
        return seen

    def _turn(
        self, connection: psycopg.Connection[Any], random: Random, seen: dict[str, int], old: list[Commit]
    ) -> None:
        lease_ms = -1.0 if random.random() < 0.15 else 60_000.0
        queue, batch = random.choice(QUEUES), random.randint(1, 12)
        claim = self.picker.claim(queue=queue, batch=batch, claim=self.name(), lease_ms=lease_ms)
        rows = perform(connection, claim).rows
        around = perform(connection, self.picker.enrich([row.id for row in rows]))
        commits = [some_outcome(random, row, around[row.id]) for row in rows]
        commits += random.sample(old, min(2, len(old)))
        random.shuffle(commits)
        ended = perform(connection, self.picker.flush(commits))
        seen["stale"] = seen.get("stale", 0) + len(commits) - len(ended.holds)
        seen["woken"] = seen.get("woken", 0) + len(ended.woken)
        for commit in commits:
            seen[commit.kind] = seen.get(commit.kind, 0) + (Hold(commit.id, commit.claim) in ended.holds)
        old[:] = [commit for commit in commits if random.random() < 0.3][:5]

    def watch(self) -> dict[str, int]:
        """The promises, again and again while the others work: how often each was broken."""
        broken = dict.fromkeys(PROMISES, 0)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while time.monotonic() < self.until:
                for promise, query in PROMISES.items():
                    found = connection.execute(query.encode()).fetchone()
                    broken[promise] += found[0] if found else 0
        return broken


@pytest.mark.slow(10)
def test_under_a_random_load_every_promise_holds_at_every_moment(jobs: Jobs) -> None:
    load = Load(jobs.dsn)
    before = jobs.one("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    with ThreadPoolExecutor(WORKERS + 1) as threads:
        watching = threads.submit(load.watch)
        working = [threads.submit(load.work, seed) for seed in range(WORKERS)]
        seen: dict[str, int] = {}
        for each in working:
            for what, count in each.result().items():
                seen[what] = seen.get(what, 0) + count
    assert watching.result() == dict.fromkeys(PROMISES, 0), seen
    for promise, query in PROMISES.items():
        assert jobs.one(query) == 0, promise
    after = jobs.one("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert after == before
    # The load was worth it: each of these happened.
    for what in (
        "delivered",
        "duplicate",
        "no_target",
        "reaped",
        "expired",
        "stale",
        "await",
        "childs",
        "woken",
    ):
        assert seen.get(what, 0) > 0, seen
    drain(jobs)
    assert jobs.rows("SELECT DISTINCT children_pending FROM gen_durable") == [(0,)]
    assert jobs.one("SELECT count(*) FROM signals") == 0


def drain(jobs: Jobs) -> None:
    """Bring everything to its end."""
    jobs.rows(
        "UPDATE gen_durable SET lease_expires_at = '-infinity' WHERE locked_by IS NOT NULL RETURNING id"
    )
    jobs.rows("UPDATE gen_durable SET eligible_at = '-infinity' RETURNING id")
    jobs.rows("UPDATE gen_durable SET await_deadline = now() WHERE status = 'awaiting_signal' RETURNING id")
    live = "SELECT count(*) FROM gen_durable WHERE status NOT IN ('done', 'failed')"
    rounds = 0
    while jobs.one(live):
        rounds += 1
        assert rounds < 1000, jobs.rows("SELECT status::text, count(*) FROM gen_durable GROUP BY 1")
        jobs.do(jobs.picker.reap(1000))
        jobs.do(jobs.picker.expire_awaits(1000))
        for queue in QUEUES:
            claim = jobs.picker.claim(
                queue=queue, batch=500, claim=f"drain {queue} {rounds}", lease_ms=60_000.0
            )
            rows = jobs.do(claim).rows
            jobs.do(jobs.picker.flush([Commit(id=row.id, claim=row.claim, kind="done") for row in rows]))
