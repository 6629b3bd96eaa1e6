"""What a person sees while a run goes on: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run at a moment. Counts are totals since its start; `waiting` is rows not terminal."""

    phase: str
    seconds: float
    of_seconds: float
    nodes: int
    of_nodes: int
    faults: tuple[str, ...]
    requests: int
    waiting: int
    transactions: int
    violations: int

    def line(self) -> str:
        """The state in one line."""
        faults = ", ".join(self.faults) or "none"
        violations = f" · {self.violations} violations" if self.violations else ""
        return (
            f"{self.phase} {self.seconds:.0f}/{self.of_seconds:.0f} s · nodes {self.nodes}/{self.of_nodes} · "
            f"faults {faults} · calls {self.requests:,} · waiting {self.waiting:,} · "
            f"transactions {self.transactions:,}{violations}"
        )


class Display:
    """Shows snapshots on standard error. Quiet shows nothing. Without `lines` snapshots show on a terminal only."""

    def __init__(self, *, quiet: bool, lines: bool = True) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._lines = lines
        self._next_plain = 0.0
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._progress.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """The latest state."""
        if self._live:
            self._progress.update(
                self._task,
                description=snapshot.line(),
                completed=snapshot.seconds,
                total=max(snapshot.of_seconds, 0.001),
            )
        elif self._lines and time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_INTERVAL_S
            self.say(snapshot.line())
