"""A plan as pure data, the same for every version of Postgres.

`parse` reads what EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) of 13 to 18 says and keeps what can be held against a
rule or against another plan; costs and times are left out. What the versions write differently is made one form:

- fields that came or went (Disabled and Index Searches of 18, Async Capable of 14, Storage of 17) are not read;
- rows are per loop, whole before 18 and with a fraction since: both are numbers here;
- an InitPlan's result is `$0` before 17 and `(InitPlan 1).col1` since; a hashed SubPlan likewise. A generic plan's own
  parameters are `$1` too, and stay;
- constants that differ from run to run (instants, arrays, long texts) are `?`.

Identity is by alias: a claim names one table three times. `Node.label` is the node's place among its siblings by
what it is, and `paths` gives each node the labels from the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

# Keys of EXPLAIN that say what a node looks for, in the order in which they are shown.
CONDITIONS: Final = (
    "Index Cond", "Recheck Cond", "TID Cond", "Hash Cond", "Merge Cond", "Join Filter", "Filter", "One-Time Filter",
    "Sort Key", "Presorted Key", "Group Key", "Cache Key", "Order By", "Conflict Resolution",
    "Conflict Arbiter Indexes", "Function Name",
)  # fmt: skip
SCANS: Final = frozenset(
    (
        "Seq Scan",
        "Index Scan",
        "Index Only Scan",
        "Bitmap Heap Scan",
        "Tid Scan",
        "Tid Range Scan",
        "Sample Scan",
    )
)
CHANGES: Final = frozenset(("Insert", "Update", "Delete", "Merge"))

_INITPLAN: Final = re.compile(r"(?:InitPlan|SubPlan) (\d+) \(returns ([$\d,]+)\)")
_RUN_CONSTANT: Final = re.compile(r"'(?:[^']|'')*'::(?!durable_status\b)(\w+(?: \w+)*(?:\[\])?)")
_TEXT_CONSTANT: Final = re.compile(r"^text$|^character varying$|^boolean$")
_TEXT: Final = re.compile(r"'(?:[^']|'')*'::text")
_RESULT: Final = re.compile(r"\((?:InitPlan|SubPlan) \d+\)\.col\d+")
_HASHED: Final = re.compile(
    r"\((?:ANY \([^()]* = )?\(?hashed SubPlan \d+\)?(?:\.col\d+\)*)?\)|\(?hashed SubPlan \d+\)?"
)
_WORD: Final = re.compile(r"'(?:[^']|'')*'|[\w.$?\[\]]+|[<>=!~@&|+*/:-]+")
_PARAMETER: Final = re.compile(r"^\$\d+")
_WINDOW: Final = re.compile(r"OVER (?:\(\?\)|w\d+)")
_NUMBERED: Final = re.compile(r"\b(SubPlan|InitPlan) \d+\b")


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node. `rows` and `estimate` are per loop, everything else is the whole of all loops.

    `removed`: rows looked at in vain. Blocks and WAL include the nodes below, as EXPLAIN counts them. A node that was
    never executed has no loops.
    """

    kind: str
    role: str = ""
    name: str = ""
    relation: str = ""
    alias: str = ""
    index: str = ""
    backward: bool = False
    cte: str = ""
    join: str = ""
    strategy: str = ""
    hashed: bool = False
    conditions: dict[str, str] = {}
    estimate: float = 0
    rows: float = 0
    loops: float = 0
    removed: float = 0
    fetched: float = 0
    hits: int = 0
    reads: int = 0
    wal_records: int = 0
    wal_bytes: int = 0
    children: tuple[Node, ...] = ()

    @property
    def handled(self) -> float:
        """Rows that it brought and rows that it looked at in vain, over all loops."""
        return self.rows * self.loops + self.removed

    @property
    def buffers(self) -> int:
        """Shared blocks, found or read."""
        return self.hits + self.reads

    @property
    def label(self) -> str:
        """What it is, without what may change: `Update g`, `CTE candidate: Limit`, `scan of s`."""
        of = self.alias or self.cte or ""
        what = f"scan of {of}" if self.kind in SCANS else f"{self.kind} {of}".strip()
        return f"{self.name}: {what}" if self.name.startswith("CTE ") else what

    def title(self) -> str:
        """One line that a person recognises from EXPLAIN."""
        parts = [
            f"{self.name}: " if self.name else "",
            f"{self.join} " if self.join not in ("", "Inner") else "",
        ]
        parts += [f"{self.strategy} " if self.strategy not in ("", "Plain") else "", self.kind]
        if self.backward:
            parts.append(" backward")
        if self.index:
            parts.append(f" by {self.index}")
        if self.relation or self.cte:
            on = self.relation or self.cte
            parts.append(f" on {on}" + (f" {self.alias}" if self.alias not in ("", on) else ""))
        return "".join(parts)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A whole plan. `settings`: what differs from the server's defaults and may change a plan."""

    root: Node
    settings: dict[str, str] = {}


