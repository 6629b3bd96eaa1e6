"""How many row changes a second one core decodes and judges in a store's ledger: commits with all their effects, the
relay's work, and the transport's. Target: 50,000, as many as a server of this size makes in its busiest seconds.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from invariants.judge import Judge, judge
from invariants.ledger.pgoutput import Decoder
from tests.fixtures.pgoutput_writer import write
from tests.fixtures.store_traces import AT_REST, COMPLETE, StoreTrace

EXECUTIONS, STEPS = 400, 4
# Processor time: the machine's other work is not the ledger's.
pytestmark = pytest.mark.benchmark(timer=time.process_time)


def a_run() -> StoreTrace:
    """Each execution is told something, takes a step with every kind of effect, and tells the next one."""
    trace = StoreTrace()
    for step in range(STEPS):
        for number in range(EXECUTIONS):
            name, event = f"execution-{number:032}", f"event-{step}-{number}"
            seq = trace.publish(name, event)
            trace.claim(name, f"token-{step}-{number}", seq)
            seqs = trace.commit(
                name, step + 1, event=event, emits=[(f"other-{number}", f"e-{step}-{number}")],
                arm=[("wait", 1.0 + step)], trace=step,
            )  # fmt: skip
            trace.ack(name, f"token-{step}-{number}", seq)
            other = trace.publish(f"other-{number}", f"e-{step}-{number}")
            trace.delivered(*seqs)
            trace.claim(f"other-{number}", f"token-{step}-{number}-2", other)
            trace.ack(f"other-{number}", f"token-{step}-{number}-2", other)
    return trace


@pytest.fixture(scope="module")
def run() -> StoreTrace:
    return a_run()


def note_rate(benchmark: Any, changes: int) -> None:
    """The figure that the target is about; there is none where a benchmark runs once, as a test."""
    if benchmark.stats is not None:
        benchmark.extra_info["changes_per_second"] = round(changes / benchmark.stats.stats.min)


def test_decoding_and_judging_on_line(benchmark: Any, run: StoreTrace) -> None:
    messages = write(run.transactions)

    def observe() -> int:
        decoder, judge_ = Decoder(), Judge()
        for message in messages:
            transaction = decoder.feed(message)
            if transaction is not None:
                judge_.observe(transaction)
        assert judge_.violations == 0
        return judge_.changes

    note_rate(benchmark, benchmark(observe))


def test_judging_with_a_history(benchmark: Any, run: StoreTrace) -> None:
    report = benchmark(lambda: judge(lambda: run.transactions, run.operations, AT_REST, COMPLETE))
    note_rate(benchmark, report.changes)
    assert [j for j in report.judgements if j.verdict == "violated"] == []
