"""One time line for the histories of several machines. Pure but for `read_clocks` and `write_clocks`.

While a run goes on, the harness asks each host again and again what its monotonic clock says, and notes its own before
it asks (`sent`) and after it was told (`received`). From these samples:

1. A host's clock said `there` at some moment between `sent` and `received` of the harness's clock. Nothing is assumed
   of the ways there and back: the offset lies between `sent - there` and `received - there`.
2. Two clocks run at rates that differ by at most `MOST_DRIFT`. So a sample bounds the offset at other times as well, by
   so much more for each nanosecond in between, and what holds at a moment is what all samples leave of it.
3. An operation is placed by those bounds, outwards: its start at the earliest moment that it may have begun, its end at
   the latest at which it may have been answered. Whoever concludes from "this ended before that began" is right then,
   whatever the clocks did; what the error leaves open looks as if both had been under way at once, and nothing is
   concluded. `Operation.error_ns` is the width of the bounds, for whoever needs the latest start.
4. Samples that leave nothing contradict each other: a clock was set, a machine was suspended, or one ran faster than
   any may. Such a host has no place on the time line, and its histories keep a clock of their own.
5. Where host and harness name one machine and every answer lies between its question and its receipt, they read one
   clock, and nothing is moved.

`MOST_DRIFT` is what Linux can do: it slews a clock by at most 500 ppm, and two clocks may be slewed against each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from invariants.history.events import Clock

CLOCKS_FILE: Final = "clocks.json"
MOST_DRIFT: Final = 1e-3


class ClockError(ValueError):
    """Samples of a clock that contradict each other."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One question, in nanoseconds: `sent` and `received` of the harness's monotonic clock, `there` of the host's."""

    sent: int
    there: int
    received: int


class HostClock(msgspec.Struct, frozen=True, kw_only=True):
    """A host's: `processes` are those whose histories it timed; `machine` names whose clock it says it reads."""

    machine: str
    processes: tuple[str, ...]
    samples: tuple[Sample, ...]


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """`clocks.json`: of the harness, and of the hosts by name. `wall_offset_ns`: what makes a reading of the harness's
    monotonic clock one of its wall clock."""

    machine: str
    wall_offset_ns: int
    hosts: dict[str, HostClock]


class TimeLine:
    """Where a host's readings are on the harness's clock. Raises ClockError where nothing can be said."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        ordered = sorted(samples, key=lambda sample: sample.there)
        if not ordered:
            raise ClockError("it was never asked")
        self._at = [sample.there for sample in ordered]
        self._least = [sample.sent - sample.there for sample in ordered]
        # Upper bounds as lower bounds of what they leave, so that both are spread alike.
        self._most = [sample.there - sample.received for sample in ordered]
        for bounds in (self._least, self._most):
            _spread(self._at, bounds)
        for at, least, most in zip(self._at, self._least, self._most, strict=True):
            if least > -most:
                raise ClockError(
                    f"at {at} its clock is at least {least} ns and at most {-most} ns behind the harness's"
                )

    def earliest_ns(self, there_ns: int) -> int:
        """The first moment at which the host's clock can have said that. Later readings have later moments."""
        return there_ns + self._bound(self._least, there_ns)

    def latest_ns(self, there_ns: int) -> int:
        """The last."""
        return there_ns - self._bound(self._most, there_ns)

    @property
    def offset_ms(self) -> float:
        """What is to be added to its readings, in the middle of the bounds of the middle sample."""
        place = len(self._at) // 2
        return (self._least[place] - self._most[place]) / 2e6

    @property
    def error_ms(self) -> float:
        """Half the width of the bounds where they are widest among the samples and halfway in between."""
        halfway = [(one + other) // 2 for one, other in pairwise(self._at)]
        return max(self.latest_ns(at) - self.earliest_ns(at) for at in (*self._at, *halfway)) / 2e6

    def _bound(self, bounds: Sequence[int], at: int) -> int:
        after = bisect_right(self._at, at)
        around = range(max(0, after - 1), min(len(bounds), after + 1))
        return max(bounds[place] - _drift(at - self._at[place]) for place in around)


def _drift(apart_ns: int) -> int:
    return round(abs(apart_ns) * MOST_DRIFT)


def _spread(at: Sequence[int], bounds: list[int]) -> None:
    """Each bound is at least what its neighbours leave of theirs."""
    for place in range(1, len(bounds)):
        bounds[place] = max(bounds[place], bounds[place - 1] - _drift(at[place] - at[place - 1]))
    for place in range(len(bounds) - 2, -1, -1):
        bounds[place] = max(bounds[place], bounds[place + 1] - _drift(at[place + 1] - at[place]))


def reads_one_clock(clocks: Clocks, host: HostClock) -> bool:
    """Whether a host's clock is the harness's own; a copy of a machine may have its name."""
    return (
        host.machine == clocks.machine
        and len(host.samples) > 0
        and all(sample.sent <= sample.there <= sample.received for sample in host.samples)
    )


class Places:
    """Where the readings of each process are on the harness's clock."""

    def __init__(self, clocks: Clocks | None) -> None:
        self._clocks = clocks
        # By process; None for one that has no place. Who reads the harness's own clock is not among them.
        self._lines: dict[str, tuple[str, TimeLine | None]] = {}
        for name, host in () if clocks is None else clocks.hosts.items():
            assert clocks is not None
            if not reads_one_clock(clocks, host):
                self._lines.update(dict.fromkeys(host.processes, (name, _line(host))))

    def clock_of(self, clock: Clock) -> tuple[str, int, TimeLine | None]:
        """Of the process that began a file so: whose clock its operations are timed by in the end, what makes that the
        wall clock, and the time line that they are to be moved to, if they are."""
        name, line = self._lines.get(clock.process, ("", None))
        if name and line is None:
            return f"{name}: {clock.machine}", clock.wall_ns - clock.monotonic_ns, None
        if line is None or self._clocks is None:
            return clock.machine, clock.wall_ns - clock.monotonic_ns, None
        return self._clocks.machine, self._clocks.wall_offset_ns, line


def _line(host: HostClock) -> TimeLine | None:
    try:
        return TimeLine(host.samples)
    except ClockError:
        return None


def errors_ms(clocks: Clocks | None) -> dict[str, dict[str, float] | None]:
    """By host, what was added to its clock and how far that may be wrong; None for one that has no place."""
    found: dict[str, dict[str, float] | None] = {}
    for name, host in {} if clocks is None else clocks.hosts.items():
        assert clocks is not None
        if reads_one_clock(clocks, host):
            found[name] = {"offset_ms": 0.0, "error_ms": 0.0}
        elif (line := _line(host)) is None:
            found[name] = None
        else:
            found[name] = {"offset_ms": round(line.offset_ms, 3), "error_ms": round(line.error_ms, 3)}
    return found


def read_clocks(folder: Path) -> Clocks | None:
    """Of a run's folder; None where all was on one machine. Raises msgspec.DecodeError."""
    path = folder / CLOCKS_FILE
    return msgspec.json.decode(path.read_bytes(), type=Clocks) if path.exists() else None


def write_clocks(folder: Path, clocks: Clocks) -> None:
    """Into a run's folder."""
    (folder / CLOCKS_FILE).write_bytes(msgspec.json.encode(clocks))
