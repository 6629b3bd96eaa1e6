"""A load on a seeded database: sessions that claim, commit and insert as nodes and clients do, each in a thread of its
own. What ends is made up for, so the backlog stays as long as it was, and gets scattered."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self

import psycopg

from engine.operation import perform
from engine.picker import Commit, Job, Picker
from engine.sessions import connect

SESSIONS: Final = 4
# How long the end of the load, or its first turns, are waited for.
PATIENCE_S: Final = 120.0
LEASE_MS: Final = 3_600_000.0
GATES: Final = ["gate"]


class Load:
    """Runs until the block ends, or until each session has done `turns` of its batches. `batches` counts those that
    committed. Raises TimeoutError where a session does not end, and at the end of the block what broke one."""

    def __init__(self, dsn: str, *, batch: int, sessions: int = SESSIONS, turns: int | None = None) -> None:
        self._dsn, self._batch, self._turns = dsn, batch, turns
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._errors: list[Exception] = []
        self.batches = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(number,), daemon=True) for number in range(sessions)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turns is None or error is not None:
            self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if error is None and any(thread.is_alive() for thread in self._threads):
            raise TimeoutError("a session of the load does not end")
        if error is None and self._errors:
            raise self._errors[0]

    def wait(self, batches: int) -> None:
        """Until so many more have committed. Raises TimeoutError, or what broke a session."""
        wanted = self.batches + batches
        with self._moved:
            if not self._moved.wait_for(lambda: self.batches >= wanted or self._errors, PATIENCE_S):
                raise TimeoutError("the load stands still")
        if self._errors:
            raise self._errors[0]

    def _guarded(self, number: int) -> None:
        try:
            with connect(self._dsn, f"load-{number}") as connection:
                self._run(connection, number)
        except Exception as error:  # noqa: BLE001 - raised where the load is waited for
            self._errors.append(error)
        finally:
            with self._moved:
                self._moved.notify_all()

    def _run(self, connection: psycopg.Connection[object], number: int) -> None:
        picker, turn = Picker(), 0
        while not self._stop.is_set() and (self._turns is None or turn < self._turns):
            turn += 1
            claim = f"load:default@{number}.{turn}"
            rows = perform(
                connection,
                picker.claim(queue="default", batch=self._batch, claim=claim, lease_ms=LEASE_MS, gates=GATES),
            ).rows
            commits = [
                Commit(id=row.id, claim=claim, kind="next", step="charge")
                if row.id % 2
                else Commit(id=row.id, claim=claim, kind="done")
                for row in rows
            ]
            if commits:
                perform(connection, picker.flush(commits))
            ended = [row for row in rows if not row.id % 2]
            if ended:
                perform(
                    connection,
                    picker.insert_many(
                        [
                            Job(
                                fsm=row.fsm,
                                step=row.step,
                                priority=row.priority,
                                concurrency_key=row.concurrency_key,
                            )
                            for row in ended
                        ]
                    ),
                )
            with self._moved:
                self.batches += 1
                self._moved.notify_all()
