"""The history as a witness: who did what, looked up by transaction, by claim, and by job.

The contract of values, per operation, as nodes and clients record them (`invoke` value → `ok` result):

    claim        {"queue", "batch", "claim"}              → {"ids": [in pick order], "contended",
                                                             "keys": [[id, concurrency key] of those that have one]}
    step         {"id", "claim", "turn", "key": concurrency key or None, "step", "attempt",
                  "signals": [ids handed to it], "awaits": [names] or None}
                                                          → {"kind"}
    flush        {"outcomes": [[id, claim, kind], …],     → {"xid", "committed": [[id, claim] or id, …]}
                  "turns": [of each, where it is told]}
    heartbeat    {"holds": [[id, claim], …]}              → {"ids"}
    reap         {"limit"}                                → {"xid", "holds": [[id, claim], …]}
    reclaim      {"prefix"}                               → {"xid", "holds": [[id, claim], …]}
    release      {"holds": [[id, claim], …]}              → {"xid", "released": [[id, claim], …]} or {"xid", "ids"}
    insert       {"job": J}                               → {"id": id or None}
    insert_many  {"jobs": [J, …]}                         → {"ids": [id or None, …]}
    signal       {"target": id or None, "key": text or None, "name", "dedup"}
                                                          → {"outcome": "delivered" | "duplicate" | "no_target",
                                                             "target": id or None, "signal": id or None}
    admit        {"claim", "ids": [in pick order],        → {"admitted": [[id, shard or None], …], "denied": [ids],
                  "rates": [[id, rate limit, weight], …]}    "contended"}
    credit       {"slots": [[key, shard], …]}             → {…, "contended"}
    reconcile, sweep_buckets                              → {…}
    sync_config  {"limits": [["conc", name, None, capacity, shards] or ["rate", name, rate, burst, shards], …]} → {…}
    expire       {"limit"}                                → {"ids", "xid"}
    gc           {"limit", "retention_ms"}                → {"ids"}
    count        {"event", "amount"} alone, no invoke; `poke_dropped` says that a notification was held back
    fault        {"fault", "target", "pid", …}            → ok when healed, {"did": {what: how often}}
    phase        {"phase": "load" | "drain" | "rest"}
    limits       {"limits": [[kind, name, rate or None, capacity, shards], …]}, what the process writes down by
                 sync_config, where its configuration may differ from that of others → {}
    idle         {"nodes"}, a time in which they are alone   → {"transactions": by the server's count, theirs}
    roll         {"release"}, a rolling restart          → ok when it is over, {"did": {what: how often}}
    harness      {"what": a statement}                    → {"xid"}: the harness itself did something to the tables

    store.load         {"execution": id}                  → {"version": v or None}
    store.commit       {"execution", "expected": old, "event": event id or None, "emits": n, "timers": n, "spawns": n,
                        "trace": bool, "to": [[target, event id] of each emit that has a target]}
                                                          → {"version": old + 1}
                       a `fail` has {"error": "StoreConflict" or "EventAlreadyProcessed", "found": v or None}, or
                       {"error": "ConflictUnexplained", "found": None} where that was lost, and may say {"version": the
                       object's, "clean": no transaction was left open}; `info` is what CommitOutcomeUnknown says.
                       `"ends": true` beside it: the execution comes to an end by itself, as soon as those that
                       `"needs": [ids]` names are there
    store.trace        {"execution": id}                  → {}: a step of the trace beside any commit
    store.list         {"filters": {…}}                   → {"ids": [of one complete paging]}
    relay.deliver      {"seqs": [oldest first]}           → {}, or {} → {"seqs"}; relay.broadcast the same
    relay.spawn        {}                                 → {"seqs"}
    relay.timers       {}                                 → {"fired": [[execution, path, fire_at], …]}
    transport.publish  {"group", "event": event id}       → {"seq"}, or {"messages": [[group, event id], …]} → {"seqs"}
    transport.claim    {"token"}                          → M = {"group", "seq", "event"} or None, or [M, …]
    transport.ack      {"group", "seq", "token"}          → true, or false where the fence failed; or
                       {"messages": [those, …]}           → [true or false, …]
    transport.nack     {"group", "token"}                 → true or false; transport.extend the same

kind is that of the outcome: next, retry, done, stop, await, childs, continue. J is {"fsm", "queue", "priority",
"concurrency_key", "correlation_key", "scope": [statuses], "expect": E or None}, and E, the end that its machine
prescribes, {"status", "result", "needs": [dedup keys of the signals without which it does not end]}. A `fail` or `info`
has {"error": class, "sqlstate", "message"} as its result.

A `fail` is the server's word that nothing happened. One that came with a lost connection or a shutdown is
not: the error may have overtaken the answer to a commit. Such a `fail` is read as `info`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from invariants.history.operations import Operation

ENDERS = ("flush", "release", "reap", "reclaim")
# What reads or writes the limiters' counters.
LIMITERS = ("admit", "credit", "reconcile", "sweep_buckets", "sync_config")
# What says something about the run, and is no work of the engine.
MARKS = ("count", "phase", "fault", "harness", "roll", "limits", "idle")
REMARKS = (*MARKS, "step")
# Connection failures, operator intervention, and errors that the driver made up itself.
UNCERTAIN_CLASSES = ("08", "57")
# Faults after whose end no session of before is left.
CRASHES = ("crash", "failover", "failover-async")
# The server's last word to a session that it ends.
ENDED_SESSION = ("25P03", "57P01", "57P02")
MASK = 0xFFFFFFFF

T = TypeVar("T")


class Insert(msgspec.Struct, frozen=True):
    """One job of an insert operation. `id` is what was answered."""

    operation: Operation
    job: dict[str, Any]
    id: int | None


class Ender(msgspec.Struct, frozen=True):
    """A flush, release, reap or reclaim that ended or continued claims: `asked` (claim, kind of outcome) by row,
    `told` what it was told, `turns` the turn of the claim that each outcome is of, where it says so."""

    operation: Operation
    asked: dict[int, list[tuple[str, str | None]]]
    told: frozenset[tuple[int, str]]
    turns: dict[tuple[int, str], int]


class Echoes(msgspec.Struct, frozen=True):
    """What is still remembered of transactions that a failover has lost (`invariants/forks.py`): how many slots may
    have been given back too often, by gate key and shard; and the rows whose ids have been given out before, or whose
    signals are lost."""

    slots: dict[tuple[str, int], int] = {}
    rows: frozenset[int] = frozenset()

    def slots_of(self, key: str) -> int:
        """Of all shards of a gate."""
        return sum(count for (name, _), count in self.slots.items() if name == key)


class Witness:
    """An index over a merged history. `echoes`: of what is no longer in it."""

    def __init__(self, operations: Sequence[Operation], echoes: Echoes | None = None) -> None:
        self.operations = operations
        self.echoes = Echoes() if echoes is None else echoes
        self.enders: dict[int, Operation] = {}
        self.claims: dict[str, Operation] = {}
        # When each process was last seen to begin something.
        self.last_seen: dict[str, int] = {}
        self.unknown_flushes: dict[tuple[int, str], list[tuple[Operation, str]]] = {}
        self.unknown_releases: dict[tuple[int, str], list[Operation]] = {}
        self.unknown_reaps: list[Operation] = []
        self.stale: dict[tuple[int, str], Operation] = {}
        self.refused_flushes: list[Operation] = []
        self.handed: dict[tuple[int, str], frozenset[int]] = {}
        self.names_signals = False
        self.deliveries: list[Operation] = []
        self.delivered: set[tuple[int, str]] = set()
        self.limiters: list[Operation] = []
        # By process, what it writes down of each (kind, name): rate, capacity, shards.
        self.limits: dict[str, dict[tuple[str, str], tuple[float | None, float, int]]] = {}
        self.crashes: list[Operation] = []
        self.counts: Counter[str] = Counter()
        self.retention_ms: float | None = None
        # For how long its collector was to keep each row that was collected.
        self.kept_ms: dict[int, float] = {}
        self.acknowledged: Counter[tuple[int, str]] = Counter()
        self.inserts: dict[int, Insert] = {}
        self.refused: list[Insert] = []
        self.unknown_inserts: list[Insert] = []
        self.broken_inserts: list[Operation] = []
        self.names_claims = False
        # Operations by name; commits by the version that they were to make.
        self.named: dict[str, list[Operation]] = {}
        self.commits: dict[tuple[str, int], list[Operation]] = {}
        self.tokens: dict[str, Operation] = {}
        self._derived: dict[Callable[[Witness], Any], Any] = {}
        self._last: tuple[int, Ender | None] = (-1, None)
        for operation in operations:
            self._index(operation)

    def _index(self, o: Operation) -> None:
        self.last_seen[o.process] = o.start_ns
        self.named.setdefault(o.f, []).append(o)
        if "." in o.f:
            self._index_stored(o)
        elif o.f in ENDERS:
            self._index_ender(o)
        elif o.f == "step":
            self._index_step(o)
        elif o.f == "claim":
            self.names_claims = True
            self.claims[o.value["claim"]] = o
        elif o.f == "fault" and o.value["fault"] in CRASHES:
            self.crashes.append(o)
        elif o.f == "signal":
            self.deliveries.append(o)
            if o.type == "ok" and o.result["target"] is not None and o.value["dedup"] is not None:
                self.delivered.add((o.result["target"], o.value["dedup"]))
        elif o.f in LIMITERS:
            self.limiters.append(o)
        elif o.f == "limits":
            self.limits[o.process] = {
                (kind, name): (rate, capacity, shards)
                for kind, name, rate, capacity, shards in o.value["limits"]
            }
        elif o.f == "count":
            self.counts[o.value["event"]] += o.value["amount"]
        elif o.f == "gc":
            kept = o.value.get("retention_ms")
            if kept is not None:
                self.retention_ms = kept if self.retention_ms is None else min(kept, self.retention_ms)
                if o.type == "ok":
                    self.kept_ms.update(dict.fromkeys(o.result["ids"], kept))
        elif o.f in ("insert", "insert_many"):
            jobs = [o.value["job"]] if o.f == "insert" else o.value["jobs"]
            if o.type == "fail" and (error_of(o).get("sqlstate") or "")[:2] not in UNCERTAIN_CLASSES:
                # Clients are made to send what the server takes; its word against a job is the engine's fault.
                self.broken_inserts.append(o)
            if is_unknown(o):
                self.unknown_inserts.extend(Insert(o, job, None) for job in jobs)
            elif o.type == "ok":
                ids = [o.result["id"]] if o.f == "insert" else o.result["ids"]
                for job, row in zip(jobs, ids, strict=True):
                    if row is None:
                        self.refused.append(Insert(o, job, None))
                    else:
                        self.inserts[row] = Insert(o, job, row)

    def _index_stored(self, o: Operation) -> None:
        if o.f == "store.commit":
            self.commits.setdefault((o.value["execution"], o.value["expected"] + 1), []).append(o)
        elif o.f == "transport.claim":
            self.tokens[o.value["token"]] = o

    def _index_step(self, o: Operation) -> None:
        signals = o.value.get("signals")
        if signals is None:
            return
        self.names_signals = True
        if signals:
            # A claim has several steps where it is continued in line; an inbox only grows under one.
            key = (o.value["id"], o.value["claim"])
            self.handed[key] = self.handed.get(key, frozenset()) | frozenset(signals)

    def derived(self, make: Callable[[Witness], T]) -> T:
        """What that makes of the whole history; made once, for all rules that look at it."""
        if make not in self._derived:
            self._derived[make] = make(self)
        found: T = self._derived[make]
        return found

    @cached_property
    def machines(self) -> frozenset[str]:
        """Those whose monotonic clocks the history was timed by."""
        return frozenset(o.machine for o in self.operations)

    @cached_property
    def losses(self) -> tuple[Operation, ...]:
        """Failovers that may have undone what had been acknowledged."""
        return tuple(o for o in self.crashes if may_lose(o))

    @cached_property
    def before_losses(self) -> Witness:
        """The history up to the first of them: what had not ended by then has an unknown outcome. Itself where there is
        none."""
        if not self.losses:
            return self
        until = min(loss.start_ns for loss in self.losses)
        return Witness(
            [
                o
                if o.end_ns is not None and o.end_ns < until
                else msgspec.structs.replace(o, type="info", result=None, end_ns=None)
                for o in self.operations
                if o.start_ns < until
            ]
        )

    def over_ns(self, o: Operation) -> int | None:
        """When an operation is over on the server too, None where nobody can say. One of unknown outcome may still be
        under way when its caller has given up, but not in a session that the server ended, and not after a crash."""
        if o.end_ns is not None and (o.type != "info" or error_of(o).get("sqlstate") in ENDED_SESSION):
            return o.end_ns
        return next(
            (c.end_ns for c in self.crashes if c.end_ns is not None and o.latest_start_ns <= c.end_ns), None
        )

    def may_end(self, insert: Insert) -> bool:
        """Whether its machine prescribes an end, and every signal that this end needs was delivered."""
        expect = insert.job.get("expect")
        return expect is not None and all(
            (insert.id, dedup) in self.delivered for dedup in expect.get("needs", ())
        )

    def is_early(self, insert: Insert) -> bool:
        """Whether its job need not have started: the time it asked for lies behind the last operation's beginning."""
        return (
            bool(self.operations)
            and 1_000 * (insert.job.get("eligible_at") or 0) > self.operations[-1].begun_us
        )

    def outlived(self, claim: str, operation: Operation) -> Operation | None:
        """The claim's own operation, where its process did something after that other operation had ended."""
        mine = self.claims.get(claim)
        if mine is None or operation.end_ns is None or self.last_seen[mine.process] <= operation.end_ns:
            return None
        return mine

    def presented(self, row: int, claim: str) -> frozenset[int] | None:
        """The signals that the steps of that claim were handed; None where nobody says."""
        return self.handed.get((row, claim), frozenset()) if self.names_signals else None

    def _index_ender(self, o: Operation) -> None:
        if o.type == "ok":
            if o.result["xid"] is not None:
                self.enders[o.result["xid"] & MASK] = o
            if o.f == "flush":
                self.acknowledged.update(ended(o))
                if len(o.result["committed"]) < len(o.value["outcomes"]):
                    kept = set(committed(o))
                    for row, claim, _ in o.value["outcomes"]:
                        if (row, claim) not in kept:
                            self.stale[row, claim] = o
        elif o.f == "flush" and not is_unknown(o):
            self.refused_flushes.append(o)
        elif is_unknown(o):
            if o.f == "flush":
                for row, claim, kind in o.value["outcomes"]:
                    self.unknown_flushes.setdefault((row, claim), []).append((o, kind))
            elif o.f == "release":
                for row, claim in o.value["holds"]:
                    self.unknown_releases.setdefault((row, claim), []).append(o)
            else:
                self.unknown_reaps.append(o)

    def ender(self, xid: int) -> Ender | None:
        """Who ended claims in that transaction. The last answer is kept: its rows come one after the
        other."""
        if self._last[0] != xid:
            operation = self.enders.get(xid)
            self._last = (xid, None if operation is None else _ender(operation))
        return self._last[1]

    def who(self, xid: int, claims: Iterable[str], rows: Iterable[int]) -> str | None:
        """Whose transaction it was, as `node-1 flush`; None when nobody says."""
        if (ender := self.enders.get(xid)) is not None:
            return f"{ender.process} {ender.f}"
        for claim in claims:
            if (operation := self.claims.get(claim)) is not None:
                return f"{operation.process} claim"
        for row in rows:
            if (insert := self.inserts.get(row)) is not None:
                return f"{insert.operation.process} {insert.operation.f}"
        return None


