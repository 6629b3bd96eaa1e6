"""A machine that follows a script in its own state, and the function that tells how the script must end.

The state is `{"script": [...], "sum": int}`. Each step takes the head of the script:

    "next"          go on; folds its position into the sum
    "sleep:MS"      like next, after MS milliseconds
    "key:K"         like next, and from there on under concurrency key K; "key:" drops the key
    "rate:W:L"      like next, and the next step asks weight W of rate limit L
    "retry:N"       ask for a retry until the attempt count has reached N, then go on
    "done"          end with the sum as result
    "stop"          fail
    "raise"         raise, which the default handler turns into a failure
    "unstorable"    return a result that Postgres cannot hold, which must become a failure of this job alone

The result depends on every step having taken effect exactly once: an outcome lost, repeated or taken from another
execution changes the sum.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from engine.machine import Done, Machine, Next, Outcome, Retry, Step, Stop

MODULUS = 2**31 - 1
RETRY_DELAY_MS = 20.0


class ScriptFailure(Exception):
    """What the script's `raise` raises."""


def initial_state(script: Sequence[str]) -> dict[str, Any]:
    """The state of a job that is to follow this script."""
    return {"script": list(script), "sum": 1}


def expected_end(script: Sequence[str]) -> tuple[str, Any]:
    """Terminal status and result of a script."""
    total = 1
    for position, word in enumerate(script):
        match word.partition(":")[0]:
            case "done":
                return "done", {"sum": total}
            case "stop" | "raise" | "unstorable":
                return "failed", None
            case _:
                total = _fold(total, len(script) - position)
    raise ValueError("a script must end with done, stop, raise or unstorable")


def _fold(total: int, remaining: int) -> int:
    return (total * 31 + remaining) % MODULUS


def _advance(step: Step) -> Next:
    script: list[str] = step.state["script"]
    following = "even" if step.name == "odd" else "odd"
    state = {"script": script[1:], "sum": _fold(step.state["sum"], len(script))}
    word, _, argument = script[0].partition(":")
    match word:
        case "key":
            return Next(following, state, concurrency_key=argument or None)
        case "rate":
            weight, _, limit = argument.partition(":")
            return Next(following, state, rate_limit=limit, weight=float(weight))
        case _:
            return Next(following, state)


def _decide(step: Step) -> Outcome:
    word, _, argument = step.state["script"][0].partition(":")
    match word:
        case "retry" if step.attempt < int(argument):
            return Retry(RETRY_DELAY_MS, f"attempt {step.attempt}")
        case "done":
            return Done({"sum": step.state["sum"]})
        case "stop":
            return Stop("the script says stop")
        case "raise":
            raise ScriptFailure("the script says raise")
        case "unstorable":
            return Done("\x00")
        case _:
            return _advance(step)


def _sleep_s(step: Step) -> float:
    word, _, argument = step.state["script"][0].partition(":")
    return float(argument) / 1000 if word == "sleep" else 0.0


class Script(Machine):
    """The script with asynchronous steps, which run in the node's loop."""

    name = "script"

    async def odd(self, step: Step) -> Outcome:
        """One word of the script."""
        if (pause_s := _sleep_s(step)) > 0:
            await asyncio.sleep(pause_s)
        return _decide(step)

    async def even(self, step: Step) -> Outcome:
        """One word of the script."""
        return await self.odd(step)


class ThreadedScript(Machine):
    """The script with synchronous steps, which run in the node's threads."""

    name = "threaded_script"

    def odd(self, step: Step) -> Outcome:
        """One word of the script."""
        if (pause_s := _sleep_s(step)) > 0:
            time.sleep(pause_s)
        return _decide(step)

    def even(self, step: Step) -> Outcome:
        """One word of the script."""
        return self.odd(step)


class InlineScript(Script):
    """The script, each of whose steps follows the one before under the same claim where its key allows it."""

    name = "inline_script"
    inline_execution = True
