"""Mutants of the node: what it does between its statements."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from engine.scheduler import Scheduler
from invariants.mutants.mutant import Mutant


class SleepsUntilPoked(Scheduler):
    """A queue that was found drained is not looked at again before somebody says so."""

    @override
    async def _wait_for_poke(self, pause_ms: float) -> None:
        await self._poked.wait()


NODE_MUTANTS: Final = (
    Mutant(
        name="poked-only",
        summary="a node that found its queue empty waits to be poked and does not poll: a lost poke is a lost job",
        caught_by=("poke-is-a-hint", "no-lost-job"),
        protocol=frozenset(("sleep-until-poked",)),
    ),
)
