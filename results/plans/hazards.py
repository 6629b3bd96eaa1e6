"""What may go wrong under another plan, or already costs more than it should: named, with the statement and the node.

    over-claim      a Limit over LockRows that is joined to: under another plan it runs more than once, and locks more
    lock-order      rows are changed or locked, and waited for, in the order of a join or a scan: two such statements
                    with two plans wait for each other. Not where the rows were locked before by a CTE that the change
                    reads, nor one row, nor where locked rows are skipped or the statement says an order
    generic-worse   the generic plan touches more than `GENERIC_WORSE` times the buffers of the custom one
    partial-lost    the custom plan rides a partial index and the generic one does not, for the predicate is a
                    parameter, and has to touch more than the custom one does
    estimate        on a hot statement, a node brings more than `ESTIMATE_OFF` times what was expected, or less
    tie             the planner changes its mind after a second ANALYZE

A hazard is no violation: `explanations` says which are accepted, and why. Statements that are not the engine's are all
hot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from results.plans.folder import Capture, Captured, Index
from results.plans.tree import CHANGES, Node, locks_again, paths, ran, walk

GENERIC_WORSE: Final = 2.0
ESTIMATE_OFF: Final = 100.0
# Differences below this many buffers or rows are nobody's hazard.
FLOOR: Final = 50
# Statements that run for every batch of jobs, or every event.
HOT: Final = frozenset(
    (
        "picker/claim", "picker/flush", "picker/heartbeat", "picker/inbox", "picker/children", "picker/insert_many",
        "picker/signal", "limiter/admit", "limiter/credit", "store/commit", "store/load_for_event", "transport/claim",
        "transport/ack", "transport/publish", "relay/move",
    )
)  # fmt: skip


# EXPLAIN does not say that locked rows are skipped, nor whether the order of a scan is one that was asked for.
_ORDERED: Final = re.compile(r"\bSKIP\s+LOCKED\b|\bNOWAIT\b|\bORDER\s+BY\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hazard:
    """One hazard. `node` is the way to it, or empty where it is the whole statement's."""

    label: str
    kind: str
    node: str
    message: str

    def __str__(self) -> str:
        return f"{self.label}: {self.kind}: {self.message}" + (f" [{self.node}]" if self.node else "")


def hazards(capture: Capture) -> list[Hazard]:
    """Every hazard of a capture, each once, in its order of statements."""
    found: dict[tuple[str, str, str], Hazard] = {}
    for captured in capture.statements.values():
        for hazard in hazards_of(captured, capture.environment.indexes):
            found.setdefault((hazard.label, hazard.kind, hazard.node), hazard)
    return list(found.values())


def hazards_of(captured: Captured, indexes: Mapping[str, Index]) -> Iterator[Hazard]:
    """The hazards of one statement."""
    label = captured.label
    for mode, explained in captured.plans.items():
        for path in locks_again(explained.plan):
            yield Hazard(
                label, "over-claim", path, "the rows under this limit are locked anew each time it runs"
            )
        yield from _lock_orders(label, explained.plan, captured.text)
        # A kept plan is one of other statistics.
        if mode != "kept" and (captured.statement in HOT or "/" not in captured.statement):
            yield from _estimates(label, mode, explained.plan)
        if explained.alternate is not None:
            yield Hazard(label, "tie", "", f"a second ANALYZE brings another {mode} plan")
    if "custom" in captured.plans and "generic" in captured.plans:
        custom, generic = captured.plans["custom"].plan, captured.plans["generic"].plan
        if generic.buffers > custom.buffers * GENERIC_WORSE + FLOOR:
            ratio = generic.buffers / max(1, custom.buffers)
            yield Hazard(
                label,
                "generic-worse",
                "",
                f"{generic.buffers:,} buffers, {ratio:.1f} times the custom plan's",
            )
        lost = {
            name for name in _used(custom) - _used(generic) if name in indexes and indexes[name].predicate
        }
        if generic.buffers > custom.buffers:
            for name in sorted(lost):
                yield Hazard(label, "partial-lost", "", f"the generic plan does not ride {name}")


def _used(root: Node) -> set[str]:
    return {node.index for node in walk(root) if node.index and node.loops}


def _lock_orders(label: str, root: Node, text: str) -> Iterator[Hazard]:
    ctes = {node.name.removeprefix("CTE "): node for node in walk(root) if node.name.startswith("CTE ")}
    says_order = _ORDERED.search(text) is not None
    for path, node in paths(root):
        if node.kind not in (*CHANGES - {"Insert"}, "LockRows") or not node.loops:
            continue
        below = next((child for child in node.children if not child.name), None)
        if below is None or below.rows * below.loops <= 1:
            continue
        if node.kind == "LockRows":
            if not says_order:
                yield Hazard(label, "lock-order", path, f"rows are locked in the order of a {below.kind}")
        elif not _locked(node, ctes, frozenset()):
            yield Hazard(
                label, "lock-order", path, f"{node.relation} is changed in the order of a {below.kind}"
            )


def _locked(node: Node, ctes: Mapping[str, Node], seen: frozenset[str]) -> bool:
    """Whether what a change reads comes from a CTE that has locked rows."""
    for below in walk(node):
        if below.kind == "LockRows":
            return True
        new = below.kind == "CTE Scan" and below.cte in ctes and below.cte not in seen
        if new and _locked(ctes[below.cte], ctes, seen | {below.cte}):
            return True
    return False


def _estimates(label: str, mode: str, root: Node) -> Iterator[Hazard]:
    limits = {
        id(below) for node in walk(root) if node.kind == "Limit" for below in walk(node) if below is not node
    }
    for path, node in ran(root):
        # What a limit cuts off was never meant to bring all it could.
        if node.kind in CHANGES or id(node) in limits:
            continue
        big, small = max(node.rows, node.estimate), max(1.0, min(node.rows, node.estimate))
        if big > FLOOR and big / small > ESTIMATE_OFF:
            yield Hazard(
                label,
                "estimate",
                path,
                f"{node.title()} ({mode}): {node.estimate:,.0f} rows expected, {node.rows:,.0f} came",
            )
