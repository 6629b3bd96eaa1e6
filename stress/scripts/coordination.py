"""Scripts for the mutants of signals, children, and the inline continuation."""

from __future__ import annotations

from collections.abc import Callable

from engine.limiter import Gate
from engine.picker import Claimed, Commit
from invariants.mutants.protocol import as_continued
from stress.scripts.arena import Arena, Session, commit, quietly
from stress.scripts.limiter import come_to_rest
from stress.scripts.picker import waiting
from stress.scripts.steps import Pause, job

LEASE_MS = 60_000.0


def delivery_repeated_while_parked(arena: Arena) -> None:
    """A delivery is made again while its target waits for more, having seen the first; then more comes."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    signal = two.signal(row, "go", "k").signal or 0
    one.claim("one.1")
    one.flush(waiting(one, row, "one.1", signal))
    two.signal(row, "go", "k")
    two.signal(row, "go")


def signal_after_the_claim(arena: Arena) -> None:
    """A signal wakes a row, a second one comes once it is claimed, and the step consumes the first."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job()) or 0
    one.claim("one.1")
    one.flush(waiting(one, row, "one.1"))
    first = two.signal(row, "go").signal or 0
    one.claim("one.2")
    one.step(row, "one.2", first, awaits=["go"])
    two.signal(row, "go")
    one.flush(commit(row, "one.2", "next", step="ship", consumed=(first,)))


def identity_taken_while_parked(arena: Arena) -> None:
    """A park leaves its scope, another row takes the identity, and a signal wakes the first."""
    one, two = arena.session("one"), arena.session("two")
    row = one.insert(job(correlation_key="k", correlation_scope=("runnable", "executing"))) or 0
    one.claim("one.1")
    one.flush(waiting(one, row, "one.1"))
    assert two.insert(job(correlation_key="k")) is not None
    quietly(two.signal)(row, "go")


def siblings_end_together(arena: Arena) -> None:
    """Three children end in one flush."""
    one = arena.session("one")
    spawn(one, "one.1", *[job(queue="x") for _ in range(3)])
    one.end(*one.claim("one.2", queue="x").rows)


def spawn(session: Session, claim: str, *children: object) -> int:
    """Insert a row, claim it, and end its claim with these children; its id."""
    row = session.insert(job()) or 0
    session.claim(claim)
    session.step(row, claim)
    session.flush(commit(row, claim, "childs", step="join", children=children))
    return row


def spawn_meets_join(arena: Arena) -> None:
    """A flush that holds a stale outcome of a parent waits for an identity; the one that ends it waits for that parent.

    F's snapshot is from when the parent executed under F's node, and F is held up at an earlier row. Meanwhile the
    parent is reaped, claimed by another node, and spawns the child of identity k. F locks the parent, in vain, and
    inserts a child of its own with identity k; J ends the child.
    """
    node, f, j = (arena.session(name) for name in ("node", "f", "j"))
    first = node.insert(job()) or 0
    node.claim("f.1")
    parent = node.insert(job()) or 0
    node.claim("f.2", lease_ms=0)
    node.step(first, "f.1")
    spawning = commit(first, "f.1", "childs", step="join", children=(job(queue="x", correlation_key="k"),))
    at_children, at_join = Pause("picker/flush_children"), Pause("picker/flush_join")
    f.pauses, j.pauses = (at_children,), (at_join,)
    with arena.locked_row(first):
        flushing = arena.start(quietly(f.flush), spawning, commit(parent, "f.2", "retry"))
        assert arena.wait_until_blocked(f, flushing)
        node.reap()
        node.claim("new.1")
        node.step(parent, "new.1")
        node.flush(
            commit(parent, "new.1", "childs", step="join", children=(job(queue="y", correlation_key="k"),))
        )
        [child] = node.claim("child.1", queue="y").rows
    at_children.reached()
    ending = arena.start(quietly(j.flush), commit(child.id, "child.1"))
    # Sound, it stands at its first statement and has changed nothing; else it has changed the child.
    if arena.wait_until_blocked_or(j, ending, at_join):
        at_join.end()
        at_children.end()
    else:
        at_children.end()
        arena.wait_until_blocked(f, flushing)
        at_join.end()
    flushing.result()
    ending.result()


