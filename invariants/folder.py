"""A run's folder, judged: where the pure judge meets the files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from engine.errors import UsageError
from invariants.evidence import Evidence, read_evidence, read_ledger_summary
from invariants.history.events import HistoryError
from invariants.history.operations import Operation, merge_folder
from invariants.judge import judge
from invariants.ledger.frames import NAME, FrameError, read_transactions
from invariants.ledger.pgoutput import DecodeError, Transaction
from invariants.verdict import Report


class FolderError(UsageError):
    """A folder that holds no run, or a file of it that cannot be read; one sentence."""


def judge_folder(folder: Path, evidence: Evidence | None = None) -> Report:
    """Judge a recorded run. `evidence` overrides what `run.json` says. Raises FolderError."""
    ledger = folder / NAME
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder")
    histories = sorted(folder.glob("history-*.msgpack"))
    if not ledger.exists() and not histories:
        raise FolderError(f"{folder} holds no run: neither {NAME} nor a history-*.msgpack")
    try:
        known = read_evidence(folder) if evidence is None else evidence
        if not ledger.exists() and known.no_ledger is None:
            known = msgspec.structs.replace(known, no_ledger="the run recorded no ledger")
        operations: list[Operation] | None = merge_folder(folder) if histories else None

        def transactions() -> Iterable[Transaction]:
            return read_transactions(ledger)

        return judge(transactions, operations, known, read_ledger_summary(folder))
    except (FrameError, DecodeError, HistoryError, msgspec.DecodeError, OSError) as error:
        raise FolderError(f"{folder} cannot be judged: {error}") from error
