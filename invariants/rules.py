"""What a rule is: a small state machine over transitions, that knows its name and says in prose what it
found.

A rule sees each transaction of the ledger once, in commit order, as the changes of the groups that it names
(`invariants/changes.py`), and at the end whatever else there is to look at. It does no I/O and knows no clock.
What it finds it names by row and transaction number only; `judge` looks up the transactions in a second pass, so
that no rule has to remember them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from invariants.changes import Changes, Columns
from invariants.elsewhere import ALONE, Elsewhere
from invariants.evidence import Evidence, LedgerSummary
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.ledger.state import Table
from invariants.verdict import MAX_VIOLATIONS
from invariants.witness import Witness

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Found(msgspec.Struct, frozen=True):
    """A violation as a rule states it: prose, the jobs it is about (their inboxes are shown with them), the
    transaction in which it showed, and what else it is about: a bucket as (kind, key), a row of the store as its
    table's subject (`invariants/stored.py`)."""

    summary: str
    rows: tuple[int, ...] = ()
    number: int | None = None
    operations: tuple[Operation, ...] = ()
    subjects: tuple[tuple[str, str], ...] = ()


class Findings:
    """What a rule found: the first ones, and how many."""

    def __init__(self) -> None:
        self.first: list[Found] = []
        self.count = 0

    def add(
        self,
        summary: str,
        rows: Sequence[int] = (),
        number: int | None = None,
        operations: Sequence[Operation] = (),
        subjects: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Note one violation."""
        self.count += 1
        if len(self.first) < MAX_VIOLATIONS:
            self.first.append(Found(summary, tuple(rows), number, tuple(operations), tuple(subjects)))


class Rest(msgspec.Struct, frozen=True):
    """What there is to look at when the ledger has been read. `table` is the jobs' table as replayed."""

    evidence: Evidence
    summary: LedgerSummary
    witness: Witness | None
    table: Table | None


class Rule(Protocol):
    """One invariant's checker.

    `groups` are those of `invariants/changes.py` that it looks at: it is called for no transaction without them.
    `needs_ledger`, `needs_history` and `needs_rest` say without what it cannot hold; `conclude` answers with
    a reason where it is unknown for another cause.
    """

    name: str
    statement: str
    groups: int
    needs_ledger: bool
    needs_history: bool
    needs_rest: bool
    checked: int
    findings: Findings

    def __init__(self, columns: Columns, witness: Witness | None, /) -> None:
        """`witness` is the history, where there is one."""

    def transaction(self, transaction: Transaction, changes: Changes, /) -> None:
        """What one committed transaction changed."""

    def conclude(self, rest: Rest, /) -> str | None:
        """The ledger has ended; look at what is only decided then."""


class Watcher:
    """What the rules of the store and of the transport begin with: nothing checked, nothing found. They need no
    columns of the picker's. `elsewhere`: what lives in other shards, where there are several."""

    name: str
    statement: str
    groups = 0
    needs_ledger, needs_history, needs_rest = True, False, False
    elsewhere: Elsewhere = ALONE

    def __init__(self, _: Columns | None, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self.witness = witness

    def transaction(self, _: Transaction, __: Changes) -> None:
        """Most rules that look at the ledger have one of their own."""

    def conclude(self, _: Rest) -> str | None:
        """Most rules are decided at each commit."""
        return None

    def named(self, operation: str) -> Sequence[Operation]:
        """The history's operations of that name, in the order in which they began; none without a history."""
        return () if self.witness is None else self.witness.named.get(operation, ())


def bare(transaction: Transaction) -> Transaction:
    """When it was, without what it did: to be remembered."""
    return msgspec.structs.replace(transaction, changes=())


def microseconds(text: bytes) -> int:
    """A timestamptz of a session in UTC and ISO style as microseconds since 1970; infinities and far years
    clamp."""
    try:
        return (datetime.fromisoformat(text.decode()) - _EPOCH) // _MICROSECOND
    except ValueError:
        return -(2**62) if text.startswith(b"-") or text.endswith(b"BC") else 2**62


def text(value: bytes | None) -> str:
    """A value for prose."""
    return "null" if value is None else value.decode(errors="replace")


def scope(value: bytes | None) -> frozenset[bytes]:
    """The statuses of a `durable_status[]` in text form."""
    inner = (value or b"{}")[1:-1]
    return frozenset(inner.split(b",")) if inner else frozenset()