def parse(explained: Mapping[str, Any]) -> Plan:
    """One element of EXPLAIN's JSON array. Raises KeyError where it is none."""
    names = dict(_results(explained["Plan"]))
    settings = explained.get("Settings", {})
    return Plan(
        root=_node(explained["Plan"], names), settings={name: str(value) for name, value in settings.items()}
    )


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, top down."""
    yield node
    for child in node.children:
        yield from walk(child)


def line(node: Node) -> str:
    """A node of a plan that was executed, with its figures, in one line."""
    if not node.loops:
        return f"{node.title()}  (never executed)"
    told = f"rows {node.rows:g} x {node.loops:g}, {node.buffers:,} buffers"
    return f"{node.title()}  {told}" + (f", {node.wal_bytes:,} WAL bytes" if node.wal_bytes else "")


def lines(root: Node, depth: int = 0, *, ran: bool | None = None) -> Iterator[str]:
    """A plan as indented lines, conditions below their nodes. `ran`: whether it was executed, or only estimated."""
    ran = root.loops > 0 if ran is None else ran
    indent = "  " * depth
    told = line(root) if ran else f"{root.title()}  {root.estimate:,.0f} rows expected"
    yield f"{indent}{told}"
    yield from (f"{indent}    {name}: {value}" for name, value in root.conditions.items())
    for child in root.children:
        yield from lines(child, depth + 1, ran=ran)


def paths(root: Node) -> Iterator[tuple[str, Node]]:
    """Every node with the way to it: `Update g / Nested Loop / scan of g`. Bitmap and such keep their place."""
    yield root.label, root
    for child in root.children:
        for path, node in paths(child):
            yield f"{root.label} / {path}", node


def ran(root: Node) -> Iterator[tuple[str, Node]]:
    """As `paths`, without what was never executed."""
    return ((path, node) for path, node in paths(root) if node.loops > 0)


def anonymous(node: Node) -> Node:
    """The same plan with every text constant as data: inside a function they are its arguments."""
    conditions = {name: _TEXT.sub("?::text", text) for name, text in node.conditions.items()}
    return msgspec.structs.replace(
        node, conditions=conditions, children=tuple(anonymous(child) for child in node.children)
    )


def shape(node: Node) -> Any:
    """What makes two plans the same plan: kinds, indexes, order, conditions; no numbers."""
    conditions = tuple(sorted((name, canonical(text)) for name, text in node.conditions.items()))
    what = (
        node.kind,
        node.name,
        node.role,
        node.alias,
        node.cte,
        node.index,
        node.backward,
        node.join,
        node.hashed,
    )
    return (*what, node.strategy, conditions, tuple(shape(child) for child in node.children))


def canonical(condition: str) -> tuple[str, ...]:
    """What a condition says, whatever order a version writes it in: its words and operators, sorted.

    Before 17 the result of an InitPlan and a parameter of a generic plan are both `$1`: here, all are `$`. Windows have
    had names since 18.
    """
    text = _WINDOW.sub("OVER", condition.replace("(subquery)", "$").replace("EXISTS(SubPlan)", "(SubPlan)"))
    return tuple(sorted(_PARAMETER.sub("$", word) for word in _WORD.findall(text)))


def _results(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found = _INITPLAN.match(plan.get("Subplan Name", ""))
    if found:
        yield from ((parameter, "(subquery)") for parameter in found[2].split(","))
    for below in plan.get("Plans", ()):
        yield from _results(below)


def _node(plan: Mapping[str, Any], names: Mapping[str, str]) -> Node:
    kind = plan["Node Type"]
    loops = float(plan.get("Actual Loops", 0))
    removed = sum(float(value) for key, value in plan.items() if key.startswith("Rows Removed by "))
    if kind in ("ModifyTable", "SetOp"):
        kind = plan.get("Operation", kind) if kind == "ModifyTable" else kind
    if kind == "Aggregate" and plan.get("Strategy") in ("Hashed", "Sorted", "Mixed"):
        strategy = plan["Strategy"]
    else:
        strategy = plan.get("Strategy", "") if kind == "SetOp" else ""
    conditions = {key: _condition(plan[key], names) for key in CONDITIONS if key in plan}
    name = _INITPLAN.sub(lambda found: found[0].partition(" (")[0], plan.get("Subplan Name", ""))
    return Node(
        kind=kind,
        # What a ModifyTable reads was its Member before 14.
        role=plan.get("Parent Relationship", "").replace("Member", "Outer"),
        name=_NUMBERED.sub(r"\1", name),
        relation=plan.get("Relation Name", ""),
        alias=plan.get("Alias", ""),
        index=plan.get("Index Name", ""),
        backward=plan.get("Scan Direction") == "Backward",
        cte=plan.get("CTE Name", ""),
        join=plan.get("Join Type", ""),
        strategy=strategy,
        hashed="hashed SubPlan" in str([plan.get(key) for key in ("Filter", "Join Filter", "Index Cond")]),
        conditions=conditions,
        estimate=float(plan.get("Plan Rows", 0)),
        rows=float(plan.get("Actual Rows", 0)),
        loops=loops,
        removed=removed * loops,
        fetched=float(plan.get("Heap Fetches", 0)),
        hits=int(plan.get("Shared Hit Blocks", 0)),
        reads=int(plan.get("Shared Read Blocks", 0)),
        wal_records=int(plan.get("WAL Records", 0)),
        wal_bytes=int(plan.get("WAL Bytes", 0)),
        children=tuple(_node(below, names) for below in plan.get("Plans", ())),
    )


def _condition(value: Any, names: Mapping[str, str]) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    for parameter, result in names.items():
        text = re.sub(re.escape(parameter) + r"(?!\d)", result, text)
    text = _HASHED.sub("(hashed SubPlan)", text)
    text = _RESULT.sub("(subquery)", text).replace("((subquery))", "(subquery)")
    text = _RUN_CONSTANT.sub(_constant, text)
    return _NUMBERED.sub(r"\1", text)


def _constant(found: re.Match[str]) -> str:
    """A short text stays what it is: a queue, a status of a store. Everything else is data of the run."""
    if _TEXT_CONSTANT.match(found[1]) and len(found[0]) <= 30:
        return found[0]
    return f"?::{found[1]}"
