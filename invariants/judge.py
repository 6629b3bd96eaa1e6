"""The judge: rules fed with a ledger and a history, and a report that comes out. Pure: no I/O, no clock.

Two passes. The first feeds every transaction to every rule and remembers only the tables' current rows. The
second happens only where something was found: it reads the ledger again and collects the transactions of the
rows that the findings name. So evidence costs nothing while all is well, and memory does not grow with the
run.

`Judge` is the first pass, which a recorder also runs on line with the ledger alone. `judge` is both, off
line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from invariants.evidence import Evidence, LedgerSummary
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Relation, Row, Transaction, format_lsn, reduce
from invariants.ledger.state import State, Table
from invariants.picker import PICKER_RULES, TABLE, is_settled
from invariants.rules import Columns, Findings, Found, Rest, Rule, Transition
from invariants.verdict import Judgement, Report, Violation, Witnessed, judgement
from invariants.verdict import Row as EvidenceRow
from invariants.witness import Witness

# How many transactions of a row stand in one violation: its last ones up to the offence.
MAX_EVIDENCE: Final = 12
_MATTER: Final = ("status", "locked_by", "lease_expires_at", "attempt")
_NEVER: Final = ("updated_at", "inserted_at")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Rules are made when the table's columns are known; where the ledger never names the table, with the engine's
# own.
_NO_COLUMNS = Columns(
    Relation(
        0, "public", TABLE,
        (
            "id", "fsm", "step", "state", "attempt", "result", "last_error", "status", "queue", "priority",
            "eligible_at", "locked_by", "lease_expires_at", "concurrency_key", "concurrency_shard",
            "correlation_key", "correlation_scope", "updated_at",
        ),
        (0,),
    )
)  # fmt: skip

Transactions = Callable[[], Iterable[Transaction]]


class Judge:
    """Feed it transactions in commit order, then `conclude`.

    A rule that raises is out, and unknown with the exception as its reason; the others go on.
    """

    def __init__(self, witness: Witness | None = None) -> None:
        self.transactions = 0
        self.changes = 0
        self._witness = witness
        self._state = State({TABLE: self._is_settled})
        self._settled: Callable[[Row], bool] = lambda _: False
        self._columns: Columns | None = None
        self._rules: list[Rule] = []
        self._raised: dict[str, str] = {}
        self._broken: str | None = None

    @property
    def violations(self) -> int:
        """How many so far."""
        return sum(rule.findings.count for rule in self._rules)

    def _is_settled(self, row: Row) -> bool:
        return self._settled(row)

    def table(self, name: str) -> Table | None:
        """A table as replayed so far."""
        return self._state.tables().get(name)

    def observe(self, transaction: Transaction) -> None:
        """One committed transaction. A ledger that cannot be replayed makes what rests on it unknown."""
        self.transactions += 1
        self.changes += len(transaction.changes)
        if self._broken is not None:
            return
        try:
            transitions = self._replay(transaction)
        except Exception as error:  # noqa: BLE001  # unknown, never held
            self._broken = f"the ledger cannot be replayed: {type(error).__name__}: {error}"
            return
        if not transitions:
            return
        for rule in self._rules:
            try:
                rule.transaction(transaction, transitions)
            except Exception as error:  # noqa: BLE001  # unknown, never held
                self._out(rule, error)

    def _replay(self, transaction: Transaction) -> list[Transition]:
        apply = self._state.apply
        columns = self._columns
        transitions = []
        for change in transaction.changes:
            if change.relation.name != TABLE:
                apply(change)
                continue
            if columns is None:
                columns = self._columns = Columns(change.relation)
                self._settled = is_settled(columns)
                self._rules = [rule(columns, self._witness) for rule in PICKER_RULES]
            number, status = columns.id, columns.status
            for step in apply(change):
                old, new = step.old, step.new
                row = old if new is None else new
                assert row is not None
                transitions.append(
                    Transition(
                        int(row[number] or 0),
                        old,
                        new,
                        None if old is None else old[status],
                        None if new is None else new[status],
                    )
                )
        return transitions

    def conclude(self, evidence: Evidence, summary: LedgerSummary) -> list[tuple[Rule, str | None]]:
        """Every rule, with the reason why it cannot be held, if there is one."""
        if not self._rules:
            self._rules = [rule(_NO_COLUMNS, self._witness) for rule in PICKER_RULES]
        rest = Rest(evidence, summary, self._witness, self.table(TABLE))
        return [(rule, self._conclude(rule, rest)) for rule in self._rules]

    def _conclude(self, rule: Rule, rest: Rest) -> str | None:
        if rule.name in self._raised:
            return self._raised[rule.name]
        try:
            reason = rule.conclude(rest)
        except Exception as error:  # noqa: BLE001  # unknown, never held
            self._out(rule, error)
            return self._raised[rule.name]
        if rule.needs_ledger:
            untrusted = self._untrusted(rest)
            if untrusted is not None:
                rule.findings = Findings()
                return untrusted
            if not rest.summary.complete:
                reason = f"the ledger ends before the run does: {rest.summary.reason or 'it was cut off'}"
        if rule.needs_history and self._witness is None:
            reason = "there is no history: nobody says who did what"
        if rule.needs_rest and not rest.evidence.at_rest:
            reason = "the run did not come to rest"
        return reason

    def _untrusted(self, rest: Rest) -> str | None:
        if rest.evidence.no_ledger is not None:
            return rest.evidence.no_ledger
        if self._broken is not None:
            return self._broken
        if rest.summary.differences:
            return (
                "the ledger is not to be trusted: replayed, it differs from the table at rest: "
                f"{rest.summary.differences[0]}"
            )
        return None

    def _out(self, rule: Rule, error: Exception) -> None:
        self._raised[rule.name] = f"the checker raised {type(error).__name__}: {error}"
        rule.findings = Findings()
        rule.transaction = _ignore  # type: ignore[method-assign]


def judge(
    transactions: Transactions,
    operations: Sequence[Operation] | None,
    evidence: Evidence,
    summary: LedgerSummary,
) -> Report:
    """Judge a run: `transactions` is called once, and once more when there is evidence to collect.

    `operations` is the merged history, None where there is none. Raises what reading the ledger raises.
    """
    witness = None if operations is None else Witness(operations)
    first = Judge(witness)
    if evidence.no_ledger is None:
        for transaction in transactions():
            first.observe(transaction)
    concluded = first.conclude(evidence, summary)
    found = [one for rule, _ in concluded for one in rule.findings.first]
    violations = collect(found, transactions, witness)
    judgements: list[Judgement] = []
    for rule, reason in concluded:
        mine = [violations[id(one)] for one in rule.findings.first]
        judgements.append(judgement(rule.name, rule.checked, rule.findings.count, mine, reason))
    return Report(
        tuple(judgements), first.transactions, first.changes, 0 if operations is None else len(operations)
    )


def collect(
    found: Sequence[Found], transactions: Transactions, witness: Witness | None
) -> dict[int, Violation]:
    """The violations with their transactions, keyed by the identity of what was found."""
    wanted = {row for one in found for row in one.rows}
    seen: dict[int, list[tuple[Transaction, EvidenceRow]]] = {row: [] for row in wanted}
    state, columns = State(), None
    for transaction in transactions() if wanted else ():
        for change in transaction.changes:
            if change.relation.name != TABLE:
                continue
            columns = columns or Columns(change.relation)
            for step in state.apply(change):
                row = step.old if step.new is None else step.new
                number = int(row[columns.id] or 0) if row is not None else 0
                if number in wanted:
                    seen[number].append((transaction, _reduced(columns, number, step.old, step.new)))
    return {id(one): _violation(one, seen, witness) for one in found}


def _violation(
    one: Found, seen: dict[int, list[tuple[Transaction, EvidenceRow]]], witness: Witness | None
) -> Violation:
    rows: dict[int, tuple[Transaction, list[EvidenceRow]]] = {}
    for number in one.rows:
        last: deque[tuple[Transaction, EvidenceRow]] = deque(maxlen=MAX_EVIDENCE)
        last.extend(entry for entry in seen[number] if one.number is None or entry[0].number <= one.number)
        for transaction, row in last:
            rows.setdefault(transaction.number, (transaction, []))[1].append(row)
    return Violation(
        one.summary,
        tuple(_witnessed(*rows[number], witness) for number in sorted(rows)),
        tuple(operation.describe() for operation in one.operations),
    )


def _witnessed(transaction: Transaction, rows: Sequence[EvidenceRow], witness: Witness | None) -> Witnessed:
    started = [row.after["locked_by"] or "" for row in rows if row.after.get("status") == "executing"]
    born = [row.id for row in rows if not row.before]
    return Witnessed(
        transaction.number,
        transaction.xid,
        format_lsn(transaction.lsn),
        (_EPOCH + timedelta(microseconds=transaction.committed_us)).isoformat(" "),
        None if witness is None else witness.who(transaction.xid, started, born),
        tuple(rows),
    )


def _reduced(columns: Columns, number: int, old: Row | None, new: Row | None) -> EvidenceRow:
    """The columns that always matter, and those that changed."""
    matter = _MATTER if old and new else (*_MATTER, "queue", "priority", "concurrency_key", "correlation_key")
    keep = [
        place
        for place, name in enumerate(columns.names)
        if name in matter or (old and new and old[place] != new[place] and name not in _NEVER)
    ]
    return EvidenceRow(number, reduce(old, columns.names, keep), reduce(new, columns.names, keep))


def _ignore(_: Transaction, __: Sequence[Transition]) -> None:
    """Stands in for a rule that raised."""
