"""A process whose clock is wrong: what Python's own functions say of the time of day is off by so many seconds.

The monotonic clock runs as it did, as it does on a machine whose date was set. C code that asks the system itself is
not told.
"""

from __future__ import annotations

import datetime
import sys
import time
from typing import Any, Self

from typing_extensions import override

_true_time, _true_time_ns, _true_datetime = time.time, time.time_ns, datetime.datetime
_offset_s = [0.0]


class _AnyDatetime(type):
    """An instant is an instant, whichever of the two classes made it."""

    @override
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _true_datetime)


class OffDatetime(datetime.datetime, metaclass=_AnyDatetime):
    """What `now` and its kin answer is off; everything else is as it was."""

    @override
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(off_time(), tz)

    @override
    @classmethod
    def today(cls) -> Self:
        return cls.fromtimestamp(off_time())

    @override
    @classmethod
    def utcnow(cls) -> Self:
        return cls.fromtimestamp(off_time(), datetime.UTC).replace(tzinfo=None)


def off_time() -> float:
    """In the place of `time.time`."""
    return _true_time() + _offset_s[0]


def off_time_ns() -> int:
    """In the place of `time.time_ns`."""
    return _true_time_ns() + round(_offset_s[0] * 1_000_000_000)


def set_clock_off(offset_s: float) -> None:
    """From now on, in every module that is loaded, for the rest of the process. Zero changes nothing."""
    if offset_s == 0:
        return
    _offset_s[0] = offset_s
    off: tuple[tuple[Any, Any], ...] = (
        (_true_time, off_time), (_true_time_ns, off_time_ns), (_true_datetime, OffDatetime),
    )  # fmt: skip
    for module in list(sys.modules.values()):
        if module is sys.modules[__name__]:
            continue
        # What others have imported by name is a name of their own.
        for name, value in list(getattr(module, "__dict__", {}).items()):
            for true, wrong in off:
                if value is true:
                    setattr(module, name, wrong)
