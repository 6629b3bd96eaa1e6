"""The script machine ends as `expected_end` says, however its steps are repeated by retries."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from engine.machine import Done, Next, Outcome, Retry, Step, Stop
from engine.picker import Hold
from engine.scheduler import to_commit
from engine.values import UnstorableValue
from stress.scenarios.mixed import SCRIPTS
from stress.scenarios.script import Script, ScriptFailure, expected_end, initial_state

words = st.lists(st.sampled_from(["next", "sleep:0", "retry:1", "retry:3"]), max_size=6)
ends = st.sampled_from(["done", "stop", "raise", "unstorable"])


def run(script: list[str]) -> tuple[str, object]:
    """Play the machine as a node would, without a node."""
    machine, name, attempt, state = Script(), "odd", 0, initial_state(script)
    while True:
        step = Step(1, "script", 1, name, attempt, "default", None, state)
        try:
            outcome: Outcome = asyncio.run(machine.steps()[name](step))  # type: ignore[arg-type]
            to_commit(Hold(1, "c"), outcome)
        except (ScriptFailure, UnstorableValue):
            return "failed", None
        match outcome:
            case Next():
                name, attempt, state = outcome.step, 0, dict(outcome.state or {})
            case Retry():
                attempt += 1
            case Done(result):
                return "done", result
            case Stop():
                return "failed", None


@given(words, ends)
def test_a_script_ends_as_expected(before: list[str], end: str) -> None:
    assert run([*before, end]) == expected_end([*before, end])


def test_the_shares_of_the_mixed_scenario_add_up_to_one() -> None:
    assert round(sum(share for share, _ in SCRIPTS), 9) == 1
