"""The store's clients: they start executions, tell them things, and write to them directly."""

from __future__ import annotations

# Locust first: it patches the standard library for gevent, and what is imported before it would not be cooperative.
import locust  # isort: skip
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gevent
import psycopg

from engine.sessions import OutcomeUnknown, Unavailable
from engine.statechart import began, start_event
from engine.store import Commit, Emit, Event, PostgresStore, ShardedStore
from engine.store.shards import shard_of
from engine.transport import PostgresTransport
from stress.scenarios import StoreScenario
from stress.scenarios.store_scenario import Act, Bump, Listing, Note, Start, Tell
from stress.swarm.clients import ClientUser
from stress.swarm.contention import ATTEMPTS, bumped, promises, refused
from stress.swarm.mutation import catalogue_for, queue_for

WINDOW_S = 0.25
BACKLOG_PAUSE_S = 0.1
LOST_PAUSE_S = 0.1
# What a call may fail with when the server is away or says no; the user goes on.
FAILURES = (psycopg.Error, OutcomeUnknown, Unavailable)

T = TypeVar("T")


class StoreUser(ClientUser):
    """One client of the store."""

    def on_start(self) -> None:
        """Connect to every database."""
        super().on_start()
        scenario, config = self.shared.scenario, self.shared.config
        assert isinstance(scenario, StoreScenario)
        self.scenario = scenario
        name = f"client-{config.number}"
        catalogue, queue = catalogue_for(config.mutant), queue_for(config.mutant)
        self.store = ShardedStore(
            [
                PostgresStore.from_dsn(dsn, catalogue=catalogue, trace_max=scenario.trace_max, name=name)
                for dsn in config.dsns
            ]
        )
        self.transports = [
            PostgresTransport(dsn, name=name, observer=self.shared.recorder, queue=queue)
            for dsn in config.dsns
        ]
        self._acts = 0

    def on_stop(self) -> None:
        """Hang up."""
        self.store.close()
        for transport in self.transports:
            transport.close()

    @locust.task
    def act(self) -> None:
        """What the scenario draws; a failure is on record, and the next act is another."""
        self._acts += 1
        if self._acts % self.scenario.look_every == 0 and self._backlog_is_full():
            gevent.sleep(BACKLOG_PAUSE_S)
            return
        for act in self.scenario.next_acts(self.random, int(time.time() / WINDOW_S)):
            began_at, failure = time.perf_counter(), None
            try:
                self._do(act)
            except FAILURES as error:
                failure = error
                gevent.sleep(LOST_PAUSE_S)
            self.fire(type(act).__name__.lower(), began_at, failure)

    def _do(self, act: Act) -> None:
        match act:
            case Start():
                self._start(act)
            case Tell():
                self._tell(act)
            case Bump():
                self._bump(act)
            case Listing():
                self.observed(
                    "store.list", {"filters": {"status": act.status}}, lambda: self._list(act), _ids
                )
            case Note():
                self.observed(
                    "store.trace",
                    {"execution": act.target},
                    lambda: self.store.append_trace(act.target, {"note": self._acts}),
                    lambda _: {},
                )

    def _start(self, act: Start) -> None:
        charts = {chart.definition_id: chart for chart in self.scenario.charts}
        commits = []
        for definition, execution_id, context in act.executions:
            execution = began(charts[definition], execution_id, dict(context))
            commits.append(Commit(execution=execution, emits=[Emit(execution_id, start_event(execution_id))]))
        for batch in [commits] if act.together else [[commit] for commit in commits]:
            self._commit(batch, promises(act))

    def _tell(self, act: Tell) -> None:
        gevent.sleep(act.pause_ms / 1_000)
        transport = self.transports[shard_of(act.target, len(self.transports))]
        for _ in range(act.copies):
            transport.publish(act.target, Event(id=act.event_id, kind=act.kind, payload=act.payload))

    def _bump(self, act: Bump) -> None:
        targets = act.targets
        for _ in range(ATTEMPTS):
            commits = []
            for target in targets:
                loaded = self.observed(
                    "store.load",
                    {"execution": target},
                    lambda target=target: self.store.load(target),  # type: ignore[misc]
                    lambda execution: {"version": None if execution is None else execution.version},
                )
                commits.append(bumped(act, self.scenario.charts, target, loaded, time.time()))
            targets = self._commit(commits)
            if not targets:
                return

    def _commit(
        self, commits: list[Commit], promised: Mapping[str, dict[str, Any]] | None = None
    ) -> tuple[str, ...]:
        """Commit them, in one call; whose commits lost a race. `promised`: what else the history is to say of each."""
        recorder, promised = self.shared.recorder, promised or {}
        tokens = [
            recorder.invoke("store.commit", commit.told() | promised.get(commit.execution.id, {}))
            for commit in commits
        ]
        try:
            refusals = self.store.commit_many(commits)
        except BaseException as error:
            for token in tokens:
                recorder.complete(token, *refused(error))
            raise
        lost = []
        for token, commit, refusal in zip(tokens, commits, refusals, strict=True):
            version = commit.execution.version
            if refusal is None:
                recorder.complete(token, "ok", {"version": version})
            else:
                kind, value = refused(refusal)
                recorder.complete(token, kind, value | {"version": version})
                lost.append(commit.execution.id)
        return tuple(lost)

    def _list(self, act: Listing) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = self.store.list_executions(status=act.status, limit=act.limit, cursor=cursor)
            found += [item.id for item in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found

    def observed(self, name: str, value: object, act: Callable[[], T], describe: Callable[[T], object]) -> T:
        """Do it and record how it ended. Raises what it raises."""
        recorder = self.shared.recorder
        token = recorder.invoke(name, value)
        try:
            answer = act()
        except BaseException as error:
            recorder.complete(token, *refused(error))
            raise
        recorder.complete(token, "ok", describe(answer))
        return answer

    def _backlog_is_full(self) -> bool:
        most = self.scenario.max_backlog
        try:
            waiting = sum(transport.depth() for transport in self.transports)
            if waiting < most:
                waiting += len(self.store.pending_outbox(most)) + len(self.store.pending_spawns(most))
            return waiting >= most
        except FAILURES:
            return True


def _ids(ids: list[str]) -> dict[str, Any]:
    return {"ids": ids}
