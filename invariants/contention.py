"""What a caller may see of races: nothing but a retry or a smaller batch, and never a deadlock."""

from __future__ import annotations

from typing import Final

from invariants.changes import Changes, Columns
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Transaction
from invariants.rules import Findings, Rest
from invariants.witness import REMARKS, Witness, error_of

LOST_RACES: Final = ("40P01", "40001", "55P03")
DEADLOCK: Final = "40P01"
IMPATIENT: Final = "55P03"
SPAWNS: Final = "childs"


class ContentionQuiet:
    """A lost race is a retry or a smaller batch."""

    name = "contention-quiet"
    statement = "a lost race surfaces as a retry or a smaller batch, never as an error to the caller"
    # A flush that spawns waits a bounded time for a child's identity, which a stranger may hold, or a node that was
    # frozen in mid-transaction (docs/findings.md, "A stranger's transaction holds up a flush"). It then ends with
    # lock_not_available, to be sent again in parts: who wrote the outcomes sees nothing of it.
    groups = 0
    needs_ledger, needs_history, needs_rest = False, True, False

    def __init__(self, _: Columns, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness

    def transaction(self, _: Transaction, __: Changes) -> None:
        """Only the history is looked at."""

    def conclude(self, _: Rest) -> str | None:
        for o in self._witness.operations if self._witness is not None else ():
            if o.f in REMARKS:
                continue
            self.checked += 1
            sqlstate = error_of(o).get("sqlstate")
            if sqlstate is not None and (sqlstate[:2] == "23" or sqlstate in LOST_RACES):
                if sqlstate == IMPATIENT and self._sent_again(o):
                    continue
                self.findings.add(
                    f"{o.f} of {o.process} ended with {error_of(o)['error']} ({sqlstate}): "
                    f"{error_of(o).get('message', '')}",
                    (), None, [o],
                )  # fmt: skip
        return None

    def _sent_again(self, flush: Operation) -> bool:
        """Whether it spawns, and all its outcomes were sent once more, or given up when no server was to be had, and so
        left to the reaper; a node that was killed sends nothing."""
        assert self._witness is not None
        if flush.f != "flush" or all(kind != SPAWNS for _, _, kind in flush.value["outcomes"]):
            return False
        given_up = 0
        missing = {(row, claim) for row, claim, _ in flush.value["outcomes"]}
        for o in self._witness.operations:
            if o.f == "fault" and o.value["target"] == flush.process and o.value["fault"] == "kill":
                return True
            # In the order of one process, which is sure also where its clock is not.
            if o.process != flush.process or o.index <= flush.index:
                continue
            if o.f == "flush":
                missing -= {(row, claim) for row, claim, _ in o.value["outcomes"]}
            elif o.f == "count" and o.value["event"] == "abandoned":
                given_up += o.value["amount"]
        return len(missing) <= given_up


class NoDeadlock:
    """No statement ends in `deadlock detected`, also none whose caller tries again and says nothing."""

    name = "no-deadlock"
    statement = (
        "no statement of the engine ever ends in `deadlock detected`, under any plan the planner may choose"
    )
    groups = 0
    needs_ledger, needs_history, needs_rest = False, False, False

    def __init__(self, _: Columns | None, witness: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._witness = witness

    def transaction(self, _: Transaction, __: Changes) -> None:
        """The server's own figures are looked at, at rest."""

    def conclude(self, rest: Rest) -> str | None:
        for o in self._witness.operations if self._witness is not None else ():
            if error_of(o).get("sqlstate") == DEADLOCK:
                self.findings.add(
                    f"{o.f} of {o.process} ended in deadlock: {error_of(o).get('message', '')}", (), None, [o]
                )
        log = rest.evidence.server_log
        self.checked += len(log or ())
        logged = [line for line in log or () if "deadlock detected" in line or DEADLOCK in line]
        # A deadlock that a caller saw stands in the log too: only what is beyond those is news.
        for line in logged[self.findings.count :]:
            self.findings.add(f"the server logged: {line.strip()[:400]}")
        count = rest.evidence.deadlocks
        if count is not None:
            self.checked += 1
            if count > self.findings.count:
                self.findings.add(
                    f"the server counted {count} deadlocks in this database (pg_stat_database.deadlocks), of "
                    f"which "
                    f"{self.findings.count} surfaced elsewhere"
                )
        elif log is not None:
            self.checked += 1
        if count is None and log is None:
            return "neither the server's count of deadlocks nor its log was to be had"
        return None
