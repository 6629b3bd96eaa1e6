"""Operations: invokes paired with their completions, of all processes, in the order in which they began."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from invariants.history.clocks import CLOCKS_FILE, Places, TimeLine, read_clocks
from invariants.history.events import Clock, Event, HistoryError, read_events

# All was recorded by one clock, or no more is known.
HERE: Final = Places(None)


class Operation(msgspec.Struct, frozen=True):
    """What one process did: `value` as invoked, `result` as completed.

    `type` is `info` and `end_ns` None where no completion was recorded. `wall_offset_ns` turns the process's
    clock into the wall clock of its machine: wall = monotonic + offset. `machine`: whose monotonic clock it is.

    Of another host it begins at the earliest and ends at the latest moment that its clock leaves open
    (`invariants/history/clocks.py`); `error_ns` is how far apart the two moments are that its start may have had.
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
    error_ns: int = 0

    @property
    def took_ns(self) -> int | None:
        """How long it took, without what its clock leaves open; None for one that never completed."""
        return None if self.end_ns is None else max(0, self.end_ns - self.start_ns - self.error_ns)

    @property
    def latency_ms(self) -> float | None:
        """The same in milliseconds."""
        return None if self.took_ns is None else self.took_ns / 1e6

    @property
    def latest_start_ns(self) -> int:
        """The last moment at which it may have begun."""
        return self.start_ns + self.error_ns

    @property
    def begun_us(self) -> int:
        """When it began, on its machine's wall clock, in microseconds since the epoch."""
        return (self.start_ns + self.wall_offset_ns) // 1_000

    def describe(self) -> str:
        """One line for a person."""
        return f"{self.process} {self.f} {_brief(self.value)} → {self.type} {_brief(self.result)}"


def merge_folder(folder: Path) -> list[Operation]:
    """The operations of every `history-*.msgpack` of a run's folder, those of other hosts on its time line. Raises
    HistoryError."""
    try:
        clocks = read_clocks(folder)
    except msgspec.DecodeError as error:
        raise HistoryError(f"{folder / CLOCKS_FILE} cannot be read: {error}") from None
    return merge(sorted(folder.glob("history-*.msgpack")), Places(clocks))


def merge(files: Iterable[Path], places: Places = HERE) -> list[Operation]:
    """The operations of all files, sorted by start. Raises HistoryError for a file that contradicts
    itself."""
    operations: list[Operation] = []
    for path in files:
        clock, events = read_events(path)
        operations.extend(pair(events, clock, places))
    operations.sort(key=lambda operation: (operation.start_ns, operation.process, operation.index))
    return operations


def pair(events: Iterable[Event], clock: Clock | None = None, places: Places = HERE) -> list[Operation]:
    """One process's events as operations. Raises HistoryError for a completion without its invoke."""
    machine, offset, line = ("", 0, None) if clock is None else places.clock_of(clock)
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
    return operations if line is None else [_moved(operation, line) for operation in operations]


def _moved(o: Operation, line: TimeLine) -> Operation:
    start_ns = line.earliest_ns(o.start_ns)
    return msgspec.structs.replace(
        o,
        start_ns=start_ns,
        end_ns=None if o.end_ns is None else line.latest_ns(o.end_ns),
        error_ns=line.latest_ns(o.start_ns) - start_ns,
    )


def _brief(value: object, limit: int = 160) -> str:
    text = "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
