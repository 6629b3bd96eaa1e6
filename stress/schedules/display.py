"""An exploration for a terminal: progress while it runs, a table of races at the end, failing schedules."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from invariants.render import STYLES, print_verdict
from stress.schedules.explore import Exploration, Tally

PLAIN_INTERVAL_S = 10.0
PAIR = "pair:"


class ProgressDisplay:
    """A bar on a terminal, a plain line now and then elsewhere; on standard error. Quiet shows nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._next_plain = time.monotonic() + PLAIN_INTERVAL_S
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._task = self._progress.add_task("starting", total=1.0)

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._progress.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def show(self, exploration: Exploration) -> None:
        """How far it is: the bar is that of whichever limit comes first."""
        request = exploration.request
        begun = sum(1 for tally in exploration.tallies.values() if tally.runs)
        failed = sum(1 for tally in exploration.tallies.values() if tally.failure is not None)
        line = (
            f"{exploration.runs:,} schedules · {exploration.rate:,.0f}/s · {begun} of {len(exploration.tallies)} races"
            + (f" · {failed} failed" if failed else "")
        )
        done = max(exploration.runs / request.schedules, exploration.seconds / request.seconds)
        if self._live:
            self._progress.update(self._task, description=line, completed=min(1.0, done))
        elif time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_INTERVAL_S
            self.say(line)


def print_exploration(console: Console, exploration: Exploration) -> None:
    """The summary, what failed, and the verdict."""
    console.print(_table(exploration))
    for tally in exploration.tallies.values():
        if tally.failure is not None:
            print_failure(console, tally)
    console.print(
        f"{exploration.runs:,} schedules in {exploration.seconds:.1f} s, {exploration.rate:,.0f} a second",
        highlight=False,
    )
    reasons = [f"{t.name}: {t.reason}" for t in exploration.tallies.values() if t.verdict == "unknown"]
    reason = "interrupted" if exploration.interrupted else "; ".join(reasons[:3]) or None
    print_verdict(console, exploration.verdict, reason if exploration.verdict == "unknown" else None)


def _table(exploration: Exploration) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("race", "verdict", "schedules", "left out", "orders", "searched", "blocked"):
        left = heading in ("race", "verdict", "searched")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    held: list[Tally] = []
    for tally in exploration.tallies.values():
        if tally.name.startswith(PAIR) and tally.verdict == "held" and len(exploration.tallies) > 20:
            held.append(tally)
        else:
            table.add_row(*_cells(tally.name, [tally]))
    if held:
        table.add_row(*_cells(f"{len(held)} pairs of operations", held))
    return table


def _cells(name: str, tallies: Sequence[Tally]) -> tuple[str | Text, ...]:
    verdict = tallies[0].verdict
    exhausted = sum(tally.exhausted for tally in tallies)
    sampled = sum(tally.sampled for tally in tallies)
    how = ([f"{exhausted} whole"] if exhausted else []) + ([f"{sampled} sampled"] if sampled else [])
    return (
        name,
        Text(verdict, STYLES[verdict]),
        f"{sum(tally.runs for tally in tallies):,}",
        f"{sum(tally.pruned for tally in tallies):,}",
        f"{sum(tally.orders for tally in tallies):,}",
        ", ".join(how) or "in part",
        f"{sum(tally.blocked for tally in tallies):,}",
    )


def print_failure(console: Console, tally: Tally) -> None:
    """The smallest schedule that was found, as a table, and why."""
    failure = tally.failure
    assert failure is not None
    schedule = failure.schedule
    assert schedule is not None
    mutant = "" if schedule.mutant is None else f", mutant {schedule.mutant}"
    what = ", ".join(schedule.violated) if failure.confirmed else "not under control"
    console.print(
        Text.assemble((f"{tally.name}", "bold"), f" ({schedule.planner} plans{mutant}): ", (what, "red"))
    )
    print_schedule(console, failure.sessions, failure.rows, failure.reasons, schedule.summaries)


def print_schedule(
    console: Console,
    sessions: Sequence[str],
    rows: Sequence[Sequence[str]],
    reasons: Sequence[str],
    summaries: Sequence[str],
) -> None:
    """One column per session, then prose."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", justify="right")
    for name in sessions:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for sentence in (*reasons, *summaries):
        console.print(Text(f"  {sentence}"), soft_wrap=True)
    console.print()
