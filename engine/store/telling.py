"""What the history says of a commit (`invariants/witness.py`). Pure."""

from __future__ import annotations

from typing import Literal

from engine.sessions import describe_error
from engine.store.execution import Commit, StoreConflict
from engine.values import UnstorableValue


def outcome(commit: Commit, answer: object) -> tuple[Literal["ok", "fail", "info"], dict[str, object]]:
    """How a commit ended: `answer` is the store's, or what it raised. `info`: nobody knows whether it happened."""
    match answer:
        case StoreConflict():
            return "fail", {"error": type(answer).__name__, "found": answer.found}
        case UnstorableValue():
            return "fail", {**describe_error(answer)}
        case BaseException():
            return "info", {**describe_error(answer)}
    return "ok", {"version": commit.execution.version}
