"""A client of the bench: inserts jobs one by one or in batches, as fast as it can or at a rate, or sends signals at a
rate. `raw`: on the bare table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import msgspec
import psycopg

from engine.operation import perform
from engine.picker import Job, Picker
from engine.sessions import connect
from stress.swarm.child import receive_config


class ClientSetup(msgspec.Struct, frozen=True, kw_only=True):
    """`batch`: jobs in one call. `per_s`: calls a second, 0 for as many as it can. `targets`: of signals."""

    dsn: str
    name: str
    kind: Literal["engine", "raw", "signals"]
    jobs: int
    batch: int = 1
    per_s: float = 0.0
    targets: tuple[int, ...] = ()


def work(setup: ClientSetup) -> None:
    """Until all are sent."""
    send = _raw(setup) if setup.kind == "raw" else _engine(setup)
    began = time.monotonic()
    for number, first in enumerate(range(0, setup.jobs, setup.batch)):
        if setup.per_s:
            # On time by the schedule, not by the call before: a slow call does not lower the rate.
            time.sleep(max(0.0, began + number / setup.per_s - time.monotonic()))
        send(number, min(setup.batch, setup.jobs - first))


def _engine(setup: ClientSetup) -> Callable[[int, int], object]:
    connection, picker = connect(setup.dsn, setup.name), Picker()
    job = Job(fsm="bench", step="noop")
    if setup.kind == "signals":
        targets = setup.targets
        return lambda number, _: perform(connection, picker.signal(targets[number % len(targets)], "go"))
    if setup.batch == 1:
        return lambda _, __: perform(connection, picker.insert(job))
    return lambda _, size: perform(connection, picker.insert_many([job] * size))


def _raw(setup: ClientSetup) -> Callable[[int, int], object]:
    connection = psycopg.connect(setup.dsn, autocommit=True, prepare_threshold=0, application_name=setup.name)
    cursor = psycopg.RawCursor(connection)
    if setup.batch == 1:
        return lambda _, __: cursor.execute(
            b"INSERT INTO job (status) VALUES ($1::text) RETURNING id", ["queued"]
        )
    return lambda _, size: cursor.execute(
        b"INSERT INTO job (status) SELECT unnest($1::text[]) RETURNING id", [["queued"] * size]
    )


if __name__ == "__main__":
    work(receive_config(ClientSetup))
