"""How many messages a second one client moves on one server: one by one, and in batches. The ratio counts: batches pay
the round trip and the commit once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from engine.transport import PostgresTransport

MESSAGES, GROUPS, BATCH = 600, 150, 100


@pytest.fixture
def transport(database: str) -> Iterator[PostgresTransport]:
    with PostgresTransport.from_dsn(database) as transport:
        yield transport


def fill(transport: PostgresTransport) -> None:
    transport.publish_many((f"g{n % GROUPS}", f"e{n}") for n in range(MESSAGES))


def one_by_one(transport: PostgresTransport) -> None:
    while (message := transport.claim()) is not None:
        assert transport.ack(message.group_id, message.seq, message.token)


def in_batches(transport: PostgresTransport) -> None:
    while messages := transport.claim_many(BATCH):
        assert all(transport.ack_many(messages))


def test_publish_many(transport: PostgresTransport, benchmark: Callable[..., object]) -> None:
    benchmark(fill, transport)


@pytest.mark.parametrize("drain", [one_by_one, in_batches])
def test_claim_and_ack(
    transport: PostgresTransport, benchmark: object, drain: Callable[[PostgresTransport], None]
) -> None:
    benchmark.pedantic(drain, (transport,), setup=lambda: fill(transport), rounds=3)  # type: ignore[attr-defined]
    assert transport.depth() == 0


def test_a_batch_of_a_hundred_is_at_least_twice_as_fast(
    transport: PostgresTransport, benchmark: object
) -> None:
    """In one run, in turns, the better of three each: what else the machine does falls on both."""
    best = {one_by_one: float("inf"), in_batches: float("inf")}
    for _ in range(3):
        for drain in best:
            fill(transport)
            began = time.perf_counter()
            drain(transport)
            best[drain] = min(best[drain], time.perf_counter() - began)
    benchmark.extra_info["ratio"] = round(best[one_by_one] / best[in_batches], 1)  # type: ignore[attr-defined]
    benchmark.pedantic(lambda: None, rounds=1)  # type: ignore[attr-defined]
    assert best[one_by_one] > 2 * best[in_batches]
