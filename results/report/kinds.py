"""What a folder below `results/runs` is: told by what lies in it, and by the keys of its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from engine.errors import UsageError

Kind = Literal["run", "exploration", "mutants", "ablation", "soak", "ci", "plans", "benchmark"]
VERDICT: Final = "verdict.json"
# The file that makes a folder what it is, where that is not a verdict.
FILES: Final[Mapping[str, Kind]] = {"ablation.json": "ablation", "bench.json": "benchmark"}
# Keys of a verdict that no other kind has, asked in this order.
KEYS: Final[Mapping[str, Kind]] = {
    "races": "exploration",
    "mutants": "mutants",
    "rounds": "soak",
    "parts": "ci",
    "servers": "plans",
    "throughput": "run",
}


def read(path: Path) -> dict[str, Any]:
    """A file's object. Raises UsageError where it cannot be read or is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def kind_of(folder: Path) -> Kind | None:
    """None where the folder is nothing of ours, or not finished. Raises UsageError where its verdict cannot be read."""
    for name, kind in FILES.items():
        if (folder / name).is_file():
            return kind
    if not (folder / VERDICT).is_file():
        return None
    verdict = read(folder / VERDICT)
    return next((kind for key, kind in KEYS.items() if key in verdict), None)
