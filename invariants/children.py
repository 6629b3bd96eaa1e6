"""Children and the join: the parent counts exactly those of its children that are not over.

1. Children are born in the transaction that parks their parent, and parked it is while one of them lives.
2. A child's end and its parent's count are one transaction; the one that counts to zero wakes the parent.
"""

from __future__ import annotations

from invariants.changes import BORN, ENDED, GONE, JOINING, MOVED, TERMINAL, Changes, Columns
from invariants.ledger.pgoutput import Row, Transaction
from invariants.rules import Findings, Rest, text
from invariants.witness import Witness


class JoinExact:
    """Counts a parent's living children itself, and holds the parent's own count against that at every commit."""

    name = "join-exact"
    statement = (
        "`children_pending` equals the number of landed children that are not terminal; the parent wakes "
        "exactly when it reaches zero; never negative; no child without a parent that counted it"
    )
    groups = BORN | ENDED | MOVED | GONE
    needs_ledger, needs_history, needs_rest = True, False, False

    def __init__(self, columns: Columns, _: Witness | None) -> None:
        self.checked = 0
        self.findings = Findings()
        self._c = columns
        self._living: dict[int, set[int]] = {}

    def transaction(self, transaction: Transaction, changes: Changes) -> None:
        parent = self._c.parent_id
        touched: set[int] = set()
        for t in changes.born:
            if t.new is not None and (of := t.new[parent]) is not None:
                self._living.setdefault(int(of), set()).add(t.id)
                touched.add(int(of))
        for t in changes.ended:
            assert t.old is not None
            if t.after in TERMINAL and (of := t.old[parent]) is not None:
                self._over(int(of), t.id)
                touched.add(int(of))
            if t.after == JOINING or t.id in self._living:
                touched.add(t.id)
        for t in changes.moved:
            assert t.old is not None
            assert t.new is not None
            if t.before == JOINING:
                touched.add(t.id)
            if t.before not in TERMINAL and t.old[parent] != t.new[parent]:
                touched.add(int(t.old[parent] or 0))
        for t in changes.gone:
            assert t.old is not None
            if (of := t.old[parent]) is not None:
                self._over(int(of), t.id)
            if t.id in self._living:
                touched.add(t.id)
        for number in touched:
            self.checked += 1
            problem = self._problem(changes.row(number), self._living.get(number, set()))
            if problem is not None:
                self.findings.add(
                    f"row {number} {problem}",
                    [number, *sorted(self._living.get(number, ()))[:3]],
                    transaction.number,
                )

    def _over(self, parent: int, child: int) -> None:
        living = self._living.get(parent)
        if living is not None:
            living.discard(child)
            if not living:
                del self._living[parent]

    def _problem(self, row: Row | None, living: set[int]) -> str | None:
        if row is None:
            return f"is gone, and {len(living)} of its children live" if living else None
        c = self._c
        pending = int(row[c.children_pending] or 0)
        if row[c.status] == JOINING:
            if pending != len(living):
                return f"counts {pending} children, and {len(living)} live: {sorted(living)}"
            return "waits for children, and none lives" if pending == 0 else None
        if living:
            return f"is {text(row[c.status])}, and {len(living)} of its children live: {sorted(living)}"
        return None if pending == 0 else f"is {text(row[c.status])} and counts {pending} children"

    def conclude(self, _: Rest) -> str | None:
        return None