def may_lose(fault: Operation) -> bool:
    """Whether a fault may undo what was acknowledged: a failover to a standby that commits did not wait for."""
    return bool(fault.value["fault"] == "failover-async")


def is_unknown(o: Operation) -> bool:
    """Whether nobody can say if it took effect."""
    if o.type == "ok":
        return False
    if o.type == "info":
        return True
    sqlstate = error_of(o).get("sqlstate")
    return sqlstate is None or sqlstate[:2] in UNCERTAIN_CLASSES


def is_undecided(o: Operation) -> bool:
    """Whether nobody can say if a commit took effect. Its own errors carry no code of the server's, and are decided."""
    return o.type == "info" or (
        o.type == "fail" and (error_of(o).get("sqlstate") or "")[:2] in UNCERTAIN_CLASSES
    )


def error_of(o: Operation) -> dict[str, Any]:
    """The error of an operation that ended with one; empty otherwise."""
    return o.result if o.type != "ok" and isinstance(o.result, dict) else {}


def committed(o: Operation) -> list[tuple[int, str]]:
    """The (id, claim) pairs that a flush, release, reap or reclaim was told it changed."""
    if o.f in ("reap", "reclaim"):
        return [(row, claim) for row, claim in o.result["holds"]]
    named = o.result["committed"] if o.f == "flush" else o.result.get("released", o.result.get("ids"))
    if all(isinstance(entry, int) for entry in named):
        claims = {
            entry[0]: entry[1] for entry in (o.value["outcomes"] if o.f == "flush" else o.value["holds"])
        }
        return [(row, claims.get(row, "")) for row in named]
    return [(row, claim) for row, claim in named]


