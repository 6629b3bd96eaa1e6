"""The worker: messages of the transport become steps of executions (claim, load, step, commit, acknowledge).

Rules:

1. A group of the transport is an execution, so its messages come one at a time and in order; should a lease run out
   while its holder still works, two workers have the same message, and the store lets one of them commit.
2. State and marker are read at one moment. An event that was processed before is acknowledged and does nothing.
3. A message is acknowledged when its commit is known to have happened, or when nothing can come of it: it was processed
   before, nobody is there to receive it, or nobody can read it. Whatever else happens, it comes again.
4. Who lost a race reads again and steps again, a bounded number of times; so does who does not know how his commit
   ended.
5. An outcome that cannot be stored is the step's failure, and ends the execution as FAILED; it does not come again.
6. A chart that this worker does not know, a state that the chart does not have, an execution that it cannot read, may
   be known to another, of another version: the message is given back for a while. So is one that was tried enough.
7. Whatever comes of one message is no other's: what the store refuses of a batch as a whole is committed one by one.

A batch is as many groups as one claim brings: one round trip each for claim, commit and acknowledgement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import psycopg

from engine.observer import Completion, LoggingObserver, Observer
from engine.relay.polling import Polling, poll
from engine.sessions import Unavailable, describe_error
from engine.statechart.chart import Chart
from engine.statechart.step import Effects, failed, step
from engine.store import (
    Commit,
    CommitOutcomeUnknown,
    Event,
    EventAlreadyProcessed,
    Execution,
    StoreConflict,
    UnstorableValue,
)
from engine.store.encoding import key
from engine.store.execution import Refusal
from engine.store.telling import outcome
from engine.transport import Message

# Groups of one claim.
BATCH = 32
LEASE_S = 30.0
# How often a message is tried before it is given back.
ATTEMPTS = 5
# How long a message that nothing can be done with here is left to others, and one that was tried often enough.
UNKNOWN_DELAY_S, AGAIN_DELAY_S = 5.0, 0.5
# SQLSTATE classes in which the server does not speak of what it was sent: connection, resources, operator.
_OF_THE_SERVER = ("08", "53", "57P")


class Store(Protocol):
    """What a worker needs of a store."""

    async def load_for_event(self, execution_id: str, event_id: str) -> tuple[Execution | None, bool]: ...
    async def commit_many(
        self, commits: Sequence[Commit]
    ) -> list[StoreConflict | UnstorableValue | CommitOutcomeUnknown | None]: ...


class Transport(Protocol):
    """What a worker needs of a transport."""

    async def claim_many(self, limit: int, *, lease: float) -> list[Message]: ...
    async def ack_many(self, items: Sequence[Message]) -> list[bool]: ...
    async def nack(self, group_id: str, token: str, delay: float) -> bool: ...


@dataclass(slots=True)
class _Work:
    """One message on its way."""

    message: Message
    event: Event
    execution: Execution | None = None
    effects: Effects | None = None
    error: str | None = None

    @property
    def expected(self) -> int:
        """The version that was loaded."""
        assert self.execution is not None
        return self.execution.version

    @property
    def moved(self) -> bool:
        """Whether its commit is known to have happened."""
        assert self.effects is not None
        return self.effects.execution.version != self.expected


@dataclass(slots=True)
class _Batch:
    """What is to become of the messages of one claim. Those not acknowledged are given back, some for a while."""

    acks: list[Message] = field(default_factory=list)
    delays: dict[str, float] = field(default_factory=dict)


class Worker:
    """Runs charts, by definition id. Any number of workers share a store and a transport.

    `clock` gives seconds since the epoch: what timers are armed by. Times of events: `store.load`, `store.commit` as in
    a history; counted: `no_target`, `unreadable`, `unknown_chart` (or an unknown state of it), `unreadable_execution`,
    `processed_before`, `conflict`, `outcome_unknown`, `unstorable`, `refused` (by the database), `given_back`.
    """

    def __init__(
        self,
        charts: Iterable[Chart],
        store: Store,
        transport: Transport,
        *,
        batch: int = BATCH,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.time,
        polling: Polling | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._charts: Mapping[str, Chart] = {chart.definition_id: chart for chart in charts}
        self._store, self._transport = store, transport
        self._batch, self._lease_s, self._clock = batch, lease_s, clock
        self._polling = Polling() if polling is None else polling
        self._observer: Observer = LoggingObserver() if observer is None else observer

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; a batch that was begun is brought to its end."""
        await poll(self.tick, stop, self._polling, self._observer)

    async def tick(self) -> int:
        """One claim and what comes of it. Returns how many messages it brought. Raises what the database refuses."""
        messages = await self._transport.claim_many(self._batch, lease=self._lease_s)
        if messages:
            await self._handle(messages)
        return len(messages)

    async def _handle(self, messages: Sequence[Message]) -> None:
        batch = _Batch()
        pending = self._read(messages, batch)
        try:
            for _ in range(ATTEMPTS):
                if not pending:
                    break
                pending = await self._attempt(pending, batch)
            for work in pending:
                batch.delays[work.message.group_id] = AGAIN_DELAY_S
        finally:
            # Also where an attempt was refused: what is done is done, and the rest is given back.
            await self._settle(messages, batch)

    async def _settle(self, messages: Sequence[Message], batch: _Batch) -> None:
        if batch.acks:
            await self._transport.ack_many(batch.acks)
        done = {message.group_id for message in batch.acks}
        for message in messages:
            if message.group_id not in done:
                self._observer.count("given_back")
                delay = batch.delays.get(message.group_id, 0.0)
                await self._transport.nack(message.group_id, message.token, delay)

    def _read(self, messages: Sequence[Message], batch: _Batch) -> list[_Work]:
        works = []
        for message in messages:
            try:
                event = message.decoded()
                # No execution has an id that a store does not take, and no marker can be made of such an event.
                key("group_id", message.group_id)
                key("event.id", event.id)
                works.append(_Work(message, event))
            except (ValueError, RecursionError):
                self._observer.count("unreadable")
                batch.acks.append(message)
        return works

    async def _attempt(self, works: Sequence[_Work], batch: _Batch) -> list[_Work]:
        """Load, step and commit. Returns what is to be tried again."""
        loaded = await asyncio.gather(*map(self._load, works))
        stepped = []
        for work, found in zip(works, loaded, strict=True):
            if found is None:
                self._observer.count("unreadable_execution")
                batch.delays[work.message.group_id] = UNKNOWN_DELAY_S
                continue
            execution, processed = found
            if processed or execution is None:
                self._observer.count("processed_before" if processed else "no_target")
                batch.acks.append(work.message)
            elif (chart := self._chart_of(execution)) is None:
                self._observer.count("unknown_chart")
                batch.delays[work.message.group_id] = UNKNOWN_DELAY_S
            else:
                work.execution = execution
                work.effects = (
                    step(chart, execution, work.event, self._clock())
                    if work.error is None
                    else failed(chart, execution, work.event, self._clock(), work.error)
                )
                stepped.append(work)
        again = []
        for work, refusal in zip(stepped, await self._commit(stepped), strict=True):
            if refusal is None or isinstance(refusal, EventAlreadyProcessed):
                batch.acks.append(work.message)
                continue
            match refusal:
                case psycopg.Error():
                    self._observer.count("refused")
                    batch.delays[work.message.group_id] = UNKNOWN_DELAY_S
                    continue
                case StoreConflict():
                    self._observer.count("conflict")
                    # What could not be stored was another step.
                    work.error = None
                case CommitOutcomeUnknown():
                    self._observer.count("outcome_unknown")
                case UnstorableValue():
                    self._observer.count("unstorable")
                    work.error = f"the step's outcome cannot be stored: {refusal}"
            again.append(work)
        return again

    def _chart_of(self, execution: Execution) -> Chart | None:
        chart = self._charts.get(execution.definition_id)
        known = chart is not None and chart.runs(execution.root_path, execution.active_path)
        return chart if known else None

    async def _load(self, work: _Work) -> tuple[Execution | None, bool] | None:
        """As the store's `load_for_event`; None where there is one that cannot be read."""
        token = self._observer.invoke("store.load", {"execution": work.message.group_id})
        try:
            execution, processed = await self._store.load_for_event(work.message.group_id, work.event.id)
        except (ValueError, RecursionError) as error:
            self._observer.complete(token, "info", describe_error(error))
            return None
        except BaseException as error:
            self._observer.complete(token, "info", describe_error(error))
            raise
        self._observer.complete(token, "ok", {"version": None if execution is None else execution.version})
        return execution, processed

    async def _commit(self, works: Sequence[_Work]) -> list[Refusal | psycopg.Error | None]:
        """One answer each, None where it happened. Raises what the server says of itself."""
        if not works:
            return []
        try:
            return list(await self._commit_together(works))
        except (psycopg.Error, ValueError) as error:
            if _speaks_of_itself(error):
                raise
            if len(works) == 1:
                return [error if isinstance(error, psycopg.Error) else UnstorableValue(str(error))]
        # Several databases have a transaction each: what moved is done.
        return [None if work.moved else (await self._commit([work]))[0] for work in works]

    async def _commit_together(self, works: Sequence[_Work]) -> list[Refusal | None]:
        commits = [_commit_of(work) for work in works]
        tokens = [self._observer.invoke("store.commit", commit.told()) for commit in commits]
        try:
            refusals = await self._store.commit_many(commits)
        except BaseException as error:
            kind: Completion = "fail" if isinstance(error, psycopg.Error | Unavailable) else "info"
            for token, work in zip(tokens, works, strict=True):
                if work.moved:
                    self._observer.complete(token, "ok", {"version": work.expected + 1})
                else:
                    self._observer.complete(token, kind, describe_error(error))
            raise
        for token, commit, refusal in zip(tokens, commits, refusals, strict=True):
            self._observer.complete(token, *outcome(commit, refusal))
        return refusals


def _speaks_of_itself(error: Exception) -> bool:
    """Whether an error is of the server's or the connection's state, and not of what was sent."""
    if not isinstance(error, psycopg.Error):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(_OF_THE_SERVER)


def _commit_of(work: _Work) -> Commit:
    effects = work.effects
    assert effects is not None
    return Commit(
        execution=effects.execution,
        emits=effects.emits,
        processed_event_id=work.event.id,
        timers=effects.timers,
        spawns=effects.spawns,
        trace=effects.trace,
    )
