"""A run's folder, judged: where the pure judge meets the files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import UsageError
from invariants.evidence import Evidence, read_evidence, read_ledger_summary
from invariants.foreign import SUBJECT_FILE, Subject
from invariants.foreign import judge as judge_foreign
from invariants.forks import read_lost
from invariants.history.events import HistoryError
from invariants.history.operations import Operation, merge_folder
from invariants.judge import judge
from invariants.ledger.frames import NAME, FrameError, read_transactions
from invariants.ledger.pgoutput import DecodeError
from invariants.seen.seer import NO_COMMON_CLOCK
from invariants.sharded import Recorded, judge_shards
from invariants.verdict import Report

SHARD: Final = "shard-"
# A run of an hour is judged in minutes.
JUDGE_LIMIT_S: Final = 900.0


class FolderError(UsageError):
    """A folder that holds no run, or a file of it that cannot be read; one sentence."""


def ledger_folder(folder: Path, shard: int, shards: int) -> Path:
    """Where the ledger of one server stands, with its summary: in the run's folder, or, where there are several, in
    `shard-0`, `shard-1`, … below it, each with a `run.json` of its own."""
    return folder if shards == 1 else folder / f"{SHARD}{shard}"


def judge_folder(folder: Path, evidence: Evidence | None = None, limit_s: float = JUDGE_LIMIT_S) -> Report:
    """Judge a recorded run. `evidence` overrides what `run.json` says; what is not decided within `limit_s` is unknown.
    Raises FolderError."""
    deadline = time.monotonic() + limit_s
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder")
    shards = len(list(folder.glob(f"{SHARD}*"))) or 1
    folders = [ledger_folder(folder, shard, shards) for shard in range(shards)]
    histories = sorted(folder.glob("history-*.msgpack"))
    if not histories and not any((each / NAME).exists() for each in folders):
        raise FolderError(f"{folder} holds no run: neither {NAME} nor a history-*.msgpack")
    try:
        operations: list[Operation] | None = merge_folder(folder) if histories else None
        recorded = [_recorded(each, evidence) for each in folders]
        if len({o.machine for o in operations or ()}) > 1:
            recorded = [_without_history(each, NO_COMMON_CLOCK) for each in recorded]
        if any(each.evidence.no_history is not None for each in recorded):
            operations = None
        if shards > 1:
            return judge_shards(recorded, operations, lambda: time.monotonic() > deadline)
        [one] = recorded
        if (folder / SUBJECT_FILE).exists():
            subject = msgspec.json.decode((folder / SUBJECT_FILE).read_bytes(), type=Subject)
            return judge_foreign(
                one.transactions,
                operations,
                one.evidence,
                one.summary,
                subject,
                lambda: time.monotonic() > deadline,
            )
        return judge(
            one.transactions,
            operations,
            one.evidence,
            one.summary,
            losses=read_lost(folders[0]),
            is_over=lambda: time.monotonic() > deadline,
        )
    except (FrameError, DecodeError, HistoryError, msgspec.DecodeError, OSError) as error:
        raise FolderError(f"{folder} cannot be judged: {error}") from error


def read_history(folder: Path) -> list[Operation]:
    """The operations of a recorded run. Raises FolderError."""
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder")
    if not list(folder.glob("history-*.msgpack")):
        raise FolderError(f"{folder} holds no history: there is no history-*.msgpack")
    try:
        return merge_folder(folder)
    except (HistoryError, OSError) as error:
        raise FolderError(f"{folder} cannot be read: {error}") from error


def _without_history(recorded: Recorded, reason: str) -> Recorded:
    known = recorded.evidence
    evidence = msgspec.structs.replace(known, no_history=known.no_history or reason)
    return msgspec.structs.replace(recorded, evidence=evidence)


def _recorded(folder: Path, evidence: Evidence | None) -> Recorded:
    ledger = folder / NAME
    known = read_evidence(folder) if evidence is None else evidence
    if not ledger.exists() and known.no_ledger is None:
        known = msgspec.structs.replace(known, no_ledger="the run recorded no ledger")
    return Recorded(lambda: read_transactions(ledger), known, read_ledger_summary(folder))
