"""A plan as pure data, the same for every version of Postgres.

`parse` reads what EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) of 13 to 18 says and keeps what can be held against a
rule or against another plan; costs and times are left out. What the versions write differently is made one form:

- fields that came or went (Disabled and Index Searches of 18, Async Capable of 14, Storage of 17) are not read;
- rows are per loop, whole before 18 and with a fraction since: both are numbers here;
- an InitPlan's result is `$0` before 17 and `(InitPlan 1).col1` since. A generic plan's own parameters are `$1` too,
  and stay;
- what a SubPlan is compared with is shown since 17, and left out; of two alternative SubPlans, which 13 shows both, the
  one that ran is kept;
- constants that differ from run to run (instants, numbers, arrays, long texts) are `?`, and with `blanked` all that a
  statement was asked with.

Identity is by alias: a claim names one table three times. `Node.label` is the node's place among its siblings by
what it is, and `paths` gives each node the labels from the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
JOINS: Final = frozenset(("Nested Loop", "Hash Join", "Merge Join"))
CHANGES: Final = frozenset(("Insert", "Update", "Delete", "Merge"))

_INITPLAN: Final = re.compile(r"(?:InitPlan|SubPlan) (\d+) \(returns ([$\d,]+)\)")
_QUOTED: Final = r"'(?:[^']|'')*'"
_TYPE: Final = (
    r"(?:double precision|character varying|bit varying|(?:timestamp|time)(?:\(\d\))? with(?:out)? time zone"
    r'|"[^"]+"|[\w.]+)(?:\(\d+(?:,\d+)?\))?((?:\[\])*)'
)
_CONSTANT: Final = re.compile(rf"{_QUOTED}::({_TYPE})")
# Types whose constants are data of the run, such as instants; every other may be a word that the statement says.
_OF_A_RUN: Final = re.compile(
    r"timestamp|time\b|date\b|interval|json|uuid|bytea|numeric|bigint|integer|smallint|double|real|pg_snapshot|xid|tid\b"
    r"|regclass|oid\b"
)
_LONGEST_WORD: Final = 30
_LITERAL: Final = re.compile(rf"({_QUOTED})(::{_TYPE})?|(?<![\w$.])-?\d+(?:\.\d+)?(?![\w.])")
_TEXT: Final = re.compile(r"'(?:[^']|'')*'::text")
_RESULT: Final = re.compile(r"\((?:InitPlan|SubPlan) \d+\)\.col\d+")
# What a subquery is compared with has been shown since 17; before, there was the SubPlan alone.
_COMPARED: Final = re.compile(r"\((?:ANY|ALL|ROWCOMPARE) \(")
_SUBPLAN: Final = re.compile(r"(?:hashed )?SubPlan \d+(?=\))")
_PARENTHESIS: Final = re.compile(rf"{_QUOTED}|[()]")
_WRITTEN_OUT: Final = re.compile(r"\b(?:EXISTS|ARRAY)\((SubPlan \d+)\)")
_ALTERNATIVES: Final = re.compile(r"alternatives: (SubPlan \d+) or (hashed (SubPlan \d+))")
_WORD: Final = re.compile(r"'(?:[^']|'')*'|[\w.$?\[\]]+|[<>=!~@&|+*/:-]+")
_PARAMETER: Final = re.compile(r"^\$\d+")
_WINDOW: Final = re.compile(r"OVER (?:\(\?\)|w\d+)")
_QUALIFIER: Final = re.compile(r"(?<![\w.])(\w+)\.(?=\w)")
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
        parts += [f"{self.strategy} " if self.strategy else "", self.kind]
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


class NoPlan(ValueError):
    """EXPLAIN's answer has no plan: a rule made nothing of the statement."""


def parse(explained: Sequence[Mapping[str, Any]]) -> Plan:
    """EXPLAIN's JSON array. Of a statement that a rule made several of, they are the children of one node. Raises
    KeyError where it is none of EXPLAIN's, and NoPlan where it is empty."""
    if not explained:
        raise NoPlan("the server makes nothing of it")
    roots = [_node(each["Plan"], dict(_results(each["Plan"]))) for each in explained]
    settings = {name: str(value) for each in explained for name, value in each.get("Settings", {}).items()}
    return Plan(root=roots[0] if len(roots) == 1 else _rewritten(roots), settings=settings)


