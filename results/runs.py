"""Recorded runs: one folder each under `results/runs/` (or `--out`), with everything in it.

    run.json                what was asked for: the configuration, without secrets
    verdict.json            what came of it; the format is `Verdict` below
    history-<process>.*     what each process saw (invariants.history)
    clocks.json             of a run on several hosts, how their clocks are apart (invariants/history/clocks.py)
    ledger.pgoutput         every committed change in commit order (invariants.ledger); of several servers in
                            shard-0/, shard-1/, … with a run.json of its own
    forks.json, lost-N.*    what failovers to an asynchronous standby lost (invariants/forks.py), beside the ledger
    history.parquet         the histories merged, one row an operation (invariants/history/export.py)
    depths.parquet          jobs by status and rows by table over time, read off the ledger (invariants/depth.py)
    gauges.parquet          sessions that wait for a lock, and dead rows by table, over time (stress/gauges.py)
    waits.parquet           which session was seen waiting for which, and for what lock (stress/gauges.py)
    plans.json              the generic plan of each statement on the run's tables (results/plans/generic.py)
    report.html             all of it for people (results/report)
    logs/<process>.log      standard error of every child, and the server's log

A run folder is made before anything starts and its verdict is written last, through a temporary file, so a folder
without a verdict is a run that did not end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.errors import UsageError

SCHEMA = 1
MAX_ATTEMPTS = 100

VerdictWord = Literal["held", "violated", "unknown"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """`verdict.json`. Times in milliseconds, rates per second.

    - `reason`: why a verdict is `unknown`.
    - `exercised`: what the load put the engine through, as {name: {"count", "finding"}}; what did not happen is
      `not_exercised` (`invariants/exercise.py`).
    - `faults`: each as it happened, with what it did and its `recovery` (`invariants/recovery.py`), of which
      `recovery_bounds` says how long it should take; `effects`: what the engine and the clients made of them all
      (`stress/effects.py`); `losses`: what each failover that may lose commits has lost, as `invariants.verdict.Loss`.
    - `waits_ms`: how long jobs wait, by kind; `idle`: what nodes without work cost, where a run looked
      (`stress/waits.py`).
    - `order`: by queue, how long jobs waited and how often one overtook another (`invariants/history/order.py`).
    - `hosts`: those that nodes and clients ran on, if there were any: {"name", "hostname", "cores", "clock":
      {"offset_ms", "error_ms"}}, the clock None where its histories could not be brought to the harness's time
      (`invariants/history/clocks.py`).
    - `postgres`: {"version", "source", "settings"} of the server; of several, those of the first, and under `others` a
      list of the same for the others, in the order of their shards.
    """

    schema: int = SCHEMA
    verdict: VerdictWord
    reason: str | None
    seed: int
    scenario: str
    subject: str
    mutant: str | None
    postgres: dict[str, Any]
    nodes: int
    seconds: float
    faults: list[dict[str, Any]]
    recovery_bounds: dict[str, float] = msgspec.field(default_factory=dict)
    effects: dict[str, int] = msgspec.field(default_factory=dict)
    losses: list[dict[str, Any]] = msgspec.field(default_factory=list)
    invariants: dict[str, Any]
    exercised: dict[str, dict[str, int | str]] = msgspec.field(default_factory=dict)
    throughput: dict[str, float]
    latency_ms: dict[str, dict[str, float]]
    waits_ms: dict[str, dict[str, dict[str, float]]] = msgspec.field(default_factory=dict)
    idle: dict[str, float] = msgspec.field(default_factory=dict)
    order: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    ledger: dict[str, int]
    hosts: list[dict[str, Any]] = msgspec.field(default_factory=list)
    reproduce: str


def host_said(host: Mapping[str, Any]) -> str:
    """An entry of a verdict's `hosts`, in words: with what its clock was off by, and how sure that is."""
    clock = host["clock"]
    if clock is None:
        said = "whose clock has no place in the run's time"
    elif clock["error_ms"] == 0:
        said = "by this machine's clock"
    else:
        said = f"clock put right by {clock['offset_ms']:,.3f} ms ± {clock['error_ms']:.3f} ms"
    return f"{host['name']} ({host['hostname']}), {said}"


def runs_folder() -> Path:
    """Where runs go by default: `results/runs` of the checkout, or of the working directory when installed."""
    here = Path(__file__).resolve().parent
    return (here if (here.parent / "pyproject.toml").is_file() else Path.cwd() / "results") / "runs"


def ready(parent: Path) -> Path:
    """`parent`, made where it is missing, before hours of work. Raises UsageError where it cannot be written to."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _no_folder(parent, error) from None
    return parent


def _no_folder(parent: Path, error: OSError) -> UsageError:
    return UsageError(
        f"no folder can be made in {parent} ({error.strerror}): give one with --out that can be written to"
    )


def create_run_folder(parent: Path, label: str) -> Path:
    """Make a new folder `<time>-<label>` with its `logs`. Raises UsageError where it cannot be made."""
    try:
        return _new_folder(parent, label)
    except OSError as error:
        raise _no_folder(parent, error) from None


def _new_folder(parent: Path, label: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(MAX_ATTEMPTS):
        folder = parent / (f"{stamp}-{label}" if attempt == 0 else f"{stamp}-{label}-{attempt + 1}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        (folder / "logs").mkdir()
        return folder
    raise FileExistsError(errno.EEXIST, f"it already holds {MAX_ATTEMPTS} of {stamp}-{label}")


def write_json(path: Path, value: object) -> None:
    """Write indented JSON whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    partial.replace(path)


def read_verdict(folder: Path) -> Verdict:
    """The verdict of a run. Raises FileNotFoundError or msgspec.DecodeError."""
    return msgspec.json.decode((folder / "verdict.json").read_bytes(), type=Verdict)
