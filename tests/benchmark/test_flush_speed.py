"""What it costs a flush that its last request before the decision goes by itself, so that the server notices a client
that falls silent there (docs/findings.md, "locks of a frozen node"): the ratio to the two pipelines that it would be,
in one run, by turns, on a unix socket."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

from engine import operation
from engine.picker import Commit, Job
from engine.sessions import connect
from tests.fixtures.node import Jobs

ROUNDS = 200


@pytest.mark.parametrize("batch", [1, 50])
def test_a_flush_whose_first_half_is_two_round_trips(
    benchmark: Any, jobs: Jobs, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    picker = jobs.picker
    sound = operation.round_trips
    took_s: dict[str, list[float]] = {"apart": [], "together": []}
    with connect(jobs.dsn, "flusher") as session:

        def flush(way: str, name: str) -> None:
            operation.perform(session, picker.insert_many([Job(fsm="f", step="s")] * batch))
            claim = picker.claim(queue="default", batch=batch, claim=name, lease_ms=60_000)
            rows = operation.perform(session, claim).rows
            outcomes = [Commit(id=row.id, claim=row.claim, kind="done", result="{}") for row in rows]
            trips = sound if way == "apart" else lambda requests, _: (range(len(requests)),)
            monkeypatch.setattr(operation, "round_trips", trips)
            began = time.perf_counter()
            ended = operation.perform(session, picker.flush(outcomes))
            took_s[way].append(time.perf_counter() - began)
            assert len(ended.holds) == batch

        def both() -> None:
            for number in range(ROUNDS):
                for way in took_s:
                    flush(way, f"{way}.{number}")

        benchmark.pedantic(both, rounds=1)
    if benchmark.stats is not None:
        medians = {way: statistics.median(times) * 1000 for way, times in took_s.items()}
        benchmark.extra_info.update({f"{way}_ms": round(median, 3) for way, median in medians.items()})
        benchmark.extra_info["ratio"] = round(medians["apart"] / medians["together"], 3)
