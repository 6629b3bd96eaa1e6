"""Steps of a relay, written once and driven by code that blocks and by code that awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from engine.observer import Observer
from engine.sessions import describe_error

# Calls of an asynchronous relay that are under way at once.
AT_ONCE = 4

T = TypeVar("T")
Call: TypeAlias = Callable[[], Any]
# What a relay does: it yields a call of the store or the transport and is sent the answer, or several whose order does
# not matter, and is sent their answers and errors.
Steps: TypeAlias = Generator[Call | Sequence[Call], Any, T]


def checked(answers: list[Any], *accepted: type[Exception]) -> list[Any]:
    """The answers to several calls. Raises the first error that is none of the accepted."""
    for each in answers:
        if isinstance(each, Exception) and not isinstance(each, accepted):
            raise each
    return answers


def told(
    observer: Observer, name: str, value: object, steps: Steps[T], report: Callable[[T], object]
) -> Steps[T]:
    """The steps, with the observer told when they begin and how they end."""
    token = observer.invoke(name, value)
    try:
        answer = yield from steps
    except Exception as error:
        observer.complete(token, "info", describe_error(error))
        raise
    observer.complete(token, "ok", report(answer))
    return answer


def drive(steps: Steps[T]) -> T:
    """Take the steps, one call after the other. Raises what they do not handle."""

    def tried(call: Call) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001  # the steps look at it
            return error

    try:
        act = next(steps)
        while True:
            if not callable(act):
                act = steps.send([tried(call) for call in act])
                continue
            try:
                answer = act()
            except Exception as error:  # noqa: BLE001  # raised again where the steps handle it
                act = steps.throw(error)
            else:
                act = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def drive_async(steps: Steps[T]) -> T:
    """The asynchronous twin of `drive`."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def tried(call: Call) -> Any:
        async with turns:
            try:
                return await call()
            except Exception as error:  # noqa: BLE001  # the steps look at it
                return error

    try:
        act = next(steps)
        while True:
            if not callable(act):
                act = steps.send(await asyncio.gather(*map(tried, act)))
                continue
            try:
                answer = await act()
            except Exception as error:  # noqa: BLE001  # raised again where the steps handle it
                act = steps.throw(error)
            else:
                act = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
