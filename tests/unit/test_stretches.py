"""A rate's budget while its configuration changes: each stretch is held against what was written down for it."""

from __future__ import annotations

from typing import Any

from tests.fixtures.traces import Trace


def configured(trace: Trace, process: str, rate: float, burst: float, kind: Any = "ok") -> None:
    """A process says what it is configured with, and writes it down; one that does not know whether it did, did not."""
    trace.did(process, "limits", {"limits": [["rate", "r", rate, burst, 1]]}, {})
    if kind == "ok":
        trace.rate("r", rate, burst)
    trace.did(process, "sync_config", {}, {}, kind)


def grant(trace: Trace, row: int, weight: float) -> None:
    """One admission of that weight."""
    trace.insert(row, rate_limit="r", weight=str(weight))
    trace.claim(row, name=f"a.{row}")
    trace.admit(f"a.{row}", row)


def test_a_burst_is_there_again_when_it_was_lowered_and_raised() -> None:
    # A key without rows is worth its burst, and the sweep drops one that is full by the lower burst.
    trace = Trace()
    configured(trace, "new", 0.001, 8)
    grant(trace, 1, 8)
    configured(trace, "old", 0.001, 1)
    configured(trace, "newer", 0.001, 8)
    grant(trace, 2, 8)
    judgement = trace.of("rate-budget")
    assert (judgement.verdict, judgement.checked) == ("held", 2)


def test_within_a_stretch_its_own_burst_counts_and_not_the_greatest_that_ever_was() -> None:
    trace = Trace()
    configured(trace, "old", 0.001, 8)
    grant(trace, 1, 1)
    configured(trace, "new", 0.001, 2)
    for row in (2, 3, 4):
        grant(trace, row, 1)
    judgement = trace.of("rate-budget")
    assert judgement.verdict == "violated"
    assert "granted a weight of 3" in judgement.violations[0].summary
    assert "its burst of 2" in judgement.violations[0].summary


def test_whoever_may_have_written_it_down_counts_until_somebody_surely_has() -> None:
    trace = Trace()
    configured(trace, "old", 0.001, 2)
    # Whether this one came through is unknown, and nobody says when it will have been over.
    configured(trace, "new", 0.001, 8, "info")
    for row in (1, 2, 3):
        grant(trace, row, 1)
    assert trace.of("rate-budget").verdict == "violated"  # the ledger saw one configuration alone
    trace.rate("r", 0.001, 8)
    assert trace.of("rate-budget").verdict != "violated"


def test_without_a_word_of_who_wrote_what_every_change_brings_a_burst() -> None:
    trace = Trace()
    trace.rate("r", 0.001, 4)
    grant(trace, 1, 4)
    trace.rate("r", 0.001, 2)
    grant(trace, 2, 4)
    assert trace.of("rate-budget").verdict == "held"
    grant(trace, 3, 4)
    assert trace.of("rate-budget").verdict == "violated"
