"""What can be configured, and what is refused with a sentence that names it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.limiter import Gate, InvalidLimit, Limit, PostgresLimiter, RateLimit, check_job
from engine.picker import Job
from engine.values import UnstorableValue

NOT_POSITIVE_NUMBERS: tuple[Any, ...] = (
    0, 0.0, -1, -0.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1e300, 10**400, True, None, "1",
)  # fmt: skip
NOT_COUNTS: tuple[Any, ...] = (0, -1, 1.0, 1.5, True, None, "1", float("nan"), 2**31, 10**30)
NOT_NAMES: tuple[Any, ...] = ("", ":", "a:b", "a:", None, 1, b"a", "\x00", "\ud800", "x" * 2_001)


@pytest.mark.parametrize("value", NOT_POSITIVE_NUMBERS)
@pytest.mark.parametrize("field", ["rate", "burst"])
def test_a_rate_and_a_burst_are_positive_and_of_sane_size(field: str, value: Any) -> None:
    with pytest.raises(InvalidLimit, match=f"'mail': {field} must be"):
        RateLimit(**{"name": "mail", "rate": 1, "burst": 1, field: value})


@pytest.mark.parametrize("value", NOT_COUNTS)
@pytest.mark.parametrize("field", ["capacity", "shards"])
def test_a_gate_has_whole_slots_and_shards(field: str, value: Any) -> None:
    with pytest.raises(InvalidLimit, match=f"'mail': {field} must be"):
        Gate(**{"name": "mail", "capacity": 9, "shards": 3, field: value})


@pytest.mark.parametrize("value", NOT_COUNTS)
def test_a_rate_limit_has_whole_shards(value: Any) -> None:
    with pytest.raises(InvalidLimit, match="'mail': shards must be"):
        RateLimit("mail", 1, 1, value)


@pytest.mark.parametrize("name", NOT_NAMES)
def test_a_name_is_text_without_a_colon_that_an_index_can_hold(name: Any) -> None:
    with pytest.raises(InvalidLimit):
        Gate(name, 1)
    with pytest.raises(InvalidLimit):
        RateLimit(name, 1, 1)


def test_a_gate_has_no_more_shards_than_slots() -> None:
    assert Gate("g", 8, 8).shards == 8
    with pytest.raises(InvalidLimit, match="shards must be at most the capacity, 7, not 8"):
        Gate("g", 7, 8)


def test_a_burst_that_takes_a_century_to_fill_is_refused() -> None:
    assert RateLimit("r", rate=1e-9, burst=3).shards == 1
    with pytest.raises(InvalidLimit, match="hundred years"):
        RateLimit("r", rate=1e-9, burst=4)


@pytest.mark.parametrize(
    "limits", [(Gate("a", 1), Gate("a", 2)), (RateLimit("a", 1, 1), RateLimit("a", 1, 1))]
)
def test_a_name_is_configured_once_a_kind(limits: tuple[Limit, ...]) -> None:
    with pytest.raises(InvalidLimit, match="'a' is configured twice"):
        PostgresLimiter(limits)
    assert PostgresLimiter((Gate("a", 1), RateLimit("a", 1, 1))).gates == ("a",)


def job(rate_limit: str | None, weight: float = 1.0) -> Job:
    return Job(fsm="mailer", step="send", rate_limit=rate_limit, weight=weight)


def test_a_job_whose_limit_could_never_let_it_start_is_named_in_the_error() -> None:
    limits = (RateLimit("mail", 1, 2.5), Gate("gate", 1))
    for fine in (job(None, 99), job("mail", 2.5), job("mail:x:y", 2.5), job("mail:")):
        check_job(fine, limits)
    with pytest.raises(
        UnstorableValue, match=r"'mailer' at step 'send' has weight 2.6, above the burst of 2.5"
    ):
        check_job(job("mail:x", 2.6), limits)
    with pytest.raises(UnstorableValue, match="'send' asks for rate limit 'gate'; configured are: mail"):
        check_job(job("gate"), limits)
    with pytest.raises(UnstorableValue, match="configured are: none"):
        check_job(job(""), ())
    with pytest.raises(UnstorableValue, match="at most 2000"):
        check_job(job("mail:" + "x" * 2_000), limits)