def continuation_arrives_late(arena: Arena) -> None:
    """A continuation into a connection that seemed dead stands at its first lock while its worker sends it again, and
    the step after it; then it goes on."""
    one, dead = arena.session("one"), arena.session("dead")
    other, row = one.insert(job()) or 0, one.insert(job()) or 0
    one.claim("one.1")
    going_on = commit(row, "one.1", "continue", step="second", lease_ms=LEASE_MS)
    with arena.locked_row(other):
        late = arena.start(dead.flush, commit(other, "one.1", "retry"), going_on)
        assert arena.wait_until_blocked(dead, late)
        one.flush(going_on)
        one.flush(commit(row, "one.1", "continue", turn=1, step="third", lease_ms=LEASE_MS))
    late.result()


def continuation_keeps_its_key(arena: Arena) -> None:
    """A row that fills its gate goes on in line, and keeps its slot, while another one waits."""
    one, two = arena.session("one"), arena.session("two")
    one.configure(Gate("g", 1))
    one.insert_many([job(concurrency_key="g")] * 2)
    one.end(*one.pick("one.1"), kind="continue", step="second", lease_ms=LEASE_MS)
    two.pick("two.1")
    come_to_rest(arena)


def next_step_has_a_key_that_is_taken(arena: Arena) -> None:
    """A step of an inline machine goes on to one with the key of a row that executes; another outcome shares its
    flush."""
    one = arena.session("one")
    one.insert(job(concurrency_key="k"))
    one.claim("one.1")
    row, other = one.insert(job()) or 0, one.insert(job()) or 0
    one.claim("one.2")
    onward = {"step": "second", "sets_key": True, "concurrency_key": "k"}
    going_on = commit(row, "one.2", "next", **onward)
    if "inline-onto-any-key" in arena.protocol:
        going_on = commit(row, "one.2", "continue", gated=True, lease_ms=LEASE_MS, **onward)
    quietly(one.flush)(going_on, commit(other, "one.2"))


def reaped_row_goes_on(arena: Arena) -> None:
    """A row is reaped and claimed again; then its first owner goes on in line onto a gate's key, and a sibling of the
    row's own key is waiting."""
    one, two = arena.session("one"), arena.session("two")
    one.configure(Gate("g", 1))
    one.insert(job(concurrency_key="k"))
    [row] = one.claim("one.1", lease_ms=0).rows
    two.reap()
    two.claim("two.1")
    two.insert(job(concurrency_key="k"))
    go_on(arena, one, row, "g:1")
    two.claim("two.2")


def go_on(arena: Arena, session: Session, row: Claimed, key: str) -> None:
    """An inline continuation onto a gate's key, as a scheduler does it: the commit, then the slot."""
    going_on: Commit = commit(
        row.id, row.claim, "continue",
        step="second", sets_key=True, concurrency_key=key, gated=True, lease_ms=LEASE_MS,
    )  # fmt: skip
    asked = [as_continued(row, going_on)]
    if "admits-before-it-continues" in arena.protocol:
        session.admit(asked)
        session.flush(going_on)
    elif session.flush(going_on).holds:
        session.admit(asked)


SCRIPTS: dict[str, Callable[[Arena], None]] = {
    "duplicate-wakes": delivery_repeated_while_parked,
    "consume-whole-inbox": signal_after_the_claim,
    "scope-reentered-by-a-wake": identity_taken_while_parked,
    "join-counts-a-batch-once": siblings_end_together,
    "parents-locked-late": spawn_meets_join,
    "continue-unfenced": continuation_arrives_late,
    "continue-credits-held-slot": continuation_keeps_its_key,
    "inline-unconfigured-key": next_step_has_a_key_that_is_taken,
    "admit-before-continue-commit": reaped_row_goes_on,
}