def _rewritten(roots: Sequence[Node]) -> Node:
    return Node(
        kind="Rewritten",
        loops=1,
        hits=sum(root.hits for root in roots),
        reads=sum(root.reads for root in roots),
        wal_records=sum(root.wal_records for root in roots),
        wal_bytes=sum(root.wal_bytes for root in roots),
        children=tuple(roots),
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


def locks_again(root: Node) -> Iterator[str]:
    """The ways to rows that are locked under a limit in a join, or in a subquery of a change: another plan may run
    that side anew, and each run locks, and brings, other rows. Not in a CTE or an InitPlan, which run once, and not
    where the subquery names a column from outside: then it is asked anew for each row on purpose."""
    yield from _locks_again(root, (), _aliases(root), once=False)


def _locks_again(node: Node, above: tuple[Node, ...], known: frozenset[str], *, once: bool) -> Iterator[str]:
    once = once or node.role == "InitPlan" or node.name.startswith("CTE ")
    joined = any(
        each.kind in CHANGES or each.kind in JOINS or each.role == "SubPlan" for each in (*above, node)
    )
    limit = next((each for each in above if each.kind == "Limit"), None)
    if node.kind == "LockRows" and limit and joined and not once and not _asks_outside(limit, known):
        yield " / ".join(each.label for each in (*above, node))
    for child in node.children:
        yield from _locks_again(child, (*above, node), known, once=once)


def _aliases(root: Node) -> frozenset[str]:
    return frozenset(each.alias for each in walk(root) if each.alias)


def _asks_outside(root: Node, known: frozenset[str]) -> bool:
    outside = known - _aliases(root)
    conditions = (text for node in walk(root) for text in node.conditions.values())
    return any(outside.intersection(_QUALIFIER.findall(text)) for text in conditions)


def anonymous(node: Node) -> Node:
    """The same plan with every text constant as data: inside a function they are its arguments."""
    conditions = {name: _TEXT.sub("?::text", text) for name, text in node.conditions.items()}
    return msgspec.structs.replace(
        node, conditions=conditions, children=tuple(anonymous(child) for child in node.children)
    )


def blanked(node: Node, arguments: Iterable[str]) -> Node:
    """The same plan with the arguments that a custom plan has as constants as `?`: with other data they are others."""
    given = frozenset(arguments)

    def hidden(found: re.Match[str]) -> str:
        quoted, kind = found[1], found[2] or ""
        text = quoted[1:-1].replace("''", "'") if quoted else found[0]
        return f"?{kind}" if text in given else found[0]

    def blank(each: Node) -> Node:
        conditions = {name: _LITERAL.sub(hidden, text) for name, text in each.conditions.items()}
        return msgspec.structs.replace(each, conditions=conditions, children=tuple(map(blank, each.children)))

    return blank(node) if given else node


def shape(node: Node) -> Any:
    """What makes two plans the same plan: kinds, indexes, order, conditions; no numbers. A system catalog is as large
    as the server's past, and how it is read is nobody's plan."""
    if node.kind in SCANS and node.relation.startswith("pg_"):
        return "catalog", node.relation, node.alias, node.role
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
    text = _WINDOW.sub("OVER", condition.replace("(subquery)", "$"))
    return tuple(sorted(_PARAMETER.sub("$", word) for word in _WORD.findall(text)))


def _results(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found = _INITPLAN.match(plan.get("Subplan Name", ""))
    if found:
        yield from ((parameter, "(subquery)") for parameter in found[2].split(","))
    for below in plan.get("Plans", ()):
        yield from _results(below)


def _node(plan: Mapping[str, Any], names: Mapping[str, str]) -> Node:
    plan = _settled(plan)
    kind = plan["Node Type"]
    loops = float(plan.get("Actual Loops", 0))
    removed = sum(float(value) for key, value in plan.items() if key.startswith("Rows Removed by "))
    if kind == "ModifyTable":
        kind = plan.get("Operation", kind)
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
        strategy=_strategy(plan),
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


def _without_compared(text: str) -> str:
    """`(ANY (a = (SubPlan 1).col1))` as `(SubPlan 1)`."""
    for found in reversed(list(_COMPARED.finditer(text))):
        end = _closed(text, found.start())
        subplan = _SUBPLAN.search(text, found.start(), end)
        if subplan:
            text = f"{text[: found.start()]}({subplan[0]}){text[end:]}"
    return text


def _closed(text: str, start: int) -> int:
    """Behind the parenthesis that closes the one at `start`; quoted ones do not count."""
    depth = 0
    for found in _PARENTHESIS.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(text)


def _settled(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node with the one alternative that ran, of two; the first where none did."""
    found = [
        (key, *each.groups()) for key in CONDITIONS for each in _ALTERNATIVES.finditer(str(plan.get(key, "")))
    ]
    if not found:
        return plan
    settled, below = dict(plan), list(plan.get("Plans", ()))
    for key, plain, hashed, of_hashed in found:
        ran = {each.get("Subplan Name"): each.get("Actual Loops", 0) for each in below}
        kept, gone = (hashed, plain) if ran.get(of_hashed) and not ran.get(plain) else (plain, of_hashed)
        settled[key] = str(settled[key]).replace(f"alternatives: {plain} or {hashed}", kept)
        below = [each for each in below if each.get("Subplan Name") != gone]
    settled["Plans"] = below
    return settled


def _strategy(plan: Mapping[str, Any]) -> str:
    """How a node goes about it: `Hashed`, `Partial Sorted`, `Parallel`; empty where there is one way."""
    parts = []
    if plan.get("Parallel Aware"):
        parts.append("Parallel")
    if plan.get("Partial Mode", "Simple") != "Simple":
        parts.append(plan["Partial Mode"])
    if plan.get("Strategy", "Plain") != "Plain":
        parts.append(plan["Strategy"])
    return " ".join(parts)


def _condition(value: Any, names: Mapping[str, str]) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    for parameter, result in names.items():
        text = re.sub(re.escape(parameter) + r"(?!\d)", result, text)
    text = _WRITTEN_OUT.sub(r"(\1)", _without_compared(text))
    text = _RESULT.sub("(subquery)", text).replace("((subquery))", "(subquery)")
    text = _CONSTANT.sub(_constant, text)
    return _NUMBERED.sub(r"\1", text)


def _constant(found: re.Match[str]) -> str:
    """A word stays what it is: a queue, a status. Everything else is data of the run."""
    kind, array = found[1], found[2]
    if array or _OF_A_RUN.match(kind) or len(found[0]) > _LONGEST_WORD:
        return f"?::{kind}"
    return found[0]
