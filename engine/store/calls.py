"""What every store of the engine says alike: a commit's parts are one `Commit`, a save is one without effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from engine.store.execution import Commit, Emit, Event, Execution, Spawn, TimerOp

Json = Any
Emits = Sequence[Emit | tuple[str | None, Event]]
Spawns = Sequence[Spawn | tuple[str, str, Mapping[str, Json]]]


class Blocking(ABC):
    """A store whose methods block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Hang up."""

    def save(self, execution: Execution) -> None:
        """A commit without effects."""
        self._commit(Commit(execution=execution))

    def commit(
        self,
        execution: Execution,
        emits: Emits = (),
        processed_event_id: str | None = None,
        timers: Sequence[TimerOp] = (),
        spawns: Spawns = (),
        trace: Mapping[str, Json] | None = None,
    ) -> None:
        """One step with all its effects, or nothing. The execution's version is one more afterwards.

        Raises, with the version as it was: StoreConflict where another is stored, EventAlreadyProcessed where the event
        was, ConflictUnexplained where nobody could say which of the two, CommitOutcomeUnknown where the connection was
        lost, UnstorableValue before anything is sent.
        """
        self._commit(
            Commit(
                execution=execution, emits=emits, processed_event_id=processed_event_id,
                timers=timers, spawns=spawns, trace=trace,
            )
        )  # fmt: skip

    @abstractmethod
    def _commit(self, commit: Commit) -> None:
        """Carry one out, or raise why not."""


class Awaiting(ABC):
    """A store whose methods are awaited; the twin of `Blocking`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Hang up."""

    async def save(self, execution: Execution) -> None:
        """As `Blocking.save`."""
        await self._commit(Commit(execution=execution))

    async def commit(
        self,
        execution: Execution,
        emits: Emits = (),
        processed_event_id: str | None = None,
        timers: Sequence[TimerOp] = (),
        spawns: Spawns = (),
        trace: Mapping[str, Json] | None = None,
    ) -> None:
        """As `Blocking.commit`."""
        await self._commit(
            Commit(
                execution=execution, emits=emits, processed_event_id=processed_event_id,
                timers=timers, spawns=spawns, trace=trace,
            )
        )  # fmt: skip

    @abstractmethod
    async def _commit(self, commit: Commit) -> None:
        """Carry one out, or raise why not."""