def ended(o: Operation) -> list[tuple[int, str]]:
    """Those of them that ended: a claim that was continued in line lasts."""
    changed = committed(o)
    if o.f != "flush":
        return changed
    lasting = {(entry[0], entry[1]) for entry in o.value["outcomes"] if entry[2] == "continue"}
    return [pair for pair in changed if pair not in lasting] if lasting else changed


def _ender(o: Operation) -> Ender:
    asked: dict[int, list[tuple[str, str | None]]] = {}
    entries = (
        o.value["outcomes"]
        if o.f == "flush"
        else o.result["holds"]
        if o.f in ("reap", "reclaim")
        else o.value["holds"]
    )
    for entry in entries:
        asked.setdefault(entry[0], []).append((entry[1], entry[2] if o.f == "flush" else None))
    turns = {
        (entry[0], entry[1]): turn for entry, turn in zip(entries, o.value.get("turns", ()), strict=False)
    }
    return Ender(o, asked, frozenset(committed(o)), turns)


def signature_of(job: dict[str, Any]) -> tuple[str | None, ...]:
    """What an insert of unknown outcome and the row that it made have in common."""
    names = ("fsm", "queue", "priority", "concurrency_key", "correlation_key")
    return tuple(None if job[name] is None else str(job[name]) for name in names)


def lone(operations: Sequence[Operation]) -> Iterator[tuple[Operation, bool]]:
    """Each operation, and whether none of the others was under way with it. They come sorted by their start."""
    busy_until = -1
    for place, o in enumerate(operations):
        end = 2**63 if o.end_ns is None else o.end_ns
        following = operations[place + 1].start_ns if place + 1 < len(operations) else 2**63
        yield o, o.start_ns > busy_until and (following > end or place + 1 == len(operations))
        busy_until = max(busy_until, end)
