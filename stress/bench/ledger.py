"""What a measured run committed: read from the write-ahead log when it is over, so that it costs the run nothing.

From it come the times, by the server's clock and the same way for everybody, and the proof: which jobs were taken and
which were ended, how often. A contender that works in its own process and times itself would be flattered by what it
leaves out: connecting, the commit it never waited for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from engine.errors import InfrastructureError
from invariants.evidence import Evidence, LedgerSummary
from invariants.judge import Judge
from invariants.ledger.pgoutput import Change, Decoder, Transaction, parse_lsn
from invariants.ledger.reader import Stream, create_slot, drop_slot, mark_rest

NAME: Final = "pgreferee_bench"
READ_S: Final = 60.0

# What a change did to a job: nothing of interest, or what, which job, and who has it now, where the row says so: a
# lease that is renewed is nobody's second taking.
Act = Literal["put", "taken", "ended"]
Reading = Callable[[Change], tuple[Act, str, bytes | None] | None]


@contextmanager
def kept(dsn: str) -> Iterator[str]:
    """While the block runs, every change is kept from here on; the position to read from."""
    start = create_slot(dsn, NAME, NAME)
    try:
        yield start
    finally:
        drop_slot(dsn, NAME, NAME)


def read(dsn: str, start: str) -> list[Transaction]:
    """All that was committed since. Raises InfrastructureError where the server takes too long."""
    until = parse_lsn(mark_rest(dsn))
    stream, decoder = Stream(dsn, NAME, NAME, start), Decoder()
    found: list[Transaction] = []
    deadline = time.monotonic() + READ_S
    try:
        while stream.passed < until or decoder.open:
            for _, message in stream.messages(0.1):
                if (transaction := decoder.feed(message)) is not None:
                    found.append(transaction)
                    stream.record(transaction.lsn)
            stream.ask()
            if time.monotonic() > deadline:
                raise InfrastructureError("the write-ahead log of a measured run could not be read in time")
    finally:
        stream.close()
    return found


@dataclass(slots=True)
class Account:
    """What became of jobs: how often each was taken and ended, and when, in microseconds of the server's clock.

    `took_us` of a job: from the commit that put it in, or that took it first, to the one that ended it.
    """

    taken: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    put_us: dict[str, int] = field(default_factory=dict)
    ended_us: dict[str, int] = field(default_factory=dict)
    puts_us: list[tuple[int, int]] = field(default_factory=list)
    orphans: int = 0
    holders: dict[str, bytes | None] = field(default_factory=dict)

    @classmethod
    def of(cls, transactions: Sequence[Transaction], reading: Reading) -> Account:
        """Of all that was committed."""
        account = cls()
        for transaction in transactions:
            put = 0
            for change in transaction.changes:
                if (act := reading(change)) is not None:
                    account._add(*act, transaction.committed_us)
                    put += act[0] == "put"
            if put:
                account.puts_us.append((transaction.committed_us, put))
        return account

    def _add(self, act: Act, job: str, holder: bytes | None, at_us: int) -> None:
        match act:
            case "put":
                self.put_us.setdefault(job, at_us)
                # Given back by who had it, such as where a limit says not now.
                self.taken[job] -= job in self.holders
                self.holders.pop(job, None)
            case "taken":
                self.taken[job] += holder is None or self.holders.get(job) != holder
                self.holders[job] = holder
            case "ended":
                # By a transaction that nobody took it for: work that may have been done twice.
                self.orphans += job not in self.holders
                self.ended[job] += 1
                self.ended_us[job] = at_us

    def objection(self, jobs: int) -> str | None:
        """Why these are not `jobs` jobs, each taken and then ended, exactly once; None where they are."""
        twice = sum(count > 1 for count in self.ended.values())
        again = sum(count > 1 for count in self.taken.values())
        for count, what in (
            (jobs - len(self.ended), "jobs were not ended"),
            (twice, "jobs were ended more than once"),
            (again, "jobs were taken more than once"),
            (self.orphans, "jobs were ended that nobody had taken"),
        ):
            if count:
                return f"{count} {what}"
        return None

    @property
    def last_us(self) -> int:
        """When the last job was ended."""
        return max(self.ended_us.values())


def objection(transactions: Sequence[Transaction]) -> str | None:
    """What the engine's rules have against the ledger of a run of the engine; None where those that need nothing else
    all hold."""
    judge = Judge(areas=("picker",))
    for transaction in transactions:
        judge.observe(transaction)
    summary = LedgerSummary(judge.transactions, judge.changes, complete=True)
    concluded = judge.conclude(Evidence(at_rest=True, shares_clock=True), summary)
    for rule, reason in concluded:
        if rule.findings.count:
            return f"{rule.name}: {rule.findings.first[0].summary}"
        if rule.name in judge.raised:
            return f"{rule.name}: {reason}"
    held = [rule.name for rule, reason in concluded if reason is None and rule.checked]
    return None if "lifecycle" in held else "no rule could be held against the ledger"
