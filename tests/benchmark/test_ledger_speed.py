"""How many row changes a second one core decodes, and decodes and judges. Targets: 150,000 and 100,000 (a
bare 8-column table was decoded at 174,000; `gen_durable` has 25 columns in the stream).
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from invariants.evidence import Evidence, LedgerSummary
from invariants.history import Operation
from invariants.judge import Judge, judge
from invariants.ledger.frames import FrameWriter, read_frames, read_transactions
from invariants.ledger.pgoutput import Change, Decoder, Relation, Transaction
from tests.fixtures.pgoutput_writer import write

COLUMNS = (
    "id fsm fsm_version step state attempt result last_error status queue priority eligible_at locked_by "
    "lease_expires_at concurrency_key concurrency_shard rate_limit weight awaits await_deadline parent_id "
    "children_pending correlation_key correlation_scope inserted_at updated_at"
).split()
RELATION = Relation(16400, "public", "gen_durable", tuple(COLUMNS), (0,))
JOBS, BATCH = 6000, 50
STAMP = "2026-01-01 00:00:00.123456+00"
# Processor time: the machine's other work is not the ledger's.
pytestmark = pytest.mark.benchmark(timer=time.process_time)
FREE: dict[str, str | None] = {"locked_by": None, "lease_expires_at": None}


def row(columns: dict[str, str | None]) -> tuple[bytes | None, ...]:
    return tuple(None if (value := columns.get(name)) is None else value.encode() for name in COLUMNS)


def note_rate(benchmark: Any, changes: int) -> None:
    """The figure that the targets are about; there is none where a benchmark runs once, as a test."""
    if benchmark.stats is not None:
        benchmark.extra_info["changes_per_second"] = round(changes / benchmark.stats.stats.min)


def a_run() -> tuple[list[Transaction], list[Operation]]:
    """Every job: inserted, claimed, its lease extended, its outcome committed; a third of them keyed."""
    transactions: list[Transaction] = []
    operations: list[Operation] = []

    def commit(changes: list[Change]) -> int:
        number = len(transactions) + 1
        transactions.append(Transaction(number, number, number * 4096, 1_800_000_000_000_000, tuple(changes)))
        return number

    def did(f: str, value: Any, result: Any) -> None:
        operations.append(
            Operation("node", len(operations), f, "ok", value, result, len(operations), len(operations))
        )

    for start in range(1, JOBS, BATCH):
        rows = {n: fresh(n) for n in range(start, start + BATCH)}
        for n, columns in rows.items():
            commit([Change(RELATION, "insert", None, row(columns))])
            job: dict[str, Any] = {
                name: columns.get(name) for name in ("fsm", "queue", "concurrency_key", "correlation_key")
            }
            job |= {"priority": 0, "scope": [], "expect": {"status": "done", "result": {"n": n}}}
            did("insert", {"job": job}, {"id": n})
        claim = f"load:default@node-1-0123456789ab.{start}"
        lease = {"status": "executing", "locked_by": claim, "lease_expires_at": "2099-01-01 00:00:00+00"}
        for columns in rows.values():
            columns |= lease
        commit([Change(RELATION, "update", None, row(columns)) for columns in rows.values()])
        did(
            "claim", {"queue": "default", "batch": BATCH, "claim": claim}, {"ids": list(rows), "contended": 0}
        )
        for columns in rows.values():
            columns["lease_expires_at"] = "2099-01-01 00:00:01+00"
        holds = [[n, claim] for n in rows]
        did("heartbeat", {"holds": holds}, {"ids": list(rows)})
        commit([Change(RELATION, "update", None, row(columns)) for columns in rows.values()])
        for n, columns in rows.items():
            columns |= FREE | {"status": "done", "result": f'{{"n": {n}}}'}
        xid = commit([Change(RELATION, "update", None, row(columns)) for columns in rows.values()])
        outcomes = [[n, claim, "done"] for n in rows]
        did("flush", {"outcomes": outcomes}, {"xid": xid, "committed": [[n, claim] for n in rows]})
    return transactions, operations


def fresh(n: int) -> dict[str, str | None]:
    return {
        "id": str(n), "fsm": "order", "fsm_version": "1", "step": "charge", "state": f'{{"order": {n}}}',
        "attempt": "0", "status": "runnable", "queue": "default", "priority": "0", "eligible_at": STAMP,
        "concurrency_key": None if n % 3 else f"customer:{n}", "weight": "1", "children_pending": "0",
        "correlation_key": f"order-{n}",
        "correlation_scope": "{runnable,executing,awaiting_signal,awaiting_children}",
        "inserted_at": STAMP, "updated_at": STAMP,
    }  # fmt: skip


@pytest.fixture(scope="module")
def run() -> tuple[list[Transaction], list[Operation]]:
    return a_run()


@pytest.fixture
def ledger(run: tuple[list[Transaction], list[Operation]], tmp_path: Path) -> Path:
    path = tmp_path / "ledger.pgoutput"
    with FrameWriter(path) as writer:
        for message in write(run[0]):
            writer.append(1, message)
    return path


def test_decoding(benchmark: Any, run: tuple[list[Transaction], list[Operation]]) -> None:
    messages = write(run[0])

    def decode() -> int:
        decoder = Decoder()
        return sum(len(t.changes) for message in messages if (t := decoder.feed(message)) is not None)

    changes = benchmark(decode)
    note_rate(benchmark, changes)
    assert changes == 4 * JOBS


def test_reading_frames(benchmark: Any, ledger: Path) -> None:
    benchmark(lambda: deque(read_frames(ledger), maxlen=0))


def test_decoding_and_judging_on_line(benchmark: Any, run: tuple[list[Transaction], list[Operation]]) -> None:
    messages = write(run[0])

    def observe() -> int:
        decoder, judge_ = Decoder(), Judge()
        for message in messages:
            transaction = decoder.feed(message)
            if transaction is not None:
                judge_.observe(transaction)
        assert judge_.violations == 0
        return judge_.changes

    changes = benchmark(observe)
    note_rate(benchmark, changes)


def test_judging_a_recorded_run(
    benchmark: Any, run: tuple[list[Transaction], list[Operation]], ledger: Path
) -> None:
    evidence, summary = Evidence(at_rest=True, deadlocks=0), LedgerSummary(complete=True)
    report = benchmark(lambda: judge(lambda: read_transactions(ledger), run[1], evidence, summary))
    note_rate(benchmark, report.changes)
    assert [j for j in report.judgements if j.verdict == "violated"] == []
