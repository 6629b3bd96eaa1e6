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

from invariants.areas import AREAS, WATCHERS
from invariants.changes import BUCKETS, CONFIGS, SIGNALS, Changes, Columns, Parser, Sorter
from invariants.depth import Depths
from invariants.elsewhere import ALONE, Elsewhere
from invariants.evidence import Evidence, LedgerSummary
from invariants.exercise import Exercise
from invariants.forks import Lost, survive
from invariants.history.operations import Operation
from invariants.ledger.pgoutput import Relation, Row, Transaction, format_lsn, reduce
from invariants.ledger.state import Key, State, Step, Table
from invariants.picker import PICKER_RULES, TABLE, is_settled
from invariants.rules import Findings, Found, Rest, Rule
from invariants.stored import TABLES as STORED_TABLES
from invariants.stored import StoredParser
from invariants.stored_exercise import StoredExercise
from invariants.verdict import Judgement, Report, Violation, Witnessed, judgement
from invariants.verdict import Row as EvidenceRow
from invariants.witness import Witness

# How many transactions of a row stand in one violation: its last ones up to the offence.
MAX_EVIDENCE: Final = 12
NO_HISTORY: Final = "there is no history: nobody says who did what"
# After how many transactions the time is looked at.
LOOK_EVERY: Final = 256
_MATTER: Final = ("status", "locked_by", "lease_expires_at", "attempt")
_NEVER: Final = ("updated_at", "inserted_at")
# What a row of the store carries for its user, and no rule's message is about.
_BULKY: Final = ("data", "context", "entry")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The picker's rules are made when its table's columns are known; where the ledger never names the table, with the
# engine's own.
_NO_COLUMNS = Columns(
    Relation(
        0, "public", TABLE,
        (
            "id", "fsm", "step", "state", "attempt", "result", "last_error", "status", "queue", "priority",
            "eligible_at", "locked_by", "lease_expires_at", "concurrency_key", "concurrency_shard", "rate_limit",
            "weight", "awaits", "await_deadline", "parent_id", "children_pending", "correlation_key",
            "correlation_scope", "updated_at",
        ),
        (0,),
    )
)  # fmt: skip

CONFIGURED: Final = SIGNALS | BUCKETS | CONFIGS
# Tables that stand beside the jobs in the evidence: an inbox with its target, a bucket by itself.
_BESIDES: Final = ("signals", "gen_durable_buckets")

Transactions = Callable[[], Iterable[Transaction]]
# What evidence is about: a job by its id, a bucket by kind and key, a row of the store by its table's subject.
Subject = int | tuple[str, str]


