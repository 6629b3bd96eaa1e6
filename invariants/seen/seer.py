"""What the rules of the clients' view begin with."""

from __future__ import annotations

from abc import ABC, abstractmethod

from invariants.history.operations import Operation
from invariants.rules import Rest, Watcher
from invariants.witness import Witness

# Two moments of one machine's clock are told apart; of two machines' clocks, not.
NO_COMMON_CLOCK = "the histories are of several machines, whose clocks have no order in common"


class Seer(Watcher, ABC):
    """A rule that judges when the history is whole. It needs no ledger."""

    needs_ledger, needs_history = False, True

    def conclude(self, rest: Rest) -> str | None:
        if self.witness is None:
            return None
        if len(self.witness.machines) > 1:
            return NO_COMMON_CLOCK
        witness = self.witness.before_losses
        # What was lost cannot come to rest.
        return self.judge(witness, at_rest=rest.evidence.at_rest and witness is self.witness)

    @abstractmethod
    def judge(self, witness: Witness, *, at_rest: bool) -> str | None:
        """Look at the history up to the first loss, if there was one; a reason where it cannot be judged."""

    def add(self, summary: str, *operations: Operation) -> None:
        """One violation, with the operations that contradict each other."""
        self.findings.add(summary, (), None, operations)
