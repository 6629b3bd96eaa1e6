"""The shapes that must hold on every version (plans.md, "Shapes that must hold"): data for each statement, pure checks.

Rules, each by the name that a violation carries. A unit is one row of the batch; a statement about one row has a
unit of one. What was never executed breaks no rule. Of a plan that a session kept from when there was next to nothing
(`kept`) only what it reads of tables counts, which is what grows: `seq-scan`, `pages`, and `rows` of scans. Between two
indexes that both find the row such a plan throws a coin, and what a batch is joined to in memory is a batch.

    index           the named scan rides one of its indexes; a table no larger than the small profile may be read whole,
                    but in a session that is barred from it: there, no index could have answered
    seq-scan        no other Seq Scan of a table that is larger than that, or of any in a session that is barred from it
    stranger        a closed statement reads no table but those that it names
    rows            no node handles more rows (brought or looked at in vain, over all loops) than `rows` units
    loops           no node runs more often than `loops` units
    sort            no Sort, Hash or hashed Aggregate holds more than `sort` units
    hashed-subplan  no SubPlan that reads a table is hashed: it reads all of it, once
    pages           the statement touches no more than `pages` shared buffers a unit, and 60
    over-claim      a Limit over LockRows runs once, as a CTE or an array: joined to, it may run again, and lock others
    condition       no condition holds a forbidden text: work for each row that belongs elsewhere
    failed          the server refused the statement
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from results.plans.folder import Capture, Captured, Mode, Table
from results.plans.profiles import PROFILES
from results.plans.tree import SCANS, Node, locks_again, paths, ran, walk

# A table of this many rows may be read whole: where a batch is no small part of it, that is the cheaper plan.
SMALL_ROWS: Final = PROFILES["small"].rows
# Buffers and rows that a statement may need whatever the batch is.
SLACK: Final = 60
TID: Final = "tid"

_COPY: Final = re.compile(r"_\d+$")
_HOLDERS: Final = frozenset(("Hash", "Sort", "Materialize", "Memoize"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one statement may do. `probes`: for each scan, named `alias` or `cte:alias`, the indexes it may ride, `TID`
    meaning a Tid Scan. `one`: it is about one row. `limited`: a limit may end the scan of a large table before its
    half. The numbers are in units."""

    probes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    one: bool = False
    closed: bool = False
    limited: bool = False
    forbids: tuple[str, ...] = ()
    rows: float = 4
    loops: float = 2.1
    sort: float = 2.1
    pages: float = 25


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where, and in a sentence what was found and what is asked for."""

    label: str
    mode: str
    rule: str
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.label} ({self.mode}): {self.rule}: {self.message}" + (
            f" [{self.path}]" if self.path else ""
        )


def _by(*indexes: str) -> tuple[str, ...]:
    return indexes


_PK: Final = _by("gen_durable_pkey")
_ACTIVE: Final = _by("gen_durable_concurrency_active")
_BUCKETS: Final = _by("gen_durable_buckets_pkey", TID)
_CONFIGS: Final = _by("gen_durable_bucket_configs_pkey")
_EXECUTIONS: Final = _by("executions_pkey")
_EVENTS: Final = _by("processed_events_pkey")
_TRACE: Final = _by("trace_pkey")
_OUTBOX: Final = _by("outbox_pkey")
_SPAWNS: Final = _by("spawns_pkey")
_TIMERS: Final = _by("timers_pkey")
_GROUPS: Final = _by("transport_groups_pkey")
_MESSAGES: Final = _by("transport_messages_group")

SHAPES: Final[Mapping[str, Shape]] = {
    "picker/insert": Shape(one=True, pages=60),
    "picker/insert_many": Shape(pages=40),
    "picker/claim": Shape(
        probes={"candidate:g": _by("gen_durable_pick"), "candidate:s": _ACTIVE, "g": _by(TID)},
        closed=True,
        forbids=("split_part",),
        rows=3,
        sort=1.1,
    ),
    "picker/inbox": Shape(probes={"s": _by("signals_target")}, rows=6, sort=6),
    "picker/children": Shape(probes={"g": _by("gen_durable_parent")}, rows=12, sort=12),
    "picker/flush": Shape(probes={"named:g": _PK, "locked:g": _PK, "g": _PK}, pages=30),
    "picker/flush_patience": Shape(one=True),
    "picker/flush_lock": Shape(probes={"named:g": _PK, "locked:g": _PK}),
    "picker/flush_children": Shape(pages=40),
    "picker/flush_drop": Shape(probes={"s": _by("signals_target")}, pages=30),
    "picker/flush_consume": Shape(probes={"consumed:s": _by("signals_pkey"), "s": _by(TID)}),
    "picker/flush_join": Shape(probes={"g": _PK}),
    "picker/flush_recheck": Shape(
        probes={
            "unseen:g": _PK,
            "unseen:s": _by("signals_target", "signals_target_id_dedup_key_key"),
            "g": _PK,
        },
        rows=6,
    ),
    "picker/signal": Shape(
        one=True, probes={"target:g": _by("gen_durable_pkey", "gen_durable_correlation"), "wake:g": _PK}
    ),
    "picker/expire_awaits": Shape(probes={"expired:g": _by("gen_durable_await_deadline"), "g": _by(TID)}),
    "picker/heartbeat": Shape(probes={"held:g": _PK, "g": _PK}),
    "picker/release": Shape(probes={"held:g": _PK, "g": _PK}),
    "picker/reap": Shape(probes={"expired:g": _by("gen_durable_lease"), "g": _by(TID)}, rows=2),
    "pokes/notify": Shape(one=True),
    "maintenance/gc_select": Shape(
        probes={"page:g": _by("gen_durable_gc"), "g": _by("gen_durable_pkey", "gen_durable_parent")}
    ),
    "maintenance/gc_delete": Shape(
        probes={"doomed:g": _PK, "doomed:c": _by("gen_durable_parent"), "g": _PK}, closed=True
    ),
    # Once a boot, over what is below the margin: all the expired where the node is not well.
    "maintenance/reclaim": Shape(
        probes={"left_behind:g": _by("gen_durable_lease"), "g": _by(TID)}, rows=8, loops=8
    ),
    # Keys and shards of a batch are joined in memory: one level for each row's key.
    "limiter/admit": Shape(probes={"wanted:g": _PK, "stamped:g": _PK}, rows=40, loops=4, sort=4, pages=60),
    "limiter/credit": Shape(probes={"due:b": _BUCKETS, "b": _BUCKETS}),
    "limiter/sync_config": Shape(one=True),
    "limiter/reconcile_page": Shape(probes={"b": _BUCKETS}),
    "limiter/reconcile_lock": Shape(probes={"b": _BUCKETS}),
    # Counts all the executing rows, once a page of keys.
    "limiter/reconcile": Shape(
        probes={"used:g": _by("gen_durable_lease", "gen_durable_concurrency_active")},
        rows=12,
        loops=4,
        sort=12,
    ),
    # Reads the buckets whole; it is the only one, and runs every minute or so.
    "limiter/sweep_buckets": Shape(rows=120, loops=4, sort=120, pages=40),
    "client/counts": Shape(probes={"newest:g": _PK}, rows=10, sort=10, pages=40),
    "client/inspect": Shape(probes={"g": _PK}),
    "client/outcome": Shape(one=True, probes={"g": _PK}),
    "client/page": Shape(probes={"looked_at:g": _PK}, rows=4, pages=30),
    "store/load": Shape(one=True, probes={"e": _EXECUTIONS}),
    "store/load_for_event": Shape(one=True, probes={"e": _EXECUTIONS, "p": _EVENTS}),
    "store/is_processed": Shape(one=True, probes={"p": _EVENTS}),
    "store/why": Shape(one=True, probes={"e": _EXECUTIONS, "p": _EVENTS}),
    "store/lock": Shape(probes={"e": _EXECUTIONS}),
    "store/commit": Shape(
        probes={
            "found:x": _EXECUTIONS,
            "found:p": _EVENTS,
            "updated:e": _EXECUTIONS,
            "stepped:t": _TRACE,
            "outworn:t": _TRACE,
            "trimmed:t": _by(TID),
            "idle:t": _TIMERS,
            "disarmed:t": _by(TID),
        },
        pages=90,
    ),
    "store/commit_cas": Shape(one=True),
    "store/append_trace": Shape(one=True, probes={"stepped:t": _TRACE, "trimmed:t": _TRACE}),
    "store/trace": Shape(one=True, probes={"t": _TRACE}),
    "store/page": Shape(probes={"e": _EXECUTIONS}, rows=2),
    "store/page_of_status": Shape(probes={"x": _by("executions_status")}),
    "store/outbox": Shape(probes={"o": _OUTBOX}, rows=1.1),
    "store/spawns": Shape(probes={"s": _SPAWNS}, rows=1.1),
    "store/ack_outbox": Shape(one=True, probes={"outbox": _OUTBOX}),
    "store/ack_spawn": Shape(one=True, probes={"spawns": _SPAWNS}),
    "store/due_timers": Shape(probes={"t": _by("timers_due")}),
    "store/delete_timer": Shape(one=True, probes={"timers": _by("timers_pkey", "timers_due")}),
    "relay/ack": Shape(probes={"held:o": _OUTBOX, "o": _OUTBOX}),
    "relay/broadcast": Shape(probes={"o": _by("outbox_broadcast")}, rows=1.1),
    "relay/move": Shape(
        probes={
            "busy:o": _by("outbox_lane"),
            "due:o": _by("outbox_lane"),
            "due:s": _by("spawns_child"),
            "moved:o": _OUTBOX,
        },
        pages=60,
    ),
    "relay/patience": Shape(one=True),
    "relay/turn": Shape(one=True),
    "relay/spawns": Shape(probes={"s": _SPAWNS, "e": _EXECUTIONS}),
    "relay/sweep": Shape(probes={"due:t": _by("timers_due"), "fired:t": _by(TID)}, pages=40),
    "relay/make": Shape(probes={"acked:s": _SPAWNS}, pages=80),
    "transport/publish": Shape(pages=60),
    # A page of candidates in each of five priorities.
    "transport/claim": Shape(rows=8, loops=5, sort=8, pages=80),
    "transport/ack": Shape(pages=60),
    "transport/nack": Shape(one=True, probes={"g": _GROUPS}),
    "transport/extend": Shape(one=True, probes={"g": _GROUPS}),
    "transport/set_priority": Shape(one=True, probes={"g": _GROUPS}),
    # Counts no further than its second argument, a thousand here; of all groups, it may as well begin anywhere.
    "transport/depth": Shape(rows=60, pages=60),
    "transport/groups": Shape(probes={"g": _GROUPS, "m": _MESSAGES}),
}
# Statements that are not the engine's.
OTHERS: Final = Shape(limited=True)
# Seq Scans that a limit ends: cases, by their label.
BOUNDED: Final = frozenset(("transport/depth@all",))


def check(capture: Capture, shapes: Mapping[str, Shape] = SHAPES) -> list[Violation]:
    """Every rule broken by a capture, in its order of statements. A statement without a shape is held against the
    general rules."""
    environment = capture.environment
    return [
        violation
        for captured in capture.statements.values()
        for violation in check_statement(
            captured,
            environment.tables,
            environment.profile.batch,
            shapes.get(captured.statement, OTHERS),
            barred=environment.settings.get("enable_seqscan") == "off",
        )
    ]


def check_statement(
    captured: Captured, tables: Mapping[str, Table], batch: int, shape: Shape, *, barred: bool = False
) -> list[Violation]:
    """The rules broken by one statement, in all modes, the statements inside its functions included. `barred`: its
    session does without sequential scans where it can."""
    if captured.error:
        return [Violation(captured.label, "both", "failed", "", captured.error)]
    found: list[Violation] = []
    for mode, explained in captured.plans.items():
        judged = _Judged(captured.label, mode, tables, 1 if shape.one else batch, shape, barred=barred)
        found += judged.whole(explained.plan)
        for inner in explained.inner:
            found += judged.nodes(inner.plan, f"inside: {inner.text[:60]}: ")
    return found


def scan_name(path: str, node: Node) -> str:
    """How shapes name a scan: `alias`, or `cte:alias` inside a CTE, without the number that EXPLAIN appends."""
    ctes = re.findall(r"CTE (\w+): ", path)
    alias = _COPY.sub("", node.alias or node.relation)
    return f"{ctes[-1]}:{alias}" if ctes else alias


def indexes_of(scan: Node) -> set[str]:
    """The indexes that a scan rides, its bitmaps' included."""
    if scan.kind == "Tid Scan":
        return {TID}
    return {node.index for node in walk(scan) if node.index and (node is scan or "Bitmap" in scan.kind)}