class Judge:
    """Feed it transactions in commit order, then `conclude`.

    It holds the rules of all areas; a run has changes of some. A rule that raises is out, and unknown with the
    exception as its reason; the others go on. `areas`: those whose exercises are counted. `elsewhere`:
    what lives in other shards. `is_over`: whether the time for judging is; what is not decided by then is unknown, and
    what was found stands.
    """

    def __init__(
        self,
        witness: Witness | None = None,
        areas: Sequence[str] = (),
        elsewhere: Elsewhere = ALONE,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_over = is_over
        self._late: str | None = None
        self.transactions = 0
        self.changes = 0
        self._witness = witness
        self._state = State({TABLE: self._is_settled})
        self._settled: Callable[[Row], bool] = lambda _: False
        self._columns: Columns | None = None
        self._picker_rules: list[Rule] = []
        watchers = [rule(None, witness) for rule in WATCHERS]
        for watcher in watchers:
            watcher.elsewhere = elsewhere
        self._stored_rules: list[Rule] = [*watchers]
        self._rules = self._stored_rules
        self._areas = areas
        self.depths = Depths()
        self._exercises: list[Exercise | StoredExercise | Depths] = []
        if witness is not None:
            self._exercises.append(self.depths)
        if witness is not None and {"store", "transport"} & set(areas):
            self._exercises.append(StoredExercise(witness))
        self._sorter: Sorter | None = None
        self._parser = Parser()
        self._stored = StoredParser()
        # Which rules look at a transaction, by the groups that it has.
        self._listeners: dict[int, list[Rule]] = {}
        # What the picker's rules have missed: configurations are set before the first job.
        self._early: list[tuple[Transaction, Changes]] = []
        self.raised: dict[str, str] = {}
        self._broken: str | None = None

    @property
    def violations(self) -> int:
        """How many so far."""
        return sum(rule.findings.count for rule in self._rules)

    @property
    def standing(self) -> dict[str, tuple[int, int]]:
        """How often each rule was decided so far, and how often it was violated, by its name."""
        return {rule.name: (rule.checked, rule.findings.count) for rule in self._rules}

    @property
    def exercised(self) -> dict[str, int]:
        """What was counted, of all areas."""
        return {name: count for exercise in self._exercises for name, count in exercise.counts.items()}

    def _is_settled(self, row: Row) -> bool:
        return self._settled(row)

    def table(self, name: str) -> Table | None:
        """A table as replayed so far."""
        return self._state.table(name)

    def observe(self, transaction: Transaction) -> None:
        """One committed transaction. A ledger that cannot be replayed makes what rests on it unknown."""
        self.transactions += 1
        self.changes += len(transaction.changes)
        if self.transactions % LOOK_EVERY == 1:
            self._look_at_the_clock()
        if self._broken is not None or self._late is not None:
            return
        try:
            changes = self._replay(transaction)
        except Exception as error:  # noqa: BLE001  # unknown, never held
            self._broken = f"the ledger cannot be replayed: {type(error).__name__}: {error}"
            return
        if self._sorter is None and changes.mask & CONFIGURED:
            self._early.append((transaction, changes))
        self._feed(transaction, changes)

    def _look_at_the_clock(self) -> None:
        if self._late is None and self._is_over():
            self._late = f"the checker ran out of time at transaction {self.transactions:,} of the ledger"

    def _feed(self, transaction: Transaction, changes: Changes) -> None:
        mask = changes.mask
        for exercise in self._exercises:
            if exercise.groups & mask:
                self._count(exercise, transaction, changes)
        listeners = self._listeners.get(mask)
        if listeners is None:
            listeners = self._listeners[mask] = [rule for rule in self._rules if rule.groups & mask]
        for rule in listeners:
            try:
                rule.transaction(transaction, changes)
            except Exception as error:  # noqa: BLE001  # unknown, never held
                self._out(rule, error)

    def _count(
        self, exercise: Exercise | StoredExercise | Depths, transaction: Transaction, changes: Changes
    ) -> None:
        """Figures that cannot be had cost no verdict."""
        try:
            exercise.transaction(transaction, changes)
        except Exception:  # noqa: BLE001
            self._exercises = [each for each in self._exercises if each is not exercise]

    def _replay(self, transaction: Transaction) -> Changes:
        apply, replay, sorter = self._state.apply, self._state.replay, self._sorter
        changes = Changes(self._row, self._find)
        for change in transaction.changes:
            name = change.relation.name
            if name == TABLE:
                if sorter is None:
                    sorter = self._begin(change.relation)
                if change.kind == "truncate":
                    for step in apply(change):
                        sorter.add(changes, step.old, step.new)
                else:
                    sorter.add(changes, *replay(change))
            elif name in STORED_TABLES and change.kind != "truncate":
                changes.mask |= self._stored.add(changes.stored, change.relation, *replay(change))
            elif name in STORED_TABLES:
                for step in apply(change):
                    changes.mask |= self._stored.add(changes.stored, step.relation, step.old, step.new)
            else:
                for step in apply(change):
                    self._parser.add(changes, step)
        changes.columns = self._columns
        return changes

    def _begin(self, relation: Relation) -> Sorter:
        """The table's columns are known: now there are rules."""
        columns = self._columns = Columns(relation)
        self._settled = is_settled(columns)
        self._sorter = Sorter(columns)
        self._make_rules(columns)
        return self._sorter

    def _make_rules(self, columns: Columns) -> None:
        self._picker_rules = self._rules = [rule(columns, self._witness) for rule in PICKER_RULES]
        self._listeners.clear()
        if self._witness is not None and "picker" in self._areas:
            self._exercises.append(Exercise(columns, self._witness))
        early, self._early = self._early, []
        for transaction, changes in early:
            self._feed(transaction, changes)
        self._rules = [*self._picker_rules, *self._stored_rules]
        self._listeners.clear()

    def _row(self, number: int) -> Row | None:
        """A job as it is after the transaction that is being judged."""
        table = self._state.table(TABLE)
        return None if table is None else table.get(str(number).encode())

    def _find(self, name: str, key: Key) -> Row | None:
        """A row of any table as it is after the transaction that is being judged."""
        table = self._state.table(name)
        return None if table is None else table.get(key)

    def conclude(self, evidence: Evidence, summary: LedgerSummary) -> list[tuple[Rule, str | None]]:
        """Every rule, with the reason why it cannot be held, if there is one."""
        if not self._picker_rules:
            self._make_rules(_NO_COLUMNS)
        rest = Rest(evidence, summary, self._witness, self.table(TABLE))
        return [(rule, self._conclude(rule, rest)) for rule in self._rules]

    def _conclude(self, rule: Rule, rest: Rest) -> str | None:
        if rule.name in self.raised:
            return self.raised[rule.name]
        self._look_at_the_clock()
        if self._late is not None:
            return self._late
        try:
            reason = rule.conclude(rest)
        except Exception as error:  # noqa: BLE001  # unknown, never held
            self._out(rule, error)
            return self.raised[rule.name]
        if rule.needs_ledger:
            untrusted = self._untrusted(rest)
            if untrusted is not None:
                rule.findings = Findings()
                return untrusted
            if not rest.summary.complete:
                reason = f"the ledger ends before the run does: {rest.summary.reason or 'it was cut off'}"
        if rule.needs_history and self._witness is None:
            reason = rest.evidence.no_history or NO_HISTORY
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
        self.raised[rule.name] = f"the checker raised {type(error).__name__}: {error}"
        rule.findings = Findings()
        rule.transaction = _ignore  # type: ignore[method-assign]


def judge(
    transactions: Transactions,
    operations: Sequence[Operation] | None,
    evidence: Evidence,
    summary: LedgerSummary,
    elsewhere: Elsewhere = ALONE,
    losses: Sequence[Lost] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> Report:
    """Judge a run: `transactions` is called once, and once more when there is evidence to collect.

    `operations` is the merged history, None where there is none; `elsewhere` what lives in other shards
    (`invariants/sharded.py`); `losses` what failovers lost; `is_over`: see `Judge`. Raises what reading the
    ledger raises.
    """
    survived = survive(operations or (), losses)
    witness = None if operations is None else Witness(survived.operations, survived.echoes)
    first = Judge(witness, evidence.areas, elsewhere, is_over)
    if evidence.no_ledger is None:
        for transaction in transactions():
            first.observe(transaction)
    concluded = first.conclude(evidence, summary)
    found = [one for rule, _ in concluded for one in rule.findings.first]
    violations = collect(found, transactions, witness)
    judgements: list[Judgement] = []
    for rule, reason in concluded:
        mine = [violations[id(one)] for one in rule.findings.first]
        expected = rule.name in first.raised or any(
            AREAS[area].expects(rule.name, evidence.exercises) for area in evidence.areas
        )
        judgements.append(
            judgement(rule.name, rule.checked, rule.findings.count, mine, reason, expected=expected)
        )
    if survived.judgement is not None:
        judgements.append(survived.judgement)
    return Report(
        tuple(judgements),
        first.transactions,
        first.changes,
        0 if operations is None else len(operations),
        first.exercised,
        evidence.areas,
        depths=tuple(first.depths.samples),
        losses=survived.losses,
    )


def collect(
    found: Sequence[Found], transactions: Transactions, witness: Witness | None
) -> dict[int, Violation]:
    """The violations with their transactions, keyed by the identity of what was found."""
    wanted: set[Subject] = {row for one in found for row in one.rows}
    wanted |= {subject for one in found for subject in one.subjects}
    seen: dict[Subject, list[tuple[Transaction, EvidenceRow]]] = {subject: [] for subject in wanted}
    state, columns, parser, stored = State(), None, Parser(), StoredParser()
    for transaction in transactions() if wanted else ():
        for change in transaction.changes:
            name = change.relation.name
            if name in STORED_TABLES:
                for step in state.apply(change):
                    _collect_stored(transaction, step, stored, seen)
                continue
            if name != TABLE and name not in _BESIDES:
                continue
            if columns is None and name == TABLE:
                columns = Columns(change.relation)
            for step in state.apply(change):
                found_in = seen.get(_subject(step, columns, parser))
                if found_in is not None:
                    found_in.append((transaction, _evidence(step, columns, parser)))
    return {id(one): _violation(one, seen, witness) for one in found}


def _collect_stored(
    transaction: Transaction,
    step: Step,
    parser: StoredParser,
    seen: dict[Subject, list[tuple[Transaction, EvidenceRow]]],
) -> None:
    row = step.old if step.new is None else step.new
    assert row is not None
    for subject in parser.subjects(step.relation, row):
        found_in = seen.get(subject)
        if found_in is not None:
            names = step.relation.columns
            keep = [place for place, name in enumerate(names) if name not in _BULKY]
            evidence = EvidenceRow(
                parser.known_by(step.relation, row),
                reduce(step.old, names, keep),
                reduce(step.new, names, keep),
                step.relation.name,
            )
            found_in.append((transaction, evidence))


def _subject(step: Step, columns: Columns | None, parser: Parser) -> Subject:
    row = step.old if step.new is None else step.new
    if step.relation.name == TABLE:
        assert columns is not None
        assert row is not None
        return int(row[columns.id] or 0)
    return parser.subject(step)


def _evidence(step: Step, columns: Columns | None, parser: Parser) -> EvidenceRow:
    if step.relation.name == TABLE:
        assert columns is not None
        number = _subject(step, columns, parser)
        assert isinstance(number, int)
        return _reduced(columns, number, step.old, step.new)
    names = step.relation.columns
    keep = [place for place, name in enumerate(names) if name not in _NEVER]
    return EvidenceRow(
        parser.number(step),
        reduce(step.old, names, keep),
        reduce(step.new, names, keep),
        step.relation.name,
    )


def _violation(
    one: Found, seen: dict[Subject, list[tuple[Transaction, EvidenceRow]]], witness: Witness | None
) -> Violation:
    rows: dict[int, tuple[Transaction, list[EvidenceRow]]] = {}
    subjects: list[Subject] = [*one.rows, *one.subjects]
    for number in subjects:
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
    held = [row for row in rows if row.after.get("status") == "executing"]
    started = [row.after["locked_by"] or "" for row in held if row.before.get("status") != "executing"]
    born = [int(row.id) for row in rows if not row.before and row.table == TABLE]
    return Witnessed(
        transaction.number,
        transaction.xid,
        format_lsn(transaction.lsn),
        (_EPOCH + timedelta(microseconds=transaction.committed_us)).isoformat(" "),
        None
        if witness is None
        else witness.who(transaction.xid, started, born)
        or _renewed_by(held, witness)
        or _stored_by(rows, witness),
        tuple(rows),
    )


def _renewed_by(held: Sequence[EvidenceRow], witness: Witness) -> str | None:
    """Whose heartbeat it was: a heartbeat is told no transaction, but who holds the claim renews it."""
    for row in held:
        claim = witness.claims.get(row.after["locked_by"] or "")
        if claim is not None and row.before.get("lease_expires_at") != row.after.get("lease_expires_at"):
            return f"{claim.process} heartbeat"
    return None


def _stored_by(rows: Sequence[EvidenceRow], witness: Witness) -> str | None:
    """Whose commit, or whose claim of a group it was."""
    for row in rows:
        if row.table == "executions" and row.after:
            for operation in witness.commits.get((str(row.id), int(row.after["version"] or 0)), ()):
                if operation.type == "ok":
                    return f"{operation.process} {operation.f}"
        if row.table == "transport_groups" and row.after.get("locked_by") is not None:
            claimed = witness.tokens.get(row.after["locked_by"] or "")
            if claimed is not None and row.before.get("locked_by") != row.after["locked_by"]:
                return f"{claimed.process} {claimed.f}"
    return None


def _reduced(columns: Columns, number: int, old: Row | None, new: Row | None) -> EvidenceRow:
    """The columns that always matter, and those that changed."""
    matter = _MATTER if old and new else (*_MATTER, "queue", "priority", "concurrency_key", "correlation_key")
    keep = [
        place
        for place, name in enumerate(columns.names)
        if name in matter or (old and new and old[place] != new[place] and name not in _NEVER)
    ]
    return EvidenceRow(number, reduce(old, columns.names, keep), reduce(new, columns.names, keep))


def _ignore(_: Transaction, __: Changes) -> None:
    """Stands in for a rule that raised."""
