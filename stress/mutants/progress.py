"""How far a long look at many things is."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_INTERVAL_S: Final = 10.0


class Bar:
    """A bar on a terminal, a plain line now and then elsewhere; on standard error."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._total, self._done = total, 0
        self._next_plain = time.monotonic() + PLAIN_INTERVAL_S
        self._progress = Progress(
            BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=self._console, transient=True, disable=not self._live,
        )  # fmt: skip
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, what: str) -> None:
        """One more is done."""
        self._done += 1
        self._progress.update(self._task, advance=1, description=what)
        if not self._live and time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_INTERVAL_S
            self._console.print(f"{self._done} of {self._total}: {what}", highlight=False, markup=False)
