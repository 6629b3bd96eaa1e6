"""What a run's folder holds, as far as a report needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import polars as pl
from polars.exceptions import PolarsError

from engine.errors import UsageError
from results.plans import generic
from results.plans.generic import Generic
from results.runs import Verdict, read_verdict

HISTORY: Final = "history.parquet"
DEPTHS: Final = "depths.parquet"
GAUGES: Final = "gauges.parquet"
WAITS: Final = "waits.parquet"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run. `history`: one row an operation (`invariants/history/export.py`); `depths`: how much lay where, by seconds
    since the load began; `gauges` and `waits`: what was seen now and then (`stress/gauges.py`); `plans`: the generic
    plans of its statements. Each is None where the run has none."""

    folder: Path
    verdict: Verdict
    history: pl.DataFrame | None
    depths: pl.DataFrame | None
    gauges: pl.DataFrame | None
    waits: pl.DataFrame | None
    plans: Generic | None

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.resolve().name


def read(folder: Path) -> Recorded:
    """Raises UsageError where the folder is no run that has ended, or one of its files cannot be read."""
    verdict = verdict_of(folder)
    history, depths, gauges, waits = (_frame(folder / name) for name in (HISTORY, DEPTHS, GAUGES, WAITS))
    return Recorded(folder, verdict, history, depths, gauges, waits, generic.read(folder))


def verdict_of(folder: Path) -> Verdict:
    """Of a run. Raises UsageError as `read` does."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    try:
        return read_verdict(folder)
    except FileNotFoundError:
        raise UsageError(
            f"{folder} holds no verdict.json: it is no run, or one that did not end; "
            "`nox -s check -- FOLDER` judges what there is"
        ) from None
    except (msgspec.DecodeError, OSError) as error:
        raise UsageError(f"{folder / 'verdict.json'} cannot be read: {error}") from None


def _frame(path: Path) -> pl.DataFrame | None:
    if not path.exists():
        return None
    try:
        return pl.read_parquet(path)
    except (PolarsError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