class _Judged:
    def __init__(
        self, label: str, mode: Mode, tables: Mapping[str, Table], unit: int, shape: Shape, *, barred: bool
    ) -> None:
        self._barred = barred
        self._label = label
        self._mode = mode
        self._tables = tables
        self._unit = unit
        self._shape = shape

    def whole(self, root: Node) -> Iterator[Violation]:
        yield from self.nodes(root, "")
        if self._mode != "kept":
            yield from self._probes(root)
            for path in locks_again(root):
                yield self._broken(
                    "over-claim",
                    path,
                    "a Limit over LockRows stands in a join: run again, it locks other rows",
                )
        most = self._shape.pages * self._unit + SLACK
        if root.buffers > most:
            yield self._broken("pages", "", f"{root.buffers:,} buffers, not at most {most:,.0f}")

    def nodes(self, root: Node, prefix: str) -> Iterator[Violation]:
        unit, shape = self._unit, self._shape
        for path, node in ran(root):
            where = prefix + path
            barred = self._barred and node.relation in self._tables
            ended = shape.limited and "Limit" in path and not self._whole(node)
            read = barred or not (self._small(node) or ended)
            if node.kind == "Seq Scan" and read and self._label not in BOUNDED:
                rows = self._tables[node.relation].rows if node.relation in self._tables else 0
                yield self._broken("seq-scan", where, f"reads {node.relation} whole, {rows:,} rows")
            if self._mode == "kept" and not (node.kind in SCANS and node.relation):
                continue
            if not self._reads_small_table(node):
                if node.handled > shape.rows * unit + SLACK:
                    yield self._broken(
                        "rows",
                        where,
                        f"{node.title()} handles {node.handled:,.0f} rows for a batch of {unit}",
                    )
                holds = node.kind in ("Sort", "Hash") or "Hashed" in node.strategy
                if holds and node.rows > shape.sort * unit + SLACK / 6:
                    yield self._broken(
                        "sort", where, f"{node.title()} holds {node.rows:,.0f} rows for a batch of {unit}"
                    )
            if node.loops > shape.loops * unit + SLACK / 6:
                yield self._broken(
                    "loops", where, f"{node.title()} runs {node.loops:,.0f} times for a batch of {unit}"
                )
            if node.hashed and any(
                below.relation and below.loops
                for child in node.children
                if child.role == "SubPlan"
                for below in walk(child)
            ):
                yield self._broken("hashed-subplan", where, f"{node.title()} hashes a subquery over a table")
            for text in shape.forbids:
                if any(text in condition for condition in node.conditions.values()):
                    yield self._broken("condition", where, f"{node.title()} computes {text} for each row")

    def _probes(self, root: Node) -> Iterator[Violation]:
        seen = set()
        for path, node in paths(root):
            if node.kind not in SCANS:
                continue
            name = scan_name(path, node)
            seen.add(name)
            wanted = self._shape.probes.get(name)
            if wanted is None:
                if self._shape.closed and node.loops:
                    yield self._broken(
                        "stranger", path, f"reads {node.relation} as {name}, which is not in its shape"
                    )
            elif node.loops and not indexes_of(node) <= {*wanted} | (
                {""} if node.kind != "Seq Scan" else set()
            ):
                used = ", ".join(sorted(indexes_of(node)))
                yield self._broken("index", path, f"{name} rides {used}, not {' or '.join(wanted)}")
            elif (
                node.loops
                and node.kind == "Seq Scan"
                and (self._barred or not self._small(node) or wanted == (TID,))
            ):
                yield self._broken("index", path, f"{name} rides no index, not {' or '.join(wanted)}")
        for name in self._shape.probes.keys() - seen:
            if not any(part.startswith(f"{name}@") for part in seen):
                yield from self._absent(name, root)

    def _absent(self, name: str, root: Node) -> Iterator[Violation]:
        # Postgres leaves out what it can prove to be empty, such as a branch on a null argument.
        if any(
            node.kind == "Result" and node.conditions.get("One-Time Filter") == "false" for node in walk(root)
        ):
            return
        yield self._broken(
            "index", "", f"there is no scan of {name}, which should ride {self._shape.probes[name][0]}"
        )

    def _whole(self, scan: Node) -> bool:
        """Whether it has read half of the table at least, in one of its loops."""
        table = self._tables.get(scan.relation)
        return table is None or scan.handled / scan.loops * 2 > table.rows

    def _small(self, node: Node) -> bool:
        table = self._tables.get(node.relation)
        return table is not None and table.rows <= SMALL_ROWS

    def _reads_small_table(self, node: Node) -> bool:
        """A small table read whole, and what holds its rows or joins them."""
        if node.kind in SCANS:
            return node.kind == "Seq Scan" and self._small(node)
        return node.kind in _HOLDERS and len(node.children) == 1 and self._reads_small_table(node.children[0])

    def _broken(self, rule: str, path: str, message: str) -> Violation:
        return Violation(self._label, self._mode, rule, path, message)
