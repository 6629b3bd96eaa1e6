"""Forks: what a failover to an asynchronous standby lost, and what is left to be judged.

1. The log of the server that crashed and of the one that goes on are the same up to the fork. A transaction whose
   commit ends behind it is lost, and no other. They are read from the crashed server's own log (`lost-N.pgoutput`,
   written as the ledger is), so they are known and not inferred. The ledger holds the log that goes on: it is read
   behind what the standby has, and never has to be taken back.
2. An operation has a session before it begins; so one that began before the old server was gone ran there, and every
   other on the new one. Of those that ran there and were answered:
   a. one whose answer names what a lost transaction did is lost: it never was;
   b. one whose answer names what another transaction did stands: what it saw was committed before it;
   c. one that was over before the first lost commit stands: it can have seen nothing of it;
   d. any other may have seen or done what is no more: nobody knows, as if its answer had been lost.
3. Nodes and clients remember what is lost, and act on it. A slot that a lost transaction freed may be given back where
   it is still taken. An id of a lost row or signal is handed out again, and who was told it may mean the one before.
   `Echoes` says where; nothing else is excused.
4. The loss has a bound: what the standby had said to have is not lost (`received`), and so nothing that was
   acknowledged before the log had grown beyond that (`known_ns`). More is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from invariants.history.operations import Operation
from invariants.ledger.frames import read_transactions
from invariants.ledger.pgoutput import Row, Transaction, format_lsn, parse_lsn
from invariants.verdict import MAX_VIOLATIONS, Judgement, Loss, Violation, judgement
from invariants.witness import ENDERS, MASK, REMARKS, Echoes, committed

NAME: Final = "loss-bounded"
FORKS_FILE: Final = "forks.json"
# How far the server's clock and a process's may be apart, of one machine: they are the same, and slewed meanwhile.
SLACK_US: Final = 250_000


class Fork(msgspec.Struct, frozen=True):
    """One failover. Positions as Postgres writes them: `fork`, where the logs part; `end`, up to where the crashed
    server's went; `received`, up to where the standby had said to have it before the crash. Readings of the monotonic
    clock: `known_ns`, when the log had not grown beyond `received` yet, None where nobody looked; `stopped_ns` and
    `gone_ns`, before and after the server was stopped; `stopped_us` is the former in microseconds since 1970. `tail`:
    the file of what the crashed server had committed last."""

    fork: str
    end: str
    received: str
    known_ns: int | None
    stopped_ns: int
    gone_ns: int
    stopped_us: int
    tail: str


class Lost(msgspec.Struct, frozen=True):
    """A fork, and the transactions behind it, in commit order."""

    fork: Fork
    transactions: tuple[Transaction, ...]


class Survived(msgspec.Struct, frozen=True):
    """What is left of a history: the operations to be judged, what is still remembered of the others, and the losses
    with their judgement; None where there was no fork."""

    operations: Sequence[Operation]
    echoes: Echoes = Echoes()
    losses: tuple[Loss, ...] = ()
    judgement: Judgement | None = None


def read_lost(folder: Path) -> tuple[Lost, ...]:
    """Of the folder of a ledger; none where there was no fork. Raises FrameError, DecodeError and
    msgspec.DecodeError."""
    path = folder / FORKS_FILE
    if not path.exists():
        return ()
    forks = msgspec.json.decode(path.read_bytes(), type=list[Fork])
    return tuple(Lost(fork, _behind(fork, folder / fork.tail)) for fork in forks)


def write_fork(folder: Path, fork: Fork) -> None:
    """Add one to the folder of a ledger."""
    path = folder / FORKS_FILE
    forks = msgspec.json.decode(path.read_bytes(), type=list[Fork]) if path.exists() else []
    path.write_bytes(msgspec.json.encode([*forks, fork]))


def _behind(fork: Fork, tail: Path) -> tuple[Transaction, ...]:
    return tuple(each for each in read_transactions(tail) if each.lsn > parse_lsn(fork.fork))


def survive(operations: Sequence[Operation], losses: Sequence[Lost]) -> Survived:
    """See the rules above."""
    if not losses:
        return Survived(operations)
    traces = [_Traces(lost) for lost in losses]
    left: list[Operation] = []
    for o in operations:
        trace = next((each for each in traces if o.start_ns < each.lost.fork.gone_ns), None)
        if trace is None:
            fate = "stands"
        elif o.latest_start_ns < trace.lost.fork.gone_ns:
            fate = trace.fate(o)
        else:
            # Of another host, whose clock does not say on which of the two servers it began.
            fate = "unknown"
        if fate == "stands":
            left.append(o)
        elif fate == "unknown":
            left.append(msgspec.structs.replace(o, type="info", result=LOST_SIGHT))
    rows = frozenset[int]().union(*(trace.rows for trace in traces))
    echoes = Echoes(_slots(operations, traces), rows)
    told = tuple(trace.told() for trace in traces)
    violations = [problem for trace in traces if (problem := trace.beyond_the_bound()) is not None]
    checked = len(traces) + sum(len(lost.transactions) for lost in losses)
    return Survived(
        left, echoes, told, judgement(NAME, checked, len(violations), violations[:MAX_VIOLATIONS])
    )


LOST_SIGHT: Final = {
    "error": "Forked",
    "sqlstate": None,
    "message": "answered after the first commit that a failover lost",
}


class _Traces:
    """What the lost transactions of one fork did, by the names that answers use."""

    def __init__(self, lost: Lost) -> None:
        self.lost = lost
        self.operations: list[Operation] = []
        self.unknown = 0
        self.xids: set[int] = set()
        self._born: set[int] = set()
        self._signals: set[int] = set()
        self._claims: set[str] = set()
        # Whose ids will be handed out again, or who will wait for what never came.
        self.rows: set[int] = set()
        for transaction in lost.transactions:
            self.xids.add(transaction.xid & MASK)
            for change in transaction.changes:
                if change.new is not None:
                    self._trace(change.relation.name, change.kind, change.relation.columns, change.new)
        # A commit notes its time before it enters the log, so the order of the two may differ.
        first_us = min((transaction.committed_us for transaction in lost.transactions), default=2**63)
        self._first_us = min(first_us, lost.fork.stopped_us)
        self._from_us = first_us - SLACK_US

    def _trace(self, table: str, kind: str, columns: tuple[str, ...], row: Row) -> None:
        named = dict(zip(columns, row, strict=True))
        if table == "gen_durable":
            if kind == "insert":
                self._born.add(int(named["id"] or 0))
                self.rows.add(int(named["id"] or 0))
            elif (claim := named["locked_by"]) is not None:
                self._claims.add(claim.decode(errors="replace"))
        elif table == "signals" and kind == "insert":
            self._signals.add(int(named["id"] or 0))
            self.rows.add(int(named["target_id"] or 0))

    def fate(self, o: Operation) -> str:
        """`lost`, `stands` or `unknown`."""
        if o.type != "ok" or o.f in REMARKS or o.end_ns is None:
            return "stands"
        names_lost = self._names_lost(o)
        if names_lost:
            self.operations.append(o)
            return "lost"
        if names_lost is False or self._was_over(o, o.end_ns):
            return "stands"
        self.unknown += 1
        return "unknown"

    def _was_over(self, o: Operation, end_ns: int) -> bool:
        """Before the first lost commit. A transaction that changed nothing stands in no log that can be read, and its
        id may be given out again: it was over if the standby is known to have it."""
        if o.f in ENDERS and o.result.get("xid") is not None:
            return self.lost.fork.known_ns is not None and end_ns < self.lost.fork.known_ns
        return (end_ns + o.wall_offset_ns) // 1000 < self._from_us

    def _names_lost(self, o: Operation) -> bool | None:
        """Whether its transaction is lost; None where its answer names none, or not clearly."""
        result: dict[str, Any] = o.result if isinstance(o.result, dict) else {}
        if o.f in ENDERS and result.get("xid") is not None and committed(o):
            return result["xid"] & MASK in self.xids
        if o.f in ("insert", "insert_many"):
            ids = {i for i in result.get("ids", [result.get("id")]) if i is not None}
            return bool(ids & self._born) if ids else None
        if o.f == "signal" and result.get("outcome") == "delivered":
            return result["signal"] in self._signals
        if o.f == "claim" and result.get("ids") and o.value["claim"] not in self._claims:
            return False
        return None

    def told(self) -> Loss:
        """The loss in figures."""
        fork, lost = self.lost.fork, self.lost.transactions
        end, received = parse_lsn(fork.end), parse_lsn(fork.received)
        return Loss(
            fork=fork.fork,
            transactions=len(lost),
            bytes=max(0, end - parse_lsn(fork.fork)) if lost else 0,
            ms=round((fork.stopped_us - self._first_us) / 1000, 3),
            bound_bytes=max(0, end - received),
            bound_ms=None if fork.known_ns is None else round((fork.stopped_ns - fork.known_ns) / 1e6, 3),
            acknowledged=dict(sorted(Counter(o.f for o in self.operations).items())),
            unknown=self.unknown,
            commits=tuple(_commit(each) for each in lost[:MAX_VIOLATIONS]),
            operations=tuple(o.describe() for o in self.operations[:MAX_VIOLATIONS]),
        )

    def beyond_the_bound(self) -> Violation | None:
        """What was lost that cannot have been, if anything was."""
        fork = self.lost.fork
        received = parse_lsn(fork.received)
        beyond = [each for each in self.lost.transactions if each.lsn <= received]
        if beyond:
            commits = ", ".join(_commit(each) for each in beyond[:3])
            return Violation(
                f"the standby had said to have the log up to {fork.received} and took over at {fork.fork}: "
                f"{len(beyond)} commits are lost that it had ({commits})",
                operations=tuple(o.describe() for o in self.operations[:MAX_VIOLATIONS]),
            )
        known_ns = fork.known_ns
        early = [o for o in self.operations if known_ns is not None and (o.end_ns or 0) < known_ns]
        if known_ns is not None and early:
            before_ms = (fork.stopped_ns - (early[0].end_ns or 0)) / 1e6
            bound_ms = (fork.stopped_ns - known_ns) / 1e6
            return Violation(
                f"{len(early)} operations are lost that were acknowledged {before_ms:.0f} ms before the crash and "
                f"earlier, and {bound_ms:.0f} ms before it the log was no longer than the standby had said to have",
                operations=tuple(o.describe() for o in early[:MAX_VIOLATIONS]),
            )
        return None


def _slots(operations: Sequence[Operation], traces: Sequence[_Traces]) -> dict[tuple[str, int], int]:
    """Slots that were given back on the new server because of a transaction that it does not have."""
    given: Counter[tuple[str, int]] = Counter()
    for trace in traces:
        freed = {
            (o.process, o.result["xid"] & MASK)
            for o in trace.operations
            if o.f in ENDERS and o.result.get("xid") is not None
        }
        for o in operations:
            after = o.f == "credit" and o.start_ns >= trace.lost.fork.gone_ns
            if after and (o.process, o.value["freed_by"] & MASK) in freed:
                given.update((key, shard) for key, shard in o.value["slots"])
    return dict(given)


def _commit(transaction: Transaction) -> str:
    at = datetime.fromtimestamp(transaction.committed_us / 1e6, UTC).strftime("%H:%M:%S.%f")
    return f"transaction {transaction.xid} at {format_lsn(transaction.lsn)}, {at}"
