"""What a run leaves beside the ledger and the history: figures that only the harness or the recorder could
read.

A run's folder holds `ledger.pgoutput` (`ledger/frames.py`), `ledger.json` (`LedgerSummary`, written by the
recorder), `history-*.msgpack` (`history/events.py`) and `run.json`, of which `Evidence` is the part that is
judged; it may hold anything else besides. A run on several servers has a folder `shard-N` for each, with a ledger, its
summary, and the evidence of that server (`run.json`); the histories are of all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

LEDGER_SUMMARY: Final = "ledger.json"
RUN_FILE: Final = "run.json"


class LedgerSummary(msgspec.Struct, frozen=True):
    """How the recording ended.

    `complete`: every transaction up to the marker at rest is in the ledger. `compared` rows were read from
    the tables at rest and held against the replay; `differences` says in prose where they differ; `generated`
    where a generated column (which the stream does not carry) is wrong.
    """

    transactions: int = 0
    changes: int = 0
    complete: bool = False
    compared: int = 0
    differences: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    reason: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """What the harness knows of a run.

    `at_rest`: load stopped, leases resolved, every process gone before the marker. `deadlocks`: the growth of
    `pg_stat_database.deadlocks` over the run, None when it could not be read or was reset by a crash.
    `server_log`: the server's log lines of this database that hold an error, None when there is no access.
    `no_ledger`: why there is none, in words for the user. `clock_slack_ms`: how far the server's clock may be
    from this machine's; `shares_clock`: it runs on this machine. `exercises`: the invariants that the run sets out to
    exercise; None: it does not say, and every one of them counts. `areas`: whose rules these are
    (`invariants/areas.py`); those of another area have a say only where something was subject to them. `trace_max`: the
    length of every store's trace ring, None where nobody says. `no_history`: why the histories are not whole, or have
    no time line in common: the ledger is judged alone then.
    """

    at_rest: bool = False
    deadlocks: int | None = None
    server_log: tuple[str, ...] | None = None
    no_ledger: str | None = None
    clock_slack_ms: float = 1000.0
    shares_clock: bool = False
    exercises: tuple[str, ...] | None = None
    areas: tuple[str, ...] = ("picker",)
    trace_max: int | None = None
    no_history: str | None = None


def read_evidence(folder: Path) -> Evidence:
    """From `run.json`; what a run without one knows is nothing. Raises msgspec.DecodeError."""
    path = folder / RUN_FILE
    return msgspec.json.decode(path.read_bytes(), type=Evidence) if path.exists() else Evidence()


def read_ledger_summary(folder: Path) -> LedgerSummary:
    """From `ledger.json`; a recorder that was killed leaves none. Raises msgspec.DecodeError."""
    path = folder / LEDGER_SUMMARY
    if not path.exists():
        return LedgerSummary(reason="the recorder did not live to close its ledger")
    return msgspec.json.decode(path.read_bytes(), type=LedgerSummary)
