"""Scripts for the mutants of the sweeps."""

from __future__ import annotations

from collections.abc import Callable

from engine.picker import Hold
from stress.scripts.arena import ROW_GATE, Arena, commit, quietly
from stress.scripts.steps import job

# A job's machine gives up at this attempt.
ATTEMPTS = 3


def namesake_boots(arena: Arena) -> None:
    """A node's claim is well within its lease when another process of its name starts, and is renewed later."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("i:default@n-boot1.1", lease_ms=60_000)
    two.reclaim("i:default@n-", margin_ms=1_000)
    one.heartbeat(Hold(row, "i:default@n-boot1.1"))


def namesake_boots_beside_a_late_heartbeat(arena: Arena) -> None:
    """A node's heartbeats came late, twice, when another process of its name starts, and the next one comes."""
    boots_beside(arena, "i:default@n-boot1.1", "n-boot1")


def node_boots_whose_name_begins_alike(arena: Arena) -> None:
    """The same, and the process that starts is of node `n`, the one at work of node `n-1`."""
    boots_beside(arena, "i:default@n-1-boot1.1", "n-1-boot1")


def boots_beside(arena: Arena, claim: str, session: str) -> None:
    """A process of node `n` boots within its margin of a lease that the other process is about to renew."""
    one, two = arena.session("one"), arena.session("two")
    one.set("application_name", session)
    row = one.insert(job()) or 0
    one.claim(claim, lease_ms=9_990)
    two.reclaim("i:default@n-", margin_ms=10_000, node="n")
    one.heartbeat(Hold(row, claim))


def job_kills_its_node(arena: Arena) -> None:
    """Whoever runs the job dies of it, until its machine has seen it fail often enough."""
    arena.session("client").insert(job())
    for boot in range(2 * ATTEMPTS):
        node = arena.session(f"boot-{boot}")
        node.reclaim("i:default@n-", margin_ms=1_000)
        for row in node.claim(f"i:default@n-{boot}.1", lease_ms=0).rows:
            if row.attempt >= ATTEMPTS:
                node.flush(commit(row.id, row.claim, "stop", error="too often"))
        node.connection.close()


def two_collectors_with_two_plans(arena: Arena) -> None:
    """Two collectors have one page; one deletes in the order of ids, the other in that of the table."""
    by_id, by_table = arena.session("by-id"), arena.session("by-table")
    first, second = by_id.insert(job()) or 0, by_id.insert(job()) or 0
    by_id.claim("one.1")
    for row in (second, first):
        by_id.flush(commit(row, "one.1"))
    for name in ("enable_bitmapscan", "enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
        by_id.set(name, "off")
    for name in ("enable_indexscan", "enable_indexonlyscan", "enable_seqscan"):
        by_table.set(name, "off")
    by_id.set("gate.delete", str(first))
    with arena.closed_gate():
        collecting = arena.start(quietly(by_id.collect), 0.0)
        arena.wait_for_gate(by_id, collecting, ROW_GATE)
        other = arena.start(quietly(by_table.collect), 0.0)
        arena.wait_until_blocked(by_table, other)
    collecting.result()
    other.result()


def child_ends_before_its_parent_goes_on(arena: Arena) -> None:
    """A child has ended, its parent is awake and has not run yet, and a collector comes; once more when the parent has
    ended."""
    one = arena.session("one")
    parent = one.insert(job()) or 0
    one.claim("one.1")
    one.step(parent, "one.1")
    one.flush(commit(parent, "one.1", "childs", step="join", children=(job(queue="x"),)))
    [child] = one.claim("one.2", queue="x").rows
    one.flush(commit(child.id, "one.2"))
    one.collect(0.0)
    one.claim("one.3")
    one.flush(commit(parent, "one.3"))
    one.collect(0.0)


def long_job_ends(arena: Arena) -> None:
    """A job that was inserted a day ago ends, and a collector comes that keeps what ended for an hour;
    then one that keeps nothing."""
    one = arena.session("one")
    [(row,)] = arena.execute(
        "INSERT INTO gen_durable (fsm, step, inserted_at)"
        " VALUES ('machine', 'first', now() - interval '1 day') RETURNING id"
    )
    one.claim("one.1")
    one.flush(commit(row, "one.1"))
    one.collect(3_600_000.0)
    one.collect(0.0)


SCRIPTS: dict[str, Callable[[Arena], None]] = {
    "reclaim-without-margin": namesake_boots,
    "reclaim-beside-the-living": namesake_boots_beside_a_late_heartbeat,
    "reclaim-by-bare-prefix": node_boots_whose_name_begins_alike,
    "reclaim-uncounted": job_kills_its_node,
    "collectors-wait": two_collectors_with_two_plans,
    "collects-beside-the-parent": child_ends_before_its_parent_goes_on,
    "retention-from-birth": long_job_ends,
}
