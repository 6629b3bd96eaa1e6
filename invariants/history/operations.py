"""Operations: invokes paired with their completions, of all processes, in the order in which they began."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from invariants.history.events import Clock, Event, HistoryError, read_events


class Operation(msgspec.Struct, frozen=True):
    """What one process did: `value` as invoked, `result` as completed.

    `type` is `info` and `end_ns` None where no completion was recorded. `wall_offset_ns` turns the process's
    clock into the wall clock of its machine: wall = monotonic + offset. `machine`: whose monotonic clock it is.
    """

    process: str
    index: int
    f: str
    type: Literal["ok", "fail", "info"]
    value: Any
    result: Any
    start_ns: int
    end_ns: int | None
    wall_offset_ns: int = 0
    machine: str = ""

    @property
    def latency_ms(self) -> float | None:
        """How long it took; None for one that never completed."""
        return None if self.end_ns is None else (self.end_ns - self.start_ns) / 1e6

    @property
    def begun_us(self) -> int:
        """When it began, on its machine's wall clock, in microseconds since the epoch."""
        return (self.start_ns + self.wall_offset_ns) // 1_000

    def describe(self) -> str:
        """One line for a person."""
        return f"{self.process} {self.f} {_brief(self.value)} → {self.type} {_brief(self.result)}"


def merge_folder(folder: Path) -> list[Operation]:
    """The operations of every `history-*.msgpack` of a run's folder."""
    return merge(sorted(folder.glob("history-*.msgpack")))


def merge(files: Iterable[Path]) -> list[Operation]:
    """The operations of all files, sorted by start. Raises HistoryError for a file that contradicts
    itself."""
    operations: list[Operation] = []
    for path in files:
        clock, events = read_events(path)
        operations.extend(pair(events, clock))
    operations.sort(key=lambda operation: (operation.start_ns, operation.process, operation.index))
    return operations


def pair(events: Iterable[Event], clock: Clock | None = None) -> list[Operation]:
    """One process's events as operations. Raises HistoryError for a completion without its invoke."""
    offset = 0 if clock is None else clock.wall_ns - clock.monotonic_ns
    machine = "" if clock is None else clock.machine
    pending: dict[int, Event] = {}
    operations: list[Operation] = []
    for event in events:
        if event.type == "invoke":
            pending[event.index] = event
        elif event.f == "count":
            operations.append(
                Operation(
                    event.process,
                    event.index,
                    "count",
                    "ok",
                    event.value,
                    None,
                    event.time_ns,
                    event.time_ns,
                    offset,
                    machine,
                )
            )
        else:
            begun = pending.pop(event.index, None)
            if begun is None:
                raise HistoryError(
                    f"{event.process}: operation {event.index} ({event.f}) ended, but never began"
                )
            operations.append(
                Operation(
                    event.process, event.index, event.f, event.type, begun.value, event.value,
                    begun.time_ns, event.time_ns, offset, machine,
                )
            )  # fmt: skip
    operations.extend(
        Operation(
            event.process,
            event.index,
            event.f,
            "info",
            event.value,
            None,
            event.time_ns,
            None,
            offset,
            machine,
        )
        for event in pending.values()
    )
    return operations


def _brief(value: object, limit: int = 160) -> str:
    text = "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
