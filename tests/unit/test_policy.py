"""A policy that cannot work is refused at its bounds, and one that just can is taken."""

from __future__ import annotations

from typing import Any

import pytest

from engine.policy import (
    MAX_CONCURRENCY,
    POSITIVE,
    ZERO_ALLOWED,
    FlusherPolicy,
    NodePolicy,
    PolicyError,
    QueuePolicy,
)


def node(**changes: Any) -> NodePolicy:
    given: dict[str, Any] = {"instance": "i", "node": "n", "queues": (QueuePolicy(name="default"),)}
    return NodePolicy(**(given | changes))


@pytest.mark.parametrize(
    ("knob", "least", "most"),
    [("concurrency", 1, MAX_CONCURRENCY), ("prefetch", 0, MAX_CONCURRENCY), ("min_demand", 1, None)],
)
def test_a_queue_is_taken_at_its_bounds_and_refused_beyond_them(
    knob: str, least: int, most: int | None
) -> None:
    for value in (least, *([] if most is None else [most])):
        assert getattr(QueuePolicy(name="q", **{knob: value}), knob) == value
    for value in (least - 1, *([] if most is None else [most + 1])):
        with pytest.raises(PolicyError, match=rf"^queue 'q': {knob} .*not {value}$"):
            QueuePolicy(name="q", **{knob: value})


@pytest.mark.parametrize("knob", POSITIVE)
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_what_must_be_positive_and_finite_is(knob: str, value: float) -> None:
    with pytest.raises(PolicyError, match=rf"^{knob} must be positive and finite, not {value}$"):
        node(**{knob: value})


@pytest.mark.parametrize("knob", ZERO_ALLOWED)
def test_what_may_be_nothing_may_not_be_less_or_without_end(knob: str) -> None:
    assert getattr(node(**{knob: 0}), knob) == 0
    for value in (-0.001, float("inf"), float("nan")):
        with pytest.raises(PolicyError, match=rf"^{knob} must be zero or positive and finite, not {value}$"):
            node(**{knob: value})


def test_a_heartbeat_fits_its_lease_three_times_and_a_poll_its_longest() -> None:
    assert node(lease_ttl_ms=3.0, heartbeat_interval_ms=1.0).lease_ttl_ms == 3.0
    with pytest.raises(PolicyError, match="third"):
        node(lease_ttl_ms=3.0, heartbeat_interval_ms=1.01)
    assert node(poll_interval_ms=7.0, max_poll_interval_ms=7.0).poll_interval_ms == 7.0
    with pytest.raises(PolicyError, match="poll_interval_ms"):
        node(poll_interval_ms=7.1, max_poll_interval_ms=7.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instance": "a:b"}, "colon"),
        ({"node": "a@b"}, "at sign"),
        ({"node": "a\x00"}, "^node holds a NUL"),
        ({"instance": "a\x00"}, "^instance holds a NUL"),
        ({"instance": ""}, "instance must not be empty"),
        ({"node": ""}, "node must not be empty"),
        ({"max_sessions": 0}, "max_sessions"),
        ({"queues": ()}, "at least one queue"),
        ({"queues": (QueuePolicy(name="q"), QueuePolicy(name="q"))}, "twice"),
        ({"flushers": (FlusherPolicy(queues=("other",)),)}, "no flusher serves queue 'default'"),
    ],
)
def test_a_node_that_could_not_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        node(**changes)


def test_a_node_may_have_one_session_and_an_at_sign_in_its_instance() -> None:
    assert node(max_sessions=1, instance="a@b", node="a:b").max_sessions == 1


@pytest.mark.parametrize(
    ("knob", "value"),
    [("max_batch", 0), ("max_batch", float("inf")), ("max_delay_ms", -1), ("max_delay_ms", float("inf"))],
)
def test_a_flusher_that_could_not_work_is_refused(knob: str, value: float) -> None:
    with pytest.raises(PolicyError, match=rf"^{knob} must be .*, not {value}$"):
        FlusherPolicy(**{knob: value})  # type: ignore[arg-type]
    assert FlusherPolicy(max_batch=1, max_delay_ms=0).max_batch == 1


def test_a_flusher_of_all_queues_serves_any_and_one_of_some_those() -> None:
    assert FlusherPolicy().serves("anything")
    assert FlusherPolicy(queues=("a", "b")).serves("b")
    assert not FlusherPolicy(queues=("a", "b")).serves("ab")
    with pytest.raises(PolicyError, match="tuple"):
        FlusherPolicy(queues="a")  # type: ignore[arg-type]  # what a careless author writes


def test_a_queue_goes_through_the_first_flusher_that_serves_it() -> None:
    first, second = FlusherPolicy(queues=("a",)), FlusherPolicy()
    policy = node(queues=(QueuePolicy(name="a"), QueuePolicy(name="b")), flushers=(first, second))
    assert [policy.flusher_of(name) for name in ("a", "b")] == [0, 1]


@pytest.mark.parametrize(("min_demand", "threshold"), [(1, 1), (5, 5), (6, 5), (100, 5)])
def test_a_queue_never_waits_for_more_room_than_it_has(min_demand: int, threshold: int) -> None:
    assert (
        QueuePolicy(name="q", concurrency=2, prefetch=3, min_demand=min_demand).demand_threshold == threshold
    )
